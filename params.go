package bloom

import (
	"fmt"
	"math"
)

// Layout says how an item's bits are spread over a filter.
type Layout uint8

const (
	// Classic spreads the bits over the whole filter: least memory for a rate.
	// A read costs the server k bit look-ups.
	Classic Layout = iota

	// Blocked keeps all bits of an item in one 64-byte block: a read costs the
	// server one 64-byte GETRANGE, in batches about a fourth of Classic, for 11 %
	// more memory at a rate of 1 %, 16 % at 0.1 % and 24 % at 0.01 %.
	Blocked
)

// String returns "classic" or "blocked".
func (l Layout) String() string {
	switch l {
	case Classic:
		return "classic"
	case Blocked:
		return "blocked"
	}
	return fmt.Sprintf("Layout(%d)", uint8(l))
}

const (
	blockBytes = 64  // one block of Blocked: a cache line, one GETRANGE
	blockBits  = 480 // bits of a block that items use; the other 32 are its tag
	tagBytes   = 4

	// maxHashes bounds k, and with it the rate: the textbook's k is log2(1/p).
	maxHashes = 64
	// minFPRate is the smallest rate whose k does not exceed maxHashes.
	minFPRate = 5.5e-20
	// maxKeyBits is the longest Redis string, 512 MiB, header and trailer included.
	maxKeyBits = 1 << 32

	ln2Squared = math.Ln2 * math.Ln2
)

// Params is the geometry of a filter.
type Params struct {
	Capacity uint64  // n, items the filter is sized for
	FPRate   float64 // p, false-positive rate once Capacity items are in
	Layout   Layout
	Bits     uint64 // m, bits that items can set
	Hashes   int    // k, bits that each item sets
}

// NewParams sizes a filter for capacity items at the false-positive rate fpRate.
//
// Classic uses the textbook's m = ⌈−n·ln p / ln² 2⌉ and the better of the two
// integers around k = m/n·ln 2 (Bloom 1970; with k rounded the rate at capacity
// is 1.004 % for 1 %). Blocked takes the fewest blocks, and for them the best k,
// whose rate at capacity is at most fpRate, see [Params.FPRateAt].
//
// It returns [ErrInvalidParams] for a capacity of 0 or a rate outside
// [5.5e-20, 1), and [ErrTooLarge] where the filter would exceed the 2³² bits of
// one Redis string; the text says how many shards would do.
func NewParams(capacity uint64, fpRate float64, layout Layout) (Params, error) {
	if err := validateSizing(capacity, fpRate, layout); err != nil {
		return Params{}, err
	}
	m := sizeBits(float64(capacity), fpRate, layout)
	if wholeBits(m, layout) > maxKeyBits {
		return Params{}, tooLarge(capacity, fpRate, layout, m)
	}
	p := Params{Capacity: capacity, FPRate: fpRate, Layout: layout, Bits: uint64(m)}
	p.Hashes = p.bestHashes()
	return p, nil
}

func validateSizing(capacity uint64, fpRate float64, layout Layout) error {
	switch {
	case layout > Blocked:
		return fmt.Errorf("bloom: layout %d: want Classic (0) or Blocked (1): %w", uint8(layout), ErrInvalidParams)
	case capacity == 0:
		return fmt.Errorf("bloom: capacity 0: want at least 1 item: %w", ErrInvalidParams)
	case !(fpRate >= minFPRate && fpRate < 1): // also refuses NaN
		return fmt.Errorf("bloom: false-positive rate %v: want at least %v and below 1 (1 %% is 0.01): %w",
			fpRate, minFPRate, ErrInvalidParams)
	}
	return nil
}

// sizeBits returns m, in floating point since that cannot overflow.
func sizeBits(capacity, fpRate float64, layout Layout) float64 {
	if layout == Blocked {
		return math.Ceil(capacity/blockedLoad(fpRate)) * blockBits
	}
	return math.Ceil(-capacity * math.Log(fpRate) / ln2Squared)
}

// frameBits is what surrounds the body.
const frameBits = (headerBytes + trailerBytes) * 8

// wholeBits returns the length of the string that holds m item bits.
func wholeBits(m float64, layout Layout) float64 {
	if layout == Blocked {
		m += m / blockBits * tagBytes * 8
	}
	return frameBits + m
}

// bestHashes returns the k of the lowest rate at capacity.
func (p Params) bestHashes() int {
	perItem := float64(p.Bits) / float64(p.Capacity)
	if p.Layout == Blocked {
		_, k := bestBlockedRate(blockBits / perItem)
		return k
	}
	k := min(max(1, int(perItem*math.Ln2)), maxHashes)
	if k < maxHashes && p.withHashes(k+1).FPRateAt(p.Capacity) < p.withHashes(k).FPRateAt(p.Capacity) {
		k++
	}
	return k
}

func (p Params) withHashes(k int) Params {
	p.Hashes = k
	return p
}

// tooLarge says how many shards would do.
func tooLarge(capacity uint64, fpRate float64, layout Layout, m float64) error {
	whole := wholeBits(m, layout)
	return fmt.Errorf("bloom: %d items at %v (%v) need %.0f bits, %.0f in all; one key holds at most %d: %s: %w",
		capacity, fpRate, layout, m, whole, uint64(maxKeyBits),
		shardAdvice(float64(capacity), keyItems(fpRate, layout)), ErrTooLarge)
}

// keyItems is how many items at a rate one key holds, less what rounding up to
// whole items and blocks may cost.
func keyItems(fpRate float64, layout Layout) float64 {
	const many = 1 << 40 // so that rounding up does not count
	perItem := (wholeBits(sizeBits(many, fpRate, layout), layout) - frameBits) / many
	return (maxKeyBits-frameBits-blockBytes*8)/perItem - 1
}

// shardAdvice says how many shards hold so many items, if each holds that many at
// most.
func shardAdvice(capacity, most float64) string {
	n := enoughShards(capacity, most)
	if n > maxShards {
		return fmt.Sprintf("%.0f shards would be needed, and at most %d are possible", n, maxShards)
	}
	return fmt.Sprintf("%.0f shards would do", n)
}

// Bytes returns the length of the filter's Redis string, header, block tags and
// trailer included.
func (p Params) Bytes() uint64 {
	return headerBytes + p.bodyBytes() + trailerBytes
}

func (p Params) bodyBytes() uint64 {
	if p.Layout == Blocked {
		return p.Bits / blockBits * blockBytes
	}
	return (p.Bits + 7) / 8
}

// FPRateAt predicts the share of absent items that the filter calls present once
// it holds the given number of distinct items.
//
// Classic: (1 − (1 − 1/m)^(k·n))^k. Blocked: the Poisson mixture of that over
// the loads of a block (Putze, Sanders & Singler 2007), with the variance of the
// number of bits set taken into account.
func (p Params) FPRateAt(items uint64) float64 {
	if items == 0 || p.Bits == 0 || p.Hashes <= 0 {
		return 0
	}
	if p.Layout == Blocked {
		return blockedRate(float64(items)/float64(p.Bits/blockBits), p.Hashes)
	}
	fill := -math.Expm1(float64(p.Hashes) * float64(items) * math.Log1p(-1/float64(p.Bits)))
	return math.Pow(fill, float64(p.Hashes))
}
