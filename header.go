package bloom

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"math"
	"time"
)

// One filter is one string: header, body, trailer.
//
//	header   headerBytes, all integers big-endian, below
//	body     Classic: ⌈m/8⌉ bytes; Blocked: m/480 blocks of 480 bits and a 32-bit tag
//	trailer  the fingerprint again: whoever reads it knows that the string is
//	         present, has its whole length, and which geometry its bits have
//
// Bits are numbered as SETBIT numbers them: bit 0 is the highest of byte 0.
const (
	headerBytes  = 192
	trailerBytes = 8
	bodyBit      = headerBytes * 8 // where item bits begin

	formatVersion = 1

	// Fixed when the filter is opened, and covered by the checksum.
	offMagic       = 0  // 8
	offVersion     = 8  // 1
	offLayout      = 9  // 1
	offHash        = 10 // 1
	offRouting     = 11 // 1: version of the shard routing, 0 when alone
	offHashes      = 12 // 4: k
	offBits        = 16 // 8: m
	offCapacity    = 24 // 8: n
	offFPRate      = 32 // 8: p, IEEE 754
	offSeed        = 40 // 8: 32 bits are used
	offShard       = 48 // 4
	offShards      = 52 // 4: 1 when alone
	offHashKey     = 56 // 8: fingerprint of a secret hash key, 0 without one
	offFingerprint = 64 // 8
	offReserved1   = 72 // 8: zero
	offChecksum    = 80 // 8: CRC-64/ECMA of the bytes from offVersion to here
	// What changes while the filter lives.
	offPurpose    = 88  // 1
	offReserved2  = 89  // 7: zero
	offGeneration = 96  // 8
	offCreated    = 104 // 8: microseconds since 1970 by the server's clock
	offToken      = 112 // 24: 16 random bytes of the creator, 8 of the server's clock
	offMerged     = 136 // 8: chunks merged into staging
	offReserved3  = 144 // 48: zero

	randomBytes = 16
	tokenBytes  = randomBytes + 8
	offTokenEnd = offToken + tokenBytes
)

const (
	magicLive    = "BLOOMgf\x01" // a filter
	magicStaging = "BLOOMgs\x01" // one that a rebuild fills, not published yet
	magicMarker  = "BLOOMgm\x01" // no filter: CreateEmpty is about to make one, see lua/create.lua

	purposeEmpty   = 1 // made by CreateEmpty or Reset
	purposeRebuilt = 2 // published by a rebuild
)

// geometry is what decides where an item's bits lie, and nothing else. It is
// immutable: handles share it by pointer.
type geometry struct {
	params      Params
	seed        uint32
	place       shardPlace
	k0, k1      uint64 // with a hash key: see hashKey.forPositions
	blocks      uint64 // Blocked only
	fingerprint uint64 // 63 bits, odd, so never 0 and never lost with a trailing byte
	tag         uint32 // Blocked only: last in every block, never 0
	size        uint64 // of the whole string, bytes
}

// newGeometry completes params with a seed. It cannot fail: params come from
// NewParams or from a header that was checked.
func newGeometry(p Params, seed uint32, place shardPlace) *geometry {
	g := &geometry{params: p, seed: seed, place: place, size: p.Bytes()}
	if p.Layout == Blocked {
		g.blocks = p.Bits / blockBits
	}
	if place.key.isSet() {
		g.k0, g.k1 = place.key.forPositions(seed)
	}
	g.fingerprint = g.computeFingerprint()
	g.tag = uint32(g.fingerprint>>31) ^ uint32(g.fingerprint)
	if g.tag == 0 {
		g.tag = 1
	}
	return g
}

// computeFingerprint hashes the fields of the header that decide where bits lie.
func (g *geometry) computeFingerprint() uint64 {
	var b [40]byte
	b[0], b[1], b[2], b[3] = formatVersion, byte(g.params.Layout), g.place.key.hash(), g.place.routing()
	binary.BigEndian.PutUint32(b[4:], uint32(g.params.Hashes))
	binary.BigEndian.PutUint64(b[8:], g.params.Bits)
	binary.BigEndian.PutUint64(b[16:], uint64(g.seed))
	binary.BigEndian.PutUint32(b[24:], g.place.index)
	binary.BigEndian.PutUint32(b[28:], g.place.count)
	binary.BigEndian.PutUint64(b[32:], g.place.key.fingerprint)
	return hashItem(string(b[:]), 0).h1>>1 | 1
}

