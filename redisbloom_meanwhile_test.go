package bloom

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What happens between two steps of a rebuild.

// A batch of several chunks is in what is published as a whole, whatever each chunk
// found where the filter should be.
func TestModuleRebuildWarmsUp(t *testing.T) {
	batch := moduleItems("meanwhile", 2*maxModuleItems+5)
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for name, c := range map[string]struct {
			before func(key string)
			err    error
		}{
			"no filter": {func(string) {}, ErrNotReady},
			"a full one": {func(key string) {
				b.made(t, key, 10, moduleItems("old", 10)...)
			}, ErrFull},
			"lost meanwhile": {func(key string) { b.made(t, key, 100, "old") }, ErrNotReady},
		} {
			key := b.key(t)
			c.before(key)
			f := b.filter(t, key, Config{Capacity: uint64(len(batch) + 100)}, nil)
			_, err := f.Rebuild(t.Context(), rebuildMidway(moduleItems("row", 20), func() {
				if name == "lost meanwhile" {
					require.NoError(t, b.rdb.Del(t.Context(), key).Err())
				}
				added, err := b.filter(t, key, Config{}, nil).AddMulti(t.Context(), batch)
				require.ErrorIs(t, err, c.err, name)
				require.Len(t, added, len(batch))
				if c.err == ErrNotReady {
					require.NotContains(t, added, false)
				}
			}), rebuildQuick())
			require.NoError(t, err, name)
			moduleRequire(t, f, true, batch...)
			moduleRequire(t, f, true, moduleItems("row", 20)...)
		}
	})
}

// Without a rebuild a missing filter ends a batch at its first chunk.
func TestModuleMissingEndsBatch(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		key := b.key(t)
		calls := 0
		rdb := b.client(t)
		hook := moduleBefore(moduleAddScript, func() {})
		hook.each = func() { calls++ }
		rdb.AddHook(hook)
		_, err := moduleFilter(t, rdb, key, Config{}, nil).AddMulti(t.Context(), moduleItems("a", 5*maxModuleItems))
		require.ErrorIs(t, err, ErrNotReady)
		require.Equal(t, 1, calls)
	})
}

// What a builder decided by must still be there when staging is opened: others may
// publish between the two steps.
func TestModuleRebuildDecidesAgain(t *testing.T) {
	rows := moduleItems("row", 50)
	daily := &RebuildOptions{Settle: -1, MaxAge: time.Hour}
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for name, c := range map[string]struct {
			before, meanwhile string
			opts              *RebuildOptions
			skipped           bool
			capacity          uint64
		}{
			"there was none":       {"", "built 500", daily, true, 500},
			"none, no age":         {"", "built 500", rebuildQuick(), false, 500},
			"it was smaller":       {"built 100", "built 500", daily, true, 500},
			"it grew":              {"built 100", "built 900", rebuildQuick(), false, 900},
			"it is still less":     {"built 100", "built 200", daily, false, 400},
			"the same once more":   {"built 400", "built 400", &RebuildOptions{Settle: -1, MaxAge: time.Microsecond}, false, 400},
			"made, not built":      {"made 100", "made 900", rebuildQuick(), false, 900},
			"built, no longer so":  {"built 400", "made 400", daily, false, 400},
			"made, by now rebuilt": {"made 400", "built 400", daily, true, 400},
		} {
			key := b.key(t)
			anew := func(what string) {
				how, size, _ := strings.Cut(what, " ")
				capacity, _ := strconv.ParseUint(size, 10, 64)
				f := b.filter(t, key, Config{Capacity: capacity}, nil)
				switch how {
				case "built":
					_, err := f.Rebuild(t.Context(), rebuildSource(rows), rebuildQuick())
					require.NoError(t, err)
				case "made":
					require.NoError(t, f.Drop(t.Context()))
					require.NoError(t, f.CreateEmpty(t.Context()))
				}
			}
			anew(c.before)
			rdb := b.client(t)
			rdb.AddHook(moduleBefore(moduleOpenScript, func() { anew(c.meanwhile) }))
			f := moduleFilter(t, rdb, key, Config{Capacity: 400}, nil)
			report, err := f.Rebuild(t.Context(), rebuildSource(rows), c.opts)
			require.NoError(t, err, name)
			require.Equal(t, c.skipped, report.Skipped, name)
			require.Equal(t, c.capacity, report.Params.Capacity, name)
			moduleRequire(t, f, true, rows...)
			require.Zero(t, b.count(t, companionKey(key, "next")), name)
		}
	})
}

// failSecond fails the second call of a script.
type failSecond struct {
	redistest.Trips
	script *script
	calls  atomic.Int64
	err    error
}

func (h *failSecond) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 1 && args[1] == h.script.sha && h.calls.Add(1) == 2 {
			cmd.SetErr(h.err)
			return h.err
		}
		return next(ctx, cmd)
	}
}

// During the warm-up there is no filter, which is no reason to fail; but what could not
// be put into staging is: nobody would promise to keep it.
func TestModuleAddMultiFailsDuringWarmUp(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		key := b.key(t)
		r := NewRedisBloom(b.rdb, key, nil)
		staging, _, err := r.openBuild(t.Context(), b.filter(t, key, Config{Capacity: 5000}, nil).wish(RebuildOptions{Lease: time.Minute}))
		require.NoError(t, err)
		defer staging.abort(context.WithoutCancel(t.Context()))

		rdb := b.client(t)
		require.NoError(t, rdb.ScriptLoad(t.Context(), moduleAddScript.src).Err())
		injected := errors.New("OOM command not allowed")
		rdb.AddHook(&failSecond{script: moduleAddScript, err: injected})
		g, err := NewGuard(moduleFilter(t, rdb, key, Config{}, nil), NewMemoryCache(), rows(nil), nil)
		require.NoError(t, err)
		defer g.Close(t.Context())
		err = g.Register(t.Context(), moduleItems("row", 2*maxModuleItems)...)
		require.ErrorIs(t, err, injected)
		require.NotErrorIs(t, err, ErrNotReady)
		require.NoError(t, g.Register(t.Context(), moduleItems("row", 2*maxModuleItems)...), "all are in staging now")
	})
}
