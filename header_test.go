package bloom

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc64"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hdrRandom returns a header that could be stored.
func hdrRandom(t *testing.T, rnd *rand.Rand) *header {
	t.Helper()
	n := uint64(math.Exp(rnd.Float64() * math.Log(1e6)))
	p := sizingParams(t, n, math.Exp(rnd.Float64()*math.Log(1e-9)*0.999-0.001), Layout(rnd.IntN(2)))
	h := &header{
		geom:       newGeometry(p, rnd.Uint32(), alone),
		purpose:    uint8(1 + rnd.IntN(2)),
		generation: 1 + rnd.Uint64()>>(2+rnd.IntN(62)),
		created:    time.UnixMicro(rnd.Int64N(math.MaxInt64 / 1000)),
		merged:     rnd.Uint64() >> rnd.IntN(64),
	}
	for i := range h.token {
		h.token[i] = byte(rnd.Uint32())
	}
	return h
}

// hdrFixed returns a header of which nothing is random.
func hdrFixed(layout Layout) *header {
	p := Params{Capacity: 1_000_000, FPRate: 0.01, Layout: layout, Bits: 9_585_059, Hashes: 7}
	if layout == Blocked {
		p.Bits, p.Hashes = 480*20_705, 6
	}
	h := &header{
		geom:       newGeometry(p, 0xdeadbeef, alone),
		purpose:    purposeRebuilt,
		generation: 42,
		created:    time.UnixMicro(1_700_000_000_123_456),
		merged:     19,
	}
	for i := range h.token {
		h.token[i] = byte(i + 1)
	}
	return h
}

// hdrSeal makes checksum and fingerprint fit the fields again, as a program would
// that knows the format.
func hdrSeal(b []byte) {
	be := binary.BigEndian
	g := geometry{
		params: Params{
			Layout: Layout(b[offLayout]),
			Bits:   be.Uint64(b[offBits:]),
			Hashes: int(be.Uint32(b[offHashes:])),
		},
		seed:  uint32(be.Uint64(b[offSeed:])),
		place: shardPlace{be.Uint32(b[offShard:]), be.Uint32(b[offShards:]), hashKey{}},
	}
	be.PutUint64(b[offFingerprint:], g.computeFingerprint())
	be.PutUint64(b[offChecksum:], crc64.Checksum(b[offVersion:offChecksum], crc64.MakeTable(crc64.ECMA)))
}

func TestHeaderRoundTrip(t *testing.T) {
	rnd := sizingRand(t)
	for range 300 {
		h := hdrRandom(t, rnd)
		b := h.encode(magicLive)
		require.Len(t, b, headerBytes)
		got, err := parseHeader(b, hashKey{})
		require.NoError(t, err)
		require.Equal(t, h, got)
		// A parser of the first bytes does not mind the body behind them.
		got, err = parseHeader(append(b, 1, 2, 3), hashKey{})
		require.NoError(t, err)
		require.Equal(t, h, got)
	}
}