// trailerBit is where the low 63 bits of the trailer begin.
func (g *geometry) trailerBit() uint64 { return (g.size-trailerBytes)*8 + 1 }

// trailer is the last eight bytes of the string.
func (g *geometry) trailer() []byte { return binary.BigEndian.AppendUint64(nil, g.fingerprint) }

// tagString is the last four bytes of every block, empty for Classic.
func (g *geometry) tagString() []byte {
	if g.params.Layout != Blocked {
		return nil
	}
	return binary.BigEndian.AppendUint32(nil, g.tag)
}

// header is a filter's first headerBytes.
type header struct {
	geom       *geometry
	purpose    uint8
	generation uint64
	created    time.Time
	token      [tokenBytes]byte
	merged     uint64
}

var crcTable = crc64.MakeTable(crc64.ECMA)

// encode returns the header of a filter with the given magic. The scripts that
// make a filter write created and the second part of the token themselves.
func (h *header) encode(magic string) []byte {
	b := make([]byte, headerBytes)
	be := binary.BigEndian
	g := h.geom
	copy(b, magic)
	b[offVersion], b[offLayout], b[offHash], b[offRouting] = formatVersion, byte(g.params.Layout), g.place.key.hash(), g.place.routing()
	be.PutUint32(b[offHashes:], uint32(g.params.Hashes))
	be.PutUint64(b[offBits:], g.params.Bits)
	be.PutUint64(b[offCapacity:], g.params.Capacity)
	be.PutUint64(b[offFPRate:], math.Float64bits(g.params.FPRate))
	be.PutUint64(b[offSeed:], uint64(g.seed))
	be.PutUint32(b[offShard:], g.place.index)
	be.PutUint32(b[offShards:], g.place.count)
	be.PutUint64(b[offHashKey:], g.place.key.fingerprint)
	be.PutUint64(b[offFingerprint:], g.fingerprint)
	be.PutUint64(b[offChecksum:], crc64.Checksum(b[offVersion:offChecksum], crcTable))
	b[offPurpose] = h.purpose
	be.PutUint64(b[offGeneration:], h.generation)
	if !h.created.IsZero() {
		be.PutUint64(b[offCreated:], uint64(h.created.UnixMicro()))
	}
	copy(b[offToken:], h.token[:])
	be.PutUint64(b[offMerged:], h.merged)
	return b
}

// fixed is what never changes of a header with this geometry, magic aside.
func (g *geometry) fixed() []byte {
	h := header{geom: g}
	return h.encode(magicLive)[offVersion : offChecksum+8]
}

// parseHeader reads the first bytes of a live filter's string. The errors are
// ErrNotReady where there is no filter, and ErrCorrupt where there is something
// else, or a header in which anything does not fit.
func parseHeader(b []byte, key hashKey) (*header, error) {
	switch {
	case len(b) == 0:
		return nil, fmt.Errorf("no such key: %w", ErrNotReady)
	case bytes.HasPrefix(b, []byte(magicMarker)):
		return nil, fmt.Errorf("it is just being created: %w", ErrNotReady)
	case bytes.HasPrefix(b, []byte(magicStaging)):
		return nil, fmt.Errorf("a rebuild's unpublished filter stands here: %w", ErrCorrupt)
	case !bytes.HasPrefix(b, []byte(magicLive)):
		return nil, fmt.Errorf("the key holds a foreign string: %w", ErrCorrupt)
	case len(b) < headerBytes:
		return nil, fmt.Errorf("truncated to %d bytes: %w", len(b), ErrCorrupt)
	}
	return decodeHeader(b[:headerBytes], key)
}

