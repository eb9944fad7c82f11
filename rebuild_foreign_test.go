package bloom

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Keys that others write, delete or evict, before a rebuild and under it.

// rebuildForeign are the ways to spoil a key.
var rebuildForeign = map[string]func(ctx context.Context, rdb *redis.Client, key string) error{
	"string": func(ctx context.Context, rdb *redis.Client, key string) error {
		return rdb.Set(ctx, key, "not a filter, but somebody's data", 0).Err()
	},
	"short string": func(ctx context.Context, rdb *redis.Client, key string) error { return rdb.Set(ctx, key, "x", 0).Err() },
	"list": func(ctx context.Context, rdb *redis.Client, key string) error {
		return rdb.RPush(ctx, key, "a", "b").Err()
	},
	"hash": func(ctx context.Context, rdb *redis.Client, key string) error {
		return rdb.HSet(ctx, key, "field", "value").Err()
	},
}

func rebuildDump(t *testing.T, rdb *redis.Client, key string) string {
	value, err := rdb.Dump(t.Context(), key).Result()
	require.NoError(t, err)
	return value
}

// What is no filter stays, and no rebuild takes its place.
func TestRebuildRefusesForeignKeys(t *testing.T) {
	for kind, spoil := range rebuildForeign {
		t.Run(kind, func(t *testing.T) {
			rebuildReal(t, func(t *testing.T, b rebuildBed) {
				next := companionKey(b.key, "next")
				require.NoError(t, spoil(t.Context(), b.rdb, b.key))
				before := rebuildDump(t, b.rdb, b.key)
				f := b.open(t, b.config(100))
				_, err := f.Rebuild(t.Context(), rebuildUnread(t), rebuildQuick())
				require.ErrorIs(t, err, ErrCorrupt)
				_, err = f.Rebuild(t.Context(), rebuildUnread(t), rebuildDaily())
				require.ErrorIs(t, err, ErrCorrupt)
				require.Equal(t, before, rebuildDump(t, b.rdb, b.key))
				b.requireClean(t)
				require.NoError(t, b.rdb.Del(t.Context(), b.key).Err())

				require.NoError(t, spoil(t.Context(), b.rdb, next))
				before = rebuildDump(t, b.rdb, next)
				_, err = f.Rebuild(t.Context(), rebuildUnread(t), rebuildQuick())
				require.Error(t, err)
				require.True(t, isCorrupt(err) || errors.Is(err, ErrRebuilding), "%v", err)
				require.Equal(t, before, rebuildDump(t, b.rdb, next))
				require.ErrorIs(t, f.Ready(t.Context()), ErrNotReady)
			})
		})
	}
}

// A filter that lost bytes is mended by a rebuild, and what was added meanwhile is
// in it, although each add found the damage.
func TestRebuildMendsDamage(t *testing.T) {
	items, during := rebuildItems("row ", 100), rebuildItems("meanwhile ", 20)
	for name, spoil := range map[string]func(string) string{
		"truncated":    func(s string) string { return s[:len(s)-100] },
		"header only":  func(s string) string { return s[:headerBytes] },
		"magic only":   func(s string) string { return s[:len(magicLive)] },
		"header flip":  func(s string) string { return s[:offBits+7] + string(s[offBits+7]^1) + s[offBits+8:] },
		"trailer flip": func(s string) string { return s[:len(s)-1] + string(s[len(s)-1]^2) },
		"longer":       func(s string) string { return s + "\x00" },
	} {
		t.Run(name, func(t *testing.T) {
			rebuildBitmaps(t, func(t *testing.T, b rebuildBed) {
				f := b.built(t, 500, items)
				require.NoError(t, b.rdb.Set(t.Context(), b.key, spoil(b.content(t)), 0).Err())
				require.ErrorIs(t, f.Ready(t.Context()), ErrCorrupt)
				_, err := f.Rebuild(t.Context(), rebuildMidway(items, func() {
					for _, item := range during {
						_, err := b.open(t, Config{}).Add(t.Context(), item)
						require.ErrorIs(t, err, ErrCorrupt)
					}
				}), &RebuildOptions{Settle: -1, MaxAge: time.Hour})
				require.NoError(t, err)
				rebuildRequireAll(t, f, items)
				b.requireClean(t)
				rebuildRequireAll(t, f, during)
			})
		})
	}
}

