package bloom

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// overflowOf is the chance that one of the shards gets more than its capacity of so
// many items: the tail of the binomial, summed term by term.
func overflowOf(items uint64, shards int, capacity uint64) float64 {
	n, q := float64(items), 1/float64(shards)
	lg := func(x float64) float64 { l, _ := math.Lgamma(x); return l }
	first := float64(capacity + 1)
	if first > n {
		return 0
	}
	term := math.Exp(lg(n+1) - lg(first+1) - lg(n-first+1) + first*math.Log(q) + (n-first)*math.Log1p(-q))
	sum := 0.0
	for j := first; j <= n && term > sum*1e-12; j++ {
		sum += term
		term *= (n - j) / (j + 1) * q / (1 - q)
	}
	return float64(shards) * sum
}

// The allowance is enough, by the exact binomial, and no more than a few standard
// deviations.
func TestShardAllowance(t *testing.T) {
	for _, n := range []uint64{1, 13, 100, 1000, 12_345, 1e6, 1e7, 1e9} {
		for _, shards := range []int{2, 3, 8, 17, 128, 1024} {
			total, ok := shardTotal(n, shards)
			require.True(t, ok)
			least, sum := uint64(math.MaxUint64), uint64(0)
			for i := range shards {
				c := shardCapacity(total, placeAt(i, shards))
				least, sum = min(least, c), sum+c
			}
			require.Equal(t, total, sum)
			chance := overflowOf(n, shards, least)
			require.LessOrEqual(t, chance, overflowChance, "%d items in %d shards", n, shards)
			mean := float64(n) / float64(shards)
			require.LessOrEqual(t, float64(least), mean+7.5*math.Sqrt(mean)+30, "%d items in %d shards", n, shards)
		}
	}
	share, _ := shardTotal(8_000_000, 8)
	require.InDelta(t, 1.005, float64(share)/8_000_000, 0.001, "what NewSharded's comment says")
	one, _ := shardTotal(1000, 1)
	require.EqualValues(t, 1000, one)
	_, ok := shardTotal(math.MaxUint64, 2)
	require.False(t, ok)
}

// What the shards were sized for tells the filter's capacity, exactly.
func TestShardCapacityIsKnown(t *testing.T) {
	rnd := sizingRand(t)
	for range 300 {
		n := 1 + uint64(math.Exp(rnd.Float64()*math.Log(1e15)))
		shards := 1 + rnd.IntN(maxShards)
		total, ok := shardTotal(n, shards)
		require.True(t, ok)
		next, _ := shardTotal(n+1, shards)
		require.Greater(t, next, total)
		whole, largest := uint64(math.MaxUint64), uint64(0)
		for i := range shards {
			p := placeAt(i, shards)
			c := shardCapacity(total, p)
			whole = min(whole, wholeCapacity(c, p))
			largest = max(largest, wholeCapacity(c-1, p)+1)
		}
		require.Equal(t, n, whole, "%d shards", shards)
		require.Equal(t, n, largest, "%d shards", shards)
	}
	for _, share := range []uint64{0, 1, 5, math.MaxUint64} {
		require.NotPanics(t, func() { wholeCapacity(share, placeAt(2, 3)) })
	}
}

// Items thrown into shards never fill one past its capacity, and rarely come near.
func TestShardAllowanceSimulated(t *testing.T) {
	seed := rebuildSeed(t)
	rnd := rand.New(rand.NewPCG(seed, 1))
	const n = 10_000
	for _, shards := range []int{2, 8, 100} {
		total, _ := shardTotal(n, shards)
		fullest := 0.0
		for round := range 20 {
			counts := make([]uint64, shards)
			for i := range n {
				counts[route(strconv.FormatUint(rnd.Uint64(), 36)+strconv.Itoa(i), shards)]++
			}
			for i, c := range counts {
				most := shardCapacity(total, placeAt(i, shards))
				require.LessOrEqual(t, c, most, "round %d", round)
				fullest = max(fullest, float64(c)/float64(most))
			}
		}
		t.Logf("%d shards: the fullest was filled to %.3f", shards, fullest)
	}
}

// At capacity the rate is what was asked for, in every layout, also where the
// shards are small.
func TestShardedRateAtCapacity(t *testing.T) {
	t.Parallel()
	seed := rebuildSeed(t)
	const probes = 50_000
	for _, layout := range []Layout{Classic, Blocked} {
		for _, c := range []struct {
			n      uint64
			shards int
			rate   float64
		}{{20_000, 8, 0.01}, {10_000, 50, 0.01}, {10_000, 3, 0.001}} {
			t.Run(fmt.Sprintf("%v/%d in %d at %v", layout, c.n, c.shards, c.rate), func(t *testing.T) {
				var shards []Backend
				for range c.shards {
					shards = append(shards, NewMemory())
				}
				f, err := New(NewSharded(shards...), Config{Capacity: c.n, FPRate: c.rate, Layout: layout})
				require.NoError(t, err)
				require.NoError(t, f.CreateEmpty(t.Context()))
				item := func(i int) string { return fmt.Sprintf("%x-%d", seed, i) }
				for i := range int(c.n) {
					_, err := f.Add(t.Context(), item(i))
					require.NoError(t, err)
				}
				found := 0
				for i := range probes {
					exists, err := f.Exists(t.Context(), item(int(c.n)+i))
					require.NoError(t, err)
					if exists {
						found++
					}
				}
				info, err := f.Info(t.Context())
				require.NoError(t, err)
				measured, sigma := float64(found)/probes, math.Sqrt(c.rate/probes)
				t.Logf("measured %.5f, predicted %.5f", measured, info.FPRate)
				require.LessOrEqual(t, info.FPRate, c.rate*1.02)
				require.LessOrEqual(t, measured, 1.1*info.FPRate+4*sigma)
				require.Greater(t, measured, 0.2*info.FPRate)
				require.InEpsilon(t, c.n, info.Items, 0.05)
			})
		}
	}
}
