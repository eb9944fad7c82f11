package bloom

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What a rebuild of a RedisBloom filter has of its own; the tests of rebuilds run
// over it as well.

// moduleBuildState is the hash beside the filter.
func (b *moduleBed) buildState(t *testing.T, key string) map[string]string {
	t.Helper()
	state, err := b.rdb.HGetAll(t.Context(), companionKey(key, "build")).Result()
	require.NoError(t, err)
	return state
}

// requireBuilt requires that nothing but the state of what was published is left.
func (b *moduleBed) requireBuilt(t *testing.T, key string, generation string) {
	t.Helper()
	require.Zero(t, b.count(t, companionKey(key, "next")), "staging is left")
	state := b.buildState(t, key)
	require.Equal(t, generation, state["generation"])
	require.Len(t, state["published"], tokenBytes)
	require.NotEmpty(t, state["created"])
	require.Equal(t, sentinels[0], state["first"])
	require.Equal(t, moduleRebuilt, state["purpose"])
	require.Len(t, state, 5, "%q", state)
	require.InDelta(t, b.pttl(t, key), b.pttl(t, companionKey(key, "build")), float64(10*time.Millisecond), "they live as long")
}

// What is left of a rebuild tells of it, and MaxAge goes by that.
func TestModuleRebuildState(t *testing.T) {
	rows := moduleItems("row", 100)
	daily := &RebuildOptions{Settle: -1, MaxAge: time.Hour}
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for _, ttl := range []time.Duration{0, time.Hour} {
			key := b.key(t)
			f := b.filter(t, key, Config{Capacity: 100, TTL: ttl}, nil)
			began := time.Now().Add(-time.Minute)
			for generation := uint64(1); generation < 4; generation++ {
				report, err := f.Rebuild(t.Context(), rebuildSource(rows), rebuildQuick())
				require.NoError(t, err)
				require.Equal(t, generation, report.Generation)
				require.EqualValues(t, 100, report.Items)
				require.InDelta(t, 100, report.Distinct, 3)
				b.requireBuilt(t, key, fmt.Sprint(generation))
				info, err := f.Info(t.Context())
				require.NoError(t, err)
				require.Equal(t, generation, info.Generation)
				require.WithinRange(t, info.Created, began, time.Now().Add(time.Minute))
				require.Equal(t, report.Distinct, info.Items)
				require.Equal(t, ttl > 0, b.pttl(t, key) > 0)
			}
			report, err := f.Rebuild(t.Context(), rebuildUnread(t), daily)
			require.NoError(t, err)
			require.True(t, report.Skipped)
			require.EqualValues(t, 3, report.Generation)
			require.EqualValues(t, 100, report.Params.Capacity)
			b.requireBuilt(t, key, "3")
			_, err = f.Rebuild(t.Context(), rebuildSource(rows[:10]), rebuildQuick())
			require.ErrorIs(t, err, ErrRebuildRefused)
			b.requireBuilt(t, key, "3") // of the live one, as before

			for _, o := range []*RebuildOptions{ // none is satisfied by what is there
				{Settle: -1, MaxAge: time.Microsecond}, {Settle: -1, MaxAge: time.Hour, Capacity: 101},
				{Settle: -1, MaxAge: time.Hour, FPRate: 0.005},
			} {
				report, err = f.Rebuild(t.Context(), rebuildSource(rows), o)
				require.NoError(t, err)
				require.False(t, report.Skipped, "%+v", o)
			}
			// A filter that was reset is empty, so never young; each reset is a generation.
			for range 2 {
				before, err := f.Info(t.Context())
				require.NoError(t, err)
				require.NoError(t, f.Reset(t.Context()))
				after, err := f.Info(t.Context())
				require.NoError(t, err)
				require.Equal(t, before.Generation+1, after.Generation)
				require.False(t, after.Created.Before(before.Created))
			}
			report, err = f.Rebuild(t.Context(), rebuildSource(rows), daily)
			require.NoError(t, err)
			require.False(t, report.Skipped)
			moduleRequire(t, f, true, rows...)

			// Nor is one that was made since.
			require.NoError(t, b.rdb.Del(t.Context(), key).Err())
			require.NoError(t, f.CreateEmpty(t.Context()))
			require.Empty(t, b.buildState(t, key))
			report, err = f.Rebuild(t.Context(), rebuildSource(rows), daily)
			require.NoError(t, err)
			require.False(t, report.Skipped)
			require.NoError(t, f.Drop(t.Context()))
			require.Zero(t, b.count(t, filterKeys(key)...))
		}
	})
}

