package bloomtest

import (
	"encoding/binary"
	"math"
)

// Lengths in BF.SCANDUMP's header, in bytes: what stands before the sub-filters,
// and each of them. All numbers are little-endian, without padding.
const (
	headerBytes = 20
	linkBytes   = 53
)

// The most bytes of a bitmap that one BF.SCANDUMP gives.
const maxChunk = 16 << 20

// The most hashes that an error rate above 0 leads to is 1 074.
const maxHashes = 1074

// appendHeader appends what BF.SCANDUMP gives for iterator 0.
func (f *filter) appendHeader(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, f.items)
	b = le.AppendUint32(b, uint32(len(f.links)))
	b = le.AppendUint32(b, f.options)
	b = le.AppendUint32(b, f.expansion)
	for i := range f.links {
		l := &f.links[i]
		b = le.AppendUint64(b, l.bytes)
		b = le.AppendUint64(b, l.bits)
		b = le.AppendUint64(b, l.items)
		b = le.AppendUint64(b, math.Float64bits(l.rate))
		b = le.AppendUint64(b, math.Float64bits(l.perItem))
		b = le.AppendUint32(b, l.hashes)
		b = le.AppendUint64(b, l.capacity)
		b = append(b, 0) // log2 of the bits, where those are a power of two
	}
	return b
}

// parseHeader reads a header that b begins with, and returns what follows it. ok is
// false for one that no command of today's module writes.
func parseHeader(b []byte) (f *filter, rest []byte, ok bool) {
	le := binary.LittleEndian
	if len(b) < headerBytes {
		return nil, nil, false
	}
	n := uint64(le.Uint32(b[8:]))
	f = &filter{items: le.Uint64(b), options: le.Uint32(b[12:]), expansion: le.Uint32(b[16:])}
	if f.options&^optNonScaling != optExactSize|optHash64 {
		return nil, nil, false
	}
	b = b[headerBytes:]
	if n == 0 || uint64(len(b)) < n*linkBytes {
		return nil, nil, false
	}
	f.links = make([]link, n)
	var total uint64
	for i := range f.links {
		f.links[i] = link{
			bytes:    le.Uint64(b),
			bits:     le.Uint64(b[8:]),
			items:    le.Uint64(b[16:]),
			rate:     math.Float64frombits(le.Uint64(b[24:])),
			perItem:  math.Float64frombits(le.Uint64(b[32:])),
			hashes:   le.Uint32(b[40:]),
			capacity: le.Uint64(b[44:]),
		}
		l := &f.links[i]
		if b[52] != 0 || !l.valid() || total+l.bytes > maxBytes {
			return nil, nil, false
		}
		total += l.bytes
		b = b[linkBytes:]
	}
	return f, b, true
}

func (l *link) valid() bool {
	return l.bytes > 0 && l.bytes <= maxBytes && l.bits == l.bytes*8 &&
		l.rate > 0 && l.rate < 1 && l.hashes > 0 && l.hashes <= maxHashes && l.capacity > 0
}

// place finds the sub-filter that holds a byte of the bitmaps, and how many bytes
// of that sub-filter follow from there.
func (f *filter) place(offset uint64) (left uint64, ok bool) {
	for i := range f.links {
		n := f.links[i].bytes
		if offset < n {
			return n - offset, true
		}
		offset -= n
	}
	return 0, false
}

// chunk returns the part of the bitmaps that BF.SCANDUMP gives for an iterator other
// than 0, and the next iterator: 1 plus the bytes given so far, or 0 after the end.
func (f *filter) chunk(iter int64) (next uint64, part []byte) {
	if iter < 1 {
		return 0, nil
	}
	offset := uint64(iter) - 1
	left, ok := f.place(offset)
	if !ok {
		return 0, nil
	}
	n := min(left, maxChunk)
	part = make([]byte, n)
	if offset < uint64(len(f.data)) {
		copy(part, f.data[offset:])
	}
	return uint64(iter) + n, part
}

// load puts a chunk back, with the iterator that came with it. problem is "" if that
// was possible.
func (f *filter) load(iter int64, part string) (problem string) {
	first := iter - int64(len(part))
	if iter < 0 || first < 1 {
		return errBadData
	}
	left, ok := f.place(uint64(first) - 1)
	if !ok {
		return "ERR invalid offset - no link found"
	}
	if uint64(len(part)) > left {
		return "ERR invalid chunk - Too big for current filter"
	}
	f.reach(uint64(iter) - 1)
	copy(f.data[first-1:], part)
	return ""
}

const errBadData = "ERR received bad data"
