package bloom

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// What a rebuild does when all goes well.

// The first rebuild is the warm-up: nothing is denied before it is published, and
// what was added meanwhile is in it although Add could not promise that.
func TestRebuildWarmsUp(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		f, other := b.open(t, b.config(500)), b.open(t, Config{})
		items := rebuildItems("row ", 200)
		during := append(rebuildItems("meanwhile ", 20), "one", "two")
		notReady := func(exists bool, err error) {
			t.Helper()
			require.ErrorIs(t, err, ErrNotReady)
			require.True(t, exists)
		}
		notReady(f.Exists(t.Context(), "row 0"))
		_, err := f.Add(t.Context(), "before it was opened")
		require.ErrorIs(t, err, ErrNotReady)

		began := time.Now()
		report, err := f.Rebuild(t.Context(), rebuildMidway(append(items, items[:50]...), func() {
			notReady(f.Exists(t.Context(), "row 0"))
			notReady(other.Add(t.Context(), "one"))
			notReady(f.Add(t.Context(), "two"))
			added, err := other.AddMulti(t.Context(), during[:20])
			require.ErrorIs(t, err, ErrNotReady)
			require.NotContains(t, added, false)
			require.ErrorIs(t, f.CreateEmpty(t.Context()), ErrRebuilding)
			require.ErrorIs(t, f.Ready(t.Context()), ErrNotReady)
			require.ErrorIs(t, f.Reset(t.Context()), ErrNotReady)
		}), rebuildQuick())
		require.NoError(t, err)

		for _, handle := range []*Filter{f, other, b.open(t, Config{})} {
			rebuildRequireAll(t, handle, items)
			rebuildRequireAll(t, handle, during)
			rebuildRequireMostlyAbsent(t, handle, append(rebuildItems("absent ", 100), "before it was opened"))
		}
		require.False(t, report.Skipped)
		require.EqualValues(t, 250, report.Items)
		require.InDelta(t, 200, report.Distinct, 40, "an estimate, in Memory of what was added meanwhile as well")
		require.EqualValues(t, 1, report.Generation)
		require.Positive(t, report.Elapsed)
		require.LessOrEqual(t, report.Elapsed, time.Since(began))

		info, err := f.Info(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 500, info.Params.Capacity)
		require.Equal(t, 0.01, info.Params.FPRate)
		require.Equal(t, b.layout, info.Params.Layout)
		require.Equal(t, info.Params, report.Params)
		require.Equal(t, info.Bytes, report.Bytes)
		require.EqualValues(t, 1, info.Generation)
		require.WithinRange(t, info.Created, began.Add(-time.Second), time.Now().Add(time.Second))
		b.requireClean(t)
	})
}

// A batch of many chunks is in what is published as a whole, although each chunk
// meets no filter.
func TestRebuildWarmsUpWithBatches(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		n := 2500
		if b.rdb != nil && !b.real() {
			n = 900
		}
		f, batch := b.open(t, b.config(uint64(n))), rebuildItems("meanwhile ", n)
		_, err := f.Rebuild(t.Context(), rebuildMidway([]string{"row"}, func() {
			_, err := f.AddMulti(t.Context(), batch)
			require.ErrorIs(t, err, ErrNotReady)
		}), rebuildQuick())
		require.NoError(t, err)
		rebuildRequireAll(t, f, batch)
	})
}

// A rebuild replaces what was there by what source yields and what was added
// since, and counts generations.
func TestRebuildReplaces(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		old, kept := rebuildItems("old ", 60), rebuildItems("kept ", 140)
		f := b.built(t, 500, append(old, kept...))
		reader := b.open(t, Config{})
		rebuildRequireAll(t, reader, old)
		created := time.Time{}
		for generation := uint64(2); generation <= 4; generation++ {
			fresh := rebuildItems("fresh ", int(generation))
			report, err := f.Rebuild(t.Context(), rebuildMidway(kept, func() {
				_, err := reader.AddMulti(t.Context(), fresh)
				require.NoError(t, err)
				rebuildRequireAll(t, f, fresh)
				rebuildRequireAll(t, f, kept)
			}), rebuildQuick())
			require.NoError(t, err)
			require.Equal(t, generation, report.Generation)
			rebuildRequireAll(t, reader, kept)
			rebuildRequireAll(t, reader, fresh)
			rebuildRequireMostlyAbsent(t, reader, old)
			info, err := reader.Info(t.Context())
			require.NoError(t, err)
			require.Equal(t, generation, info.Generation)
			require.True(t, info.Created.After(created), "%v is not after %v", info.Created, created)
			created = info.Created
			b.requireClean(t)
		}
	})
}