// The bytes of a stored header are frozen.
func TestHeaderGolden(t *testing.T) {
	for _, layout := range sizingLayouts {
		t.Run(layout.String(), func(t *testing.T) {
			h, path := hdrFixed(layout), "testdata/header-"+layout.String()+".hex"
			if *updateGolden {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				var lines strings.Builder
				for b := h.encode(magicLive); len(b) > 0; b = b[16:] {
					fmt.Fprintf(&lines, "%x\n", b[:16])
				}
				require.NoError(t, os.WriteFile(path, []byte(lines.String()), 0o644))
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			want, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
			require.NoError(t, err)
			require.Equal(t, want, h.encode(magicLive))
			got, err := parseHeader(want, hashKey{})
			require.NoError(t, err)
			require.Equal(t, h, got)
			hdrRequireFields(t, want, h)
		})
	}
}

// hdrRequireFields reads a header without the package's constants.
func hdrRequireFields(t *testing.T, b []byte, h *header) {
	t.Helper()
	be, p := binary.BigEndian, h.geom.params
	require.Equal(t, "BLOOMgf\x01", string(b[:8]))
	require.Equal(t, []byte{1, byte(p.Layout), 1, 0}, b[8:12])
	require.EqualValues(t, p.Hashes, be.Uint32(b[12:]))
	require.Equal(t, p.Bits, be.Uint64(b[16:]))
	require.Equal(t, p.Capacity, be.Uint64(b[24:]))
	require.Equal(t, p.FPRate, math.Float64frombits(be.Uint64(b[32:])))
	require.EqualValues(t, h.geom.seed, be.Uint64(b[40:]))
	require.Equal(t, []byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}, b[48:64], "shard 0 of 1, no hash key")
	require.Equal(t, crc64.Checksum(b[8:80], crc64.MakeTable(crc64.ECMA)), be.Uint64(b[80:]))
	require.Equal(t, h.purpose, b[88])
	require.Equal(t, h.generation, be.Uint64(b[96:]))
	require.EqualValues(t, h.created.UnixMicro(), be.Uint64(b[104:]))
	require.Equal(t, h.token[:], b[112:136])
	require.Equal(t, h.merged, be.Uint64(b[136:]))
	require.Equal(t, make([]byte, 48), b[144:192])

	// The fingerprint, by the other implementation of the hash.
	fields := make([]byte, 40)
	fields[0], fields[1], fields[2] = 1, byte(p.Layout), 1
	copy(fields[4:16], b[12:24]) // k, m
	copy(fields[16:24], b[40:48])
	fields[31] = 1 // shards
	h1, _ := vecReference(fields, 0)
	require.Equal(t, h1>>1|1, be.Uint64(b[64:]))
}

// A damaged header is refused, or it is the same geometry: never another one, in
// which bits would be looked up where they were not set.
func TestHeaderCorruptedByte(t *testing.T) {
	rnd := sizingRand(t)
	for _, layout := range sizingLayouts {
		h := hdrFixed(layout)
		good := h.encode(magicLive)
		for at := range good {
			for _, flip := range []byte{1, 0x80, 0xff, byte(1 + rnd.IntN(255))} {
				bad := append([]byte(nil), good...)
				bad[at] ^= flip
				got, err := parseHeader(bad, hashKey{})
				name := fmt.Sprintf("%v byte %d ^ %#x", layout, at, flip)
				fixed := at < offPurpose
				reserved := at >= offReserved2 && at < offGeneration || at >= offReserved3
				switch {
				case fixed || reserved:
					require.ErrorIs(t, err, ErrCorrupt, name)
					require.Nil(t, got, name)
				case err != nil:
					require.ErrorIs(t, err, ErrCorrupt, name)
				default: // purpose, generation, created, token, merged
					require.Equal(t, h.geom, got.geom, name)
				}
			}
		}
	}
}

func TestHeaderTruncated(t *testing.T) {
	good := hdrFixed(Classic).encode(magicLive)
	_, err := parseHeader(nil, hashKey{})
	require.ErrorIs(t, err, ErrNotReady)
	for n := 1; n < len(good); n++ {
		h, err := parseHeader(good[:n], hashKey{})
		require.ErrorIs(t, err, ErrCorrupt, n)
		require.NotErrorIs(t, err, ErrNotReady, n)
		require.Nil(t, h)
	}
}

func TestHeaderOtherMagic(t *testing.T) {
	h := hdrFixed(Blocked)
	for _, tt := range []struct {
		name  string
		bytes []byte
		err   error
	}{
		{"marker", []byte(magicMarker + strings.Repeat("t", tokenBytes)), ErrNotReady},
		{"staging", h.encode(magicStaging), ErrCorrupt},
		{"magic in lower case", h.encode("bloomgf\x01"), ErrCorrupt},
		{"magic of another version", h.encode("BLOOMgf\x02"), ErrCorrupt},
		{"foreign", []byte(strings.Repeat("x", 500)), ErrCorrupt},
		{"one byte", []byte("B"), ErrCorrupt},
		{"zeros", make([]byte, 500), ErrCorrupt},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseHeader(tt.bytes, hashKey{})
			require.ErrorIs(t, err, tt.err)
			require.Nil(t, got)
		})
	}
}

