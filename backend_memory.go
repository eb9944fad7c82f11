package bloom

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Memory keeps a filter in this process. It has the very bytes that [Bitmap]
// keeps in Redis: what WriteTo writes can be SET there, and what GET returns can
// be read by ReadFrom. It is safe for concurrent use; reads take no lock. On Linux
// large filters ask for huge pages, which look-ups gain from.
type Memory struct {
	memoryState
	shared *memoryState // instead of the one above, where this is a shard: its Memory's
	place  shardPlace   // with shared
}

type memoryState struct {
	mu   sync.Mutex // serializes the changes of live and next
	live atomic.Pointer[memoryFilter]
	next atomic.Pointer[memoryFilter] // what a rebuild is filling
	key  atomic.Pointer[hashKey]      // of the latest Filter over it, for ReadFrom
}

// at returns where the filter is, and which part it is taken for.
func (m *Memory) at() (*memoryState, shardPlace) {
	if m.shared == nil {
		return &m.memoryState, alone
	}
	return m.shared, m.place
}

var (
	_ Backend       = (*Memory)(nil)
	_ io.WriterTo   = (*Memory)(nil)
	_ io.ReaderFrom = (*Memory)(nil)
)

// NewMemory returns a filter in this process, not made yet.
func NewMemory() *Memory { return new(Memory) }

// memoryFilter is one generation. Its header never changes.
type memoryFilter struct {
	header
	expires time.Time            // zero: never
	words   []uint64             // the body; the highest bit of a word is the first
	blocks  [][blockWords]uint64 // the same memory; Blocked only
	usual   bool                 // alone, without a hash key, and never expires
}

// newMemoryFilter is an empty filter.
func newMemoryFilter(h header) *memoryFilter {
	words := make([]uint64, (h.geom.params.bodyBytes()+7)/8)
	adviseHuge(words)
	f := memoryFilterOf(h, words)
	for i := range f.blocks {
		f.blocks[i][blockWords-1] = uint64(h.geom.tag)
	}
	return f
}

// memoryFilterOf is a filter with a body.
func memoryFilterOf(h header, words []uint64) *memoryFilter {
	f := &memoryFilter{header: h, words: words, usual: h.geom.place == alone}
	if h.geom.params.Layout == Blocked {
		f.blocks = unsafe.Slice((*[blockWords]uint64)(unsafe.Pointer(unsafe.SliceData(words))), len(words)/blockWords)
	}
	return f
}

func (f *memoryFilter) expireAt(t time.Time) {
	f.expires = t
	f.usual = f.usual && t.IsZero()
}

const blockWords = blockBytes / 8

// Key returns "memory".
func (m *Memory) Key() string { return "memory" }

// Check refuses a size that one Redis string could not hold.
func (m *Memory) Check(cfg Config) error {
	if m == nil {
		return fmt.Errorf("bloom: nil *Memory: %w", ErrInvalidParams)
	}
	if cfg.WaitReplicas > 0 {
		return fmt.Errorf("bloom: WaitReplicas %d: %T has no replicas to wait for: want 0: %w", cfg.WaitReplicas, m, ErrInvalidParams)
	}
	if cfg.Capacity == 0 {
		return nil
	}
	_, err := NewParams(cfg.Capacity, cfg.FPRate, cfg.Layout)
	return err
}

// filter returns the live generation, if it is of this handle's place.
func (m *Memory) filter(ctx context.Context) (*memoryFilter, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, place := m.at()
	f := s.filter()
	if f == nil {
		return nil, errNoMemory
	}
	if f.geom.place != place {
		return nil, place.mismatch(f.geom.place)
	}
	return f, nil
}

// filter returns the live generation, nil if there is none.
func (s *memoryState) filter() *memoryFilter {
	f := s.live.Load()
	if f != nil && !f.expires.IsZero() && !time.Now().Before(f.expires) {
		s.live.CompareAndSwap(f, nil)
		return nil
	}
	return f
}

var errNoMemory = fmt.Errorf("never made, dropped or expired: %w", ErrNotReady)

// CreateEmpty makes an empty filter, or keeps one that satisfies cfg.
func (m *Memory) CreateEmpty(ctx context.Context, cfg Config) error {
	params, err := NewParams(cfg.Capacity, cfg.FPRate, cfg.Layout)
	if err != nil {
		return err
	}
	s, place := m.at()
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := m.filter(ctx)
	if err == nil {
		return attach(f.geom.params, params)
	}
	if !isNotReady(err) {
		return err
	}
	if s.next.Load() != nil {
		return ErrRebuilding
	}
	f = newMemoryFilter(newHeader(newGeometry(params, randomSeed(), place), 1))
	if cfg.TTL > 0 {
		f.expireAt(time.Now().Add(cfg.TTL))
	}
	s.live.Store(f)
	return nil
}

// newHeader is the header of an empty filter that is made here and now.
func newHeader(g *geometry, generation uint64) header {
	h := header{geom: g, purpose: purposeEmpty, generation: generation, created: time.UnixMicro(time.Now().UnixMicro())}
	_, _ = rand.Read(h.token[:]) // never fails, see crypto/rand
	return h
}

