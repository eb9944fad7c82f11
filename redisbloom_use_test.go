package bloom

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Items, keys, round trips and clients.

var moduleOddItems = []string{
	"", "ITEMS", "items", "NOCREATE", "NONSCALING", "EXPANSION", "CAPACITY", "ERROR", "0.01", "-1", "a", "A", " ", "a ", "a\x00", "\x00", "\x00\x00",
	"\xff\xfe", "{a}", "äöü", "日本", "a\r\nb", "$3\r\nfoo\r\n", "*1\r\n", "nil", "false", "0", "1",
	strings.Repeat("x", 1<<20), strings.Repeat("x", 1<<20-1),
}

func TestModuleOddItems(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		b.once(t)
		for _, batch := range []bool{false, true} {
			f := b.filter(t, b.key(t), Config{Capacity: 200, FPRate: 1e-9}, nil)
			require.NoError(t, f.CreateEmpty(t.Context()))
			moduleRequire(t, f, false, moduleOddItems...)
			if batch {
				added, err := f.AddMulti(t.Context(), moduleOddItems)
				require.NoError(t, err)
				require.NotContains(t, added, false)
			} else {
				for i, item := range moduleOddItems {
					for _, want := range []bool{true, false} {
						added, err := f.Add(t.Context(), item)
						require.NoError(t, err)
						require.Equal(t, want, added, "%.20q", item)
					}
					moduleRequire(t, f, true, moduleOddItems[:i+1]...)
					if i+1 < len(moduleOddItems) {
						moduleRequire(t, f, false, moduleOddItems[i+1:min(i+3, len(moduleOddItems))]...)
					}
				}
			}
			moduleRequire(t, f, true, moduleOddItems...)
			var mixed []string
			var want []bool
			for i, item := range moduleOddItems {
				mixed, want = append(mixed, fmt.Sprint("absent ", i), item, item), append(want, false, true, true)
			}
			got, err := f.ExistsMulti(t.Context(), mixed)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	})
}

// Order and duplicates are kept.
func TestModuleAdded(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		f := b.made(t, b.key(t), 200, "a")
		got, err := f.AddMulti(t.Context(), []string{"b", "a", "c", "b", "c", "d"})
		require.NoError(t, err)
		require.Equal(t, []bool{true, false, true, false, false, true}, got)
		for _, none := range [][]string{nil, {}} {
			got, err := f.AddMulti(t.Context(), none)
			require.NoError(t, err)
			require.Empty(t, got)
			got, err = f.ExistsMulti(t.Context(), none)
			require.NoError(t, err)
			require.Empty(t, got)
		}
	})
}

func TestModuleOddKeys(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		b.once(t)
		names := []string{"a{b}c", "{b}", "with spaces ", "日本 ä", "nul\x00nul", "\xff\xfe", "line\r\n", "NONSCALING", strings.Repeat("k", 5000)}
		keys := make([]string, len(names))
		for i, name := range names {
			keys[i] = b.own(t, name)
		}
		if b.mini != nil { // a server of its own, so names need no random part
			keys = append(keys, "ITEMS", "NOCREATE", "ERROR", "capacity", "0.01", "nonscaling\x00", "EXPANSION ", " ", "\x00")
		}
		for _, key := range keys {
			f := b.made(t, key, 100, key)
			moduleRequire(t, f, true, key)
			moduleRequire(t, f, false, "absent")
			require.NoError(t, f.CreateEmpty(t.Context()))
			s, err := NewRedisBloom(b.rdb, key, nil).state(t.Context())
			require.NoError(t, err)
			require.Zero(t, s.expansion, "%.30q", key)
			_, err = f.Rebuild(t.Context(), rebuildSource([]string{"row"}), rebuildQuick())
			require.NoError(t, err)
			moduleRequire(t, f, true, "row")
			require.NoError(t, f.Reset(t.Context()))
			moduleRequire(t, f, false, "row", key)
			_, err = f.Add(t.Context(), key)
			require.NoError(t, err)
		}
		for _, key := range keys { // none is another's
			moduleRequire(t, b.filter(t, key, Config{}, nil), true, key)
			require.NoError(t, b.filter(t, key, Config{}, nil).Drop(t.Context()))
			moduleFails(t, b.filter(t, key, Config{}, nil), ErrNotReady)
			b.requireNone(t, key)
		}
	})
}