// What a later version, or a liar, may write under a checksum that fits.
func TestHeaderSealedButImpossible(t *testing.T) {
	be := binary.BigEndian
	put := func(off int, v uint64) func([]byte) { return func(b []byte) { be.PutUint64(b[off:], v) } }
	set := func(off int, v byte) func([]byte) { return func(b []byte) { b[off] = v } }
	rate := func(p float64) func([]byte) { return put(offFPRate, math.Float64bits(p)) }
	for _, tt := range []struct {
		name   string
		change func([]byte)
		text   string
	}{
		{"version 0", set(offVersion, 0), "version 0"},
		{"version 2", set(offVersion, 2), "version 2"},
		{"layout 2", set(offLayout, 2), "geometry"},
		{"hash 2", set(offHash, 2), "hash 2"},
		{"routing", set(offRouting, 1), "shard"},
		{"k 0", set(offHashes+3, 0), "geometry"},
		{"k 65", set(offHashes+3, 65), "geometry"},
		{"k 2³¹", set(offHashes, 0x80), "geometry"}, // negative in 32 bits
		{"m 0", put(offBits, 0), "geometry"},
		{"m one more than whole blocks", put(offBits, 481), "geometry"},
		{"m above a string", put(offBits, 480<<23), "geometry"},
		{"m 2⁶⁴−1", put(offBits, math.MaxUint64), "geometry"},
		{"n 0", put(offCapacity, 0), "geometry"},
		{"p 0", rate(0), "geometry"},
		{"p 1", rate(1), "geometry"},
		{"p NaN", rate(math.NaN()), "geometry"},
		{"p -0.01", rate(-0.01), "geometry"},
		{"seed of 33 bits", put(offSeed, 1<<32), "seed"},
		{"shard 1 of 1", set(offShard+3, 1), "shard 1 of 1"},
		{"shard 0 of 2", set(offShards+3, 2), "shard 0 of 2"},
		{"shard 0 of 0", set(offShards+3, 0), "shard 0 of 0"},
		{"hash key", put(offHashKey, 1), "with key"},
		{"first reserved field", put(offReserved1, 1), "reserved"},
		{"second reserved field", set(offReserved2, 1), "reserved"},
		{"third reserved field", set(headerBytes-1, 1), "reserved"},
		{"purpose 0", set(offPurpose, 0), "purpose"},
		{"purpose 3", set(offPurpose, 3), "purpose"},
		{"generation 0", put(offGeneration, 0), "generation 0"},
		{"generation without a next", put(offGeneration, math.MaxUint64), "generation"},
		{"created in no year", put(offCreated, math.MaxUint64), "created"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := hdrFixed(Blocked).encode(magicLive)
			tt.change(b)
			hdrSeal(b)
			h, err := parseHeader(b, hashKey{})
			require.ErrorIs(t, err, ErrCorrupt)
			require.ErrorContains(t, err, tt.text)
			require.Nil(t, h)
		})
	}
	t.Run("unchanged", func(t *testing.T) {
		b := hdrFixed(Blocked).encode(magicLive)
		hdrSeal(b)
		_, err := parseHeader(b, hashKey{})
		require.NoError(t, err, "hdrSeal must not be what the cases above fail by")
	})
	t.Run("fingerprint of another geometry", func(t *testing.T) {
		b := hdrFixed(Blocked).encode(magicLive)
		be.PutUint64(b[offFingerprint:], hdrFixed(Classic).geom.fingerprint)
		be.PutUint64(b[offChecksum:], crc64.Checksum(b[offVersion:offChecksum], crcTable))
		_, err := parseHeader(b, hashKey{})
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, "fingerprint")
	})
}

