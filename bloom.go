package bloom

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Config is what [Filter.CreateEmpty] and [Filter.Rebuild] make. It says nothing
// about a filter that is stored already: that one says for itself what it is, and
// every handle follows it. The zero Config is a handle that only attaches.
type Config struct {
	// Capacity is the number of items that the filter is sized for. More can be
	// added: the rate grows, see [Params.FPRateAt], and never is an item lost.
	Capacity uint64

	// FPRate is the share of absent items that the filter calls present once
	// Capacity items are in. 0 means 0.01.
	FPRate float64

	// Layout is Classic unless set.
	Layout Layout

	// TTL makes the filter expire that long after CreateEmpty or a Rebuild made it,
	// whatever is added meanwhile; attaching does not extend it. After that it
	// answers ErrNotReady. 0 means never; the least is a millisecond.
	TTL time.Duration

	// HashKey, 16 random bytes, makes the filter's positions a secret: items are
	// hashed by SipHash-2-4-128 with it. Without one they are hashed by MurmurHash3
	// with a seed that anybody can read who can read the filter, and who knows it
	// can compute ids that the filter calls present although they are absent. Every
	// handle on the filter needs the key, which is not stored; its fingerprint is,
	// so that another key, or none, is ErrParamsMismatch. nil means none.
	HashKey []byte

	// ReplicaReads accepts a cluster client that reads from replicas (ReadOnly,
	// RouteByLatency, RouteRandomly), which New refuses otherwise. Exists and
	// ExistsMulti then are as good as the replica that answers: one that lags, or
	// has lost its primary, denies what was added since. A Guard on such a filter
	// denies new rows until the replicas have them. A replica is not believed that
	// there is no filter, or another one: then the primary is asked. Everything
	// else is the primary's anyway.
	//
	// New sees no more than those options: a replica behind a plain address or a
	// proxy, a failover client with ReplicaOnly, or what an AutoPipeliner wraps, is
	// taken as it is.
	ReplicaReads bool

	// WaitReplicas makes Add, AddMulti, CreateEmpty, Reset, Drop and the publishing
	// of a Rebuild wait until so many replicas have the change (WAIT, in the same
	// round trip, on the key's own node). If they don't within WaitTimeout, there
	// is an error that says how many do; the primary has the change, adding again
	// is harmless, and of a batch the rest is added without waiting.
	//
	// Use it where a failover must not lose an add that returned nil: its item would
	// be denied then, unseen by any client. It makes that unlikely, not impossible.
	// The replica that is promoted may be one of those that were not waited for, so
	// wait for all that can be; min-replicas-to-write stops a primary that has lost
	// its replicas from taking writes that do not wait. And what a server has not
	// written to disk when it restarts (the fsync window) is lost all the same.
	// Rebuild after a failover or a restored backup.
	//
	// It needs a *redis.Client or *redis.ClusterClient: on the connection of an
	// AutoPipeliner everybody would wait. While replicas are slow each call holds a
	// connection of the pool.
	WaitReplicas int

	// WaitTimeout bounds that wait. 0 means 1 s; the least is a millisecond. It must
	// be below the client's ReadTimeout.
	WaitTimeout time.Duration
}

func (c Config) waitTimeout() time.Duration {
	if c.WaitTimeout == 0 {
		return defaultWaitTimeout
	}
	return c.WaitTimeout
}

func (c Config) checkReplicas() error {
	switch {
	case c.WaitReplicas < 0:
		return fmt.Errorf("bloom: WaitReplicas %d: want 0 (none) or more: %w", c.WaitReplicas, ErrInvalidParams)
	case c.WaitTimeout != 0 && c.WaitTimeout < minWaitTimeout:
		return fmt.Errorf("bloom: WaitTimeout %v: want 0 (%v) or at least %v: %w",
			c.WaitTimeout, defaultWaitTimeout, minWaitTimeout, ErrInvalidParams)
	case c.WaitTimeout != 0 && c.WaitReplicas == 0:
		return fmt.Errorf("bloom: WaitTimeout %v without WaitReplicas: want both or neither: %w", c.WaitTimeout, ErrInvalidParams)
	}
	return nil
}

const defaultFPRate = 0.01