// A filter that CreateEmpty made, and one that was reset, are rebuilt like any
// other.
func TestRebuildAfterCreateEmpty(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		f := b.open(t, b.config(500))
		require.NoError(t, f.CreateEmpty(t.Context()))
		require.NoError(t, f.Reset(t.Context()))
		_, err := f.Add(t.Context(), "not in the source")
		require.NoError(t, err)
		items := rebuildItems("row ", 100)
		report, err := f.Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
		require.NoError(t, err)
		if !b.module { // it counts rebuilds only
			require.EqualValues(t, 3, report.Generation)
		}
		rebuildRequireAll(t, f, items)
		require.NoError(t, f.CreateEmpty(t.Context()), "it attaches")
		rebuildRequireAll(t, f, items)
	})
}

// Readers of a rebuild of the same geometry are not disturbed at all: its bits lie
// where they lay.
func TestRebuildKeepsFingerprint(t *testing.T) {
	rebuildBitmaps(t, func(t *testing.T, b rebuildBed) {
		items := rebuildItems("row ", 100)
		f := b.built(t, 500, items)
		before := b.content(t)
		_, err := f.Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
		require.NoError(t, err)
		after := b.content(t)
		require.Equal(t, before[len(before)-trailerBytes:], after[len(after)-trailerBytes:])
		require.Equal(t, before[headerBytes:], after[headerBytes:], "the same items, the same bits")
		require.NotEqual(t, before[offToken:offTokenEnd], after[offToken:offTokenEnd])

		_, err = f.Rebuild(t.Context(), rebuildSource(items), &RebuildOptions{Settle: -1, Capacity: 600})
		require.NoError(t, err)
		resized := b.content(t)
		require.NotEqual(t, after[len(after)-trailerBytes:], resized[len(resized)-trailerBytes:])
	})
}

// Handles that know the old filter read and add through a change of size, rate and
// layout without an error, and lose nothing.
func TestRebuildChangesGeometry(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		items := rebuildItems("row ", 150)
		b.built(t, 300, items)
		known := items
		for i, cfg := range []Config{
			{Capacity: 900, Layout: b.layout},
			{Capacity: 900, FPRate: 0.001, Layout: b.layout},
			{Capacity: 400, FPRate: 0.02, Layout: b.layout},
			{Capacity: 400, Layout: b.otherLayout()},
			{Capacity: 500, Layout: b.layout},
		} {
			user := b.open(t, Config{})
			rebuildRequireAll(t, user, known) // which makes it know the geometry
			fresh := rebuildItems(strings.Repeat("fresh ", i+1), 15)
			report, err := b.open(t, cfg).Rebuild(t.Context(), rebuildMidway(items, func() {
				_, err := user.AddMulti(t.Context(), fresh[:7])
				require.NoError(t, err)
				for _, item := range fresh[7:] {
					_, err := user.Add(t.Context(), item)
					require.NoError(t, err)
				}
				rebuildRequireAll(t, user, known)
			}), &RebuildOptions{Settle: -1, Capacity: cfg.Capacity})
			require.NoError(t, err)
			require.Equal(t, cfg.Capacity, report.Params.Capacity)
			require.Equal(t, cfg.Layout, report.Params.Layout)
			known = append(items, fresh...)
			rebuildRequireAll(t, user, known)
			info, err := user.Info(t.Context())
			require.NoError(t, err)
			require.Equal(t, report.Params, info.Params)
			b.requireClean(t)
		}
	})
}

// otherLayout is the layout that this bed does not have, where there are two.
func (b rebuildBed) otherLayout() Layout {
	if b.module {
		return Classic
	}
	return Classic + Blocked - b.layout
}

