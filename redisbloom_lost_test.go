package bloom

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The TTL is set in the step that makes the key, kept by Reset and never extended
// (cases F1, F22).
func TestModuleTTL(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		key := b.key(t)
		rdb := b.client(t)
		trips := &redistest.Trips{Record: true}
		rdb.AddHook(trips)
		cfg := Config{Capacity: 100, TTL: 1200 * time.Millisecond}
		f := moduleFilter(t, rdb, key, cfg, nil)
		require.NoError(t, f.CreateEmpty(t.Context()))
		for _, cmd := range trips.Commands() {
			require.NotContains(t, cmd[0], "expire", "a command of its own could be lost")
		}
		require.LessOrEqual(t, b.pttl(t, key), cfg.TTL)
		require.Positive(t, b.pttl(t, key))

		b.advance(100 * time.Millisecond)
		for name, use := range map[string]func() error{
			"attach": func() error { return f.CreateEmpty(t.Context()) },
			"reset":  func() error { return f.Reset(t.Context()) },
			"add":    func() error { _, err := f.Add(t.Context(), "one"); return err },
			"ready":  func() error { return f.Ready(t.Context()) },
			"info":   func() error { _, err := f.Info(t.Context()); return err },
		} {
			require.NoError(t, use(), name)
			require.LessOrEqual(t, b.pttl(t, key), cfg.TTL-100*time.Millisecond, name)
			require.Positive(t, b.pttl(t, key), name)
		}
		_, err := f.Add(t.Context(), "two")
		require.NoError(t, err)
		moduleRequire(t, f, true, "two")

		b.advance(cfg.TTL)
		moduleFails(t, f, ErrNotReady)
		b.requireNone(t, key)
		require.NoError(t, f.CreateEmpty(t.Context()))
		moduleRequire(t, f, false, "two")
		require.NoError(t, f.Drop(t.Context()))
		require.NoError(t, moduleFilter(t, rdb, key, Config{Capacity: 100}, nil).CreateEmpty(t.Context()))
		require.NoError(t, f.Reset(t.Context()))
		require.EqualValues(t, -1, b.pttl(t, key), "the filter there has none")
	})
}