// rebuildLosses are the ways in which staging can get lost or damaged.
func rebuildLosses() map[string]func(ctx context.Context, rdb *redis.Client, key string) error {
	ways := map[string]func(ctx context.Context, rdb *redis.Client, key string) error{
		"deleted": func(ctx context.Context, rdb *redis.Client, key string) error { return rdb.Del(ctx, key).Err() },
		"expired": func(ctx context.Context, rdb *redis.Client, key string) error {
			err := rdb.PExpire(ctx, key, time.Millisecond).Err()
			time.Sleep(3 * time.Millisecond)
			return err
		},
		"renamed": func(ctx context.Context, rdb *redis.Client, key string) error {
			return rdb.Rename(ctx, key, key+" elsewhere").Err()
		},
	}
	for name, spoil := range map[string]func(string) string{
		"truncated":       func(s string) string { return s[:len(s)-20] },
		"longer":          func(s string) string { return s + s[len(s)-trailerBytes:] },
		"end overwritten": func(s string) string { return s[:len(s)-1] + "\x00" },
	} {
		ways[name] = func(ctx context.Context, rdb *redis.Client, key string) error {
			value, err := rdb.Get(ctx, key).Result()
			if err != nil { // of a module
				return rdb.Del(ctx, key).Err()
			}
			return rdb.Set(ctx, key, spoil(value), time.Minute).Err()
		}
	}
	for kind, spoil := range rebuildForeign {
		ways["foreign "+kind] = func(ctx context.Context, rdb *redis.Client, key string) error {
			if err := rdb.Del(ctx, key).Err(); err != nil {
				return err
			}
			return spoil(ctx, rdb, key)
		}
	}
	return ways
}

// Staging that is gone or another's ends the rebuild at whatever step it is, and
// harms neither the live filter nor what stands in its place.
func TestRebuildLosesStaging(t *testing.T) {
	items := rebuildItems("row ", 100)
	for name, lose := range rebuildLosses() {
		t.Run(name, func(t *testing.T) {
			rebuildReal(t, func(t *testing.T, b rebuildBed) {
				f, next := b.built(t, 500, items), companionKey(b.key, "next")
				for _, step := range []string{"add", "merge", "check", "publish"} {
					var before, left string // once it is lost
					losing := b.stepwise(t, b.config(500), func(at string) error {
						if at == step && before == "" {
							require.NoError(t, lose(t.Context(), b.rdb, next))
							left = b.rdb.Dump(t.Context(), next).Val()
							rebuildRequireAdds(t, b, next)
							before = b.content(t)
						}
						return nil
					})
					began := time.Now()
					_, err := losing.Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
					require.True(t, isCorrupt(err) || errors.Is(err, ErrRebuildRefused), "%v", err)
					require.Less(t, time.Since(began), defaultLease/2, "it is certain at once")
					if strings.HasPrefix(name, "foreign") && !b.module { // whose state says that it is its own
						require.Equal(t, left, b.rdb.Dump(t.Context(), next).Val(), "what is not the builder's stays")
					}
					require.True(t, before == b.content(t))
					rebuildRequireAll(t, f, items)
					require.NoError(t, b.rdb.Del(t.Context(), next, companionKey(b.key, "build")).Err())
				}
			})
		})
	}
}

// rebuildRequireAdds requires that an add beside broken staging ends, and if it says
// nothing else is in the live filter.
func rebuildRequireAdds(t *testing.T, b rebuildBed, next string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	f := b.open(t, Config{})
	_, err := f.Add(ctx, "beside it")
	if err != nil {
		require.ErrorIs(t, err, ErrCorrupt)
		return
	}
	require.Zero(t, b.rdb.Exists(t.Context(), next).Val())
	rebuildRequireAll(t, f, []string{"beside it"})
}

// A live key that somebody else takes meanwhile is not overwritten.
func TestRebuildMeetsForeignLive(t *testing.T) {
	items := rebuildItems("row ", 100)
	for kind, spoil := range rebuildForeign {
		t.Run(kind, func(t *testing.T) {
			rebuildReal(t, func(t *testing.T, b rebuildBed) {
				for _, step := range []string{"add", "merge", "check", "publish"} {
					b.built(t, 500, items)
					var before string
					f := b.stepwise(t, b.config(500), func(at string) error {
						if at == step && before == "" {
							require.NoError(t, b.rdb.Del(t.Context(), b.key).Err())
							require.NoError(t, spoil(t.Context(), b.rdb, b.key))
							before = rebuildDump(t, b.rdb, b.key)
						}
						return nil
					})
					began := time.Now()
					_, err := f.Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
					require.ErrorIs(t, err, ErrCorrupt, step)
					require.Less(t, time.Since(began), defaultLease/2, "it is certain at once")
					require.Equal(t, before, rebuildDump(t, b.rdb, b.key))
					b.requireClean(t)
					require.NoError(t, b.rdb.Del(t.Context(), b.key).Err())
				}
			})
		})
	}
}