// One round trip for an item and for a chunk of items.
func TestModuleTrips(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		rdb := b.client(t)
		trips := &redistest.Trips{Record: true}
		f := moduleFilter(t, rdb, b.key(t), Config{Capacity: 10_000}, nil)
		require.NoError(t, f.CreateEmpty(t.Context()))
		_, err := f.Add(t.Context(), "warm") // the script is there
		require.NoError(t, err)
		rdb.AddHook(trips)
		for name, c := range map[string]struct {
			use  func() error
			want int64
		}{
			"ready":      {func() error { return f.Ready(t.Context()) }, 1},
			"exists":     {func() error { _, err := f.Exists(t.Context(), "a"); return err }, 1},
			"add":        {func() error { _, err := f.Add(t.Context(), "a"); return err }, 1},
			"info":       {func() error { _, err := f.Info(t.Context()); return err }, 1},
			"attach":     {func() error { return f.CreateEmpty(t.Context()) }, 1},
			"no items":   {func() error { _, err := f.ExistsMulti(t.Context(), nil); return err }, 0},
			"add none":   {func() error { _, err := f.AddMulti(t.Context(), nil); return err }, 0},
			"exists 1":   {func() error { _, err := f.ExistsMulti(t.Context(), []string{"a"}); return err }, 1},
			"exists 1k":  {func() error { _, err := f.ExistsMulti(t.Context(), moduleItems("x", maxModuleItems)); return err }, 1},
			"exists 1k+": {func() error { _, err := f.ExistsMulti(t.Context(), moduleItems("x", maxModuleItems+1)); return err }, 2},
			"add 1k":     {func() error { _, err := f.AddMulti(t.Context(), moduleItems("x", maxModuleItems)); return err }, 1},
			"add 2.5k":   {func() error { _, err := f.AddMulti(t.Context(), moduleItems("y", 2*maxModuleItems+500)); return err }, 3},
		} {
			trips.Reset()
			require.NoError(t, c.use(), name)
			require.Equal(t, c.want, trips.N(), name)
		}
		trips.Reset()
		_, err = f.Exists(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, "bf.mexists", trips.Commands()[0][0], "a native command")
	})
}

// A script that the server forgot is sent again, unseen by the caller (case F15).
func TestModuleNoScript(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		if b.real() {
			t.Skip("SCRIPT FLUSH is for a server of one's own")
		}
		key := b.key(t)
		f := b.filter(t, key, Config{Capacity: 100}, nil)
		for name, use := range map[string]func() error{
			"create": func() error { return f.CreateEmpty(t.Context()) },
			"add":    func() error { _, err := f.Add(t.Context(), "a"); return err },
			"batch":  func() error { _, err := f.AddMulti(t.Context(), moduleItems("a", 20)); return err },
			"reset":  func() error { return f.Reset(t.Context()) },
			"rebuild": func() error {
				_, err := f.Rebuild(t.Context(), rebuildSource([]string{"a"}), &RebuildOptions{Settle: -1, MinItems: 1})
				return err
			},
		} {
			require.NoError(t, f.CreateEmpty(t.Context()))
			require.NoError(t, b.rdb.ScriptFlush(t.Context()).Err())
			require.NoError(t, use(), name)
		}
		require.NoError(t, b.rdb.ScriptFlush(t.Context()).Err())
		require.NoError(t, f.Drop(t.Context()))
	})
}

