package main

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/bloomguard/bloom/examples/shop/internal/shop"
	"github.com/stretchr/testify/require"
)

const testRows = 5000

func testTraffic(seed uint64) *traffic {
	last := shop.SeededID(testRows)
	return newTraffic(testRows, []int64{last + 1, last + 2, last + 3}, last+3, 1.3, seed)
}

func TestAbsentIDsAreAbsent(t *testing.T) {
	load := testTraffic(1)
	kinds := map[string]int{}
	const n = 60_000
	for range n {
		id := load.absent()
		require.NoError(t, shop.ValidateID(itoa(id)))
		require.False(t, shop.Seeded(id, testRows), "id %d", id)
		switch {
		case id > load.last+aboveLast:
			kinds["beyond"]++ // by a changed first digit
		case id > load.last:
			kinds["just above"]++
		case id > shop.SeededID(testRows):
			kinds["deleted"]++
		default:
			kinds["among"]++
		}
	}
	// Half random; of the other half a third each. Changed digits fall everywhere.
	require.InDelta(t, n/6, kinds["deleted"], n/60)
	require.GreaterOrEqual(t, kinds["just above"], n/6-n/60)
	require.GreaterOrEqual(t, kinds["among"], n/2)
	require.NotZero(t, kinds["beyond"])
}

func itoa(id int64) string { return strconv.FormatInt(id, 10) }

// Popular products are spread over the table, each rank is another one.
func TestExistingIDs(t *testing.T) {
	load := testTraffic(1)
	seen := map[int64]int{}
	const n = 50_000
	for range n {
		id := load.existing()
		require.True(t, shop.Seeded(id, testRows), "id %d", id)
		seen[id]++
	}
	// The k-th is asked for in proportion to k to the power of -1.3.
	sum := 0.0
	for k := 1.0; k <= testRows; k++ {
		sum += math.Pow(k, -1.3)
	}
	for rank := range uint64(5) {
		id := shop.SeededID(int(rank*scatter%testRows) + 1)
		want := n * math.Pow(float64(rank+1), -1.3) / sum
		require.InDelta(t, want, seen[id], 5*math.Sqrt(want), "rank %d", rank)
	}
	rows := map[uint64]bool{}
	for rank := range uint64(testRows) {
		rows[rank*scatter%testRows] = true
	}
	require.Len(t, rows, testRows)
}

func TestPlan(t *testing.T) {
	const n = 10_000
	for _, share := range []int{0, 25, 95} {
		attack := 0
		for _, s := range testTraffic(7).plan(n, share) {
			require.Equal(t, s.real, shop.Seeded(s.id, testRows))
			if !s.real {
				attack++
			}
		}
		want := float64(n*share) / 100
		require.InDelta(t, want, attack, 5*math.Sqrt(want)+0.5, "share %d", share)
	}
	require.Equal(t, testTraffic(7).plan(n, 50), testTraffic(7).plan(n, 50))
	require.NotEqual(t, testTraffic(7).plan(n, 50), testTraffic(8).plan(n, 50))
}

func TestPrediction(t *testing.T) {
	began := time.Now()
	shots := []shot{{id: 1, real: true}, {id: 2}, {id: 2}, {id: 3}, {id: 4}, {id: 4}} // 4 is deleted
	for name, c := range map[string]struct {
		way         way
		first, next float64
	}{
		"no protection": {way{}, 5, 5},
		"null caching":  {way{nulls: true}, 3, 0},
		"filter only":   {way{filter: true}, 3*0.25 + 2, 3*0.25 + 2},
		"Guard":         {way{filter: true, nulls: true}, 2*0.25 + 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPrediction(&c.way, 0.25, []int64{4})
			require.Equal(t, c.first, p.lookups(shots, began, time.Millisecond))
			require.Equal(t, c.next, p.lookups(shots, began.Add(time.Second), time.Millisecond))
			require.Equal(t, c.first, p.lookups(shots, began.Add(2*nullTTL), time.Millisecond), "nulls are gone")
		})
	}
}
