package bloom

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"sync/atomic"
)

// miss gets the row by a flight, and leaves when ctx ends. Who has gone starts none.
func (g *Guard[V]) miss(ctx context.Context, id string, r *reading) (V, error) {
	if err := contextError(ctx); err != nil {
		var none V
		return g.conclude(ctx, nil, id, r, none, err)
	}
	joined, err := g.board(ctx, []miss{r.miss(id)}, g.fly)
	return g.await(ctx, joined[0], id, r, err)
}

// board joins the flights that there are, and launches the others with one slot for
// all. Without one, the error is of those that are nil.
func (g *Guard[V]) board(
	ctx context.Context, ms []miss, fly func(context.Context, []*flight[V]),
) (joined []*flight[V], err error) {
	joined, launched, queued, err := g.flights.join(ms...)
	shared := -len(launched)
	for _, f := range joined {
		if f != nil {
			shared++
		}
	}
	g.stats.sharedLoads.Add(uint64(shared))
	if launched != nil {
		g.launch(ctx, launched, queued, fly)
	}
	return joined, err
}

func (r *reading) miss(id string) miss {
	return miss{id: id, seen: r.entry, blind: r.cacheErr != nil, audit: r.audit}
}

// launch starts flights that have a slot, or a place in the queue.
func (g *Guard[V]) launch(ctx context.Context, fs []*flight[V], queued bool, fly func(context.Context, []*flight[V])) {
	ctx = context.WithoutCancel(ctx)
	started := g.tasks.start(func() {
		if queued {
			g.flights.awaitSlot()
		}
		fly(ctx, fs)
	})
	if started {
		return
	}
	if queued {
		g.flights.unqueue()
	} else {
		<-g.flights.slots
	}
	for _, f := range fs {
		var none V
		g.flights.land(f, none, ErrClosed)
	}
}

// await returns what a flight brings, or that there is none because of err.
func (g *Guard[V]) await(ctx context.Context, f *flight[V], id string, r *reading, err error) (v V, _ error) {
	if f == nil {
		return g.conclude(ctx, nil, id, r, v, err)
	}
	select {
	case <-f.done:
		v, err = f.value, f.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	return g.conclude(ctx, f, id, r, v, err)
}

// conclude answers a miss by what came of its flight, which is nil if it has none.
func (g *Guard[V]) conclude(ctx context.Context, f *flight[V], id string, r *reading, v V, err error) (V, error) {
	if r.audit {
		v, err = g.audited(ctx, f, id, r, v, err)
	}
	if f == nil && errors.Is(err, ErrOverloaded) {
		g.stats.overloads.Add(1)
	}
	return v, err
}

var errEnded = errors.New("cache or codec ended its goroutine")

// fly takes a flight that has a slot to its landing.
func (g *Guard[V]) fly(ctx context.Context, fs []*flight[V]) {
	f := fs[0]
	var v V
	err := errEnded // which skips the assignment below
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
		f.judged = other.judged
		return other.value, other.err
	}
	ctx, cancel := context.WithTimeout(ctx, g.opts.LoadTimeout)
	defer cancel()
	slot = false // the loader's goroutine frees it
	v, err = g.runLoader(ctx, f)
	if ctx.Err() == nil && g.mayFill(f, err) {
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
	again bool   // the cache must be asked again, to replace what cannot be decoded

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
	lease, over := newLease(), f.over
	for {
		found, err := g.cache.Lease(ctx, f.id, lease, over, 2*g.opts.LoadTimeout)
		if err != nil {
			return none
		}
		l := g.leasedBy(found)
		if !l.again || over != nil {
			return l
		}
		over = found // which came meanwhile: replace it
	}
}

func newLease() []byte { return append([]byte{tagLease}, randomToken()...) }

// leasedBy reads the answer of Cache.Lease. Another library's bytes are no lease:
// they may come again.
func (g *Guard[V]) leasedBy(found []byte) (l leased[V]) {
	switch entryTag(found) {
	case tagLease:
		l.token = found
	case tagNull:
		l = leased[V]{answered: true, err: ErrNotFound, hits: &g.stats.nullHits}
	case tagValue:
		v, err := g.decode(found)
		if err != nil {
			return leased[V]{again: true}
		}
		l = leased[V]{answered: true, value: v, hits: &g.stats.hits}
	}
	return l
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

// mayFill reports whether what a load came to may be cached: under a lease, and if
// nobody has invalidated the id since.
func (g *Guard[V]) mayFill(f *flight[V], err error) bool {
	found := err == nil || errors.Is(err, ErrNotFound)
	return f.token != nil && found && !g.flights.isForgotten(f)
}

func (g *Guard[V]) fill(ctx context.Context, f *flight[V], v V, loadErr error) {
	entry, ttl, err := g.encode(v, loadErr)
	filled := false
	if err == nil {
		filled, err = g.cache.Fill(ctx, f.id, f.token, entry, ttl)
	}
	g.countFill(filled, err)
}

func (g *Guard[V]) countFill(filled bool, err error) {
	if filled {
		g.stats.fills.Add(1)
	}
	if err != nil {
		g.stats.fillErrors.Add(1)
	}
}

// runLoader loads one row, see call.
func (g *Guard[V]) runLoader(ctx context.Context, f *flight[V]) (V, error) {
	v, err := call(ctx, g, 1, func() (V, error) { return g.load(ctx, f.id) })
	if err == nil {
		err = checkRow(v)
	}
	return g.count(f, v, err)
}

// checkRow refuses a nil pointer.
func checkRow[V any](v V) error {
	if isNil(v) {
		return fmt.Errorf("loader returned a nil %v and no error: want ErrNotFound for an id without a row",
			reflect.TypeFor[V]())
	}
	return nil
}

// count counts what a load came to.
func (g *Guard[V]) count(f *flight[V], v V, err error) (V, error) {
	var none V
	switch {
	case err == nil:
		return v, nil
	case !errors.Is(err, ErrNotFound):
		g.stats.loadErrors.Add(1)
	case !g.flights.isAudit(f):
		g.stats.loadsNotFound.Add(1)
	}
	return none, err
}

// call calls a loader of so many ids and gives up on it when ctx ends. The slot is
// free when the loader has returned.
func call[V, R any](ctx context.Context, g *Guard[V], ids int, load func() (R, error)) (R, error) {
	type result struct {
		r   R
		err error
	}
	out := make(chan result, 1)
	g.stats.loads.Add(uint64(ids))
	g.tasks.add()
	go func() {
		defer g.tasks.end()
		res := result{err: errors.New("loader ended its goroutine")}
		defer func() {
			if p := recover(); p != nil {
				res = result{err: panicError(p)}
			}
			<-g.flights.slots
			out <- res
		}()
		r, err := load()
		res = result{r, err}
	}()
	select {
	case res := <-out:
		return res.r, res.err
	case <-ctx.Done():
		var none R
		return none, fmt.Errorf("load took longer than %v: %w", g.opts.LoadTimeout, ctx.Err())
	}
}

// catch, deferred, turns a panic of a caller's code into its error.
func catch(err *error) {
	if p := recover(); p != nil {
		*err = panicError(p)
	}
}

func panicError(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }
