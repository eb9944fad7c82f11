package bloom

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/big"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var updateGolden = flag.Bool("update-golden", false,
	"write testdata anew; what is stored anywhere becomes unreadable, so raise formatVersion or hashMurmur3 first")

const vecPath = "testdata/positions.jsonl"

// vecRecord is one golden vector.
type vecRecord struct {
	Item      []byte   `json:"item"` // base64: items are any bytes
	Seed      uint32   `json:"seed"`
	H1        uint64   `json:"h1"`
	H2        uint64   `json:"h2"`
	Layout    string   `json:"layout"`
	M         uint64   `json:"m"`
	K         int      `json:"k"`
	Positions []uint64 `json:"positions"` // bits from the start of the body, tags counted
}

// vecReference is MurmurHash3_x64_128 from Austin Appleby's published algorithm:
// byte by byte, in one loop for blocks and tail, on purpose unlike the library
// that the package uses.
func vecReference(item []byte, seed uint32) (h1, h2 uint64) {
	const c1, c2 = 0x87c37b91114253d5, 0x4cf5ad432745937f
	rotl := func(x uint64, r uint) uint64 { return x<<r | x>>(64-r) }
	load := func(b []byte) (x uint64) { // little-endian, missing bytes are 0
		for i, c := range b {
			x |= uint64(c) << (8 * uint(i))
		}
		return x
	}
	mix1 := func(k uint64) uint64 { return rotl(k*c1, 31) * c2 }
	mix2 := func(k uint64) uint64 { return rotl(k*c2, 33) * c1 }
	final := func(k uint64) uint64 {
		k = (k ^ k>>33) * 0xff51afd7ed558ccd
		k = (k ^ k>>33) * 0xc4ceb9fe1a85ec53
		return k ^ k>>33
	}

	h1, h2 = uint64(seed), uint64(seed)
	rest := item
	for ; len(rest) >= 16; rest = rest[16:] {
		h1 ^= mix1(load(rest[:8]))
		h1 = (rotl(h1, 27)+h2)*5 + 0x52dce729
		h2 ^= mix2(load(rest[8:16]))
		h2 = (rotl(h2, 31)+h1)*5 + 0x38495ab5
	}
	if len(rest) > 8 {
		h2 ^= mix2(load(rest[8:]))
		rest = rest[:8]
	}
	h1 ^= mix1(load(rest)) // of nothing: 0
	h1, h2 = h1^uint64(len(item)), h2^uint64(len(item))
	h1 += h2
	h2 += h1
	h1, h2 = final(h1), final(h2)
	h1 += h2
	h2 += h1
	return h1, h2
}

// vecPositions computes positions from the definitions, in integers that cannot
// overflow.
func vecPositions(h1, h2 uint64, layout string, m uint64, k int) (positions []uint64) {
	word := new(big.Int).Lsh(big.NewInt(1), 64)
	from := func(x uint64) *big.Int { return new(big.Int).SetUint64(x) }
	if layout == "classic" {
		for i := range k {
			x := new(big.Int).Mul(big.NewInt(int64(i)), from(h2))
			x.Add(x, from(h1)).Mod(x, word).Mod(x, from(m))
			positions = append(positions, x.Uint64())
		}
		return positions
	}
	block := new(big.Int).Mul(from(h1), from(m/480))
	block.Rsh(block, 64)
	x := from(h2)
	for range k {
		x.Mul(x, from(6364136223846793005)).Add(x, from(1442695040888963407)).Mod(x, word)
		bit := new(big.Int).Rsh(x, 32)
		bit.Mul(bit, big.NewInt(480)).Rsh(bit, 32)
		positions = append(positions, block.Uint64()*512+bit.Uint64())
	}
	return positions
}

// vecItems are items of every length that the hash treats differently, and of
// bytes that a careless conversion would change.
func vecItems() [][]byte {
	items := [][]byte{
		{}, []byte("a"), []byte("hello"), []byte("user:42"), []byte("Zoë"), []byte("日本語"), []byte("\xff\xfe not UTF-8"),
		{0}, {0, 0}, []byte("a\x00b"), []byte("a\x00"), bytes.Repeat([]byte{0}, 16), bytes.Repeat([]byte{0xff}, 17),
		[]byte("The quick brown fox jumps over the lazy dog"),
	}
	for n := 1; n <= 33; n++ {
		item := make([]byte, n)
		for i := range item {
			item[i] = byte(0x80 + 7*i + n)
		}
		items = append(items, item)
	}
	return append(items, []byte(strings.Repeat("0123456789abcdef", 64)))
}

