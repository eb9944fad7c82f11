package bloom

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"sync/atomic"
)

// miss gets the row by a flight, and leaves when ctx ends.
func (g *Guard[V]) miss(ctx context.Context, id string, r reading) (V, error) {
	var none V
	var over []byte
	if entryTag(r.entry) == tagValue {
		over = r.entry
	}
	f, launch, queued, err := g.flights.join(id, r.entry, over, r.cacheErr != nil)
	switch {
	case err != nil:
		g.stats.overloads.Add(1)
		return none, err
	case !launch:
		g.stats.sharedLoads.Add(1)
	default:
		ctx := context.WithoutCancel(ctx)
		if !g.tasks.start(func() { g.fly(ctx, f, queued) }) {
			if queued {
				g.flights.unqueue()
			} else {
				<-g.flights.slots
			}
			g.flights.land(f, none, errClosed)
		}
	}
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

var errClosed = errors.New("guard is closed")

// fly takes a flight from its slot to its landing.
func (g *Guard[V]) fly(ctx context.Context, f *flight[V], queued bool) {
	if queued {
		g.flights.slots <- struct{}{}
		g.flights.unqueue()
	}
	var v V
	err := errors.New("cache or codec ended its goroutine") // which skips the assignment below
	defer func() { g.flights.land(f, v, err) }()
	v, err = g.perform(ctx, f)
}

// perform leases, loads and fills. It has a slot, which it frees.
func (g *Guard[V]) perform(ctx context.Context, f *flight[V]) (v V, err error) {
	slot := true
	defer func() {
		if slot {
			<-g.flights.slots
		}
		if p := recover(); p != nil { // of a Codec or a Cache
			v, err = f.value, panicError(p)
		}
	}()
	l, other := g.prepare(ctx, f)
	switch {
	case l.answered:
		l.hits.Add(1)
		return l.value, l.err
	case other != nil:
		g.stats.sharedLoads.Add(1)
		<-g.flights.slots
		slot = false
		<-other.done // within its LoadTimeout
		return other.value, other.err
	}
	ctx, cancel := context.WithTimeout(ctx, g.opts.LoadTimeout)
	defer cancel()
	slot = false // the loader's goroutine frees it
	v, err = g.runLoader(ctx, f.id)
	found := err == nil || errors.Is(err, ErrNotFound)
	if l.token != nil && found && ctx.Err() == nil && !g.flights.isForgotten(f) {
		g.fill(ctx, f, v, err)
	}
	return v, err
}

// prepare leases, again if need be, until it knows for all who joined what comes
// next: an answer of the cache, the load of another flight, or f's own, which is
// marked as begun then.
func (g *Guard[V]) prepare(ctx context.Context, f *flight[V]) (l leased[V], other *flight[V]) {
	for {
		l = g.lease(ctx, f)
		if l.answered {
			if g.flights.shut(f) {
				return l, nil
			}
			continue
		}
		if l.token == nil {
			g.awaitUnleased(f)
		}
		other, again := g.flights.begin(f, l.token)
		if !again && (other == nil || g.flights.shut(f)) {
			return l, other
		}
	}
}

// leased is what asking for a lease came to.
type leased[V any] struct {
	token []byte // the lease; nil: the cache gave none, so nothing may be filled

	answered bool // instead, by an entry that came meanwhile
	value    V
	err      error
	hits     *atomic.Uint64 // what counts such an answer
}

// lease plants a token under the flight's id, or adopts the one that is there.
// A flight whose own read of the cache failed does not try: that would take
// another of the client's timeouts, and be as likely to fail.
func (g *Guard[V]) lease(ctx context.Context, f *flight[V]) (none leased[V]) {
	if f.blind || g.isReserved(f.id) {
		return none
	}
	ctx, cancel := context.WithTimeout(ctx, g.opts.LoadTimeout)
	defer cancel()
	g.flights.ask(f)
	lease, over := append([]byte{tagLease}, randomToken()...), f.over
	for {
		found, err := g.cache.Lease(ctx, f.id, lease, over, 2*g.opts.LoadTimeout)
		if err != nil {
			return none
		}
		switch entryTag(found) {
		case tagLease:
			return leased[V]{token: found}
		case tagNull:
			return leased[V]{answered: true, err: ErrNotFound, hits: &g.stats.nullHits}
		case tagValue:
			if v, err := g.decode(found); err == nil {
				return leased[V]{answered: true, value: v, hits: &g.stats.hits}
			}
			if over == nil { // undecodable, and came meanwhile: replace that
				over = found
				continue
			}
		}
		return none // another library's bytes are no lease: they may come again
	}
}

// awaitUnleased waits for an earlier load of the id that has no lease either.
// Without leases nothing tells which Gets may share a load that has begun, so
// later ones get another, but one at a time: a cache that is down or full does
// not multiply what a hot id costs the database. Each ends within its LoadTimeout.
func (g *Guard[V]) awaitUnleased(f *flight[V]) {
	for other := g.flights.unleased(f); other != nil; other = g.flights.unleased(f) {
		<-other.done
	}
}

func (g *Guard[V]) fill(ctx context.Context, f *flight[V], v V, loadErr error) {
	entry, ttl, err := g.encode(v, loadErr)
	if err == nil {
		var filled bool
		if filled, err = g.cache.Fill(ctx, f.id, f.token, entry, ttl); filled {
			g.stats.fills.Add(1)
		}
	}
	if err != nil {
		g.stats.fillErrors.Add(1)
	}
}

// runLoader calls the loader and gives up on it when ctx ends. The slot is free
// when the loader has returned.
func (g *Guard[V]) runLoader(ctx context.Context, id string) (v V, err error) {
	type result struct {
		v   V
		err error
	}
	out := make(chan result, 1)
	g.stats.loads.Add(1)
	g.tasks.add()
	go func() {
		defer g.tasks.end()
		r := result{err: errors.New("loader ended its goroutine")}
		defer func() {
			if p := recover(); p != nil {
				r = result{err: panicError(p)}
			}
			<-g.flights.slots
			out <- r
		}()
		v, err := g.load(ctx, id)
		if err == nil && isNil(v) {
			err = fmt.Errorf("loader returned a nil %v and no error: want ErrNotFound for an id without a row",
				reflect.TypeFor[V]())
		}
		r = result{v, err}
	}()
	select {
	case r := <-out:
		v, err = r.v, r.err
	case <-ctx.Done():
		err = fmt.Errorf("load took longer than %v: %w", g.opts.LoadTimeout, ctx.Err())
	}
	if err == nil {
		return v, nil
	}
	if errors.Is(err, ErrNotFound) {
		g.stats.loadsNotFound.Add(1)
	} else {
		g.stats.loadErrors.Add(1)
	}
	var none V
	return none, err
}

func panicError(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }
