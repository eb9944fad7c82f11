package bloom

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
)

// A flight is one load of one id, shared by the Gets that may have its result.
// Those are the ones that came before its load began, and the ones whose own read
// of the cache saw the very lease that it holds: nobody joins a load that began
// before an Invalidate which returned before he came.
type flight[V any] struct {
	id    string
	over  []byte // undecodable entry that the lease replaces
	blind bool   // launched by a miss whose own read of the cache failed

	// Guarded by flights.mu.
	asked     bool   // the cache is being asked for a lease, or was
	late      bool   // a Get joined since then: what the cache answers may be older than it
	begun     bool   // the load has begun, or is about to
	token     []byte // the lease that it holds; nil: none
	forgotten bool   // an Invalidate came: not joined, never filled

	done  chan struct{} // closed when value and err are set
	value V
	err   error
}

// flights are the loads of this process.
type flights[V any] struct {
	slots chan struct{} // one per load that runs
	mu    sync.Mutex
	byID  map[string][]*flight[V] // not landed yet; the last is the newest
	queue int                     // flights that wait for a slot
}

func (fs *flights[V]) init(maxLoads int) {
	fs.slots = make(chan struct{}, maxLoads)
	fs.byID = map[string][]*flight[V]{}
}

// join returns the flight that a miss may have the result of, or a new one that
// the caller must launch; queued says that it has to wait for a slot first.
// blind is a miss whose own read of the cache failed.
func (fs *flights[V]) join(id string, seen, over []byte, blind bool) (f *flight[V], launch, queued bool, err error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.open(id, seen, blind); f != nil {
		return f, false, false, nil
	}
	select {
	case fs.slots <- struct{}{}:
	default:
		if fs.queue >= cap(fs.slots) {
			return nil, false, false, ErrOverloaded
		}
		fs.queue++
		queued = true
	}
	f = &flight[V]{id: id, over: over, blind: blind, done: make(chan struct{})}
	fs.byID[id] = append(fs.byID[id], f)
	return f, true, queued, nil
}

// open returns the flight that a miss may join, or nil. It wants fs.mu held.
func (fs *flights[V]) open(id string, seen []byte, blind bool) (waiting *flight[V]) {
	for _, f := range fs.byID[id] {
		switch {
		case !f.begun:
			waiting = f
		case f.token == nil && blind:
			// Without a lease a reader of a cache that answers may know of a later
			// Invalidate; one that saw nothing knows of none.
			return f
		case f.token != nil && bytes.Equal(seen, f.token):
			return f
		}
	}
	if waiting != nil {
		waiting.late = waiting.asked
	}
	return waiting
}

// ask marks that the cache is about to be asked for f's lease.
func (fs *flights[V]) ask(f *flight[V]) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.asked, f.late = true, false
}

// shut keeps further Gets from joining f, so that it can answer those it has by
// what the cache said. If one has joined since the cache was asked, who may have
// come after an Invalidate that is not in the answer, it returns false: f must
// ask again.
func (fs *flights[V]) shut(f *flight[V]) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.late {
		return false
	}
	fs.remove(f)
	return true
}

// begin marks the load as begun under token, unless another flight is loading
// under the same one: then it returns that.
func (fs *flights[V]) begin(f *flight[V], token []byte) (other *flight[V]) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, o := range fs.byID[f.id] {
		if o != f && o.begun && token != nil && bytes.Equal(o.token, token) {
			return o
		}
	}
	f.begun, f.token = true, token
	return nil
}

// unleased returns an earlier flight of the id that loads without a lease.
func (fs *flights[V]) unleased(f *flight[V]) *flight[V] {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, o := range fs.byID[f.id] {
		if o != f && o.begun && o.token == nil {
			return o
		}
	}
	return nil
}

// land ends a flight for all who wait.
func (fs *flights[V]) land(f *flight[V], v V, err error) {
	f.value, f.err = v, err
	fs.mu.Lock()
	fs.remove(f)
	fs.mu.Unlock()
	close(f.done)
}

// remove wants fs.mu held.
func (fs *flights[V]) remove(f *flight[V]) {
	rest := slices.DeleteFunc(fs.byID[f.id], func(o *flight[V]) bool { return o == f })
	if len(rest) == 0 {
		delete(fs.byID, f.id)
	} else {
		fs.byID[f.id] = rest
	}
}

// forget lets nobody join the flights of ids any more, nor fill the cache.
func (fs *flights[V]) forget(ids []string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, id := range ids {
		for _, f := range fs.byID[id] {
			f.forgotten = true
		}
		delete(fs.byID, id)
	}
}

func (fs *flights[V]) isForgotten(f *flight[V]) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.forgotten
}

// unqueue counts a flight that got its slot.
func (fs *flights[V]) unqueue() {
	fs.mu.Lock()
	fs.queue--
	fs.mu.Unlock()
}

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
	var l leased[V]
	for {
		l = g.lease(ctx, f)
		if l.answered {
			if g.flights.shut(f) {
				l.hits.Add(1)
				return l.value, l.err
			}
			continue
		}
		if l.token == nil {
			g.awaitUnleased(f)
		}
		other := g.flights.begin(f, l.token)
		if other == nil {
			break
		}
		if g.flights.shut(f) {
			g.stats.sharedLoads.Add(1)
			<-g.flights.slots
			slot = false
			<-other.done // within its LoadTimeout
			return other.value, other.err
		}
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
