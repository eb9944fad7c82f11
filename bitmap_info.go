package bloom

import (
	"context"
	"math"
	"math/bits"

	"github.com/redis/go-redis/v9"
)

// countRange is how much of the string one BITCOUNT reads: about a millisecond.
const countRange = 4 << 20

// Info describes the stored filter. It reads all of it, in ranges.
func (b *Bitmap) Info(ctx context.Context) (Info, error) {
	for range 1 + maxRereads {
		h, err := b.readWhole(ctx)
		if err != nil {
			return Info{}, err
		}
		set, err := b.countBits(ctx, h.geom)
		if err != nil {
			return Info{}, err
		}
		after, err := b.readWhole(ctx)
		if err != nil {
			return Info{}, err
		}
		if after.token == h.token {
			return h.info("bitmap", set), nil
		}
	}
	return Info{}, b.errUnsettled()
}

// countBits counts the bits that items have set.
func (b *Bitmap) countBits(ctx context.Context, g *geometry) (uint64, error) {
	set, last := uint64(0), g.size-trailerBytes
	for from := uint64(headerBytes); from < last; from += countRange {
		cmd := redis.NewIntCmd(ctx, "bitcount", b.key, from, min(last, from+countRange)-1)
		if err := b.read(ctx, cmd); err != nil {
			return 0, err
		}
		if err := cmd.Err(); err != nil {
			return 0, b.keyError(err)
		}
		set += uint64(cmd.Val())
	}
	return set - min(set, g.tagBits()), nil
}

// tagBits is how many of the body's set bits are tags of blocks.
func (g *geometry) tagBits() uint64 { return g.blocks * uint64(bits.OnesCount32(g.tag)) }

// info describes a filter of which so many bits are set.
func (h *header) info(backend string, set uint64) Info {
	p := h.geom.params
	items := p.itemsFor(set)
	rate := p.FPRateAt(items)
	if set >= p.Bits {
		rate = 1
	}
	return Info{
		Backend:    backend,
		Params:     p,
		Items:      items,
		Fill:       float64(set) / float64(p.Bits),
		FPRate:     rate,
		Bytes:      h.geom.size,
		Shards:     1,
		SubFilters: 1,
		Generation: h.generation,
		Created:    h.created,
	}
}

// itemsFor estimates how many distinct items set so many bits: the inverse of
// the expected fill (Swamidass & Baldi 2007). A filter with every bit set tells
// nothing; it counts as twice its capacity.
func (p Params) itemsFor(set uint64) uint64 {
	if set >= p.Bits {
		return 2 * p.Capacity
	}
	free := math.Log1p(-float64(set) / float64(p.Bits)) // ln of the share of zero bits
	k := float64(p.Hashes)
	if p.Layout == Blocked {
		// An item leaves a bit of its own block at 0 with (1 − 1/480)^k, and
		// blocks hold Poisson numbers of items.
		hit := -math.Expm1(k * log1mInvS)
		return uint64(math.Round(-free * float64(p.Bits/blockBits) / hit))
	}
	return uint64(math.Round(free / (k * math.Log1p(-1/float64(p.Bits)))))
}
