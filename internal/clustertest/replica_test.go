package clustertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Config.ReplicaReads: what a replica's answer is worth.

// replicaClients are cluster clients that read from replicas, always or now and
// then.
var replicaClients = map[string]func(*redis.ClusterOptions){
	"ReadOnly":       func(o *redis.ClusterOptions) { o.ReadOnly = true },
	"RouteByLatency": func(o *redis.ClusterOptions) { o.RouteByLatency = true },
	"RouteRandomly":  func(o *redis.ClusterOptions) { o.RouteRandomly = true },
}

func TestReplicaReadsMustBeAllowed(t *testing.T) {
	t.Parallel()
	c := redistest.SharedCluster(t)
	for name, option := range replicaClients {
		rdb := c.Client(t, option)
		for _, b := range []bloom.Backend{bloom.NewBitmap(rdb, "k"), bloom.NewRedisBloom(rdb, "k", nil)} {
			_, err := bloom.New(b, bloom.Config{Capacity: 100})
			require.ErrorIs(t, err, bloom.ErrInvalidParams, name)
			require.ErrorContains(t, err, "ReplicaReads", name)
			f, err := bloom.New(b, bloom.Config{Capacity: 100, ReplicaReads: true})
			require.NoError(t, err, name)
			// A Guard's cache stays on primaries, whatever the filter allows.
			load := func(t *testing.T) error {
				_, err := bloom.NewGuard(f, bloom.NewRedisCache(rdb, "c:"), noRows, nil)
				return err
			}
			require.ErrorContains(t, load(t), "replicas", name)
		}
		ap, err := rdb.AutoPipeline()
		require.NoError(t, err)
		_, err = bloom.New(bloom.NewBitmap(ap, "k"), bloom.Config{ReplicaReads: true})
		require.ErrorIs(t, err, bloom.ErrInvalidParams)
		require.ErrorContains(t, err, "AutoPipeliner")
	}
}

// Everything works through such clients. WAIT makes sure that the replica has what
// was added before it is looked up.
func TestReplicaReads(t *testing.T) {
	t.Parallel()
	c := redistest.SharedCluster(t)
	for name, option := range replicaClients {
		t.Run(name, func(t *testing.T) {
			bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
				rdb, key := c.Client(t, option), redistest.Key(t)
				f := filled(t, rdb, key, bloom.Config{Capacity: 2000, Layout: layout, ReplicaReads: true, WaitReplicas: 1, WaitTimeout: longWait}, numbered("a", 100))
				eventually(t, "the replica has the filter", func() bool { return f.Ready(t.Context()) == nil })
				requireMembers(t, f, numbered("a", 100))
				requireFew(t, f, numbered("absent", 200))
				for round := range 3 {
					items := numbered(fmt.Sprint("round", round), 50)
					_, err := f.Rebuild(t.Context(), source(append(items, numbered("a", 100)...)),
						&bloom.RebuildOptions{Settle: -1, Capacity: uint64(2000 + 1000*round)})
					require.NoError(t, err)
					requireMembers(t, f, append(items, numbered("a", 100)...))
					report, err := f.Verify(t.Context(), source(items), nil)
					require.NoError(t, err)
					require.Zero(t, report.Missing)
				}
				require.NoError(t, f.Reset(t.Context()))
				requireFew(t, f, numbered("a", 100))
				require.NoError(t, f.Drop(t.Context()))
				requireErrors(t, f, "not ready")
				require.NoError(t, f.CreateEmpty(t.Context()))
				requireFew(t, f, numbered("a", 100))
			})
		})
	}
}

// A replica that lags denies what was added since: that "no" holds for the replica
// alone. What it cannot know it is not asked twice: whether there is a filter, and
// of what size, the primary says.
func TestLaggingReplica(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb := c.Client(t, replicaClients["ReadOnly"])
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		key := redistest.Key(t)
		cfg := bloom.Config{Capacity: 1000, Layout: layout, ReplicaReads: true}
		f := filled(t, rdb, key, cfg, numbered("old", 100))
		fresh := mustNew(t, rdb, key+"fresh", cfg)
		for c.Primary(t, key+"fresh") != c.Primary(t, key) {
			key += "'"
			f = filled(t, rdb, key, cfg, numbered("old", 100))
		}
		replica := c.Replica(t, key)
		replica.AwaitInStep(t)
		requireMembers(t, f, numbered("old", 100))

		replica.CutOff(t)
		_, err := f.Add(t.Context(), "new")
		require.NoError(t, err)
		lagging, err := f.Exists(t.Context(), "new")
		require.NoError(t, err)
		require.False(t, lagging, "the replica denies what it has not got")
		primary := mustNew(t, c.Client(t), key, bloom.Config{})
		requireMembers(t, primary, []string{"new"})
		requireMembers(t, f, numbered("old", 100))
		report, err := f.Verify(t.Context(), source(append(numbered("old", 100), "new")), nil)
		require.NoError(t, err)
		require.Zero(t, report.Missing, "Verify reads the primary")

		// A filter that the replica does not have yet.
		require.ErrorIs(t, fresh.Ready(t.Context()), bloom.ErrNotReady)
		require.NoError(t, fresh.CreateEmpty(t.Context()))
		_, err = fresh.AddMulti(t.Context(), numbered("fresh", 50))
		require.NoError(t, err)
		requireMembers(t, fresh, numbered("fresh", 50))

		// One of another size, for a handle that knows it.
		_, err = f.Rebuild(t.Context(), source(append(numbered("old", 100), "new")), &bloom.RebuildOptions{Settle: -1, Capacity: 3000})
		require.NoError(t, err)
		require.NoError(t, f.Ready(t.Context()))
		requireMembers(t, f, append(numbered("old", 100), "new"))

		replica.Reattach(t)
		requireMembers(t, f, append(numbered("old", 100), "new"))
		require.NoError(t, fresh.Drop(t.Context()))
		require.NoError(t, f.Drop(t.Context()))
	})
}

// Replica reads while the slot moves: a replica does not know that keys have gone,
// and finds nothing there. The primary knows.
func TestReplicaReadsWhileSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		rdb, key := c.Client(t, replicaClients["RouteRandomly"]), redistest.Key(t)
		members := numbered("member", 100)
		cfg := bloom.Config{Capacity: 20_000, Layout: layout, ReplicaReads: true, WaitReplicas: 1, WaitTimeout: longWait}
		f := filled(t, rdb, key, cfg, members)
		tr := startTraffic(t, members, f, f)
		for range 2 {
			tr.goOn(30)
			move := c.MoveSlot(t, key)
			move.Keys(t, key)
			time.Sleep(100 * time.Millisecond)
			move.End(t)
		}
		tr.goOn(30)
		members = tr.end()
		require.Zero(t, tr.failed.adds.Load(), tr.kinds())
		requireMembers(t, f, members)
	})
}

// New can't see a replica behind a plain address. Reads are as above, and writes
// say what is wrong.
func TestReplicaBehindPlainAddress(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t)
	replica := redistest.StartReplica(t, primary)
	filled(t, primary.Client(t), "k", bloom.Config{Capacity: 100}, []string{"a"})
	replica.AwaitInStep(t)
	f := mustNew(t, replica.Client(t), "k", bloom.Config{})
	requireMembers(t, f, []string{"a"})
	requireAddErrors(t, f, "READONLY")
}