// However a filter went, nothing is denied, and no method but CreateEmpty makes a
// key (cases F2, F8).
func TestModuleLost(t *testing.T) {
	for name, lose := range map[string]func(*testing.T, *moduleBed, string){
		"never made": nil,
		"deleted":    func(t *testing.T, b *moduleBed, key string) { require.NoError(t, b.rdb.Del(t.Context(), key).Err()) },
		"expired": func(t *testing.T, b *moduleBed, key string) {
			require.NoError(t, b.rdb.PExpire(t.Context(), key, time.Millisecond).Err())
			b.advance(5 * time.Millisecond)
		},
		"renamed": func(t *testing.T, b *moduleBed, key string) {
			away := b.key(t)
			require.NoError(t, b.rdb.Rename(t.Context(), key, away).Err())
			moduleRequire(t, b.filter(t, away, Config{}, nil), true, "a", "b")
		},
		"dropped": func(t *testing.T, b *moduleBed, key string) {
			require.NoError(t, b.filter(t, key, Config{}, nil).Drop(t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			moduleBeds(t, func(t *testing.T, b *moduleBed) {
				key := b.key(t)
				f := b.filter(t, key, Config{Capacity: 100}, nil)
				if lose != nil {
					b.made(t, key, 100, "a", "b")
					lose(t, b, key)
				}
				moduleFails(t, f, ErrNotReady)
				moduleFails(t, b.filter(t, key, Config{Capacity: 100}, &RedisBloomOptions{Scaling: 2, Adopt: true}), ErrNotReady)
				require.NoError(t, f.Drop(t.Context()), "of nothing")
				b.requireNone(t, key)
				require.NoError(t, f.CreateEmpty(t.Context()))
				require.NoError(t, f.Ready(t.Context()))
				moduleRequire(t, f, false, "a", "b")
			})
		})
	}
}

// moduleStrangers make keys of every other type and tell what they hold.
var moduleStrangers = map[string]struct {
	set func(ctx context.Context, rdb *redis.Client, key string) error
	get func(ctx context.Context, rdb *redis.Client, key string) (any, error)
}{
	"string": {
		func(ctx context.Context, rdb *redis.Client, key string) error {
			return rdb.Set(ctx, key, "value", 0).Err()
		},
		func(ctx context.Context, rdb *redis.Client, key string) (any, error) {
			return rdb.Get(ctx, key).Result()
		},
	},
	"hash": {
		func(ctx context.Context, rdb *redis.Client, key string) error {
			return rdb.HSet(ctx, key, "f", "v").Err()
		},
		func(ctx context.Context, rdb *redis.Client, key string) (any, error) {
			return rdb.HGetAll(ctx, key).Result()
		},
	},
	"list": {
		func(ctx context.Context, rdb *redis.Client, key string) error {
			return rdb.RPush(ctx, key, "a", "b").Err()
		},
		func(ctx context.Context, rdb *redis.Client, key string) (any, error) {
			return rdb.LRange(ctx, key, 0, -1).Result()
		},
	},
	"set": {
		func(ctx context.Context, rdb *redis.Client, key string) error { return rdb.SAdd(ctx, key, "a").Err() },
		func(ctx context.Context, rdb *redis.Client, key string) (any, error) {
			return rdb.SMembers(ctx, key).Result()
		},
	},
	"zset": {
		func(ctx context.Context, rdb *redis.Client, key string) error {
			return rdb.ZAdd(ctx, key, redis.Z{Score: 1, Member: "a"}).Err()
		},
		func(ctx context.Context, rdb *redis.Client, key string) (any, error) {
			return rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
		},
	},
}

// A key of another type is ErrCorrupt, although BF.MEXISTS answers 0 for it, and
// stays what it is (case F9).
func TestModuleForeignTypes(t *testing.T) {
	for kind, stranger := range moduleStrangers {
		t.Run(kind, func(t *testing.T) {
			moduleBeds(t, func(t *testing.T, b *moduleBed) {
				for _, opts := range []*RedisBloomOptions{nil, {Adopt: true}} {
					key := b.key(t)
					require.NoError(t, stranger.set(t.Context(), b.rdb, key))
					before, err := stranger.get(t.Context(), b.rdb, key)
					require.NoError(t, err)
					require.NotEmpty(t, before)

					f := b.filter(t, key, Config{Capacity: 100}, opts)
					moduleFails(t, f, ErrCorrupt)
					require.ErrorIs(t, f.CreateEmpty(t.Context()), ErrCorrupt)
					require.ErrorIs(t, f.Drop(t.Context()), ErrCorrupt)
					for _, o := range []*RebuildOptions{rebuildQuick(), {Settle: -1, MaxAge: time.Hour}} {
						_, err = f.Rebuild(t.Context(), rebuildUnread(t), o)
						require.ErrorIs(t, err, ErrCorrupt)
					}
					after, err := stranger.get(t.Context(), b.rdb, key)
					require.NoError(t, err)
					require.Equal(t, before, after)
					require.EqualValues(t, -1, b.pttl(t, key))
					require.EqualValues(t, 1, b.count(t, moduleKeys(key)...), "nothing else")
				}
			})
		})
	}
}

// The same where the foreign key comes between the look at it and the change.
func TestModuleForeignTypeMeanwhile(t *testing.T) {
	for name, change := range map[string]func(context.Context, *Filter) error{
		"create": func(ctx context.Context, f *Filter) error { return f.CreateEmpty(ctx) },
		"reset":  func(ctx context.Context, f *Filter) error { return f.Reset(ctx) },
		"drop":   func(ctx context.Context, f *Filter) error { return f.Drop(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			moduleBeds(t, func(t *testing.T, b *moduleBed) {
				for kind, stranger := range moduleStrangers {
					key := b.key(t)
					if name != "create" {
						b.made(t, key, 100, "a")
					}
					rdb := b.client(t)
					rdb.AddHook(moduleBefore(changeScript, func() {
						require.NoError(t, b.rdb.Del(t.Context(), key).Err())
						require.NoError(t, stranger.set(t.Context(), b.rdb, key))
					}))
					err := change(t.Context(), moduleFilter(t, rdb, key, Config{Capacity: 100}, nil))
					require.ErrorIs(t, err, ErrCorrupt, kind)
					got, err := stranger.get(t.Context(), b.rdb, key)
					require.NoError(t, err)
					require.NotEmpty(t, got)
				}
			})
		})
	}
}

// Another program's filter, without sentinels, is ErrNotReady with the remedy, and
// nobody touches it unasked.
func TestModuleForeignFilter(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for name, options := range map[string][]any{"scaling": nil, "nonscaling": {"NONSCALING"}} {
			key := b.key(t)
			b.foreign(t, key, 0.01, 100, options, moduleItems("theirs", 50)...)
			before := b.content(t, key)
			f := b.filter(t, key, Config{Capacity: 100}, nil)
			for _, text := range moduleFails(t, f, ErrNotReady) {
				require.Contains(t, text, "Adopt", name)
				require.Contains(t, text, "another program", name)
			}
			err := f.CreateEmpty(t.Context())
			require.ErrorIs(t, err, ErrParamsMismatch)
			require.ErrorContains(t, err, "Adopt")
			err = f.Drop(t.Context())
			require.ErrorIs(t, err, ErrNotReady)
			require.ErrorContains(t, err, "Adopt")
			_, err = f.Rebuild(t.Context(), rebuildUnread(t), rebuildQuick())
			require.ErrorIs(t, err, ErrParamsMismatch)
			require.ErrorContains(t, err, "Adopt")
			require.True(t, before == b.content(t, key), "%s: it was changed", name)
			require.EqualValues(t, 1, b.count(t, moduleKeys(key)...))
		}
	})
}

