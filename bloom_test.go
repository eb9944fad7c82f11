package bloom_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// place is where one filter is stored, empty-handed at first.
type place struct {
	handle func() bloom.Backend // a new handle on it, as another process has
	items  int                  // how many adds a test may ask of it
	probes int                  // how many lookups
	mini   bool                 // miniredis: slow, and its time stands still
}

// TestConformance runs the one suite that every backend must pass, see
// conformance, over every backend, layout and server.
func TestConformance(t *testing.T) {
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		redistest.Each(t, func(t *testing.T, s redistest.Target) {
			rdb := s.Client(t)
			conformance(t, func(t *testing.T) place {
				key := redistest.Key(t)
				p := place{func() bloom.Backend { return bloom.NewBitmap(rdb, key) }, 10_000, 40_000, false}
				if !s.Real { // it copies the whole string at every SETBIT
					p.items, p.probes, p.mini = 1000, 10_000, true
				}
				return p
			}, layout)
		})
		t.Run("memory", func(t *testing.T) {
			conformance(t, func(*testing.T) place {
				m := bloom.NewMemory()
				return place{func() bloom.Backend { return m }, 20_000, 100_000, false}
			}, layout)
		})
	})
}

// conformance is what a backend promises, seen from outside: each subtest gets a
// place of its own.
func conformance(t *testing.T, fresh func(*testing.T) place, layout bloom.Layout) {
	for name, test := range map[string]func(*testing.T, place, bloom.Layout){
		"nothing there":       testNothingThere,
		"create is a promise": testCreate,
		"attach":              testAttach,
		"attach only":         testAttachOnly,
		"reset":               testReset,
		"drop":                testDrop,
		"info":                testInfo,
		"expiry":              testExpiry,
		"context":             testContext,
		"items":               testItems,
		"added":               testAdded,
		"batches":             testBatches,
		"large batch":         testLargeBatch,
		"any rate":            testAnyRate,
		"measured rate":       testMeasuredRate,
		"names":               func(t *testing.T, p place, l bloom.Layout) { testNames(t, p, fresh(t), l) },
	} {
		t.Run(name, func(t *testing.T) { test(t, fresh(t), layout) })
	}
}

// Every method on no filter is ErrNotReady, and true beside it.
func testNothingThere(t *testing.T, p place, layout bloom.Layout) {
	f := mustNew(t, p.handle(), bloom.Config{Capacity: 100, Layout: layout})
	requireNotReady(t, f)
	require.NoError(t, f.CreateEmpty(t.Context()))
	require.NoError(t, f.Ready(t.Context()))
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

// A filter that CreateEmpty made denies everything and is whole.
func testCreate(t *testing.T, p place, layout bloom.Layout) {
	f := mustNew(t, p.handle(), bloom.Config{Capacity: 100, Layout: layout})
	require.NoError(t, f.CreateEmpty(t.Context()))
	require.NoError(t, f.Ready(t.Context()))
	got, err := f.ExistsMulti(t.Context(), numbered("absent", 50))
	require.NoError(t, err)
	require.Equal(t, make([]bool, 50), got)

	_, err = f.Add(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, f.CreateEmpty(t.Context()), "again, it attaches")
	requireMembers(t, f, []string{"a"})
}

// What is stored decides: a handle configured otherwise follows it, and only its
// CreateEmpty looks whether that is enough.
func testAttach(t *testing.T, p place, layout bloom.Layout) {
	f := mustNew(t, p.handle(), bloom.Config{Capacity: 200, FPRate: 0.001, Layout: layout})
	require.NoError(t, f.CreateEmpty(t.Context()))
	members := numbered("member", 100)
	_, err := f.AddMulti(t.Context(), members)
	require.NoError(t, err)

	other := bloom.Classic + bloom.Blocked - layout
	for _, c := range []struct {
		cfg  bloom.Config
		want []string // what the refusal names; nil: attached
	}{
		{bloom.Config{Capacity: 200, FPRate: 0.001, Layout: layout}, nil},
		{bloom.Config{Capacity: 50, FPRate: 0.02, Layout: layout}, nil},
		{bloom.Config{Capacity: 201, FPRate: 0.001, Layout: layout}, []string{"200", "201"}},
		{bloom.Config{Capacity: 200, FPRate: 0.0009, Layout: layout}, []string{"0.001", "0.0009"}},
		{bloom.Config{Capacity: 200, FPRate: 0.001, Layout: other}, []string{layout.String(), other.String()}},
	} {
		g := mustNew(t, p.handle(), c.cfg)
		err := g.CreateEmpty(t.Context())
		if c.want == nil {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, bloom.ErrParamsMismatch)
		}
		for _, word := range c.want {
			require.ErrorContains(t, err, word)
		}
		requireMembers(t, g, members)
		_, err = g.Add(t.Context(), fmt.Sprint("by ", c.cfg))
		require.NoError(t, err)
		requireMembers(t, f, []string{fmt.Sprint("by ", c.cfg)})
		info, err := g.Info(t.Context())
		require.NoError(t, err)
		require.Equal(t, mustParams(t, 200, 0.001, layout), info.Params)
		require.EqualValues(t, 1, info.Generation)
	}
}

