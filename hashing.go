package bloom

import "math/bits"

// A stored filter outlives the binary that wrote it: every position below is
// frozen by the vectors in testdata. Another scheme needs another hash number in
// the header.
const (
	hashMurmur3 = 1 // MurmurHash3 x64-128 with a 32-bit seed
	hashSipHash = 2 // SipHash-2-4-128 with a key derived from Config.HashKey and the seed
)

// itemHash is what an item's positions are made from.
type itemHash struct{ h1, h2 uint64 }

// hash hashes an item as this geometry does.
func (g *geometry) hash(item string) itemHash {
	switch {
	case g.place.key.isSet():
		h1, h2 := keyedHash(g.k0, g.k1, item)
		return itemHash{h1, h2}
	case len(item) <= shortItem:
		return murmur(item, g.seed) // a call less than hashItem
	}
	return hashItem(item, g.seed)
}

// classicPosition returns the i-th bit of an item, (h1 + i·h2) mod m in unsigned
// 64-bit arithmetic (Kirsch & Mitzenmacher 2006).
func (h itemHash) classicPosition(i int, m uint64) uint64 {
	return (h.h1 + uint64(i)*h.h2) % m
}

// block returns the block of an item, h1 scaled to the number of blocks.
func (h itemHash) block(blocks uint64) uint64 {
	hi, _ := bits.Mul64(h.h1, blocks)
	return hi
}

// The 64-bit linear congruential generator of Knuth's MMIX. Its high bits pass
// as independent, unlike (a + i·b) mod 480, which triples the rate at 0.1 %.
const (
	lcgMultiplier = 6364136223846793005
	lcgIncrement  = 1442695040888963407
)

// inBlock steps the generator: x starts as h2, and each step yields a bit below
// blockBits.
func inBlock(x uint64) (next uint64, bit uint64) {
	x = x*lcgMultiplier + lcgIncrement
	return x, (x >> 32) * blockBits >> 32
}

// appendPositions appends the item's k bit offsets from the start of the body
// (the bits behind the header), tags of blocks counted.
func (g *geometry) appendPositions(dst []uint64, item string) []uint64 {
	h := g.hash(item)
	if g.params.Layout == Blocked {
		base, x, bit := h.block(g.blocks)*blockBytes*8, h.h2, uint64(0)
		for range g.params.Hashes {
			x, bit = inBlock(x)
			dst = append(dst, base+bit)
		}
		return dst
	}
	for i := range g.params.Hashes {
		dst = append(dst, h.classicPosition(i, g.params.Bits))
	}
	return dst
}
