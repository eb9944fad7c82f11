package bloomtest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/bloomguard/bloom"
	"github.com/stretchr/testify/require"
)

// The items of the conformance suite: what may be added, what is answered for
// it, in which order, and how often wrongly.

var oddItems = []string{
	"", "a", "A", " ", "a ", "\x00", "\x00\x00", "a\x00", "\xff\xfe\xfd", "{a}", "äöü", "日本", "a\r\nb", "$3\r\nfoo\r\n",
	strings.Repeat("x", 64<<10), strings.Repeat("x", 64<<10-1),
}

func testItems(t *testing.T, p place, layout bloom.Layout) {
	f := mustNew(t, p.handle(), bloom.Config{Capacity: 200, FPRate: 1e-6, Layout: layout})
	require.NoError(t, f.CreateEmpty(t.Context()))
	for i, item := range oddItems {
		for _, absent := range oddItems[i:] {
			exists, err := f.Exists(t.Context(), absent)
			require.NoError(t, err)
			require.False(t, exists, "%.20q is not added yet", absent)
		}
		added, err := f.Add(t.Context(), item)
		require.NoError(t, err)
		require.True(t, added, "%.20q", item)
		requireMembers(t, f, oddItems[:i+1])
	}
	g := mustNew(t, p.handle(), bloom.Config{})
	requireMembers(t, g, oddItems)
}

func testAdded(t *testing.T, p place, layout bloom.Layout) {
	f := mustNew(t, p.handle(), bloom.Config{Capacity: 200, FPRate: 1e-6, Layout: layout})
	require.NoError(t, f.CreateEmpty(t.Context()))
	for _, want := range []bool{true, false, false} {
		added, err := f.Add(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, want, added)
	}
	got, err := f.AddMulti(t.Context(), []string{"b", "a", "c", "b", "c", "d"})
	require.NoError(t, err)
	require.Equal(t, []bool{true, false, true, false, false, true}, got, "duplicates count once, in order")
}

