package bloom

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	maxLoadIDs    = maxCacheKeys / 2 // given to LoadMulti at once
	maxCacheCalls = 16               // at once, to a Cache that has no calls for many ids
)

// manyCache is a Cache that reads, leases and fills many ids in one round trip.
// Each answer comes with an error of its own.
type manyCache interface {
	readMany(ctx context.Context, ids []string) (entries [][]byte, errs []error)
	leaseMany(ctx context.Context, ids []string, leases, overs [][]byte, ttl time.Duration) (found [][]byte, errs []error)
	fillMany(ctx context.Context, ids []string, leases, entries [][]byte, ttls []time.Duration) (filled []bool, errs []error)
}

// flyTogether takes flights that have one slot to their landing: it leases all,
// loads by one call those that are theirs to load, and fills. A flight that has to
// wait for another, or ask again, goes on alone: no load may wait for another one.
func (g *Guard[V]) flyTogether(ctx context.Context, fs []*flight[V]) {
	group := &flightGroup[V]{g: g, slot: true, open: fs}
	defer group.end()
	group.lease(ctx)
	group.load(ctx)
}

// flightGroup is flights on their way together.
type flightGroup[V any] struct {
	g    *Guard[V]
	slot bool         // it has a slot
	open []*flight[V] // not landed yet, nor gone alone
}

// end lands what a panic of a Codec or a Cache left, or that ended the goroutine.
func (fg *flightGroup[V]) end() {
	err := errEnded
	if p := recover(); p != nil {
		err = panicError(p)
	}
	if fg.slot {
		<-fg.g.flights.slots
	}
	for _, f := range fg.open {
		var none V
		fg.g.flights.land(f, none, err)
	}
}

// lease asks for the lease of each flight, and leaves those that are to be loaded.
func (fg *flightGroup[V]) lease(ctx context.Context) {
	g := fg.g
	leases := g.leaseTogether(ctx, fg.open)
	fs := fg.open
	fg.open = nil
	for i, f := range fs {
		l := leases[i]
		switch {
		case l.answered && g.flights.shut(f):
			l.hits.Add(1)
			g.flights.land(f, l.value, l.err)
		case !l.answered && !l.again && g.flights.beginAlone(f, l.token):
			fg.open = append(fg.open, f)
		default:
			g.flights.requeue()
			g.tasks.add()
			go func() {
				defer g.tasks.end()
				g.flights.awaitSlot()
				g.fly(ctx, []*flight[V]{f})
			}()
		}
	}
}

// load calls LoadMulti, fills what it brought, and lands.
func (fg *flightGroup[V]) load(ctx context.Context) {
	if len(fg.open) == 0 {
		return
	}
	g := fg.g
	ctx, cancel := context.WithTimeout(ctx, g.opts.LoadTimeout)
	defer cancel()
	ids := make([]string, len(fg.open))
	for i, f := range fg.open {
		ids[i] = f.id
	}
	fg.slot = false // the loader's goroutine frees it
	rows, err := call(ctx, g, len(ids), func() (map[string]V, error) { return g.opts.LoadMulti(ctx, ids) })
	if err == nil {
		err = ErrNotFound
	}
	for _, f := range fg.open {
		v, ok := rows[f.id]
		if ok {
			f.value, f.err = g.count(f, v, checkRow(v))
		} else {
			f.value, f.err = g.count(f, v, err)
		}
	}
	if ctx.Err() == nil {
		g.fillTogether(ctx, fg.open)
	}
	fs := fg.open
	fg.open = nil
	for _, f := range fs {
		g.flights.land(f, f.value, f.err)
	}
}

// leaseTogether asks for leases, in one round trip if the cache can.
func (g *Guard[V]) leaseTogether(ctx context.Context, fs []*flight[V]) []leased[V] {
	leases := make([]leased[V], len(fs))
	many, ok := g.cache.(manyCache)
	if !ok {
		g.each(len(fs), func(i int) { leases[i] = g.lease(ctx, fs[i]) })
		return leases
	}
	var (
		at            []int // of fs
		ids           []string
		tokens, overs [][]byte
	)
	for i, f := range fs {
		if f.blind || g.isReserved(f.id) {
			continue
		}
		g.flights.ask(f)
		at, ids = append(at, i), append(ids, f.id)
		tokens, overs = append(tokens, newLease()), append(overs, f.over)
	}
	if len(ids) == 0 {
		return leases
	}
	ctx, cancel := context.WithTimeout(ctx, g.opts.LoadTimeout)
	defer cancel()
	found, errs := many.leaseMany(ctx, ids, tokens, overs, 2*g.opts.LoadTimeout)
	for j, i := range at {
		if errs[j] == nil {
			leases[i] = g.leasedBy(found[j])
		}
	}
	return leases
}

// fillTogether caches what was loaded under a lease. A value that its codec cannot
// encode is not cached; one that it panics on is an error to who asked for it.
func (g *Guard[V]) fillTogether(ctx context.Context, fs []*flight[V]) {
	var (
		ids             []string
		tokens, entries [][]byte
		ttls            []time.Duration
	)
	for _, f := range fs {
		if !g.mayFill(f, f.err) {
			continue
		}
		entry, ttl, err := g.encodeOf(f)
		if err != nil {
			g.countFill(false, err)
			continue
		}
		ids, tokens = append(ids, f.id), append(tokens, f.token)
		entries, ttls = append(entries, entry), append(ttls, ttl)
	}
	if len(ids) == 0 {
		return
	}
	filled, errs := make([]bool, len(ids)), make([]error, len(ids))
	if many, ok := g.cache.(manyCache); ok {
		filled, errs = many.fillMany(ctx, ids, tokens, entries, ttls)
	} else {
		g.each(len(ids), func(i int) {
			filled[i], errs[i] = g.cache.Fill(ctx, ids[i], tokens[i], entries[i], ttls[i])
		})
	}
	for i := range ids {
		g.countFill(filled[i], errs[i])
	}
}

// encodeOf encodes what a flight brings, which is a panic's error if the codec
// panics.
func (g *Guard[V]) encodeOf(f *flight[V]) (entry []byte, ttl time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			var none V
			err = panicError(p)
			f.value, f.err = none, err
		}
	}()
	return g.encode(f.value, f.err)
}

// each calls f for 0 to n-1, some at once. A panic of one is that of all.
func (g *Guard[V]) each(n int, f func(i int)) {
	var calls errgroup.Group
	calls.SetLimit(maxCacheCalls)
	for i := range n {
		calls.Go(func() (err error) {
			defer catch(&err)
			f(i)
			return nil
		})
	}
	if err := calls.Wait(); err != nil {
		panic(err)
	}
}
