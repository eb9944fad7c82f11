package bloom

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// sizingBlock is the exact distribution of how many bits of a block are set: the
// occupancy problem, one throw after another.
type sizingBlock [blockBits + 1]float64

func newSizingBlock() *sizingBlock { return &sizingBlock{1} }

// add throws the k bits of one more item.
func (b *sizingBlock) add(k int) {
	for range k {
		for set := blockBits; set >= 1; set-- {
			b[set] = b[set]*float64(set)/blockBits + b[set-1]*float64(blockBits-set+1)/blockBits
		}
		b[0] = 0
	}
}

// rate is E[(X/s)^k] for X of s bits set.
func (b *sizingBlock) rate(k int) float64 {
	sum := 0.
	for set, p := range b {
		sum += p * math.Pow(float64(set)/blockBits, float64(k))
	}
	return sum
}

// sizingExactRate is the exact rate of blocks that hold Poisson(load) items.
func sizingExactRate(load float64, k int) float64 {
	sum, block := 0., newSizingBlock()
	weight := math.Exp(-load)
	for items := 1.; items < load+12*math.Sqrt(load)+40; items++ {
		block.add(k)
		weight *= load / items
		sum += weight * block.rate(k)
	}
	return sum
}

// blockRate is a formula for what sizingBlock computes step by step. It must not
// fall below it, or a filter would miss the rate it was sized for.
func TestBlockRateAgainstExact(t *testing.T) {
	for _, tt := range []struct {
		k      int
		from   float64 // the lowest rate that matters for a filter of that k
		within float64
	}{
		{1, 0, 1e-12}, // one bit an item: nothing is approximate
		{2, 0, 0.0005}, {3, 0, 0.001}, {5, 1e-6, 0.001}, {6, 1e-6, 0.001}, {7, 1e-6, 0.001}, {9, 1e-6, 0.001},
		{11, 1e-6, 0.001}, {13, 1e-6, 0.001}, {16, 1e-8, 0.002}, {20, 1e-9, 0.004}, {33, 1e-13, 0.012}, {64, 1e-16, 0.05},
	} {
		t.Run(fmt.Sprintf("k=%d", tt.k), func(t *testing.T) {
			block, checked := newSizingBlock(), 0
			for items := 1; items <= 3000/tt.k; items++ {
				block.add(tt.k)
				exact := block.rate(tt.k)
				if exact < tt.from {
					continue
				}
				checked++
				got := blockRate(float64(items), tt.k)
				require.GreaterOrEqual(t, got, exact*(1-1e-9), "%d items", items)
				require.LessOrEqual(t, got, exact*(1+tt.within), "%d items", items)
			}
			require.Greater(t, checked, 20)
		})
	}
}

// The rate of a whole filter, against the exact mixture: at capacity it is at
// most the rate asked for, and not much less, which would waste memory.
func TestBlockedRateAgainstExact(t *testing.T) {
	for _, tt := range []struct{ rate, within float64 }{
		{0.5, 0.001}, {0.1, 0.001}, {0.01, 0.001}, {0.001, 0.001}, {1e-4, 0.001}, {1e-5, 0.001}, {1e-6, 0.001},
		{1e-9, 0.003}, {1e-12, 0.005}, {minFPRate, 0.013},
	} {
		t.Run(fmt.Sprint(tt.rate), func(t *testing.T) {
			const n = 1e6
			p := sizingParams(t, n, tt.rate, Blocked)
			load := n / float64(p.Bits/blockBits)
			exact := sizingExactRate(load, p.Hashes)
			require.LessOrEqual(t, exact, tt.rate)
			require.GreaterOrEqual(t, exact, tt.rate*(1-tt.within))
			half := sizingExactRate(load/2, p.Hashes)
			require.InEpsilon(t, half, p.FPRateAt(n/2), max(2*tt.within, 0.003))
		})
	}
}

// At capacity the rate is within what was asked for, and one block fewer would
// not do, whatever the k.
func TestNewParamsBlockedFewestBlocks(t *testing.T) {
	const points = 40
	for i, n := range []uint64{1, 10, 1000, 1e6, 1e8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			for j := range points {
				// From 0.5 to 10⁻⁶, at other points for every n.
				rate := 0.5 * math.Pow(2e-6, (float64(j)+float64(i)/5)/(points-1))
				rate = max(rate, 1e-6)
				p := sizingParams(t, n, rate, Blocked)
				require.LessOrEqual(t, p.FPRateAt(n), rate, "%+v", p)
				require.Zero(t, p.Bits%blockBits)
				p.Bits -= blockBits
				if p.Bits == 0 {
					continue
				}
				for k := 1; k <= maxHashes; k++ {
					if less := p.withHashes(k).FPRateAt(n); less <= rate {
						t.Fatalf("%+v and k=%d would do: %v", p, k, less)
					}
				}
			}
		})
	}
}

// The memory that Blocked takes beyond Classic, as documented.
func TestBlockedOverhead(t *testing.T) {
	for _, tt := range []struct{ rate, percent float64 }{{0.01, 10}, {0.001, 15}, {0.0001, 23}} {
		t.Run(fmt.Sprint(tt.rate), func(t *testing.T) {
			classic, blocked := sizingParams(t, 1e6, tt.rate, Classic), sizingParams(t, 1e6, tt.rate, Blocked)
			more := 100 * (float64(blocked.Bytes())/float64(classic.Bytes()) - 1)
			t.Logf("+%.1f %%", more)
			require.InDelta(t, tt.percent, more, 1.5)
		})
	}
}