// decodeHeader reads everything behind the magic. A filter made with another key
// is ErrParamsMismatch.
func decodeHeader(b []byte, key hashKey) (*header, error) {
	be := binary.BigEndian
	if v := b[offVersion]; v != formatVersion {
		return nil, fmt.Errorf("format version %d, this library knows %d: %w", v, formatVersion, ErrCorrupt)
	}
	if sum := crc64.Checksum(b[offVersion:offChecksum], crcTable); sum != be.Uint64(b[offChecksum:]) {
		return nil, fmt.Errorf("header checksum does not fit: %w", ErrCorrupt)
	}
	p := Params{
		Capacity: be.Uint64(b[offCapacity:]),
		FPRate:   math.Float64frombits(be.Uint64(b[offFPRate:])),
		Layout:   Layout(b[offLayout]),
		Bits:     be.Uint64(b[offBits:]),
		Hashes:   int(be.Uint32(b[offHashes:])),
	}
	if err := p.checkStored(); err != nil {
		return nil, err
	}
	place := shardPlace{be.Uint32(b[offShard:]), be.Uint32(b[offShards:]), key}
	seed, generation, created := be.Uint64(b[offSeed:]), be.Uint64(b[offGeneration:]), be.Uint64(b[offCreated:])
	switch {
	case b[offHash] != hashMurmur3 && b[offHash] != hashSipHash || (b[offHash] == hashSipHash) != (be.Uint64(b[offHashKey:]) != 0):
		return nil, fmt.Errorf("hash %d with key %d is unknown: %w", b[offHash], be.Uint64(b[offHashKey:]), ErrCorrupt)
	case seed > math.MaxUint32:
		return nil, fmt.Errorf("seed %d is above 32 bits: %w", seed, ErrCorrupt)
	case place.index >= place.count || b[offRouting] != place.routing():
		return nil, fmt.Errorf("shard %d of %d by routing %d: %w", place.index, place.count, b[offRouting], ErrCorrupt)
	case b[offPurpose] != purposeEmpty && b[offPurpose] != purposeRebuilt:
		return nil, fmt.Errorf("purpose %d is unknown: %w", b[offPurpose], ErrCorrupt)
	case generation == 0 || generation > math.MaxInt64: // no count gets there, and the next must not wrap
		return nil, fmt.Errorf("generation %d: %w", generation, ErrCorrupt)
	case created > math.MaxInt64/1000: // what a time.Time holds in nanoseconds
		return nil, fmt.Errorf("created %d µs after 1970: %w", created, ErrCorrupt)
	case !allZero(b[offReserved1:offChecksum]) || !allZero(b[offReserved2:offGeneration]) || !allZero(b[offReserved3:]):
		return nil, fmt.Errorf("reserved bytes are in use: %w", ErrCorrupt)
	}
	if stored := be.Uint64(b[offHashKey:]); stored != key.fingerprint {
		return nil, key.mismatch(stored)
	}
	h := &header{
		geom:       newGeometry(p, uint32(seed), place),
		purpose:    b[offPurpose],
		generation: generation,
		created:    time.UnixMicro(int64(created)),
		merged:     be.Uint64(b[offMerged:]),
	}
	copy(h.token[:], b[offToken:])
	if h.geom.fingerprint != be.Uint64(b[offFingerprint:]) {
		return nil, fmt.Errorf("fingerprint does not fit the header: %w", ErrCorrupt)
	}
	return h, nil
}

// checkStored refuses a geometry that could not have been written: reading with
// it could panic, or allocate without bound.
func (p Params) checkStored() error {
	ok := p.Layout <= Blocked && p.Capacity > 0 && p.FPRate >= minFPRate && p.FPRate < 1 &&
		p.Hashes >= 1 && p.Hashes <= maxHashes && p.Bits >= 1 && p.Bits <= maxKeyBits &&
		(p.Layout != Blocked || p.Bits%blockBits == 0) && p.Bytes() <= maxKeyBits/8
	if !ok {
		return fmt.Errorf("impossible geometry %+v: %w", p, ErrCorrupt)
	}
	return nil
}

func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}