// The zero Config attaches and makes nothing.
func testAttachOnly(t *testing.T, p place, layout bloom.Layout) {
	g := mustNew(t, p.handle(), bloom.Config{})
	require.ErrorIs(t, g.CreateEmpty(t.Context()), bloom.ErrInvalidParams)
	requireNotReady(t, g)
	f := mustNew(t, p.handle(), bloom.Config{Capacity: 100, Layout: layout})
	require.NoError(t, f.CreateEmpty(t.Context()))
	_, err := f.Add(t.Context(), "a")
	require.NoError(t, err)
	require.ErrorIs(t, g.CreateEmpty(t.Context()), bloom.ErrInvalidParams)
	requireMembers(t, g, []string{"a"})
	absent, err := g.Exists(t.Context(), "b")
	require.NoError(t, err)
	require.False(t, absent)
}

func testReset(t *testing.T, p place, layout bloom.Layout) {
	f := mustNew(t, p.handle(), bloom.Config{Capacity: 100, Layout: layout})
	reader := mustNew(t, p.handle(), bloom.Config{})
	require.NoError(t, f.CreateEmpty(t.Context()))
	members := numbered("member", 50)
	for generation := range uint64(3) {
		_, err := f.AddMulti(t.Context(), members)
		require.NoError(t, err)
		requireMembers(t, reader, members)
		before, err := f.Info(t.Context())
		require.NoError(t, err)
		require.Equal(t, generation+1, before.Generation)

		require.NoError(t, f.Reset(t.Context()))
		got, err := reader.ExistsMulti(t.Context(), members)
		require.NoError(t, err)
		require.Equal(t, make([]bool, 50), got)
		after, err := reader.Info(t.Context())
		require.NoError(t, err)
		require.Equal(t, generation+2, after.Generation)
		require.Equal(t, before.Params, after.Params)
		require.Equal(t, before.Bytes, after.Bytes)
		require.Zero(t, after.Items)
		require.False(t, after.Created.Before(before.Created))
		require.NoError(t, reader.Ready(t.Context()))
	}
}

// Drop is what a Guard can live with: from then on nothing is denied.
func testDrop(t *testing.T, p place, layout bloom.Layout) {
	f := mustNew(t, p.handle(), bloom.Config{Capacity: 100, Layout: layout})
	reader := mustNew(t, p.handle(), bloom.Config{})
	require.NoError(t, f.Drop(t.Context()), "nothing to drop")
	for range 2 {
		require.NoError(t, f.CreateEmpty(t.Context()))
		_, err := f.Add(t.Context(), "a")
		require.NoError(t, err)
		requireMembers(t, reader, []string{"a"})
		require.NoError(t, f.Drop(t.Context()))
		requireNotReady(t, f)
		requireNotReady(t, reader)
		require.NoError(t, f.Drop(t.Context()))
	}
}