// Backend stores one filter and answers for it. Use it through a [Filter], which
// checks arguments and names the filter in errors.
//
// An implementation keeps the promise of this package: a false with a nil error
// is certain. It returns an error wrapping [ErrNotReady] or [ErrCorrupt] whenever
// it cannot prove that the filter is present and whole. Batches return one bool
// per item, in order, true where unknown.
type Backend interface {
	// Key names the filter in errors.
	Key() string
	// Check refuses what this backend cannot do, without I/O. A Capacity of 0
	// only attaches.
	Check(cfg Config) error
	// CreateEmpty makes an empty filter where there is none, and attaches to one
	// that satisfies cfg.
	CreateEmpty(ctx context.Context, cfg Config) error
	// Ready returns nil if the filter is present and whole.
	Ready(ctx context.Context) error
	// Add returns false only if all bits of item were set before.
	Add(ctx context.Context, item string) (bool, error)
	// AddMulti is Add for each item, a false only where Add would return one.
	AddMulti(ctx context.Context, items []string) ([]bool, error)
	// Exists returns false only if item is certainly not in the filter.
	Exists(ctx context.Context, item string) (bool, error)
	// ExistsMulti is Exists for each item.
	ExistsMulti(ctx context.Context, items []string) ([]bool, error)
	// Info describes the filter as it is.
	Info(ctx context.Context) (Info, error)
	// Reset empties a filter that is there and keeps its parameters.
	Reset(ctx context.Context) error
	// Drop removes the filter. Without one it does nothing.
	Drop(ctx context.Context) error
}

// replicated is a Backend on servers that may have replicas.
type replicated interface {
	// withReplicas returns another handle on the same filter, which reads from
	// replicas and waits for them as cfg says.
	withReplicas(cfg Config) Backend
}

// Filter is a handle on a stored Bloom filter. It is safe for concurrent use, and
// any number of handles in any number of processes may share a filter.
type Filter struct {
	backend   Backend
	cfg       Config
	rateGiven bool // Config said what the rate shall be
}

// New returns a handle on the filter that b stores. It checks its arguments and
// does no I/O, so a service starts while Redis is down.
//
// It returns [ErrInvalidParams] or [ErrTooLarge] for a Config, key or client that
// cannot work; for clients that is what New can see, see [NewBitmap].
func New(b Backend, cfg Config) (*Filter, error) {
	if b == nil {
		return nil, fmt.Errorf("bloom: nil backend: %w", ErrInvalidParams)
	}
	rateGiven := cfg.FPRate != 0
	if !rateGiven {
		cfg.FPRate = defaultFPRate
	}
	if err := validateSizing(max(cfg.Capacity, 1), cfg.FPRate, cfg.Layout); err != nil {
		return nil, err
	}
	if cfg.TTL != 0 && cfg.TTL < time.Millisecond {
		return nil, fmt.Errorf("bloom: TTL %v: want 0 (none) or at least 1ms: %w", cfg.TTL, ErrInvalidParams)
	}
	if cfg.HashKey != nil {
		key, err := newHashKey(cfg.HashKey)
		if err != nil {
			return nil, err
		}
		with, ok := b.(interface{ keyed(hashKey) Backend })
		if !ok {
			return nil, fmt.Errorf("bloom: HashKey: a %T has none: want Bitmap, RedisBloom, Memory or Sharded: %w", b, ErrInvalidParams)
		}
		b, cfg.HashKey = with.keyed(key), nil
	}
	if err := cfg.checkReplicas(); err != nil {
		return nil, err
	}
	if err := b.Check(cfg); err != nil {
		return nil, err
	}
	if r, ok := b.(replicated); ok && (cfg.ReplicaReads || cfg.WaitReplicas > 0) {
		b = r.withReplicas(cfg)
	} else if cfg.WaitReplicas > 0 {
		return nil, fmt.Errorf("bloom: WaitReplicas %d: %T is a backend that cannot wait for replicas: want 0: %w",
			cfg.WaitReplicas, b, ErrInvalidParams)
	}
	return &Filter{backend: b, cfg: cfg, rateGiven: rateGiven}, nil
}

// CreateEmpty makes an empty filter as Config says, with its TTL, unless one is
// stored: one that is at least as large and as tight, in the same layout, is
// attached to as it is, any other is [ErrParamsMismatch]. Any number of processes
// may call it at once: one filter comes of it. While a rebuild runs and there is
// no filter it returns [ErrRebuilding].
//
// An empty filter says "certainly not there" to everything. CreateEmpty is for
// filters that Add alone fills, from the first item on. Never call it in front of
// rows that exist already.
func (f *Filter) CreateEmpty(ctx context.Context) error {
	if f.cfg.Capacity == 0 {
		return fmt.Errorf("bloom: create %q: Config.Capacity 0 only attaches: want at least 1: %w",
			f.backend.Key(), ErrInvalidParams)
	}
	return f.wrap("create", f.backend.CreateEmpty(ctx, f.cfg))
}

// Ready returns nil if the filter is present and whole, read in one or two small
// commands. Otherwise it returns [ErrNotReady], [ErrCorrupt] or what kept it from
// finding out.
func (f *Filter) Ready(ctx context.Context) error {
	return f.wrap("check", f.backend.Ready(ctx))
}