// Another program's writes to the live filter would be lost: the rebuild is refused
// and says so. This package's are counted, duplicates and repeated ones as well.
func TestModuleRebuildWriters(t *testing.T) {
	rows := moduleItems("row", 100)
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		l := b.lossy(t)
		for name, c := range map[string]struct {
			write   func(t *testing.T, key string)
			refused string
		}{
			"another program": {func(t *testing.T, key string) { b.foreignAdd(t, key, "theirs") }, "got 1 items meanwhile, of which this package added 0"},
			"both": {func(t *testing.T, key string) {
				f := b.filter(t, key, Config{}, nil)
				_, err := f.AddMulti(t.Context(), []string{"a", "b", "a"})
				require.NoError(t, err)
				b.foreignAdd(t, key, "theirs", "theirs too")
			}, "got 4 items meanwhile, of which this package added 2"},
			"another program repeats": {func(t *testing.T, key string) { b.foreignAdd(t, key, "old 0", "old 1") }, ""},
			"this package": {func(t *testing.T, key string) {
				f := b.filter(t, key, Config{}, nil)
				for range 2 {
					_, err := f.AddMulti(t.Context(), []string{"a", "old 0", "b", "a", "row 7", "b"})
					require.NoError(t, err)
					_, err = f.Add(t.Context(), "c")
					require.NoError(t, err)
				}
				moduleRequire(t, f, true, "a", "b", "c", "row 7")
			}, ""},
			"repeated by the client": {func(t *testing.T, key string) {
				calls := l.at(moduleAddScript, redistest.CutReply, nil)
				_, err := moduleFilter(t, l.far, key, Config{}, nil).AddMulti(t.Context(), []string{"a", "b", "old 1", "c"})
				require.NoError(t, err)
				require.EqualValues(t, 2, calls.Load())
			}, ""},
		} {
			key := b.key(t)
			f := b.made(t, key, 200, moduleItems("old", 50)...)
			report, err := f.Rebuild(t.Context(), rebuildMidway(rows, func() { c.write(t, key) }), rebuildQuick())
			if c.refused != "" {
				require.ErrorIs(t, err, ErrRebuildRefused, name)
				require.ErrorContains(t, err, c.refused)
				require.ErrorContains(t, err, "another program")
				moduleRequire(t, f, true, append(moduleItems("old", 50), "theirs")...)
				require.Zero(t, b.count(t, companionKey(key, "next"), companionKey(key, "build")))
				continue
			}
			require.NoError(t, err, name)
			require.EqualValues(t, 1, report.Generation)
			moduleRequire(t, f, true, rows...)
			if name != "another program repeats" {
				moduleRequire(t, f, true, "a", "b", "c")
			}
			b.requireBuilt(t, key, "1")
		}
	})
}

// More items than fit are refused, whoever brings them. The Add is answered for the
// live filter.
func TestModuleRebuildFull(t *testing.T) {
	rows := moduleItems("row", 40)
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		l := b.lossy(t)
		for name, c := range map[string]struct {
			rows   []string
			during func(t *testing.T, f *Filter)
			cut    *script
		}{
			"by source":                {rows: moduleItems("many", 60)},
			"by source, asked twice":   {rows: moduleItems("many", 60), cut: moduleBatchScript},
			"by one, so no sentinels":  {rows: moduleItems("many", 51)},
			"sentinels, asked twice":   {rows: moduleItems("many", 51), cut: modulePublishScript},
			"by adds, before the rows": {rows: rows, during: moduleAdds},
		} {
			key := b.key(t)
			live := b.made(t, key, 300, moduleItems("old", 10)...)
			f := moduleFilter(t, l.far, key, Config{Capacity: 50, FPRate: 1e-6}, nil)
			l.proxy.Intercept(nil)
			if c.cut != nil {
				l.at(c.cut, redistest.CutReply, nil)
			}
			source := rebuildSource(c.rows)
			if c.during != nil {
				source = rebuildMidway(c.rows, func() { c.during(t, live) })
			}
			_, err := f.Rebuild(t.Context(), source, &RebuildOptions{Settle: -1, Capacity: 50, MinItems: 1})
			require.ErrorIs(t, err, ErrRebuildRefused, name)
			require.ErrorIs(t, err, ErrFull, name)
			require.ErrorContains(t, err, "capacity of 50")
			moduleRequire(t, live, true, moduleItems("old", 10)...)
			require.Zero(t, b.count(t, companionKey(key, "next"), companionKey(key, "build")), name)
		}
	})
}

