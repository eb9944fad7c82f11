package bloom

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// vecRequireEven fails unless counts are as even as chance makes them: χ² within
// seven standard deviations of its mean, beyond which no seed gets in practice,
// while a part of the range that is never hit takes it far beyond.
func vecRequireEven(t *testing.T, counts []int) {
	t.Helper()
	total := 0
	for _, c := range counts {
		total += c
	}
	even, chi := float64(total)/float64(len(counts)), 0.
	for _, c := range counts {
		chi += (float64(c) - even) * (float64(c) - even) / even
	}
	free := float64(len(counts) - 1)
	require.InDelta(t, free, chi, 7*math.Sqrt(2*free), "counts %v", counts)
}

// Positions must reach all of a filter beyond 2³¹ and 2³² bits, where 32-bit
// arithmetic wraps.
func TestClassicPositionEven(t *testing.T) {
	const buckets = 64
	for _, m := range []uint64{1<<31 - 1, 1 << 31, 1<<31 + 1, 1 << 32, 1 << 36, 9_585_059} {
		t.Run(fmt.Sprint(m), func(t *testing.T) {
			rnd := sizingRand(t)
			seed := rnd.Uint32()
			counts := make([]int, buckets)
			for item := range 20_000 {
				h := hashItem(fmt.Sprint("item:", item), seed)
				for i := range 10 {
					at := h.classicPosition(i, m)
					if at >= m {
						t.Fatalf("position %d of %d", at, m)
					}
					hi, lo := bits.Mul64(at, buckets)
					bucket, _ := bits.Div64(hi, lo, m)
					counts[bucket]++
				}
			}
			vecRequireEven(t, counts)
		})
	}
}

func TestBlockedPositionsEven(t *testing.T) {
	for _, blocks := range []uint64{64, 1_000_003, 1<<23 - 4} {
		t.Run(fmt.Sprint(blocks), func(t *testing.T) {
			rnd := sizingRand(t)
			p := Params{Capacity: 1, FPRate: 0.01, Layout: Blocked, Bits: blocks * blockBits, Hashes: 16}
			g := newGeometry(p, rnd.Uint32(), alone)
			var positions []uint64
			byBlock, byBit, byStep := make([]int, 64), make([]int, blockBits), make([]int, 64)
			for item := range 20_000 {
				positions = g.appendPositions(positions[:0], fmt.Sprint("item:", item))
				block := positions[0] / 512
				require.Less(t, block, blocks)
				byBlock[block*64/blocks]++
				for i, at := range positions {
					if at/512 != block || at%512 >= blockBits {
						t.Fatalf("bit %d of block %d, in an item of block %d; from 480 on is its tag", at%512, at/512, block)
					}
					byBit[at%512]++
					if i > 0 { // consecutive bits are independent: their eighths form even pairs
						byStep[positions[i-1]%512*8/blockBits*8+at%512*8/blockBits]++
					}
				}
			}
			vecRequireEven(t, byBlock)
			vecRequireEven(t, byBit)
			vecRequireEven(t, byStep)
		})
	}
}

func TestHashingAllocatesNothing(t *testing.T) {
	positions := make([]uint64, 0, maxHashes)
	for _, item := range []string{"", "user:42", strings.Repeat("x", 1000)} {
		require.Zero(t, testing.AllocsPerRun(100, func() { hashItem(item, 7) }))
		for _, layout := range sizingLayouts {
			for _, k := range []int{1, 7, maxHashes} {
				g := newGeometry(Params{Capacity: 1, FPRate: 0.01, Layout: layout, Bits: 480 * 1000, Hashes: k}, 7, alone)
				require.Zero(t, testing.AllocsPerRun(100, func() { positions = g.appendPositions(positions[:0], item) }),
					"%v k=%d", layout, k)
				require.Len(t, positions, k)
			}
		}
	}
}

// appendPositions appends, for batches.
func TestAppendPositionsAppends(t *testing.T) {
	for _, layout := range sizingLayouts {
		g := newGeometry(Params{Capacity: 1, FPRate: 0.01, Layout: layout, Bits: 480 * 1000, Hashes: 7}, 7, alone)
		a, b := g.appendPositions(nil, "a"), g.appendPositions(nil, "b")
		require.Equal(t, append(a, b...), g.appendPositions(g.appendPositions(nil, "a"), "b"))
		require.NotEqual(t, a, b)
	}
}

// The measured rate of absent items at capacity is what FPRateAt predicts: at
// most a tenth above it, beyond what chance does to the count, nor much below,
// or the prediction would be wrong.
func TestMeasuredRate(t *testing.T) {
	t.Parallel()
	capacity, probes := 200_000, 10_000_000
	if raceEnabled {
		capacity, probes = 20_000, 400_000
	}
	for _, layout := range sizingLayouts {
		for _, rate := range []float64{1e-2, 1e-3, 1e-4} {
			t.Run(fmt.Sprintf("%v at %v", layout, rate), func(t *testing.T) {
				m := NewMemory()
				require.NoError(t, m.CreateEmpty(t.Context(), Config{Capacity: uint64(capacity), FPRate: rate, Layout: layout}))
				f := m.live.Load()
				for i := range capacity {
					f.add(fmt.Sprint("member:", i))
				}
				item, positives := []byte("absent:00000000"), 0
				for range probes {
					for i := len(item) - 1; ; i-- { // counts on in place: ten million strings are not the point
						if item[i]++; item[i] <= '9' {
							break
						}
						item[i] = '0'
					}
					if f.exists(string(item)) {
						positives++
					}
				}
				predicted := f.geom.params.FPRateAt(uint64(capacity))
				got, sigma := float64(positives)/float64(probes), math.Sqrt(predicted/float64(probes))
				t.Logf("measured %.4g, predicted %.4g: × %.3f (σ %.1f %%), seed %d",
					got, predicted, got/predicted, 100*sigma/predicted, f.geom.seed)
				require.LessOrEqual(t, got, 1.1*predicted+4*sigma)
				require.GreaterOrEqual(t, got, 0.9*predicted-4*sigma)
			})
		}
	}
}
