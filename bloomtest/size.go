package bloomtest

import "math"

// Options of a filter, as the header of BF.SCANDUMP holds them. Filters made by
// commands have the first two.
const (
	optExactSize  = 1 // the number of bits is no power of two
	optHash64     = 4
	optNonScaling = 8
)

// A sub-filter's error rate is that of the one before it times this, so that their
// sum stays below the rate asked for. So the first one gets half of that.
const tightening = 0.5

// ln 2 and its square with the module's 15 digits. With more, a rate of 1/4 would
// get one hash less than it has there.
const (
	ln2    = 0.693147180559945
	ln2ln2 = 0.480453013918201
)

// The largest bitmap that the double makes, 4 GiB (2 GiB on 32-bit machines).
const maxBytes = min(4<<30, math.MaxInt)

// link is one sub-filter, with the fields of BF.SCANDUMP's header.
type link struct {
	bytes, bits, items uint64
	rate, perItem      float64 // error rate, bits per item
	hashes             uint32
	capacity           uint64
}

// newLink sizes a sub-filter as the module does, to the bit.
func newLink(rate float64, capacity uint64) (l link, ok bool) {
	if rate <= 0 || capacity == 0 {
		return link{}, false // a rate halved too often is 0
	}
	l = link{rate: rate, capacity: capacity, perItem: -ln(rate) / ln2ln2}
	l.hashes = uint32(math.Ceil(ln2 * l.perItem))
	// A number of bits past 64 bits overflows in 2.8, to the smallest filter.
	if n := float64(capacity) * l.perItem; n < 1<<64 {
		l.bits = uint64(n)
	}
	l.bytes = (max(l.bits, 1)-1)/64*8 + 8
	l.bits = l.bytes * 8
	return l, l.bytes <= maxBytes
}

// newFilter makes a filter with one sub-filter. An expansion of 0 makes it NONSCALING.
func newFilter(d defaults) (*filter, bool) {
	f := &filter{options: optExactSize | optHash64, expansion: uint32(d.expansion)}
	rate := d.rate * tightening
	if d.expansion == 0 {
		f.options |= optNonScaling
		f.expansion = uint32(factoryDefaults.expansion) // as in the module's header
		rate = d.rate
	}
	l, ok := newLink(rate, uint64(d.capacity))
	f.links = []link{l}
	return f, ok
}
