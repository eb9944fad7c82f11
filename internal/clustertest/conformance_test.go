package clustertest

import (
	"context"
	"os"
	"testing"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/bloomtest"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The suite that every backend passes, through a cluster, where each of its
// filters lies in another slot.
func TestConformance(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	ap, err := rdb.AutoPipeline()
	require.NoError(t, err)
	for name, client := range map[string]redis.Cmdable{"client": rdb, "autopipeliner": ap} {
		t.Run(name, func(t *testing.T) {
			prefix := redistest.Key(t)
			bloomtest.RunBackend(t, func(t *testing.T) bloom.Backend { return bloom.NewBitmap(client, prefix+t.Name()) })
		})
	}
}

// Keys with odd names, each with the filters beside it whose names look alike.
func TestOddKeys(t *testing.T) {
	t.Parallel()
	c := redistest.SharedCluster(t)
	rdb := c.Client(t)
	keys := []string{
		"orders", "{orders}", "{orders}2", "a{orders}", "a{b}c", "a{b}", "{b}", "b", "a b c", " ", "{ }", "größe",
		"{größe}ß", "日本{語}", "a\x00b", "\x00", "{\x00}\x00", "a\nb", "\r\n", "{\r\n}", "a{\n}b", "\xff\xfe", "{\xff}", "next", "{next}x:next",
	}
	filters := map[string]*bloom.Filter{}
	for i, key := range keys {
		f := mustNew(t, rdb, key, bloom.Config{Capacity: 200, Layout: bloom.Layout(i % 2)})
		require.NoError(t, f.Drop(t.Context()), "%q", key) // of an earlier run
		require.ErrorIs(t, f.Ready(t.Context()), bloom.ErrNotReady, "%q", key)
		require.NoError(t, f.CreateEmpty(t.Context()), "%q", key)
		filters[key] = f
	}
	for key, f := range filters {
		_, err := f.AddMulti(t.Context(), numbered(key, 50))
		require.NoError(t, err, "%q", key)
		_, err = f.Rebuild(t.Context(), source(numbered(key, 60)), &bloom.RebuildOptions{Settle: -1})
		require.NoError(t, err, "%q", key)
		require.EqualValues(t, 1, c.Primary(t, key).Client(t).Exists(t.Context(), key).Val(), "%q is where its slot is", key)
	}
	for key, f := range filters {
		requireMembers(t, f, numbered(key, 60))
		for other := range filters {
			if other != key {
				requireFew(t, f, numbered(other, 60))
			}
		}
	}
	for key, f := range filters {
		report, err := f.Verify(t.Context(), source(numbered(key, 60)), nil)
		require.NoError(t, err, "%q", key)
		require.Zero(t, report.Missing, "%q", key)
		info, err := f.Info(t.Context())
		require.NoError(t, err, "%q", key)
		require.EqualValues(t, 2, info.Generation, "%q", key)
		require.NoError(t, f.Reset(t.Context()), "%q", key)
		require.NoError(t, f.Drop(t.Context()), "%q", key)
		require.ErrorIs(t, f.Ready(t.Context()), bloom.ErrNotReady, "%q", key)
	}
}

// A node that has lost its scripts gets them again, between any two calls.
func TestScriptFlushOnOneNode(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	ap, err := rdb.AutoPipeline()
	require.NoError(t, err)
	for name, client := range map[string]redis.Cmdable{"client": rdb, "autopipeliner": ap} {
		bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
			key := redistest.Key(t) + name
			node := c.Primary(t, key).Client(t)
			flush := func() { require.NoError(t, node.ScriptFlush(t.Context()).Err()) }
			f := mustNew(t, client, key, bloom.Config{Capacity: 1000, Layout: layout})
			flush()
			require.NoError(t, f.CreateEmpty(t.Context()))
			var members []string
			for _, item := range numbered("item", 20) {
				flush()
				_, err := f.Add(t.Context(), item)
				require.NoError(t, err)
				members = append(members, item)
				flush()
				requireMembers(t, f, members)
			}
			flush()
			_, err := f.Rebuild(t.Context(), func(yield func(string, error) bool) {
				for _, item := range members {
					flush()
					if !yield(item, nil) {
						return
					}
				}
			}, &bloom.RebuildOptions{Settle: -1, Progress: func(bloom.Progress) { flush() }})
			require.NoError(t, err)
			requireMembers(t, f, members)
			flush()
			require.NoError(t, f.Reset(t.Context()))
			flush()
			require.NoError(t, f.Drop(t.Context()))
		})
	}
}

// The RedisBloom backend on a cluster of servers with the module that
// BLOOM_REDISBLOOM_MODULE names, a file.
func TestRedisBloomModule(t *testing.T) {
	t.Parallel()
	module := os.Getenv("BLOOM_REDISBLOOM_MODULE")
	if module == "" {
		t.Skip("BLOOM_REDISBLOOM_MODULE does not name the file of a RedisBloom module")
	}
	c := redistest.StartCluster(t, "--loadmodule", module)
	rdb := c.Client(t)
	t.Run("conformance", func(t *testing.T) {
		bloomtest.RunBackend(t, func(t *testing.T) bloom.Backend {
			b := bloom.NewRedisBloom(rdb, t.Name(), nil)
			t.Cleanup(func() { _ = b.Drop(context.Background()) })
			return b
		})
	})
	t.Run("slot moves", func(t *testing.T) {
		moveUnderLoad(t, c, func(key string) bloom.Backend { return bloom.NewRedisBloom(rdb, key, nil) }, bloom.Classic)
	})
	t.Run("replicas", func(t *testing.T) {
		requireWaits(t, c, func(key string) bloom.Backend { return bloom.NewRedisBloom(rdb, key, nil) }, bloom.Classic)
		requireAlwaysWrites(t, c.Primary(t, "k"), bloom.NewRedisBloom(rdb, "k", nil))
	})
}
