package bloomtest

import "encoding/binary"

// The module hashes with MurmurHash64A (Austin Appleby's MurmurHash2 for 64-bit
// machines), twice; the first seed is the hash's own multiplier.
const murmurMultiplier = 0xc6a4a7935bd1e995

// itemHash is what an item's bits are made from, the same in all sub-filters.
type itemHash struct{ a, b uint64 }

func hashItem(item string) itemHash {
	a := murmur64A(item, murmurMultiplier)
	return itemHash{a, murmur64A(item, a)}
}

// bit returns the i-th bit of an item in a (sub-)filter of so many bits.
func (h itemHash) bit(i uint32, bits uint64) uint64 { return (h.a + uint64(i)*h.b) % bits }

func murmur64A(s string, seed uint64) uint64 {
	mix := func(k uint64) uint64 {
		k *= murmurMultiplier
		return (k ^ k>>47) * murmurMultiplier
	}
	h := seed ^ uint64(len(s))*murmurMultiplier
	for ; len(s) >= 8; s = s[8:] {
		h = (h ^ mix(binary.LittleEndian.Uint64([]byte(s[:8])))) * murmurMultiplier
	}
	if len(s) > 0 {
		var tail [8]byte
		copy(tail[:], s)
		h = (h ^ binary.LittleEndian.Uint64(tail[:])) * murmurMultiplier
	}
	h = (h ^ h>>47) * murmurMultiplier
	return h ^ h>>47
}
