package bloom

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// rider is a backend in Redis, whose reads take the cache's along.
type rider interface {
	// keys lists every key that may belong to the filter.
	keys() []string
	// sharesTrip reports whether all items are read by the client of c.
	sharesTrip(c *conn, items []string) bool
	// existsWith asks about the first of items, as many as go into one round trip
	// (one at least), and sends with each its rider. It answers those items, true
	// where unknown. Their riders have been executed unless ctx has ended.
	existsWith(ctx context.Context, items []string, riders []redis.Cmder) ([]bool, error)
}

// joinTrips finds out whether filter and cache can be read in one round trip, and
// which ids an attacker could name the filter's own keys by.
func (g *Guard[V]) joinTrips() {
	c, ok := g.cache.(*RedisCache)
	if !ok {
		return
	}
	var own []string
	if b, ok := g.filter.backend.(rider); ok {
		own, g.rides, g.remote = b.keys(), b, c
	}
	// Another client may reach the same server, so these are left alone too.
	g.reserved = map[string]struct{}{}
	for _, key := range own {
		if id, ok := strings.CutPrefix(key, c.prefix); ok {
			g.reserved[id] = struct{}{}
		}
	}
}

func (g *Guard[V]) isReserved(id string) bool {
	_, ok := g.reserved[id]
	return ok
}

// reading is what filter and cache said of an id.
type reading struct {
	maybe     bool
	filterErr error
	entry     []byte
	cacheErr  error

	audit bool // the filter denied it, and it is loaded all the same
}

// filterSaid takes the filter's answer. Beside an error of others a "no" is certain
// nevertheless, as where one shard of several is lost.
func (r *reading) filterSaid(maybe bool, err error) {
	r.maybe = maybe
	if maybe {
		r.filterErr = err
	}
}

// read asks filter and cache about the first of ids, as many as go into one round
// trip, one at least, and in one round trip where the two share a client. Neither
// needs the other: each reply alone justifies its answer. Of a reserved id the cache
// is not asked. Whom down says to be out of reach is not asked at all, see outage.
func (g *Guard[V]) read(ctx context.Context, ids []string, down reading) []reading {
	ctx, cancel := g.hurried(ctx)
	defer cancel()
	ids = ids[:min(len(ids), maxCacheKeys)]
	if g.rides == nil || !g.rides.sharesTrip(&g.remote.conn, ids) || down.filterErr != nil || down.cacheErr != nil {
		return g.readApart(ctx, ids, down)
	}
	gets := make([]redis.Cmder, len(ids))
	for i, id := range ids {
		if !g.isReserved(id) {
			gets[i] = g.remote.readCmd(ctx, id)
		}
	}
	maybe, err := g.rides.existsWith(ctx, ids, gets)
	ended := contextError(ctx)
	err = g.filter.wrap("look up in", err)
	readings := make([]reading, len(maybe))
	for i := range readings {
		r := &readings[i]
		r.filterSaid(maybe[i], err)
		if ended != nil {
			r.cacheErr = ended // the riders may be on their way yet
		} else if get, ok := gets[i].(*redis.StringCmd); ok {
			r.entry, r.cacheErr = readEntry(get)
		}
	}
	return readings
}

// hurried leaves half of the time that a caller has to a load. A Redis that hangs
// would use up all of it.
func (g *Guard[V]) hurried(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok || g.opts.FailClosed { // which loads nothing then
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/2))
}

// present leaves out riders that are nil.
func present(riders []redis.Cmder) []redis.Cmder {
	if !slices.Contains(riders, nil) {
		return riders
	}
	return slices.DeleteFunc(slices.Clone(riders), func(r redis.Cmder) bool { return r == nil })
}

// readApart asks two servers at once.
func (g *Guard[V]) readApart(ctx context.Context, ids []string, down reading) []reading {
	readings := make([]reading, len(ids))
	var (
		open []string // to the cache
		at   []*reading
		wg   sync.WaitGroup
	)
	for i, id := range ids {
		if !g.isReserved(id) {
			open, at = append(open, id), append(at, &readings[i])
			readings[i].cacheErr = errCacheEnded
		}
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		g.readCache(ctx, open, at, down.cacheErr)
	}()
	maybe, err := allTrue(len(ids)), down.filterErr
	if err == nil {
		maybe, err = g.lookUp(ctx, ids)
	}
	wg.Wait()
	for i := range readings {
		readings[i].filterSaid(maybe[i], err)
	}
	return readings
}

// lookUp names a single id's lookup as what it is in errors.
func (g *Guard[V]) lookUp(ctx context.Context, ids []string) ([]bool, error) {
	if len(ids) > 1 {
		return g.filter.ExistsMulti(ctx, ids)
	}
	maybe, err := g.filter.Exists(ctx, ids[0])
	return []bool{maybe}, err
}

var errCacheEnded = errors.New("cache ended its goroutine") // unless it answers

// readCache reads the entries of ids, unless err says that nobody answers. Where
// one of many cannot be read and the cache does not say which, it reads each for
// itself.
func (g *Guard[V]) readCache(ctx context.Context, ids []string, readings []*reading, err error) {
	if many, ok := g.cache.(manyCache); ok && err == nil {
		entries, errs := many.readMany(ctx, ids)
		for i, r := range readings {
			r.entry, r.cacheErr = entries[i], errs[i]
		}
		return
	}
	var entries [][]byte
	if err == nil && len(ids) > 0 {
		entries, err = g.readEntries(ctx, ids)
	}
	if len(ids) > 1 && err != nil && !isOutage(err) {
		g.each(len(ids), func(i int) { g.readCache(ctx, ids[i:i+1], readings[i:i+1], nil) })
		return
	}
	for i, r := range readings {
		r.cacheErr = err
		if err == nil {
			r.entry = entries[i]
		}
	}
}

func (g *Guard[V]) readEntries(ctx context.Context, ids []string) (entries [][]byte, err error) {
	defer catch(&err)
	entries, err = g.cache.Read(ctx, ids)
	if err == nil && len(entries) != len(ids) {
		err = fmt.Errorf("cache answered %d entries for %d ids", len(entries), len(ids))
	}
	return entries, err
}

// outage keeps of some readings the errors that say that nobody answered any of
// them: asking again at once would only take the client's time-outs once more.
func outage(readings []reading) (down reading) {
	down.filterErr, down.cacheErr = readings[0].filterErr, readings[0].cacheErr
	for _, r := range readings {
		if !isOutage(r.filterErr) {
			down.filterErr = nil
		}
		if !isOutage(r.cacheErr) {
			down.cacheErr = nil
		}
	}
	return down
}

func isOutage(err error) bool {
	var reply redis.Error
	return err != nil && !errors.As(err, &reply) && !isNotReady(err) && !isCorrupt(err)
}
