package bloom_test

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

// TestConformance runs the one suite that every backend must pass over every
// backend and server. A test gets a place of its own, and a new handle on it
// each time it asks for one.
func TestConformance(t *testing.T) {
	t.Parallel()
	t.Run("bitmap", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, s redistest.Target) {
			rdb, prefix := s.Client(t), redistest.Key(t) // another one at each -count
			bloomtest.RunBackend(t, func(t *testing.T) bloom.Backend {
				return bloom.NewBitmap(rdb, prefix+t.Name())
			})
		})
	})
	t.Run("memory", func(t *testing.T) {
		places := map[string]*bloom.Memory{}
		bloomtest.RunBackend(t, func(t *testing.T) bloom.Backend {
			if places[t.Name()] == nil {
				places[t.Name()] = bloom.NewMemory()
			}
			return places[t.Name()]
		})
	})
	t.Run("sharded bitmap", func(t *testing.T) {
		rdb := redistest.Shared(t).Client(t)
		prefix := redistest.Key(t)
		bloomtest.RunBackend(t, func(t *testing.T) bloom.Backend {
			return shardedOf(prefix+t.Name(), 3, func(key string) bloom.Backend { return bloom.NewBitmap(rdb, key) })
		})
	})
	t.Run("sharded memory", func(t *testing.T) {
		places := map[string]*bloom.Memory{}
		bloomtest.RunBackend(t, func(t *testing.T) bloom.Backend {
			return shardedOf(t.Name(), 3, func(key string) bloom.Backend {
				if places[key] == nil {
					places[key] = bloom.NewMemory()
				}
				return places[key]
			})
		})
	})
	t.Run("sharded mixture", func(t *testing.T) {
		m := redistest.Mini(t)
		bloomtest.RedisBloom(m)
		rdb := redistest.MiniClient(t, m)
		memory := map[string]*bloom.Memory{}
		bloomtest.RunBackend(t, func(t *testing.T) bloom.Backend {
			if memory[t.Name()] == nil {
				memory[t.Name()] = bloom.NewMemory()
			}
			return bloom.NewSharded(bloom.NewBitmap(rdb, t.Name()+":0"), memory[t.Name()], bloom.NewRedisBloom(rdb, t.Name()+":2", nil))
		})
	})
	t.Run("sharded redisbloom", func(t *testing.T) {
		m := redistest.Mini(t)
		bloomtest.RedisBloom(m)
		rdb := redistest.MiniClient(t, m)
		bloomtest.RunBackend(t, func(t *testing.T) bloom.Backend {
			return shardedOf(t.Name(), 3, func(key string) bloom.Backend { return bloom.NewRedisBloom(rdb, key, nil) })
		})
	})
	for _, protocol := range []int{2, 3} {
		t.Run("redisbloom/RESP"+string(rune('0'+protocol)), func(t *testing.T) {
			m := redistest.Mini(t)
			bloomtest.RedisBloom(m)
			rdb := redistest.MiniClient(t, m, func(o *redis.Options) { o.Protocol = protocol })
			bloomtest.RunBackend(t, func(t *testing.T) bloom.Backend {
				return bloom.NewRedisBloom(rdb, t.Name(), nil)
			})
		})
		t.Run("redisbloom/module/RESP"+string(rune('0'+protocol)), func(t *testing.T) {
			rdb := moduleClient(t, protocol)
			prefix := redistest.Key(t)
			bloomtest.RunBackend(t, func(t *testing.T) bloom.Backend {
				b := bloom.NewRedisBloom(rdb, prefix+t.Name(), nil)
				t.Cleanup(func() { _ = b.Drop(context.Background()) })
				return b
			})
		})
	}
}

func shardedOf(name string, n int, backend func(key string) bloom.Backend) *bloom.Sharded {
	var shards []bloom.Backend
	for _, key := range bloom.ShardKeys(name, n) {
		shards = append(shards, backend(key))
	}
	return bloom.NewSharded(shards...)
}

// moduleClient is a client of the server with the real module that
// BLOOM_REDISBLOOM names.
func moduleClient(t *testing.T, protocol int) *redis.Client {
	t.Helper()
	addr := os.Getenv("BLOOM_REDISBLOOM")
	if addr == "" {
		t.Skip("BLOOM_REDISBLOOM does not name a server with the RedisBloom module")
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr, Protocol: protocol, ContextTimeoutEnabled: true})
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	return rdb
}

func requireNotReady(t *testing.T, f *bloom.Filter) {
	t.Helper()
	requireFailing(t, f, bloom.ErrNotReady)
	_, err := f.Info(t.Context())
	require.ErrorIs(t, err, bloom.ErrNotReady)
	require.ErrorIs(t, f.Ready(t.Context()), bloom.ErrNotReady)
	require.ErrorIs(t, f.Reset(t.Context()), bloom.ErrNotReady)
}

// requireFailing requires that reads and adds fail with target and deny nothing.
func requireFailing(t *testing.T, f *bloom.Filter, target error) {
	t.Helper()
	three, allTrue := []string{"a", "", "a"}, []bool{true, true, true}

	one, err := f.Exists(t.Context(), "a")
	require.ErrorIs(t, err, target)
	require.True(t, one)
	many, err := f.ExistsMulti(t.Context(), three)
	require.ErrorIs(t, err, target)
	require.Equal(t, allTrue, many)
	one, err = f.Add(t.Context(), "a")
	require.ErrorIs(t, err, target)
	require.True(t, one)
	many, err = f.AddMulti(t.Context(), three)
	require.ErrorIs(t, err, target)
	require.Equal(t, allTrue, many)
}
