package bloom

import (
	"testing"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Other clients, and keys that lie next to each other.

// rebuildWith rebuilds twice through any client, with adds meanwhile.
func rebuildWith(t *testing.T, rdb redis.Cmdable, key string, layout Layout) {
	t.Helper()
	f, err := New(NewBitmap(rdb, key), Config{Capacity: rebuildChunks, Layout: layout})
	require.NoError(t, err)
	items := rebuildItems("row ", 300)
	for generation := range uint64(2) {
		report, err := f.Rebuild(t.Context(), rebuildMidway(items, func() {
			_, err := f.Add(t.Context(), "meanwhile")
			require.True(t, err == nil || generation == 0 && isNotReady(err), "%v", err)
		}), rebuildQuick())
		require.NoError(t, err)
		require.Equal(t, generation+1, report.Generation)
	}
	rebuildRequireAll(t, f, append(items, "meanwhile"))
	verified, err := f.Verify(t.Context(), rebuildSource(items), nil)
	require.NoError(t, err)
	require.Zero(t, verified.Missing)
	_, err = f.Rebuild(t.Context(), rebuildEmpty, rebuildQuick())
	require.ErrorIs(t, err, ErrRebuildRefused)
	n, err := rdb.Exists(t.Context(), filterKeys(key)[1:]...).Result()
	require.NoError(t, err)
	require.Zero(t, n)
}

// In a cluster all keys of a rebuild are in the filter's slot.
func TestRebuildInCluster(t *testing.T) {
	s := redistest.Start(t, "--cluster-enabled", "yes")
	node := s.Client(t)
	require.NoError(t, node.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	rebuildWait(t, "the cluster", func() bool { return node.ClusterInfo(t.Context()).Val()[:17] == "cluster_state:ok\r" })
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr()}, ContextTimeoutEnabled: true})
	defer cluster.Close()
	rebuildWith(t, cluster, "orders", Classic)
	rebuildWith(t, cluster, "orders{eu}", Blocked)
	ap, err := cluster.AutoPipeline()
	require.NoError(t, err)
	rebuildWith(t, ap, "orders{eu}2", Blocked)
}

func TestRebuildOverRESP2(t *testing.T) {
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Protocol = 2 })
	rebuildWith(t, rdb, redistest.Key(t), Classic)
	rebuildWith(t, rdb, redistest.Key(t), Blocked)
}

// Scripts that the server forgets between any two steps.
func TestRebuildScriptsForgotten(t *testing.T) {
	s := redistest.Start(t)
	b := rebuildOwn(t, s, Classic)
	items := rebuildItems("row ", 100)
	f := b.stepwise(t, b.config(rebuildChunks), func(string) error { return b.rdb.ScriptFlush(t.Context()).Err() })
	_, err := f.Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
	require.NoError(t, err)
	rebuildRequireAll(t, f, items)
	_, err = f.Rebuild(t.Context(), rebuildFailing(items, errRebuildBroken), rebuildQuick())
	require.ErrorIs(t, err, errRebuildBroken)
	b.requireClean(t)
}

// Filters whose names are alike, or share a hash tag, are rebuilt inside each other.
func TestRebuildNeighbours(t *testing.T) {
	rdb, tag := redistest.Shared(t).Client(t), redistest.Key(t)
	keys := []string{"a{" + tag + "}", "a{" + tag + "}b", "a{" + tag + "}b:a", "{" + tag + "}", tag, tag + ":a", tag + ":next"}
	var filters []*Filter
	for i, key := range keys {
		f, err := New(NewBitmap(rdb, key), Config{Capacity: 500, Layout: Layout(i % 2)})
		require.NoError(t, err)
		filters = append(filters, f)
	}
	var nest func(i int)
	nest = func(i int) {
		if i == len(keys) {
			return
		}
		_, err := filters[i].Rebuild(t.Context(), rebuildMidway(rebuildItems(keys[i]+" row ", 50), func() { nest(i + 1) }), rebuildQuick())
		require.NoError(t, err)
	}
	for range 2 {
		nest(0)
	}
	for i, f := range filters {
		rebuildRequireAll(t, f, rebuildItems(keys[i]+" row ", 50))
		for j := range keys {
			if i != j {
				rebuildRequireMostlyAbsent(t, f, rebuildItems(keys[j]+" row ", 50))
			}
		}
		require.NoError(t, f.Drop(t.Context()))
	}
}
