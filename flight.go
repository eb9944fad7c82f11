package bloom

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
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
	begun     bool   // the load has begun, or is about to
	token     []byte // what was stored under the id then; nil: the lease failed
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
	if all := fs.byID[id]; len(all) > 0 && all[len(all)-1].admits(seen, blind) {
		return all[len(all)-1], false, false, nil
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

// admits wants flights.mu held.
func (f *flight[V]) admits(seen []byte, blind bool) bool {
	switch {
	case !f.begun:
		return true
	case f.token == nil:
		// The lease failed. A reader of a cache that answers may know of a later
		// Invalidate; one that saw nothing knows of none.
		return blind
	}
	return seen != nil && bytes.Equal(seen, f.token)
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
	v, err := g.perform(ctx, f)
	g.flights.land(f, v, err)
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
	l, err := g.lease(ctx, f)
	if err != nil || l.answered {
		return l.value, err
	}
	if l.token == nil {
		g.awaitUnleased(f)
	}
	if other := g.flights.begin(f, l.token); other != nil {
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
	if l.fill && found && ctx.Err() == nil && !g.flights.isForgotten(f) {
		g.fill(ctx, f, v, err)
	}
	return v, err
}

// leased is what asking for a lease came to: an answer, or what stood under the
// id when its load began.
type leased[V any] struct {
	answered bool // by an entry that came meanwhile
	value    V
	token    []byte // nil: the cache did not say
	fill     bool   // token is a lease
}

// lease plants a token under the flight's id, or adopts the one that is there.
// A flight whose own read of the cache failed does not try: that would take
// another of the client's timeouts, and be as likely to fail.
func (g *Guard[V]) lease(ctx context.Context, f *flight[V]) (l leased[V], err error) {
	if f.blind || g.isReserved(f.id) {
		return l, nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.opts.LoadTimeout)
	defer cancel()
	lease, over := append([]byte{tagLease}, randomToken()...), f.over
	for {
		found, err := g.cache.Lease(ctx, f.id, lease, over, 2*g.opts.LoadTimeout)
		if err != nil {
			return l, nil
		}
		switch entryTag(found) {
		case tagLease:
			return leased[V]{token: found, fill: true}, nil
		case tagNull:
			g.stats.nullHits.Add(1)
			return l, ErrNotFound
		case tagValue:
			if v, err := g.decode(found); err == nil {
				g.stats.hits.Add(1)
				return leased[V]{answered: true, value: v}, nil
			}
			if over == nil { // undecodable, and came meanwhile: replace that
				over = found
				continue
			}
		}
		return leased[V]{token: found}, nil
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
			err = fmt.Errorf("loader returned a nil %T and no error: want ErrNotFound for an id without a row", v)
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

// tasks counts the goroutines of a Guard, so that Close can wait for them.
type tasks struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{} // closed once closed and n is 0
}

func (t *tasks) init() { t.idle = make(chan struct{}) }

// start runs f in a goroutine, or returns false once closed.
func (t *tasks) start(f func()) bool {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return false
	}
	t.n++
	t.mu.Unlock()
	go func() {
		defer t.end()
		f()
	}()
	return true
}

// add counts a goroutine that a counted one starts.
func (t *tasks) add() {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
}

func (t *tasks) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
	if t.closed && t.n == 0 {
		close(t.idle)
	}
}

func (t *tasks) close(ctx context.Context) error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		if t.n == 0 {
			close(t.idle)
		}
	}
	t.mu.Unlock()
	select {
	case <-t.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