// moduleAdds adds more than 50 items, none of which is refused.
func moduleAdds(t *testing.T, f *Filter) {
	t.Helper()
	for range 2 {
		for _, n := range []int{30, 70} {
			added, err := f.AddMulti(t.Context(), moduleItems("added", n))
			require.NoError(t, err)
			require.Len(t, added, n)
		}
	}
	moduleRequire(t, f, true, moduleItems("added", 70)...)
}

// Batches go out several at a time. Where the server loses the script in between, or
// another gets it back meanwhile, all items arrive, in their order.
func TestModuleRebuildNoScript(t *testing.T) {
	t.Parallel()
	rows := moduleItems("row", batchesPerTrip*maxModuleItems+17)
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		if b.real() {
			t.Skip("SCRIPT FLUSH is for a server of one's own")
		}
		b.once(t)
		for lost := range batchesPerTrip + 1 {
			for back := lost; back <= min(lost+2, batchesPerTrip); back++ { // lost: it stays lost
				rdb := b.client(t)
				rdb.AddHook(moduleSplit(func(i int) {
					if i == lost {
						require.NoError(t, b.rdb.ScriptFlush(t.Context()).Err())
					}
					if i == back && back > lost {
						require.NoError(t, b.rdb.ScriptLoad(t.Context(), moduleBatchScript.src).Err())
					}
				}))
				key := b.key(t)
				f := moduleFilter(t, rdb, key, Config{Capacity: uint64(len(rows))}, nil)
				report, err := f.Rebuild(t.Context(), rebuildSource(rows), rebuildQuick())
				require.NoError(t, err, "lost before %d, back before %d", lost, back)
				require.InDelta(t, len(rows), report.Distinct, 30)
				moduleRequire(t, f, true, rows...)
				b.requireBuilt(t, key, "1")
			}
		}
	})
}

// moduleSplit sends the pipelines of batches command by command, and is called
// before each.
type moduleSplit func(i int)

func (moduleSplit) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (moduleSplit) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h moduleSplit) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (err error) {
		if !strings.EqualFold(cmds[0].Name(), "evalsha") {
			return next(ctx, cmds)
		}
		for i := range cmds {
			h(i)
			if e := next(ctx, cmds[i:i+1]); err == nil {
				err = e
			}
		}
		return err
	}
}