// Ready reports whether there is a filter.
func (m *Memory) Ready(ctx context.Context) error {
	_, err := m.filter(ctx)
	return err
}

// Add sets the bits of item, also in what a rebuild is filling.
func (m *Memory) Add(ctx context.Context, item string) (bool, error) {
	s, place := m.at()
	for {
		next := s.next.Load()
		if next != nil {
			if next.geom.place != place {
				return true, place.mismatch(next.geom.place)
			}
			next.add(item)
		}
		live, err := m.filter(ctx)
		if err != nil {
			return true, err
		}
		added := live.add(item)
		// Either may have been replaced while the bits were set.
		if s.live.Load() == live && s.next.Load() == next {
			return added, nil
		}
	}
}

// AddMulti adds all items. Where there is no filter yet, a rebuild that is filling
// one gets all of them nevertheless.
func (m *Memory) AddMulti(ctx context.Context, items []string) ([]bool, error) {
	s, _ := m.at()
	added := allTrue(len(items))
	var failed error
	for i, item := range items {
		fresh, err := m.Add(ctx, item)
		switch {
		case err == nil:
			added[i] = fresh
		case isNotReady(err) && s.next.Load() != nil:
			failed = err
		default:
			return added, err
		}
	}
	return added, failed
}

// Exists reports whether item may be in the filter, without allocating. The usual case
// takes few instructions: while one look-up waits for memory the processor begins the
// next, as far as it sees ahead.
func (m *Memory) Exists(ctx context.Context, item string) (bool, error) {
	if ctx.Err() == nil && len(item) <= shortItem {
		if f := m.live.Load(); f != nil && f.usual {
			return f.holds(murmur(item, f.geom.seed)), nil
		}
	}
	f, err := m.filter(ctx)
	if err != nil {
		return true, err
	}
	return f.exists(item), nil
}

// ExistsMulti reports for each item whether it may be in the filter.
func (m *Memory) ExistsMulti(ctx context.Context, items []string) ([]bool, error) {
	exists := allTrue(len(items))
	for i, item := range items {
		found, err := m.Exists(ctx, item)
		if err != nil {
			return exists, err
		}
		exists[i] = found
	}
	return exists, nil
}

// Info describes the filter.
func (m *Memory) Info(ctx context.Context) (Info, error) {
	f, err := m.filter(ctx)
	if err != nil {
		return Info{}, err
	}
	return f.info("memory", f.bitsSet()), nil
}

// Reset replaces the filter by an empty one of the same geometry.
func (m *Memory) Reset(ctx context.Context) error {
	s, _ := m.at()
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := m.filter(ctx)
	if err != nil {
		return err
	}
	if s.next.Load() != nil {
		return ErrRebuilding
	}
	empty := newMemoryFilter(newHeader(f.geom, f.generation+1))
	empty.expireAt(f.expires)
	s.live.Store(empty)
	return nil
}

// Drop removes the filter, and what a rebuild is filling.
func (m *Memory) Drop(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s, place := m.at()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range []*memoryFilter{s.filter(), s.next.Load()} {
		if f != nil && f.geom.place != place {
			return place.mismatch(f.geom.place)
		}
	}
	s.live.Store(nil)
	s.next.Store(nil)
	return nil
}

// bitsSet counts the bits that items have set.
func (f *memoryFilter) bitsSet() uint64 {
	set := uint64(0)
	for i := range f.words {
		set += uint64(bits.OnesCount64(atomic.LoadUint64(&f.words[i])))
	}
	return set - f.geom.tagBits()
}

// add sets the bits of item and reports whether one was new. It looks at all of them
// first: unlike locked writes, loads wait for memory side by side.
func (f *memoryFilter) add(item string) (added bool) {
	var few [maxHashes]uint64
	positions := f.geom.appendPositions(few[:0], item)
	all := uint64(1)
	for _, bit := range positions {
		all &= atomic.LoadUint64(&f.words[bit>>6]) << (bit & 63) >> 63
	}
	if all == 1 {
		return false
	}
	for _, bit := range positions {
		mask := uint64(1) << 63 >> (bit & 63)
		if atomic.OrUint64(&f.words[bit>>6], mask)&mask == 0 {
			added = true
		}
	}
	return added
}

// exists tests the bits of item.
func (f *memoryFilter) exists(item string) bool { return f.holds(f.geom.hash(item)) }

// holds tests the bits of an item, up to the first that is 0.
func (f *memoryFilter) holds(h itemHash) bool {
	if f.blocks != nil {
		block := &f.blocks[h.block(uint64(len(f.blocks)))]
		x, bit := h.h2, uint64(0)
		for range f.geom.params.Hashes {
			x, bit = inBlock(x)
			if atomic.LoadUint64(&block[bit>>6])&(1<<(^bit&63)) == 0 {
				return false
			}
		}
		return true
	}
	sum := h.h1
	for range f.geom.params.Hashes {
		bit := sum % f.geom.params.Bits
		if atomic.LoadUint64(&f.words[bit>>6])&(1<<(^bit&63)) == 0 {
			return false
		}
		sum += h.h2
	}
	return true
}
