package bloom

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Loader reads one row from the database. For an id that has no row it returns
// [ErrNotFound], plain or wrapped: translate sql.ErrNoRows, which like any other
// error is not cached. It must see every write that was committed before it was
// called, so it must not read from a lagging replica. Its context ends after
// [GuardOptions].LoadTimeout, and not with the caller's.
type Loader[V any] func(ctx context.Context, id string) (V, error)

// Codec turns values into cached bytes and back. Unmarshal copies what it keeps of
// its argument, which may be the cache's own memory. Bytes that it refuses or
// panics on are loaded anew and replaced.
type Codec[V any] interface {
	Marshal(V) ([]byte, error)
	Unmarshal([]byte) (V, error)
}

// GuardOptions are the knobs of a [Guard]. The zero value, or nil, is the default.
type GuardOptions[V any] struct {
	// TTL is how long a value stays cached at most. 0 means 1 h; the least is 1 s.
	TTL time.Duration
	// NullTTL is how long "no such row" stays cached at most. 0 means 60 s; the
	// least is 1 s.
	NullTTL time.Duration
	// Jitter is the share by which each of both is shortened at random, so that
	// what was cached together does not expire together. 0 means 0.1; negative
	// means none; below 1.
	Jitter float64
	// LoadTimeout ends a load, counted from when it got one of MaxLoads slots and
	// its lease, which may take as long again where the cache does not answer. 0
	// means 5 s; the least is 1 ms, the most a day.
	LoadTimeout time.Duration
	// MaxLoads bounds the loads that run at once in this process; as many may
	// wait, and further Gets that need one return ErrOverloaded. 0 means 256.
	MaxLoads int
	// FailClosed, if set, returns the error when filter or cache cannot answer.
	// The default lets the lookup through to the loader.
	FailClosed bool
	// Codec is JSON unless set: what encoding/json keeps of a value, so exported
	// fields only, strings in UTF-8, and numbers in an any as float64. A Get that
	// loads returns what the loader did, later ones what the codec kept of it.
	Codec Codec[V]
	// Validate, if set, refuses malformed and non-canonical ids ("007", "+7")
	// before anything else happens. Its error is returned. Without it every string
	// is an id, the empty one too.
	Validate func(id string) error
	// AuditRate is the share of the filter's certain "no"s whose ids are loaded all
	// the same. A row found there is an anomaly: a Register was left out, or the
	// filter is damaged or was never loaded. It is returned, and its id added to
	// the filter. 0 means at most one audit a second; negative means none; at most
	// 1. Three anomalies in 64 audits, and the filter is not trusted any more: its
	// "no"s are let through (FailClosed: are errors) until no row was found behind
	// one for 30 s, nor in the last 64 audits.
	AuditRate float64
	// OnAnomaly, if set, hears of anomalies, one at a time and in a goroutine of
	// its own. If it takes longer than they come, some are left out; Stats counts
	// them all.
	OnAnomaly func(Anomaly)
	// LoadMulti, if set, loads for GetMulti: up to 500 distinct ids a call, which
	// takes one of MaxLoads. An id that it leaves out of its map has no row. Beside
	// an error those rows count that are in the map, and nothing is known of the
	// others, unless it is ErrNotFound. Like Loader it must not read from a lagging
	// replica. If nil, GetMulti calls Loader for each id, at most MaxLoads/2 at once.
	LoadMulti func(ctx context.Context, ids []string) (map[string]V, error)
}

// Guard answers lookups by id from a cache, in front of a database that the
// lookups of unknown ids do not reach: a [Filter] rejects those. It is safe for
// concurrent use by any number of goroutines and processes that share filter and
// cache.
//
// Once Invalidate or Register has returned nil, no Get that starts later, in any
// process, returns what the row was before. There is one exception: a process that
// cannot reach the cache cannot hear of it. Its Gets share the loads that run in it
// already, unless it has called the Invalidate itself.
//
// Gets that share a load get the same value. What a pointer, slice or map in it
// leads to must not be changed.
type Guard[V any] struct {
	filter *Filter
	cache  Cache
	load   Loader[V]
	opts   GuardOptions[V]

	rides    rider               // set where filter and cache are in Redis, as one client's are read in one round trip
	remote   *RedisCache         // likewise
	reserved map[string]struct{} // ids whose cache key is one of the filter's keys

	flights flights[V]
	tasks   tasks
	audits  audits
	reports reports
	heals   heals
	stats   guardCounters
}