// vecInputs pairs every item with every seed, and these with the geometries in
// turn; two items meet every geometry.
func vecInputs() (inputs []vecRecord) {
	geometries := []vecRecord{
		{Layout: "classic", M: 1, K: 1}, {Layout: "classic", M: 64, K: 3}, {Layout: "classic", M: 9_585_059, K: 7},
		{Layout: "classic", M: 1<<31 - 1, K: 10}, {Layout: "classic", M: 1<<31 + 1, K: 10},
		{Layout: "classic", M: 1<<32 - 1600, K: 64}, {Layout: "classic", M: 1<<32 - 1600, K: 7},
		{Layout: "blocked", M: 480, K: 1}, {Layout: "blocked", M: 480 * 20_705, K: 6},
		{Layout: "blocked", M: 480 * 4_473_925, K: 9}, {Layout: "blocked", M: 480 * (1<<23 - 4), K: 64},
	}
	next := 0
	for _, item := range vecItems() {
		for _, seed := range []uint32{0, 1, 0xdeadbeef, math.MaxUint32} {
			take := geometries[next%len(geometries)]
			next++
			take.Item, take.Seed = item, seed
			inputs = append(inputs, take)
		}
	}
	for _, g := range geometries {
		for _, item := range []string{"", "user:42"} {
			g.Item, g.Seed = []byte(item), 0xdeadbeef
			inputs = append(inputs, g)
		}
	}
	return inputs
}

// vecCompute fills in what the package computes.
func vecCompute(v vecRecord) vecRecord {
	p := Params{Capacity: 1, FPRate: 0.5, Layout: Classic, Bits: v.M, Hashes: v.K}
	if v.Layout == "blocked" {
		p.Layout = Blocked
	}
	h := hashItem(string(v.Item), v.Seed)
	v.H1, v.H2 = h.h1, h.h2
	v.Positions = newGeometry(p, v.Seed, alone).appendPositions(nil, string(v.Item))
	return v
}

// Every stored filter depends on these positions: the package, the file and an
// implementation of its own agree on each.
func TestVectors(t *testing.T) {
	inputs := vecInputs()
	if *updateGolden {
		var out bytes.Buffer
		for _, v := range inputs {
			line, err := json.Marshal(vecCompute(v))
			require.NoError(t, err)
			out.Write(append(line, '\n'))
		}
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(vecPath, out.Bytes(), 0o644))
	}
	file, err := os.Open(vecPath)
	require.NoError(t, err)
	defer file.Close()
	count := 0
	for lines := bufio.NewScanner(file); lines.Scan(); count++ {
		var want vecRecord
		require.NoError(t, json.Unmarshal(lines.Bytes(), &want))
		name := fmt.Sprintf("%.20q seed %d %s m=%d k=%d", want.Item, want.Seed, want.Layout, want.M, want.K)
		require.Len(t, want.Positions, want.K, name)
		require.Equal(t, want, vecCompute(want), name)
		h1, h2 := vecReference(want.Item, want.Seed)
		require.Equal(t, [2]uint64{h1, h2}, [2]uint64{want.H1, want.H2}, name)
		require.Equal(t, vecPositions(h1, h2, want.Layout, want.M, want.K), want.Positions, name)
	}
	require.Equal(t, len(inputs), count, "vectors are missing: the file was cut, or vecInputs extended without -update-golden")
}

// The reference above would prove nothing if it were wrong the way the package
// is: digests as others publish them.
func TestReferenceDigests(t *testing.T) {
	for _, tt := range []struct {
		item   string
		h1, h2 uint64
	}{
		{"", 0, 0},
		{"hello", 0xcbd8a7b341bd9b02, 0x5b1e906a48ae1d19},
		{"hello, world", 0x342fac623a5ebc8e, 0x4cdcbc079642414d},
		{"The quick brown fox jumps over the lazy dog", 0xe34bbc7bbc071b6c, 0x7a433ca9c49a9347},
	} {
		t.Run(tt.item, func(t *testing.T) {
			h1, h2 := vecReference([]byte(tt.item), 0)
			require.Equal(t, itemHash{tt.h1, tt.h2}, itemHash{h1, h2})
			require.Equal(t, itemHash{tt.h1, tt.h2}, hashItem(tt.item, 0))
		})
	}
}
