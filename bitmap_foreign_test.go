package bloom_test

import (
	"strings"
	"testing"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// foreign is what other programs keep under a filter's key.
var foreign = map[string]func(t *testing.T, rdb *redis.Client, key string) error{
	"list": func(t *testing.T, rdb *redis.Client, key string) error {
		return rdb.RPush(t.Context(), key, "a").Err()
	},
	"hash": func(t *testing.T, rdb *redis.Client, key string) error {
		return rdb.HSet(t.Context(), key, "a", "1").Err()
	},
	"set": func(t *testing.T, rdb *redis.Client, key string) error {
		return rdb.SAdd(t.Context(), key, "a").Err()
	},
	"zset": func(t *testing.T, rdb *redis.Client, key string) error {
		return rdb.ZAdd(t.Context(), key, redis.Z{Score: 1, Member: "a"}).Err()
	},
	"stream": func(t *testing.T, rdb *redis.Client, key string) error {
		return rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: key, Values: []string{"a", "1"}}).Err()
	},
	"number": func(t *testing.T, rdb *redis.Client, key string) error { return rdb.Incr(t.Context(), key).Err() },
	"short":  setTo("hello"),
	"bitmap": func(t *testing.T, rdb *redis.Client, key string) error {
		return rdb.SetBit(t.Context(), key, 1<<17, 1).Err()
	},
	"long ones":   setTo(strings.Repeat("\xff", 20_000)),
	"long zeros":  setTo(strings.Repeat("\x00", 20_000)),
	"other magic": setTo("BLOOMxx\x01" + strings.Repeat("\x00", 20_000)),
	"magic only":  setTo("BLOOMgf\x01"),
	"staging":     setTo("BLOOMgs\x01" + strings.Repeat("\x00", 20_000)),
}

func setTo(value string) func(*testing.T, *redis.Client, string) error {
	return func(t *testing.T, rdb *redis.Client, key string) error {
		return rdb.Set(t.Context(), key, value, 0).Err()
	}
}

// Whatever is no filter is ErrCorrupt to every method, and none of them touches
// it (case F9).
func TestForeignKey(t *testing.T) {
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		redistest.Each(t, func(t *testing.T, s redistest.Target) {
			for name, put := range foreign {
				t.Run(name, func(t *testing.T) {
					rdb, key := s.Client(t), redistest.Key(t)
					members := numbered("member", 20)
					warm := filled(t, rdb, key, 100, layout, members)
					requireMembers(t, warm, members) // the script is loaded, the way to read remembered
					require.NoError(t, rdb.Del(t.Context(), key).Err())
					require.NoError(t, put(t, rdb, key))
					before := content(t, rdb, key)
					broken := name == "magic only" || name == "staging" // of a filter, so Drop's to remove

					cold := mustNew(t, bloom.NewBitmap(rdb, key), bloom.Config{Capacity: 100, Layout: layout})
					for _, f := range []*bloom.Filter{warm, cold, warm} {
						require.ErrorIs(t, neverDenies(t, f, members), bloom.ErrCorrupt)
						requireFailing(t, f, bloom.ErrCorrupt)
						_, err := f.Info(t.Context())
						require.ErrorIs(t, err, bloom.ErrCorrupt)
						require.ErrorIs(t, f.Ready(t.Context()), bloom.ErrCorrupt)
						require.ErrorIs(t, f.CreateEmpty(t.Context()), bloom.ErrCorrupt)
						require.ErrorIs(t, f.Reset(t.Context()), bloom.ErrCorrupt)
						if !broken {
							require.ErrorIs(t, f.Drop(t.Context()), bloom.ErrCorrupt)
						}
					}
					require.Equal(t, before, content(t, rdb, key))
					if broken {
						require.NoError(t, warm.Drop(t.Context()))
						requireNothing(t, rdb, key)
					}
				})
			}
		})
	})
}

// content tells values apart well enough for the ones above.
func content(t *testing.T, rdb *redis.Client, key string) []any {
	t.Helper()
	kind, err := rdb.Type(t.Context(), key).Result()
	require.NoError(t, err)
	if kind != "string" {
		return []any{kind}
	}
	value, err := rdb.Get(t.Context(), key).Result()
	require.NoError(t, err)
	return []any{kind, value}
}

// An empty string looks like no key to whoever reads ranges. Still it is
// somebody's.
func TestForeignEmptyString(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		rdb, key := s.Client(t), redistest.Key(t)
		require.NoError(t, rdb.Set(t.Context(), key, "", 0).Err())
		f := mustNew(t, bloom.NewBitmap(rdb, key), bloom.Config{Capacity: 100})
		requireNotReady(t, f)
		require.ErrorIs(t, f.CreateEmpty(t.Context()), bloom.ErrCorrupt)
		require.NoError(t, f.Drop(t.Context()))
		require.Equal(t, []any{"string", ""}, content(t, rdb, key))
	})
}

// Nor is a foreign companion touched, and an Add that would have to write it
// writes nothing.
func TestForeignCompanion(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		for name, put := range foreign {
			if name == "staging" {
				continue // TestStaging has real ones
			}
			t.Run(name, func(t *testing.T) {
				rdb, key := s.Client(t), redistest.Key(t)
				companion := "{" + key + "}:next"
				members := numbered("member", 20)
				f := filled(t, rdb, key, 100, bloom.Blocked, members)
				require.NoError(t, put(t, rdb, companion))
				live, next := content(t, rdb, key), content(t, rdb, companion)

				requireMembers(t, f, members)
				_, err := f.Add(t.Context(), "new")
				require.ErrorIs(t, err, bloom.ErrCorrupt)
				_, err = f.AddMulti(t.Context(), []string{"new", "newer"})
				require.ErrorIs(t, err, bloom.ErrCorrupt)
				require.ErrorIs(t, f.Reset(t.Context()), bloom.ErrRebuilding)
				require.NoError(t, f.CreateEmpty(t.Context()), "attaches, whatever else is there")
				if name != "magic only" {
					require.ErrorIs(t, f.Drop(t.Context()), bloom.ErrCorrupt)
				}
				require.Equal(t, live, content(t, rdb, key))
				require.Equal(t, next, content(t, rdb, companion))

				require.NoError(t, rdb.Del(t.Context(), key).Err())
				require.ErrorIs(t, f.CreateEmpty(t.Context()), bloom.ErrRebuilding)
				requireNothingAt(t, rdb, key)
				require.Equal(t, next, content(t, rdb, companion))
			})
		}
	})
}

func requireNothingAt(t *testing.T, rdb *redis.Client, key string) {
	t.Helper()
	n, err := rdb.Exists(t.Context(), key).Result()
	require.NoError(t, err)
	require.Zero(t, n)
}
