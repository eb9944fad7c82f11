package bloom_test

import (
	"strings"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What is gone is ErrNotReady and stays gone: no method but CreateEmpty makes a
// key, and losing a companion loses nothing.

// The TTL is set in the step that makes the key, and never again (cases F1, F22).
func TestTTL(t *testing.T) {
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		redistest.Each(t, func(t *testing.T, s redistest.Target) {
			rdb, key := s.Client(t), redistest.Key(t)
			trips := &redistest.Trips{Record: true}
			observed := s.Client(t)
			observed.AddHook(trips)
			cfg := bloom.Config{Capacity: 100, Layout: layout, TTL: 700 * time.Millisecond}
			f := mustNew(t, bloom.NewBitmap(observed, key), cfg)
			require.NoError(t, f.CreateEmpty(t.Context()))
			for _, cmd := range trips.Commands() {
				require.NotContains(t, cmd[0], "expire", "a command of its own could be lost")
			}
			ttl := pttl(t, rdb, key)
			require.LessOrEqual(t, ttl, cfg.TTL)
			require.Greater(t, ttl, cfg.TTL/2)

			s.Advance(100 * time.Millisecond)
			members := numbered("member", 20)
			for _, use := range []func() error{
				func() error { return f.CreateEmpty(t.Context()) },
				func() error { return attached(t, rdb, key).Ready(t.Context()) },
				func() error { return f.Reset(t.Context()) },
				func() error { _, err := f.AddMulti(t.Context(), members); return err },
				func() error { _, err := f.Add(t.Context(), "one"); return err },
				func() error { _, err := f.Info(t.Context()); return err },
			} {
				require.NoError(t, use())
				require.LessOrEqual(t, pttl(t, rdb, key), cfg.TTL-100*time.Millisecond)
			}
			requireMembers(t, f, members)

			s.Advance(cfg.TTL)
			requireNotReady(t, f)
			requireNothing(t, rdb, key)
		})
	})
}

// Without a TTL, none.
func TestNoTTL(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		rdb, key := s.Client(t), redistest.Key(t)
		f := filled(t, rdb, key, 100, bloom.Classic, []string{"a"})
		require.NoError(t, f.Reset(t.Context()))
		ttl, err := rdb.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		require.EqualValues(t, -1, ttl)
	})
}

func pttl(t *testing.T, rdb *redis.Client, key string) time.Duration {
	t.Helper()
	ttl, err := rdb.PTTL(t.Context(), key).Result()
	require.NoError(t, err)
	require.Positive(t, ttl, "no TTL, or no key")
	return ttl
}

// However a filter went, an Add after it makes nothing (cases F2, F8).
func TestLostIsNotReady(t *testing.T) {
	ways := map[string]func(*testing.T, redistest.Target, *redis.Client, string){
		"del": func(t *testing.T, _ redistest.Target, rdb *redis.Client, key string) {
			require.NoError(t, rdb.Del(t.Context(), key).Err())
		},
		"unlink": func(t *testing.T, _ redistest.Target, rdb *redis.Client, key string) {
			require.NoError(t, rdb.Unlink(t.Context(), key).Err())
		},
		"expire": func(t *testing.T, s redistest.Target, rdb *redis.Client, key string) {
			require.NoError(t, rdb.PExpire(t.Context(), key, time.Millisecond).Err())
			s.Advance(5 * time.Millisecond)
		},
		"rename": func(t *testing.T, _ redistest.Target, rdb *redis.Client, key string) {
			require.NoError(t, rdb.Rename(t.Context(), key, key+" elsewhere").Err())
		},
	}
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		redistest.Each(t, func(t *testing.T, s redistest.Target) {
			for name, lose := range ways {
				t.Run(name, func(t *testing.T) {
					rdb, key := s.Client(t), redistest.Key(t)
					members := numbered("member", 50)
					f := filled(t, rdb, key, 100, layout, members)
					lose(t, s, rdb, key)
					require.ErrorIs(t, neverDenies(t, f, members), bloom.ErrNotReady)
					requireNotReady(t, f)
					requireNotReady(t, attached(t, rdb, key))
					requireNothing(t, rdb, key)
				})
			}
		})
	})
}

// requireNothing requires that no key of the filter exists.
func requireNothing(t *testing.T, rdb *redis.Client, key string) {
	t.Helper()
	companions := "{" + key + "}:"
	n, err := rdb.Exists(t.Context(), key, companions+"next", companions+"build").Result()
	require.NoError(t, err)
	require.Zero(t, n, "a key came back")
}