func testBatches(t *testing.T, p place, layout bloom.Layout) {
	f := mustNew(t, p.handle(), bloom.Config{Capacity: 200, FPRate: 1e-6, Layout: layout})
	require.NoError(t, f.CreateEmpty(t.Context()))
	for _, none := range [][]string{nil, {}} {
		got, err := f.AddMulti(t.Context(), none)
		require.NoError(t, err)
		require.Empty(t, got)
		got, err = f.ExistsMulti(t.Context(), none)
		require.NoError(t, err)
		require.Empty(t, got)
	}
	got, err := f.AddMulti(t.Context(), oddItems)
	require.NoError(t, err)
	require.Len(t, got, len(oddItems))
	require.NotContains(t, got, false)

	// One bool per item, in order, whatever stands next to what.
	absent := named("absent", len(oddItems))
	var mixed []string
	var want []bool
	for i, item := range oddItems {
		mixed = append(mixed, absent[i], item, item)
		want = append(want, false, true, true)
	}
	got, err = f.ExistsMulti(t.Context(), mixed)
	require.NoError(t, err)
	require.Equal(t, want, got)
	rand.Shuffle(len(mixed), func(i, j int) {
		mixed[i], mixed[j] = mixed[j], mixed[i]
		want[i], want[j] = want[j], want[i]
	})
	got, err = f.ExistsMulti(t.Context(), mixed)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// A batch of several chunks, with every kind of chunk boundary: the answers line
// up with the items all the same.
func testLargeBatch(t *testing.T, p place, layout bloom.Layout) {
	n := capacity
	f := mustNew(t, p.handle(), bloom.Config{Capacity: uint64(n), FPRate: 1e-7, Layout: layout})
	require.NoError(t, f.CreateEmpty(t.Context()))
	members, absent := named("member", n), named("absent", n)
	got, err := f.AddMulti(t.Context(), members)
	require.NoError(t, err)
	requireCount(t, n, got, "added")
	got, err = f.AddMulti(t.Context(), members)
	require.NoError(t, err)
	requireCount(t, 0, got, "added again")

	mixed, want := make([]string, 0, 2*n), make([]bool, 0, 2*n)
	for i := range n {
		mixed = append(mixed, members[i])
		want = append(want, true)
		for range i % 3 {
			mixed = append(mixed, absent[i])
			want = append(want, false)
		}
	}
	got, err = f.ExistsMulti(t.Context(), mixed)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// requireCount allows two items of a batch to be false positives.
func requireCount(t *testing.T, want int, got []bool, what string) {
	t.Helper()
	n := 0
	for _, is := range got {
		if is {
			n++
		}
	}
	require.InDelta(t, want, n, 2, what)
}

// For every rate in (0, 1) an item that was added exists: k is never 0.
func testAnyRate(t *testing.T, p place, layout bloom.Layout) {
	rates := []float64{5.5e-20, 1e-15, 1e-9, 0.3, 0.5, 0.70, 0.71, 0.72, 0.9, 0.99, math.Nextafter(1, 0)}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 3 {
		rates = append(rates, 1-random.Float64(), math.Pow(10, -19*random.Float64()))
	}
	for _, rate := range rates {
		if rate >= 1 {
			continue
		}
		for _, capacity := range []uint64{1, 13} {
			f, err := bloom.New(p.handle(), bloom.Config{Capacity: capacity, FPRate: rate, Layout: layout})
			if rate > 0.25 && errors.Is(err, bloom.ErrInvalidParams) {
				continue // a backend may refuse what is no filter to speak of
			}
			require.NoError(t, err)
			require.NoError(t, f.Drop(t.Context()))
			require.NoError(t, f.CreateEmpty(t.Context()))
			items := named(fmt.Sprintf("p=%v n=%d", rate, capacity), 13)
			_, err = f.Add(t.Context(), items[0])
			require.NoError(t, err)
			requireMembers(t, f, items[:1])
			_, err = f.AddMulti(t.Context(), items)
			if capacity == 1 && errors.Is(err, bloom.ErrFull) {
				continue
			}
			require.NoError(t, err)
			requireMembers(t, f, items)
		}
	}
}

// At capacity the share of false positives is the predicted one, within a tenth
// and four standard deviations of the measurement.
func testMeasuredRate(t *testing.T, p place, layout bloom.Layout) {
	for _, rate := range []float64{0.01, 0.001} {
		if float64(probes)*rate < 100 {
			continue // too few to measure it by
		}
		f := mustNew(t, p.handle(), bloom.Config{Capacity: capacity, FPRate: rate, Layout: layout})
		require.NoError(t, f.Drop(t.Context()))
		require.NoError(t, f.CreateEmpty(t.Context()))
		members := named("member", capacity)
		_, err := f.AddMulti(t.Context(), members)
		require.NoError(t, err)
		requireMembers(t, f, members)

		got, err := f.ExistsMulti(t.Context(), named("absent", probes))
		require.NoError(t, err)
		wrong := 0.
		for _, is := range got {
			if is {
				wrong++
			}
		}
		info, err := f.Info(t.Context())
		require.NoError(t, err)
		predicted := max(info.FPRate, rate) // of an estimate of the items
		sigma := math.Sqrt(predicted / float64(probes))
		measured := wrong / float64(probes)
		t.Logf("rate %v: predicted %.5f, measured %.5f", rate, predicted, measured)
		require.LessOrEqual(t, info.FPRate, rate*1.5)
		require.LessOrEqual(t, measured, 1.1*predicted+4*sigma)
		require.Positive(t, measured, "a filter at capacity has false positives; these bits answer something else")
	}
}

// Two names never overlap.
func testNames(t *testing.T, p, q place, layout bloom.Layout) {
	cfg := bloom.Config{Capacity: 200, FPRate: 1e-6, Layout: layout}
	f, g := mustNew(t, p.handle(), cfg), mustNew(t, q.handle(), cfg)
	require.NoError(t, f.CreateEmpty(t.Context()))
	requireNotReady(t, g)
	require.NoError(t, g.CreateEmpty(t.Context()))
	members := named("member", 100)
	_, err := f.AddMulti(t.Context(), members)
	require.NoError(t, err)
	got, err := g.ExistsMulti(t.Context(), members)
	require.NoError(t, err)
	require.Equal(t, make([]bool, len(members)), got)
	require.NoError(t, g.Reset(t.Context()))
	require.NoError(t, g.Drop(t.Context()))
	requireMembers(t, f, members)
}
