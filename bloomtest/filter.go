package bloomtest

import "math/bits"

// filter is a chain of sub-filters. Items go into the last.
type filter struct {
	items     uint64 // adds that set a bit
	options   uint32
	expansion uint32 // capacity of the next sub-filter over the last one's
	links     []link
	stamp     string // of the value that it was read from, or written as
	data      []byte // the bitmaps, one behind the other; what is missing at the end is 0
}

func (f *filter) nonScaling() bool { return f.options&optNonScaling != 0 }

// size returns the bytes of all bitmaps.
func (f *filter) size() (n uint64) {
	for i := range f.links {
		n += f.links[i].bytes
	}
	return n
}

// capacity returns the items that fit into the sub-filters there are.
func (f *filter) capacity() (n uint64) {
	for i := range f.links {
		n += f.links[i].capacity
	}
	return n
}

// memory returns what BF.INFO calls the size: the module's structures and the bitmaps.
func (f *filter) memory() uint64 { return 32 + 64*uint64(len(f.links)) + f.size() }

func (f *filter) has(h itemHash) bool {
	start := f.size()
	for i := len(f.links) - 1; i >= 0; i-- {
		l := &f.links[i]
		start -= l.bytes
		if f.linkHas(l, start, h) {
			return true
		}
	}
	return false
}

func (f *filter) linkHas(l *link, start uint64, h itemHash) bool {
	for i := range l.hashes {
		bit := h.bit(i, l.bits)
		at := start + bit/8
		if at >= uint64(len(f.data)) || f.data[at]&(1<<(bit%8)) == 0 {
			return false
		}
	}
	return true
}

// Errors of an add.
const (
	errFull   = "ERR non scaling filter is full"
	errInsert = "ERR problem inserting into filter" // the next sub-filter can't be made
)

// add adds an item unless it seems to be there. problem is "", or one of the above.
func (f *filter) add(h itemHash) (added bool, problem string) {
	if f.has(h) {
		return false, ""
	}
	last := &f.links[len(f.links)-1]
	if last.items >= last.capacity {
		if f.nonScaling() {
			return false, errFull
		}
		if !f.grow() {
			return false, errInsert
		}
		last = &f.links[len(f.links)-1]
	}
	end := f.size()
	f.reach(end)
	for i := range last.hashes {
		bit := h.bit(i, last.bits)
		f.data[end-last.bytes+bit/8] |= 1 << (bit % 8)
	}
	last.items++
	f.items++
	return true, ""
}

func (f *filter) grow() bool {
	last := f.links[len(f.links)-1]
	over, capacity := bits.Mul64(last.capacity, uint64(f.expansion))
	next, ok := newLink(last.rate*tightening, capacity)
	if over != 0 || !ok || f.size()+next.bytes > maxBytes {
		return false
	}
	f.links = append(f.links, next)
	return true
}

// reach makes data at least n bytes long.
func (f *filter) reach(n uint64) {
	if missing := int(n) - len(f.data); missing > 0 {
		f.data = append(f.data, make([]byte, missing)...)
	}
}