// A rename takes the whole filter with it (case F3).
func TestRename(t *testing.T) {
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		redistest.Each(t, func(t *testing.T, s redistest.Target) {
			rdb, a, b := s.Client(t), redistest.Key(t), redistest.Key(t)
			members := numbered("member", 50)
			f := filled(t, rdb, a, 100, layout, members)
			require.NoError(t, rdb.Rename(t.Context(), a, b).Err())
			requireNotReady(t, f)
			g := attached(t, rdb, b)
			requireMembers(t, g, members)
			require.NoError(t, g.Ready(t.Context()))
			_, err := g.Add(t.Context(), "new")
			require.NoError(t, err)
			require.NoError(t, rdb.Rename(t.Context(), b, a).Err())
			requireMembers(t, f, append(members, "new"))
			requireNotReady(t, g)
		})
	})
}

// Deleting whatever stands beside a filter never makes it say no (case F3).
func TestCompanionsAreExpendable(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		rdb, key := s.Client(t), redistest.Key(t)
		members := numbered("member", 50)
		f := filled(t, rdb, key, 100, bloom.Classic, members)
		for _, name := range []string{"next", "next-a", "next-b", "build"} {
			require.NoError(t, rdb.Del(t.Context(), "{"+key+"}:"+name).Err())
		}
		requireMembers(t, f, members)
	})
}

// Under memory pressure Redis takes the filter away whole (cases F2, F8).
func TestEviction(t *testing.T) {
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		rdb := redistest.Start(t, "--maxmemory", "6mb", "--maxmemory-policy", "allkeys-lru").Client(t)
		key := redistest.Key(t)
		members := numbered("member", 2000)
		f := filled(t, rdb, key, 500_000, layout, members) // 0.6 MB
		requireMembers(t, f, members)

		junk := strings.Repeat("x", 100<<10)
		evicted := false
		for i := range 600 {
			err := rdb.Set(t.Context(), redistest.Key(t), junk, 0).Err()
			require.NoError(t, err)
			if i%20 == 0 {
				continue // idle, so that it becomes the least recently used
			}
			n, err := rdb.Exists(t.Context(), key).Result()
			require.NoError(t, err)
			if n == 0 {
				evicted = true
				break
			}
			if i%30 == 29 {
				if err := neverDenies(t, f, members[:100]); err != nil {
					require.ErrorIs(t, err, bloom.ErrNotReady)
					evicted = true
					break
				}
			}
		}
		if !evicted { // lookups kept it warm; now none do
			for range 2000 {
				require.NoError(t, rdb.Set(t.Context(), redistest.Key(t), junk, 0).Err())
			}
		}
		require.ErrorIs(t, neverDenies(t, f, members), bloom.ErrNotReady)
		requireNotReady(t, f)
		requireNothing(t, rdb, key)
	})
}

// FLUSHALL, a restart without persistence: nothing is denied (case F8). Then the
// filter can be made anew, and handles follow.
func TestServerLosesAll(t *testing.T) {
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		s := redistest.Start(t)
		rdb, key := s.Client(t), redistest.Key(t)
		members := numbered("member", 100)
		for name, lose := range map[string]func(){
			"flushall": func() { require.NoError(t, rdb.FlushAll(t.Context()).Err()) },
			"restart":  func() { s.Restart(t) }, // which forgets the scripts as well
		} {
			f := filled(t, rdb, key, 200, layout, members)
			lose()
			require.Error(t, neverDenies(t, f, members), name)
			requireNotReady(t, f)
			requireNothing(t, rdb, key)
			filled(t, rdb, key, 300, layout, members)
			requireMembers(t, f, members)
			require.NoError(t, f.Drop(t.Context()))
		}
	})
}

// A server that is gone or does not answer denies nothing, and a caller's wait
// ends with its context or the client's timeout.
func TestServerDoesNotAnswer(t *testing.T) {
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		s := redistest.Start(t)
		rdb := s.Client(t, func(o *redis.Options) {
			o.ReadTimeout, o.MaxRetries, o.DialerRetries = 200*time.Millisecond, -1, 1
		})
		key := redistest.Key(t)
		members := numbered("member", 100)
		f := filled(t, rdb, key, 200, layout, members)

		s.Freeze()
		start := time.Now()
		require.Error(t, neverDenies(t, f, members[:1]))
		for _, op := range mutations(t, f) {
			require.Error(t, op())
		}
		require.Less(t, time.Since(start), 5*time.Second, "seven calls of 0.2 s")
		requireFailingInTime(t, f)
		s.Thaw()
		require.Eventually(t, func() bool { return f.Ready(t.Context()) == nil }, 5*time.Second, 10*time.Millisecond)

		s.Stop()
		require.Error(t, neverDenies(t, f, members))
		for _, op := range mutations(t, f) {
			require.Error(t, op())
		}
		_, err := f.Info(t.Context())
		require.Error(t, err)
	})
}

// mutations are what changes a filter, the last of them not at all.
func mutations(t *testing.T, f *bloom.Filter) []func() error {
	return []func() error{
		func() error { _, err := f.Add(t.Context(), "new"); return err },
		func() error { _, err := f.AddMulti(t.Context(), []string{"new", "newer"}); return err },
		func() error { return f.Ready(t.Context()) },
	}
}