// Add puts item into the filter. Once it has returned nil, Exists never says
// false for item on the server that acknowledged it, however often the filter is
// rebuilt; on the replicas that [Config].WaitReplicas waited for neither.
//
// While the filter's cluster slot moves to another node Add waits, until ctx ends.
//
// added is false only if the filter already called item present: it was added
// before, or is a false positive. It may also be false for a new item whose
// command go-redis had to repeat. After an error item may or may not be in, and
// added is true. Add never makes a filter: [ErrNotReady] if there is none.
func (f *Filter) Add(ctx context.Context, item string) (added bool, err error) {
	added, err = f.backend.Add(ctx, item)
	if err != nil {
		return true, f.wrap("add to", err)
	}
	return added, nil
}

// AddMulti is Add for many items, in one round trip per 400 or so. added has one
// bool per item, in order, also beside an error: then it is true where the
// outcome is unknown. Adding again is harmless.
func (f *Filter) AddMulti(ctx context.Context, items []string) (added []bool, err error) {
	added, err = f.backend.AddMulti(ctx, items)
	return f.batch("add %s to", items, added, err)
}

// Exists reports whether item may be in the filter. A false is certain: the reply
// also proved that the filter is present, whole, and was read as it was written.
// A true is wrong at about the configured rate, and beside an error it means
// nothing but "not denied".
func (f *Filter) Exists(ctx context.Context, item string) (bool, error) {
	exists, err := f.backend.Exists(ctx, item)
	if err != nil {
		return true, f.wrap("look up in", err)
	}
	return exists, nil
}

// ExistsMulti is Exists for many items, in one round trip per thousand or so: one
// bool per item, in order. Beside an error those are true that are not known.
func (f *Filter) ExistsMulti(ctx context.Context, items []string) ([]bool, error) {
	exists, err := f.backend.ExistsMulti(ctx, items)
	return f.batch("look up %s in", items, exists, err)
}

// Info describes the stored filter. It reads all of it (about a millisecond of
// the server's time for each 4 MiB, in as many commands).
func (f *Filter) Info(ctx context.Context) (Info, error) {
	info, err := f.backend.Info(ctx)
	return info, f.wrap("describe", err)
}

// Reset makes the filter empty again, atomically and at its stored size; its TTL
// runs on. In front of a table that is an outage, since every row is denied from
// then on: Drop is the safe way to be rid of a filter.
func (f *Filter) Reset(ctx context.Context) error {
	return f.wrap("reset", f.backend.Reset(ctx))
}

// Drop removes the filter and what a rebuild is filling. From then on every call
// is [ErrNotReady], so a Guard lets everything through. Dropping what is not
// there is no error.
func (f *Filter) Drop(ctx context.Context) error {
	return f.wrap("drop", f.backend.Drop(ctx))
}

// wrap names the operation and the filter.
func (f *Filter) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bloom: %s %q: %w", op, f.backend.Key(), err)
}

// batch makes sure that there is one bool per item, whatever a backend returned.
func (f *Filter) batch(op string, items []string, got []bool, err error) ([]bool, error) {
	if err == nil && len(got) != len(items) {
		err = fmt.Errorf("backend answered %d of %d items", len(got), len(items))
	}
	if len(got) != len(items) {
		got = allTrue(len(items))
	}
	if err != nil {
		err = f.wrap(fmt.Sprintf(op, plural(len(items), "item")), err)
	}
	return got, err
}

// plural counts what takes an s.
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// worse keeps the first error, except that what merely was not ready goes for any
// other: who meets ErrNotReady takes it that nothing was promised.
func worse(first, err error) error {
	if first == nil || err != nil && isNotReady(first) {
		return err
	}
	return first
}

func isNotReady(err error) bool { return errors.Is(err, ErrNotReady) }

func isCorrupt(err error) bool { return errors.Is(err, ErrCorrupt) }

// Info describes a stored filter.
type Info struct {
	Backend string // "bitmap", "redisbloom", "memory" or "sharded"
	Params  Params // as stored; of shards what they are together
	// Items is the number of distinct items, estimated from the bits: within a
	// fraction of a percent up to capacity, above [Params.Capacity] once there
	// are more. With every bit set, which tells nothing, it is twice the capacity.
	Items      uint64
	Fill       float64   // bits set / Params.Bits
	FPRate     float64   // as of now, predicted from Items
	Bytes      uint64    // that the server keeps
	Shards     int       // 1 unless it is sharded
	SubFilters int       // one a shard; more where a RedisBloom filter has outgrown its capacity
	Generation uint64    // grows by one with every rebuild or reset
	Created    time.Time // when this generation was made, by the server's clock
}
