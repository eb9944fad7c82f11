package bloom

import (
	"context"
	"fmt"
	"time"
)

// memoryBuild is the next generation of a Memory. Add writes it from the moment
// it is opened.
type memoryBuild struct {
	m    *Memory
	s    *memoryState
	next *memoryFilter
	wish wish
}

func (m *Memory) openBuild(ctx context.Context, w wish) (build, RebuildReport, error) {
	s, place := m.at()
	s.mu.Lock()
	defer s.mu.Unlock()
	live, err := m.filter(ctx)
	if err != nil && !isNotReady(err) {
		return nil, RebuildReport{}, err
	}
	var head *header
	if live != nil {
		head = &live.header
	}
	if w.empty && live != nil {
		return nil, RebuildReport{}, errPresent
	}
	g, err := buildGeometry(w, head, place)
	if err != nil {
		return nil, RebuildReport{}, err
	}
	if s.next.Load() != nil {
		return nil, RebuildReport{}, fmt.Errorf("another one is not done: %w", ErrRebuilding)
	}
	if w.maxAge > 0 && live != nil && live.purpose == purposeRebuilt && g.params.satisfiedBy(live.geom.params) &&
		time.Since(live.created) < w.maxAge {
		return nil, RebuildReport{Generation: live.generation, Params: live.geom.params, Bytes: live.geom.size}, errYoung
	}
	h := newHeader(g, 1)
	h.purpose = w.purpose()
	d := &memoryBuild{m: m, s: s, next: newMemoryFilter(h), wish: w}
	s.next.Store(d.next)
	return d, RebuildReport{}, nil
}

func (d *memoryBuild) params() Params { return d.next.geom.params }

func (d *memoryBuild) bytes() uint64 { return d.next.geom.size }

func (d *memoryBuild) add(_ context.Context, item string) error {
	d.next.add(item)
	return nil
}

func (d *memoryBuild) merge(_ context.Context, progress func(done, total uint64)) error {
	progress(d.bytes(), d.bytes())
	return nil
}

func (d *memoryBuild) distinct() uint64 { return d.params().itemsFor(d.next.bitsSet()) }

func (d *memoryBuild) liveItems(ctx context.Context) (uint64, error) {
	info, err := d.m.Info(ctx)
	if isNotReady(err) {
		return 0, nil
	}
	return info.Items, err
}

func (d *memoryBuild) lookUp(_ context.Context, items []string) ([]bool, error) {
	found := make([]bool, len(items))
	for i, item := range items {
		found[i] = d.next.exists(item)
	}
	return found, nil
}

func (d *memoryBuild) renew(context.Context) error {
	if d.s.next.Load() != d.next {
		return errLeaseLost
	}
	return nil
}

func (d *memoryBuild) publish(context.Context) (uint64, error) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	if d.s.next.Load() != d.next {
		return 0, errLeaseLost
	}
	if d.wish.empty && d.s.filter() != nil {
		return 0, errPresent
	}
	d.next.created = time.UnixMicro(time.Now().UnixMicro())
	if live := d.s.live.Load(); live != nil {
		d.next.generation = live.generation + 1
	}
	if d.wish.ttl > 0 {
		d.next.expireAt(time.Now().Add(d.wish.ttl))
	}
	// Live first: an Add that sees no next any more must see it live.
	d.s.live.Store(d.next)
	d.s.next.Store(nil)
	return d.next.generation, nil
}

func (d *memoryBuild) abort(context.Context) error {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.s.next.CompareAndSwap(d.next, nil)
	return nil
}