// A capacity that needs the very bits of the one before counts all the same, also
// for handles that know the filter before.
func TestRebuildChangesOnlyCapacity(t *testing.T) {
	const capacity = 1000
	size := func(n uint64) uint64 {
		p, err := NewParams(n, 0.01, Blocked)
		require.NoError(t, err)
		return p.Bits
	}
	require.Equal(t, size(capacity), size(capacity+1))

	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		b, items := rebuildBitmap(t, s, Blocked), rebuildItems("row ", 100)
		b.built(t, capacity, items)
		user := b.open(t, b.config(capacity+1))
		rebuildRequireAll(t, user, items)
		b.built(t, capacity+1, items)
		info, err := user.Info(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, capacity+1, info.Params.Capacity)
		require.NoError(t, user.CreateEmpty(t.Context()), "what is stored is large enough")
	})
}

// The TTL runs from the publication on, and no handle extends it.
func TestRebuildTTL(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		if b.rdb == nil {
			t.Skip("see TestRebuildTTLOfMemory")
		}
		ttl := func() time.Duration {
			left, err := b.rdb.PTTL(t.Context(), b.key).Result()
			require.NoError(t, err)
			return left
		}
		items := rebuildItems("row ", 20)
		b.built(t, 100, items)
		require.EqualValues(t, -1, ttl(), "no TTL was asked for, and the lease has gone")

		cfg := b.config(100)
		cfg.TTL = time.Hour
		f := b.open(t, cfg)
		_, err := f.Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
		require.NoError(t, err)
		require.Greater(t, ttl(), 59*time.Minute)
		require.LessOrEqual(t, ttl(), time.Hour)

		require.NoError(t, b.rdb.PExpire(t.Context(), b.key, time.Minute).Err())
		require.NoError(t, f.CreateEmpty(t.Context()))
		rebuildRequireAll(t, b.open(t, cfg), items)
		_, err = f.Add(t.Context(), "one")
		require.NoError(t, err)
		_, err = f.Rebuild(t.Context(), rebuildSource(items), &RebuildOptions{Settle: -1, MaxAge: time.Hour})
		require.NoError(t, err)
		_, err = f.Rebuild(t.Context(), rebuildEmpty, rebuildQuick())
		require.ErrorIs(t, err, ErrRebuildRefused)
		require.LessOrEqual(t, ttl(), time.Minute, "only publishing sets it")

		_, err = f.Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
		require.NoError(t, err)
		require.Greater(t, ttl(), 59*time.Minute)
		b.built(t, 100, items)
		require.EqualValues(t, -1, ttl())
	})
}

func TestRebuildTTLOfMemory(t *testing.T) {
	b := rebuildMemory(Classic)
	cfg := Config{Capacity: 100, TTL: 200 * time.Millisecond}
	f, items := b.open(t, cfg), rebuildItems("row ", 20)
	_, err := f.Rebuild(t.Context(), rebuildMidway(items, func() { time.Sleep(cfg.TTL / 2) }), rebuildQuick())
	require.NoError(t, err)
	published := time.Now()
	require.NoError(t, f.Ready(t.Context()))
	expires := b.backend().(*Memory).live.Load().expires
	require.WithinRange(t, expires, published.Add(cfg.TTL/2), published.Add(cfg.TTL), "it runs from the publication on")
	time.Sleep(time.Until(published.Add(cfg.TTL)))
	require.ErrorIs(t, f.Ready(t.Context()), ErrNotReady)
}

// Source is read after the settle time, which ends with the context.
func TestRebuildSettles(t *testing.T) {
	const settle = 150 * time.Millisecond
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		f := b.open(t, b.config(100))
		var opened, read time.Time
		opts := &RebuildOptions{Settle: settle, Progress: func(p Progress) {
			if p.Phase == "settle" {
				require.True(t, b.staged(t), "staging is open")
				opened = time.Now()
				_, err := f.Add(t.Context(), "while it settles")
				require.ErrorIs(t, err, ErrNotReady)
			}
		}}
		_, err := f.Rebuild(t.Context(), func(yield func(string, error) bool) {
			read = time.Now()
			yield("row", nil)
		}, opts)
		require.NoError(t, err)
		require.GreaterOrEqual(t, read.Sub(opened), settle-10*time.Millisecond)
		rebuildRequireAll(t, f, []string{"row", "while it settles"})

		ctx, cancel := context.WithCancelCause(t.Context())
		before := b.content(t)
		opts = &RebuildOptions{Settle: time.Hour, Progress: func(Progress) { cancel(errors.New("enough")) }}
		_, err = f.Rebuild(ctx, func(func(string, error) bool) { t.Error("source is read") }, opts)
		require.ErrorIs(t, err, context.Canceled)
		b.requireUntouched(t, before)
	})
}