// Both faces of an AutoPipeliner: calls share round trips, and all is answered.
func TestModuleAutoPipeliner(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for _, blocking := range []bool{true, false} {
			rdb := b.client(t)
			face := rdb.AsyncAutoPipeline
			if blocking {
				face = rdb.AutoPipeline
			}
			ap, err := face()
			require.NoError(t, err)
			f := moduleFilter(t, ap, b.key(t), Config{Capacity: 5000}, nil)
			moduleFails(t, f, ErrNotReady)
			require.NoError(t, f.CreateEmpty(t.Context()))
			_, err = f.Add(t.Context(), "warm")
			require.NoError(t, err)
			trips := &redistest.Trips{}
			rdb.AddHook(trips)
			const callers, rounds = 32, 4
			var wg sync.WaitGroup
			for g := range callers {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for r := range rounds {
						mine := moduleItems(fmt.Sprintf("%d in %d", g, r), 3)
						_, err1 := f.Add(t.Context(), mine[0])
						_, err2 := f.AddMulti(t.Context(), mine[1:])
						one, err3 := f.Exists(t.Context(), mine[0])
						all, err4 := f.ExistsMulti(t.Context(), mine)
						if err1 != nil || err2 != nil || err3 != nil || err4 != nil || !one || moduleCount(all) != 3 {
							t.Errorf("%v %v %v %v: %v %v", err1, err2, err3, err4, one, all)
							return
						}
					}
				}()
			}
			wg.Wait()
			require.Less(t, trips.N(), int64(callers*rounds*4/2))
			absent, err := f.ExistsMulti(t.Context(), moduleItems("absent", 1000))
			require.NoError(t, err)
			require.Less(t, moduleCount(absent), 50)

			rows := moduleItems("row", 3*maxModuleItems)
			_, err = f.Rebuild(t.Context(), rebuildSource(rows), rebuildQuick())
			require.NoError(t, err)
			moduleRequire(t, f, true, rows...)
			require.NoError(t, f.Reset(t.Context()))
			moduleRequire(t, f, false, rows[:10]...)
			require.NoError(t, f.Drop(t.Context()))
		}
	})
}

// Waiting ends with the caller's context, beside true.
func TestModuleContext(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		key := b.key(t)
		b.made(t, key, 100, "a")
		for _, auto := range []bool{false, true} {
			l := b.lossy(t)
			rdb := redis.Cmdable(l.far)
			if auto {
				ap, err := l.far.AutoPipeline()
				require.NoError(t, err)
				rdb = ap
			}
			f := moduleFilter(t, rdb, key, Config{Capacity: 100}, nil)
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			moduleEnds(t, f, func() (context.Context, context.CancelFunc) { return ended, func() {} }, context.Canceled)

			require.NoError(t, f.Ready(t.Context())) // connected
			l.proxy.Intercept(func([]string) redistest.Action { return redistest.Delay(5 * time.Second) })
			moduleEnds(t, f, func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(t.Context(), 20*time.Millisecond)
			}, context.DeadlineExceeded)
			l.proxy.Intercept(nil)
			l.proxy.Sever() // with what waits there
		}
		moduleRequire(t, b.filter(t, key, Config{}, nil), true, "a")
	})
}

func moduleEnds(t *testing.T, f *Filter, with func() (context.Context, context.CancelFunc), target error) {
	t.Helper()
	for method, use := range map[string]func(context.Context) (bool, error){
		"exists": func(ctx context.Context) (bool, error) { return f.Exists(ctx, "zz") },
		"many": func(ctx context.Context) (bool, error) {
			got, err := f.ExistsMulti(ctx, []string{"zz", "yy"})
			return len(got) == 2 && got[0] && got[1], err
		},
		"add": func(ctx context.Context) (bool, error) { return f.Add(ctx, "a") },
		"addMany": func(ctx context.Context) (bool, error) {
			got, err := f.AddMulti(ctx, []string{"a"})
			return got[0], err
		},
		"ready":  func(ctx context.Context) (bool, error) { return true, f.Ready(ctx) },
		"info":   func(ctx context.Context) (bool, error) { _, err := f.Info(ctx); return true, err },
		"create": func(ctx context.Context) (bool, error) { return true, f.CreateEmpty(ctx) },
		"reset":  func(ctx context.Context) (bool, error) { return true, f.Reset(ctx) },
		"drop":   func(ctx context.Context) (bool, error) { return true, f.Drop(ctx) },
	} {
		ctx, cancel := with()
		began := time.Now()
		is, err := use(ctx)
		cancel()
		require.ErrorIs(t, err, target, method)
		require.True(t, is, method)
		require.Less(t, time.Since(began), 3*time.Second, method)
	}
}