func testInfo(t *testing.T, p place, layout bloom.Layout) {
	n := min(p.items, 2000)
	f := mustNew(t, p.handle(), bloom.Config{Capacity: uint64(n), Layout: layout})
	start := time.Now().Add(-time.Second)
	require.NoError(t, f.CreateEmpty(t.Context()))
	params := mustParams(t, uint64(n), 0.01, layout)

	info, err := f.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, params, info.Params)
	require.Zero(t, info.Items)
	require.Zero(t, info.Fill)
	require.Zero(t, info.FPRate)
	require.Equal(t, params.Bytes(), info.Bytes)
	require.Equal(t, 1, info.Shards)
	require.Equal(t, 1, info.SubFilters)
	require.EqualValues(t, 1, info.Generation)
	require.WithinRange(t, info.Created, start, time.Now().Add(time.Second))
	require.Contains(t, []string{"bitmap", "memory"}, info.Backend)

	_, err = f.AddMulti(t.Context(), numbered("member", n))
	require.NoError(t, err)
	full, err := f.Info(t.Context())
	require.NoError(t, err)
	require.InEpsilon(t, n, full.Items, 0.05, "an estimate from the bits")
	require.InDelta(t, 0.48, full.Fill, 0.06, "at capacity about half the bits are set")
	require.InEpsilon(t, 0.01, full.FPRate, 0.4)
	require.Equal(t, info.Created, full.Created)

	_, err = f.AddMulti(t.Context(), numbered("more", n/2))
	require.NoError(t, err)
	past, err := f.Info(t.Context())
	require.NoError(t, err)
	require.Greater(t, past.Items, past.Params.Capacity, "past capacity shows")
	require.Greater(t, past.FPRate, full.FPRate)
}

// A TTL runs from CreateEmpty on, whatever happens meanwhile, and afterwards
// nothing is denied and nothing re-made.
func testExpiry(t *testing.T, p place, layout bloom.Layout) {
	if p.mini {
		t.Skip("its time stands still; see TestTTL")
	}
	cfg := bloom.Config{Capacity: 100, Layout: layout, TTL: 600 * time.Millisecond}
	f := mustNew(t, p.handle(), cfg)
	require.NoError(t, f.CreateEmpty(t.Context()))
	made := time.Now()
	_, err := f.Add(t.Context(), "a")
	require.NoError(t, err)
	time.Sleep(50 * time.Millisecond)
	require.NoError(t, f.CreateEmpty(t.Context()), "attaching does not extend the TTL")
	require.NoError(t, f.Reset(t.Context()))
	_, err = f.Add(t.Context(), "b")
	require.NoError(t, err)
	requireMembers(t, f, []string{"b"})

	time.Sleep(time.Until(made.Add(cfg.TTL + 5*time.Millisecond)))
	requireNotReady(t, f)
	require.NoError(t, f.CreateEmpty(t.Context()))
	require.NoError(t, f.Ready(t.Context()))
}

// An ended context is an error of every method, and denies nothing.
func testContext(t *testing.T, p place, layout bloom.Layout) {
	f := mustNew(t, p.handle(), bloom.Config{Capacity: 100, Layout: layout})
	require.NoError(t, f.CreateEmpty(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	one, err := f.Exists(ctx, "a")
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, one)
	many, err := f.ExistsMulti(ctx, []string{"a", "b"})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []bool{true, true}, many)
	one, err = f.Add(ctx, "a")
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, one)
	many, err = f.AddMulti(ctx, []string{"a", "b"})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []bool{true, true}, many)
	_, err = f.Info(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, f.CreateEmpty(ctx), context.Canceled)
	require.ErrorIs(t, f.Ready(ctx), context.Canceled)
	require.ErrorIs(t, f.Reset(ctx), context.Canceled)
	require.ErrorIs(t, f.Drop(ctx), context.Canceled)

	require.NoError(t, f.Ready(t.Context()))
	none, err := f.Exists(t.Context(), "a")
	require.NoError(t, err)
	require.False(t, none)
}