// A builder whose staging, lease or state is gone ends at once and harms nobody.
func TestModuleRebuildLost(t *testing.T) {
	rows := moduleItems("row", 100)
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for name, lose := range map[string]func(t *testing.T, key string){
			"lease ended": func(t *testing.T, key string) {
				if b.real() {
					require.NoError(t, b.rdb.PExpire(t.Context(), companionKey(key, "next"), time.Millisecond).Err())
					require.NoError(t, b.rdb.PExpire(t.Context(), companionKey(key, "build"), time.Millisecond).Err())
					b.advance(5 * time.Millisecond)
				} else {
					b.advance(defaultLease)
				}
			},
			"staging deleted": func(t *testing.T, key string) {
				require.NoError(t, b.rdb.Del(t.Context(), companionKey(key, "next")).Err())
			},
			"state deleted": func(t *testing.T, key string) {
				require.NoError(t, b.rdb.Del(t.Context(), companionKey(key, "build")).Err())
			},
			"dropped": func(t *testing.T, key string) {
				require.NoError(t, b.filter(t, key, Config{}, nil).Drop(t.Context()))
				b.made(t, key, 200, "old")
			},
			"taken over": func(t *testing.T, key string) {
				require.NoError(t, b.rdb.Del(t.Context(), companionKey(key, "next")).Err())
				_, err := b.filter(t, key, Config{}, nil).Rebuild(t.Context(), rebuildSource(append(rows, "old")), rebuildQuick())
				require.NoError(t, err)
			},
		} {
			key := b.key(t)
			f := b.made(t, key, 200, "old")
			began := time.Now()
			_, err := f.Rebuild(t.Context(), rebuildMidway(rows, func() {
				lose(t, key)
				_, err := b.filter(t, key, Config{}, nil).Add(t.Context(), "added")
				require.NoError(t, err)
			}), rebuildQuick())
			require.ErrorIs(t, err, ErrRebuildRefused, name)
			require.Less(t, time.Since(began), defaultLease/2)
			moduleRequire(t, f, true, "old", "added")
			if name == "state deleted" {
				require.Positive(t, b.pttl(t, companionKey(key, "next")), "it goes with its lease")
				require.Zero(t, b.count(t, companionKey(key, "build")), "an Add makes no key")
				continue
			}
			require.Zero(t, b.count(t, companionKey(key, "next")), name)
			if b.count(t, companionKey(key, "build")) > 0 {
				require.EqualValues(t, -1, b.pttl(t, companionKey(key, "build")), "what tells of the filter lives as long: %s", name)
			}
		}
	})
}

// Late copies of what a rebuild sends find it done, or another's, and change neither
// the live filter nor its state.
func TestModuleRebuildLate(t *testing.T) {
	rows := moduleItems("row", 100)
	worlds := map[string]func(t *testing.T, b *moduleBed, key string){
		"published": func(*testing.T, *moduleBed, string) {},
		"used": func(t *testing.T, b *moduleBed, key string) {
			_, err := b.filter(t, key, Config{}, nil).Add(t.Context(), "new")
			require.NoError(t, err)
		},
		"reset": func(t *testing.T, b *moduleBed, key string) {
			require.NoError(t, b.filter(t, key, Config{}, nil).Reset(t.Context()))
		},
		"dropped": func(t *testing.T, b *moduleBed, key string) {
			require.NoError(t, b.filter(t, key, Config{}, nil).Drop(t.Context()))
		},
		"rebuilt again": func(t *testing.T, b *moduleBed, key string) {
			_, err := b.filter(t, key, Config{}, nil).Rebuild(t.Context(), rebuildSource(moduleItems("other", 100)), rebuildQuick())
			require.NoError(t, err)
		},
	}
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		l := b.lossy(t)
		for name, move := range worlds {
			for what, s := range map[string]*script{"open": moduleOpenScript, "batch": moduleBatchScript, "publish": modulePublishScript} {
				for _, cut := range []bool{false, true} {
					key := b.key(t)
					action := redistest.HoldFirst(0)
					if cut {
						action = redistest.CutReply
					}
					calls := l.at(s, action, nil)
					f := moduleFilter(t, l.far, key, Config{Capacity: 200}, nil)
					report, err := f.Rebuild(t.Context(), rebuildSource(rows), rebuildQuick())
					require.NoError(t, err, what)
					require.GreaterOrEqual(t, calls.Load(), int64(2))
					require.EqualValues(t, 1, report.Generation, what)
					moduleRequire(t, f, true, rows...)
					b.requireBuilt(t, key, "1")
					if cut {
						continue
					}
					move(t, b, key)
					before, state := b.content(t, key), b.buildState(t, key)
					replies := l.proxy.ReleaseLate()
					require.Len(t, replies, 1)
					require.False(t, strings.HasPrefix(replies[0], "-"), replies[0])
					require.True(t, before == b.content(t, key), "%s, %s: %q", what, name, replies[0])
					if strings.Contains(replies[0], "open") && name != "published" && name != "used" {
						continue // it is in the way of others until its lease ends
					}
					require.Equal(t, state, b.buildState(t, key), "%s, %s", what, name)
					require.Zero(t, b.count(t, companionKey(key, "next")))
				}
			}
		}
	})
}
