package bloom

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"github.com/spaolacci/murmur3"
)

// shortItem is up to which length items are hashed here. Behind the last whole 16
// bytes the library jumps to a place for each number of them, which the processor
// guesses wrong where ids vary in length; a look-up in memory took twice as long.
const shortItem = 64

// littleEndian is what the library takes machines to be, whose words it reads as
// they are. On others everything is hashed here: what is stored is the same everywhere.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// hashItem is MurmurHash3 x64-128 of the bytes of item, which are not copied.
func hashItem(item string, seed uint32) itemHash {
	if len(item) > shortItem && littleEndian {
		h1, h2 := murmur3.Sum128WithSeed(bytesOf(item), seed)
		return itemHash{h1, h2}
	}
	return murmur(item, seed)
}

func bytesOf(item string) []byte { return unsafe.Slice(unsafe.StringData(item), len(item)) }

const (
	murmurC1 = 0x87c37b91114253d5
	murmurC2 = 0x4cf5ad432745937f
)

// murmur is MurmurHash3 x64-128 (Appleby 2011).
func murmur(item string, seed uint32) itemHash {
	p, h1, h2, n := bytesOf(item), uint64(seed), uint64(seed), uint64(len(item))
	for ; len(p) >= 16; p = p[16:] {
		h1 ^= murmurK1(binary.LittleEndian.Uint64(p))
		h1 = (bits.RotateLeft64(h1, 27)+h2)*5 + 0x52dce729
		h2 ^= murmurK2(binary.LittleEndian.Uint64(p[8:]))
		h2 = (bits.RotateLeft64(h2, 31)+h1)*5 + 0x38495ab5
	}
	// What is left are two words, padded with zeros, of which murmurK1 and murmurK2
	// make nothing. Words that overlap are read instead of byte by byte.
	var k1, k2 uint64
	switch n := uint(len(p)); {
	case n > 8:
		k1, k2 = binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[n-8:])>>(8*(16-n)&63)
	case n >= 4:
		k1 = uint64(binary.LittleEndian.Uint32(p)) | uint64(binary.LittleEndian.Uint32(p[n-4:]))<<(8*(n-4)&63)
	case n > 0:
		k1 = uint64(p[0]) | uint64(p[n/2])<<(8*(n/2)&63) | uint64(p[n-1])<<(8*(n-1)&63)
	}
	h1 ^= murmurK1(k1) ^ n
	h2 ^= murmurK2(k2) ^ n
	h1 += h2
	h2 += h1
	h1, h2 = murmurMix(h1), murmurMix(h2)
	h1 += h2
	return itemHash{h1, h2 + h1}
}

func murmurK1(k uint64) uint64 { return bits.RotateLeft64(k*murmurC1, 31) * murmurC2 }

func murmurK2(k uint64) uint64 { return bits.RotateLeft64(k*murmurC2, 33) * murmurC1 }

func murmurMix(k uint64) uint64 {
	k = (k ^ k>>33) * 0xff51afd7ed558ccd
	k = (k ^ k>>33) * 0xc4ceb9fe1a85ec53
	return k ^ k>>33
}