// The fingerprint is what every reply is checked against: another geometry has
// another, the same geometry has the same, whatever else changes.
func TestFingerprint(t *testing.T) {
	base := Params{Capacity: 1000, FPRate: 0.01, Layout: Classic, Bits: 9600, Hashes: 7}
	with := func(f func(*Params)) Params { p := base; f(&p); return p }
	seen := map[uint64]string{newGeometry(base, 1, alone).fingerprint: "base"}
	for name, g := range map[string]*geometry{
		"layout":       newGeometry(with(func(p *Params) { p.Layout = Blocked }), 1, alone),
		"k":            newGeometry(with(func(p *Params) { p.Hashes = 8 }), 1, alone),
		"m":            newGeometry(with(func(p *Params) { p.Bits = 9601 }), 1, alone),
		"m by a block": newGeometry(with(func(p *Params) { p.Bits += blockBits }), 1, alone),
		"seed":         newGeometry(base, 2, alone),
	} {
		other, taken := seen[g.fingerprint]
		require.False(t, taken, "%s and %s", name, other)
		seen[g.fingerprint] = name
	}
	for _, change := range []func(*geometry){
		func(g *geometry) { g.place = placeAt(0, 2) },
		func(g *geometry) { g.place = placeAt(1, 2) },
		func(g *geometry) { g.place = placeAt(0, 3) },
	} {
		g := newGeometry(base, 1, alone)
		change(g)
		require.NotEqual(t, g.fingerprint, g.computeFingerprint())
	}
	same := newGeometry(with(func(p *Params) { p.Capacity, p.FPRate = 999, 0.5 }), 1, alone)
	require.Equal(t, newGeometry(base, 1, alone).fingerprint, same.fingerprint, "capacity and rate move no bit")

	h := hdrFixed(Classic)
	before := h.encode(magicLive)
	h.generation++
	h.token[0]++
	h.created = h.created.Add(time.Hour)
	after := h.encode(magicLive)
	require.Equal(t, before[:offPurpose], after[:offPurpose], "a new generation leaves what is fixed as it is")
	require.NotEqual(t, before[offPurpose:], after[offPurpose:])
}

func TestFingerprintForm(t *testing.T) {
	rnd := sizingRand(t)
	tags := make(map[uint32]bool)
	for range 20_000 {
		p := Params{Capacity: 1, FPRate: 0.5, Layout: Layout(rnd.IntN(2)), Bits: blockBits * (1 + rnd.Uint64N(1<<22)), Hashes: 1 + rnd.IntN(maxHashes)}
		g := newGeometry(p, rnd.Uint32(), alone)
		if g.fingerprint%2 != 1 || g.fingerprint >= 1<<63 || g.tag == 0 {
			t.Fatalf("fingerprint %#x, tag %#x of %+v", g.fingerprint, g.tag, p)
		}
		tags[g.tag] = true
		require.Equal(t, g.fingerprint, binary.BigEndian.Uint64(g.trailer()))
	}
	require.Greater(t, len(tags), 19_950, "tags of 32 bits hardly ever meet")
}

func FuzzHeader(f *testing.F) {
	for _, layout := range sizingLayouts {
		good := hdrFixed(layout).encode(magicLive)
		f.Add(good, false)
		f.Add(good[:100], false)
		f.Add(append(good, "body"...), true)
	}
	f.Add(hdrFixed(Classic).encode(magicStaging), true)
	f.Add([]byte(magicMarker), false)
	f.Add([]byte(nil), false)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) >= headerBytes { // or the fuzzer never gets past the checksum
			copy(b, magicLive)
			b[offVersion] = formatVersion
			hdrSeal(b)
		}
		h, err := parseHeader(b, hashKey{})
		if err != nil {
			require.Nil(t, h)
			require.True(t, isNotReady(err) || isCorrupt(err), err)
			return
		}
		require.NotNil(t, h)
		require.Equal(t, b[:headerBytes], h.encode(magicLive))
		require.LessOrEqual(t, h.geom.size, uint64(512<<20))
	})
}