const (
	defaultTTL         = time.Hour
	defaultNullTTL     = time.Minute
	defaultJitter      = 0.1
	defaultLoadTimeout = 5 * time.Second
	defaultMaxLoads    = 256
	minTTL             = time.Second
	minLoadTimeout     = time.Millisecond
	maxLoadTimeout     = 24 * time.Hour // a lease lives twice as long, which must not overflow
	maxHeals           = 16             // at once; what is left out is healed by a later Get
)

// NewGuard returns a guard of the rows that load reads. It does no I/O. Close it
// when it is not used any more.
func NewGuard[V any](f *Filter, c Cache, load Loader[V], opts *GuardOptions[V]) (*Guard[V], error) {
	switch {
	case f == nil:
		return nil, fmt.Errorf("bloom: guard with a nil Filter: %w", ErrInvalidParams)
	case c == nil:
		return nil, fmt.Errorf("bloom: guard with a nil Cache: %w", ErrInvalidParams)
	case load == nil:
		return nil, fmt.Errorf("bloom: guard with a nil Loader: %w", ErrInvalidParams)
	}
	if checked, ok := c.(interface{ check() error }); ok {
		if err := checked.check(); err != nil {
			return nil, err
		}
	}
	var o GuardOptions[V]
	if opts != nil {
		o = *opts
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	g := &Guard[V]{filter: f, cache: c, load: load, opts: o}
	g.flights.init(o.MaxLoads)
	g.tasks.init()
	g.audits.init(o.AuditRate)
	g.reports.init(o.OnAnomaly, &g.tasks)
	g.heals.init()
	g.joinTrips()
	return g, nil
}

// complete fills in defaults and refuses what makes no sense.
func (o *GuardOptions[V]) complete() error {
	setDefault(&o.TTL, defaultTTL)
	setDefault(&o.NullTTL, defaultNullTTL)
	setDefault(&o.Jitter, defaultJitter)
	setDefault(&o.LoadTimeout, defaultLoadTimeout)
	setDefault(&o.MaxLoads, defaultMaxLoads)
	if o.Codec == nil {
		o.Codec = jsonCodec[V]{}
	}
	switch {
	case o.TTL < minTTL:
		return fmt.Errorf("bloom: TTL %v: want at least %v: %w", o.TTL, minTTL, ErrInvalidParams)
	case o.NullTTL < minTTL:
		return fmt.Errorf("bloom: NullTTL %v: want at least %v: %w", o.NullTTL, minTTL, ErrInvalidParams)
	case !(o.Jitter < 1): // also refuses NaN
		return fmt.Errorf("bloom: Jitter %v: want below 1 (negative: none): %w", o.Jitter, ErrInvalidParams)
	case o.LoadTimeout < minLoadTimeout || o.LoadTimeout > maxLoadTimeout:
		return fmt.Errorf("bloom: LoadTimeout %v: want %v to %v: %w",
			o.LoadTimeout, minLoadTimeout, maxLoadTimeout, ErrInvalidParams)
	case o.MaxLoads < 0:
		return fmt.Errorf("bloom: MaxLoads %d: want at least 1: %w", o.MaxLoads, ErrInvalidParams)
	case !(o.AuditRate <= 1):
		return fmt.Errorf("bloom: AuditRate %v: want at most 1 (0: one a second, negative: none): %w",
			o.AuditRate, ErrInvalidParams)
	}
	o.Jitter = max(o.Jitter, 0)
	return nil
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Get returns the row of id, or [ErrNotFound] if there is none. It takes one
// round trip unless the row has to be loaded, which takes one to lease, the load,
// and one to fill. Callers of one id share a load, and each leaves it when its own
// context ends; the load goes on.
//
// Where ctx has a deadline, filter and cache have half of the time until then to
// answer, so that a Redis that hangs leaves time for the load; without one they
// have what the client's time-outs and retries allow.
//
// Other errors: what Validate refused, [ErrOverloaded], [ErrClosed], the loader's, a
// panic of the loader, the context's, and with FailClosed what kept filter or cache
// from answering.
func (g *Guard[V]) Get(ctx context.Context, id string) (V, error) {
	var none V
	g.stats.gets.Add(1)
	if g.opts.Validate != nil {
		if err := g.opts.Validate(id); err != nil {
			g.stats.invalid.Add(1)
			return none, getError(id, err)
		}
	}
	r := g.read(ctx, []string{id}, reading{})[0]
	if err := contextError(ctx); err != nil {
		return none, getError(id, err)
	}
	v, done, err := g.decide(ctx, id, &r)
	if !done {
		v, err = g.miss(ctx, id, &r)
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		err = getError(id, err)
	}
	return v, err
}

// decide answers an id from what was read of it, or says that its row has to be
// loaded.
func (g *Guard[V]) decide(ctx context.Context, id string, r *reading) (v V, done bool, err error) {
	denied := r.filterErr == nil && !r.maybe
	switch entryTag(r.entry) {
	case tagValue:
		if v, err := g.decode(r.entry); err == nil {
			g.stats.hits.Add(1)
			if denied {
				g.heal(ctx, AnomalyCached, id)
			}
			return v, true, nil
		}
	case tagNull:
		g.stats.nullHits.Add(1)
		return v, true, ErrNotFound
	}
	if denied {
		picked, distrusted := g.audits.pick(), g.audits.distrusts()
		if !picked && !distrusted {
			g.stats.rejected.Add(1)
			return v, true, ErrNotFound
		}
		r.audit = true
		if distrusted {
			r.filterErr = errDistrusted
		}
		if picked {
			g.stats.audits.Add(1)
			return v, false, nil
		}
	}
	if err := errors.Join(r.filterErr, r.cacheErr); err != nil {
		if g.opts.FailClosed {
			return v, true, err
		}
		g.stats.failOpens.Add(1)
	}
	return v, false, nil
}

func getError(id string, err error) error { return fmt.Errorf("bloom: get %q: %w", id, err) }

// Register makes ids known that are being inserted: it adds them to the filter
// and drops what is cached under them. Call it before the transaction commits,
// and roll back on an error, which is a future denial of the row: then the filter
// never denies a committed row. Call it again after the commit: that drops a "no
// such row" that a Get cached meanwhile, which otherwise stays for NullTTL.
//
// A filter that is not ready is no error here: it denies nothing, and the rebuild
// that makes it reads the row.
func (g *Guard[V]) Register(ctx context.Context, ids ...string) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := g.filter.AddMulti(ctx, ids)
	if isNotReady(err) {
		err = nil
	}
	return errors.Join(err, g.Invalidate(ctx, ids...))
}

// Invalidate drops what is cached under ids. Call it once a row has changed or
// gone. On an error an old value may stay for TTL: try again.
func (g *Guard[V]) Invalidate(ctx context.Context, ids ...string) error {
	var drop []string
	for _, id := range ids {
		if !g.isReserved(id) {
			drop = append(drop, id)
		}
	}
	var err error
	if len(drop) > 0 {
		err = g.cache.Drop(ctx, drop)
	}
	g.flights.forget(ids)
	if err != nil {
		return fmt.Errorf("bloom: invalidate %s: %w", plural(len(ids), "id"), err)
	}
	return nil
}

// Close waits until the loads, fills and heals that were started have ended, or
// ctx has: at shutdown give it one that has time left. Gets that need a load are
// refused from then on, with [ErrClosed].
func (g *Guard[V]) Close(ctx context.Context) error {
	if err := g.tasks.close(ctx); err != nil {
		return fmt.Errorf("bloom: close guard: %w", err)
	}
	return nil
}
