package bloomtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/stretchr/testify/require"
)

// RunBackend is the conformance suite that this module's own backends run
// through, for people who write one: what a [bloom.Backend] promises, seen from
// outside through a [bloom.Filter], in every layout that it takes.
//
// newBackend returns a backend whose filter does not exist yet, at a place of its
// own for each test. Called again with the same t it returns another handle on
// the same place, as another process has, or the same backend. Each filter gets
// about a thousand items, so the suite also runs on a fake server. TTLs are not
// tested, since the time of fakes stands still.
func RunBackend(t *testing.T, newBackend func(t *testing.T) bloom.Backend) {
	for _, layout := range []bloom.Layout{bloom.Classic, bloom.Blocked} {
		t.Run(layout.String(), func(t *testing.T) {
			if _, err := bloom.New(newBackend(t), bloom.Config{Capacity: 100, Layout: layout}); errors.Is(err, bloom.ErrInvalidParams) {
				require.Equal(t, bloom.Blocked, layout, "Classic must be taken: %v", err)
				return
			}
			for _, test := range suite {
				t.Run(test.name, func(t *testing.T) {
					test.run(t, place{func() bloom.Backend { return newBackend(t) }}, layout)
				})
			}
			t.Run("names", func(t *testing.T) {
				var p, q bloom.Backend
				t.Run("p", func(t *testing.T) { p = newBackend(t) })
				t.Run("q", func(t *testing.T) { q = newBackend(t) })
				testNames(t, place{func() bloom.Backend { return p }}, place{func() bloom.Backend { return q }}, layout)
			})
		})
	}
}

const (
	capacity = 1000 // items, of the filters that are filled
	probes   = 10_000
)

// place is where one filter is stored.
type place struct {
	handle func() bloom.Backend
}

var suite = []struct {
	name string
	run  func(*testing.T, place, bloom.Layout)
}{
	{"nothing there", testNothingThere},
	{"create is a promise", testCreate},
	{"attach", testAttach},
	{"attach only", testAttachOnly},
	{"reset", testReset},
	{"drop", testDrop},
	{"info", testInfo},
	{"context", testContext},
	{"items", testItems},
	{"added", testAdded},
	{"batches", testBatches},
	{"large batch", testLargeBatch},
	{"any rate", testAnyRate},
	{"measured rate", testMeasuredRate},
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
	got, err := f.ExistsMulti(t.Context(), named("absent", 50))
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
	members := named("member", 100)
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
		g, err := bloom.New(p.handle(), c.cfg)
		if c.cfg.Layout == other && errors.Is(err, bloom.ErrInvalidParams) {
			continue // a backend of one layout
		}
		require.NoError(t, err)
		err = g.CreateEmpty(t.Context())
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
		require.EqualValues(t, 200, info.Params.Capacity)
		require.Equal(t, layout, info.Params.Layout)
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
	members := named("member", 50)
	for generation := range uint64(3) {
		_, err := f.AddMulti(t.Context(), members)
		require.NoError(t, err)
		requireMembers(t, reader, members)
		before, err := f.Info(t.Context())
		require.NoError(t, err)
		if before.Generation != 0 { // 0: the backend does not know
			require.Equal(t, generation+1, before.Generation)
		}

		require.NoError(t, f.Reset(t.Context()))
		got, err := reader.ExistsMulti(t.Context(), members)
		require.NoError(t, err)
		require.Equal(t, make([]bool, 50), got)
		after, err := reader.Info(t.Context())
		require.NoError(t, err)
		if before.Generation != 0 {
			require.Equal(t, generation+2, after.Generation)
		}
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
	f := mustNew(t, p.handle(), bloom.Config{Capacity: capacity, Layout: layout})
	start := time.Now().Add(-time.Second)
	require.NoError(t, f.CreateEmpty(t.Context()))

	info, err := f.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, capacity, info.Params.Capacity)
	require.InEpsilon(t, 0.01, info.Params.FPRate, 1e-6)
	require.Equal(t, layout, info.Params.Layout)
	require.Zero(t, info.Items)
	require.True(t, info.Fill == 0 || math.IsNaN(info.Fill))
	require.Less(t, info.FPRate, 1e-6)
	require.Positive(t, info.Bytes)
	require.Positive(t, info.Shards)
	require.Equal(t, info.Shards, info.SubFilters)
	require.LessOrEqual(t, info.Generation, uint64(1))
	if !info.Created.IsZero() {
		require.WithinRange(t, info.Created, start, time.Now().Add(time.Second))
	}
	require.NotEmpty(t, info.Backend)

	_, err = f.AddMulti(t.Context(), named("member", capacity))
	require.NoError(t, err)
	full, err := f.Info(t.Context())
	require.NoError(t, err)
	require.InEpsilon(t, capacity, full.Items, 0.06, "an estimate")
	least := 0.5 // of the rate asked for
	if info.Shards > 1 {
		least = 0.1 // small shards are sized for a good deal more than their even share
	} else if !math.IsNaN(full.Fill) {
		require.InDelta(t, 0.48, full.Fill, 0.06, "at capacity about half the bits are set")
	}
	require.Greater(t, full.FPRate, 0.01*least)
	require.Less(t, full.FPRate, 0.015)
	require.Equal(t, info.Created, full.Created)

	_, err = f.AddMulti(t.Context(), named("more", capacity/2))
	if errors.Is(err, bloom.ErrFull) {
		return // it does not grow past its capacity, and says so
	}
	require.NoError(t, err)
	past, err := f.Info(t.Context())
	require.NoError(t, err)
	require.Greater(t, past.Items, past.Params.Capacity, "past capacity shows")
	require.Greater(t, past.FPRate, full.FPRate)
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

func mustNew(t testing.TB, b bloom.Backend, cfg bloom.Config) *bloom.Filter {
	t.Helper()
	f, err := bloom.New(b, cfg)
	require.NoError(t, err)
	return f
}

// requireMembers requires an undisturbed yes for each, singly (for the first
// few) and as a batch.
func requireMembers(t testing.TB, f *bloom.Filter, members []string) {
	t.Helper()
	for _, item := range members[:min(20, len(members))] {
		exists, err := f.Exists(t.Context(), item)
		require.NoError(t, err)
		require.True(t, exists, "false negative: %.20q", item)
	}
	got, err := f.ExistsMulti(t.Context(), members)
	require.NoError(t, err)
	require.Len(t, got, len(members))
	require.NotContains(t, got, false, "false negative")
}

func named(prefix string, n int) []string {
	items := make([]string, n)
	for i := range items {
		items[i] = prefix + " " + strconv.Itoa(i)
	}
	return items
}