// The same where it comes between the look and the change, and of the same size.
func TestModuleForeignFilterMeanwhile(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for name, change := range map[string]func(*Filter) error{
			"reset": func(f *Filter) error { return f.Reset(t.Context()) },
			"drop":  func(f *Filter) error { return f.Drop(t.Context()) },
		} {
			key := b.key(t)
			b.made(t, key, 100, "a")
			rdb := b.client(t)
			rdb.AddHook(moduleBefore(changeScript, func() {
				require.NoError(t, b.rdb.Del(t.Context(), key).Err())
				b.foreign(t, key, 0.01, 100+sentinelCount, []any{"NONSCALING"}, "theirs")
			}))
			err := change(moduleFilter(t, rdb, key, Config{}, nil))
			require.ErrorIs(t, err, ErrNotReady, name)
			require.ErrorContains(t, err, "Adopt", name)
			require.EqualValues(t, 1, b.card(t, key), name)
		}
	})
}

// A part of the sentinels proves nothing: not yet whole.
func TestModuleSomeSentinels(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for left := range sentinels {
			key := b.key(t)
			some := append([]string{"a"}, sentinels[:left]...)
			b.foreign(t, key, 0.001, 100, nil, append(some, sentinels[left+1:]...)...)
			f := b.filter(t, key, Config{Capacity: 100}, nil)
			moduleFails(t, f, ErrNotReady)
			b.foreignAdd(t, key, sentinels[left])
			moduleRequire(t, f, true, "a")
			moduleRequire(t, f, false, "b")
		}
	})
}

// Readers of a filter that is lost and made anew, always filled before its
// sentinels come, meet ErrNotReady at times and never a false; those of one that is
// rebuilt meet neither (case F5).
func TestModuleReadersMeanwhile(t *testing.T) {
	rounds := 12
	if raceEnabled {
		rounds = 5
	}
	members := moduleItems("member", 40)
	for name, c := range map[string]struct {
		lost bool // for moments
		anew func(ctx context.Context, t *testing.T, b *moduleBed, key string, round int) error
	}{
		"rebuilt": {false, func(ctx context.Context, t *testing.T, b *moduleBed, key string, round int) error {
			_, err := b.filter(t, key, Config{}, nil).Rebuild(ctx, rebuildSource(members), &RebuildOptions{Settle: -1, Capacity: uint64(100 + round%3*100)})
			return err
		}},
		"dropped and rebuilt": {true, func(ctx context.Context, t *testing.T, b *moduleBed, key string, _ int) error {
			f := b.filter(t, key, Config{Capacity: 100}, nil)
			if err := f.Drop(ctx); err != nil {
				return err
			}
			_, err := f.Rebuild(ctx, rebuildSource(members), rebuildQuick())
			return err
		}},
		"dropped and adopted": {true, func(ctx context.Context, t *testing.T, b *moduleBed, key string, _ int) error {
			f := b.filter(t, key, Config{Capacity: 100}, &RedisBloomOptions{Adopt: true})
			if err := f.Drop(ctx); err != nil {
				return err
			}
			b.foreign(t, key, 0.01, 200, nil, members...)
			return f.CreateEmpty(ctx)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			moduleBeds(t, func(t *testing.T, b *moduleBed) {
				key := b.key(t)
				b.made(t, key, 100, members...)
				var reads, notReady atomic.Int64
				var wg sync.WaitGroup
				stop := make(chan struct{})
				for range 8 {
					f := b.filter(t, key, Config{}, nil)
					wg.Add(1)
					go func() {
						defer wg.Done()
						for i := 0; ; i++ {
							select {
							case <-stop:
								return
							default:
							}
							one, err := f.Exists(t.Context(), members[i%len(members)])
							if err == nil {
								var many []bool
								if many, err = f.ExistsMulti(t.Context(), members); err == nil {
									for _, found := range many {
										one = one && found
									}
								}
							}
							reads.Add(1)
							if isNotReady(err) && c.lost {
								notReady.Add(1)
							} else if err != nil || !one {
								t.Errorf("%v, %v", one, err)
								return
							}
						}
					}()
				}
				for round := range rounds {
					seen := reads.Load()
					if err := c.anew(t.Context(), t, b, key, round); err != nil {
						t.Errorf("round %d: %v", round, err)
						break
					}
					for end := time.Now().Add(10 * time.Second); reads.Load() < seen+16 && !t.Failed() && time.Now().Before(end); {
						time.Sleep(time.Millisecond)
					}
				}
				close(stop)
				wg.Wait()
				require.Greater(t, reads.Load(), int64(rounds*16))
				t.Logf("%d reads, %d of them ErrNotReady", reads.Load(), notReady.Load())
			})
		})
	}
}
