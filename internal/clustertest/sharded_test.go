package clustertest

import (
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// A filter in shards over the whole cluster, one of whose primaries loses its
// replica: changes say so for the shards of that one, and are made on all.
func TestShardedWaits(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb := c.Client(t, replicaClients["RouteRandomly"])
	keys := bloom.ShardKeys("orders", 6)
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		var backends []bloom.Backend
		for _, key := range keys {
			backends = append(backends, bloom.NewBitmap(rdb, layout.String()+key))
		}
		cfg := bloom.Config{Capacity: 6000, Layout: layout, ReplicaReads: true, WaitReplicas: 1, WaitTimeout: longWait,
			HashKey: []byte("sixteen bytes...")}
		patient, err := bloom.New(bloom.NewSharded(backends...), cfg)
		require.NoError(t, err)
		f := patient
		require.NoError(t, f.CreateEmpty(t.Context()))
		items := numbered("item", 600)
		_, err = f.AddMulti(t.Context(), items)
		require.NoError(t, err)
		requireMembers(t, f, items) // each replica has them, since their adds waited
		plain, err := bloom.New(bloom.NewSharded(backends...), bloom.Config{ReplicaReads: true, HashKey: cfg.HashKey})
		require.NoError(t, err)
		requireMembers(t, plain, items)

		cut := c.Replica(t, layout.String()+keys[0])
		cut.CutOff(t)
		cfg.WaitTimeout = waitTimeout
		f, err = bloom.New(bloom.NewSharded(backends...), cfg)
		require.NoError(t, err)
		const short = "reached 0 of 1 replicas"
		more := numbered("more", 600)
		_, err = f.AddMulti(t.Context(), more)
		require.ErrorContains(t, err, short)
		began := time.Now()
		report, err := f.Rebuild(t.Context(), source(append(more, items...)), &bloom.RebuildOptions{Settle: -1})
		require.ErrorContains(t, err, short)
		require.Less(t, time.Since(began), 10*time.Second)
		require.EqualValues(t, 2, report.Generation)
		require.ErrorContains(t, f.Reset(t.Context()), short)
		info, err := f.Info(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 3, info.Generation, "all shards were reset")
		require.ErrorContains(t, f.Drop(t.Context()), short)
		require.ErrorIs(t, f.Ready(t.Context()), bloom.ErrNotReady)
		require.ErrorContains(t, f.CreateEmpty(t.Context()), short)
		require.NoError(t, f.CreateEmpty(t.Context()), "it attaches")

		cut.Reattach(t)
		f = patient
		_, err = f.AddMulti(t.Context(), items)
		require.NoError(t, err)
		requireMembers(t, f, items)
	})
}
