package bloom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"time"
)

// RebuildOptions are the knobs of [Filter.Rebuild]. The zero value, or nil, is
// the default.
type RebuildOptions struct {
	// Capacity of the new generation. 0: the larger of Config's and the live
	// filter's. It does not grow with what source yields: beyond it nothing is lost,
	// but the rate grows, to some [Params.FPRateAt] of the report's Items, and to 1
	// at many times it. Give what the table will have until the next rebuild.
	Capacity uint64
	// FPRate of the new generation. 0: Config's; the live filter's where Config
	// says nothing.
	FPRate float64
	// MinItems refuses to publish fewer distinct items. 0: half of what the live
	// filter is estimated to hold. An empty source is always refused. Distinct items
	// are estimated from the bits, so they may be short of MinItems by the error of
	// that, and in a filter that is too full to tell only what source yielded counts.
	MinItems uint64
	// MaxAge, if set, skips the rebuild while a rebuilt generation of at least the
	// wanted size is younger, by the server's clock. A rebuild that meets another
	// one then waits for it, and decides again. A filter that was merely created
	// or reset never is a reason to skip.
	MaxAge time.Duration
	// VerifySample is how many source items are looked up again in what was built,
	// before it is published. 0: 1000.
	VerifySample int
	// Settle is the wait between opening the new generation, from when on every
	// Add goes there too, and reading source: transactions whose Add came earlier
	// must have committed by then, so it must be above the longest. 0: 1 s;
	// negative: none.
	Settle time.Duration
	// Lease is how long an unfinished generation stays once its builder has died.
	// 0: 1 min; the least is 1 s.
	Lease time.Duration
	// Progress is called from Rebuild's goroutine, at most a few times a second
	// and at each change of phase.
	Progress func(Progress)
}

// Progress of a rebuild or a verification.
type Progress struct {
	Phase   string        // "wait", "settle", "read", "merge", "check", "publish"; "download" and "read" of Verify
	Items   uint64        // read from source so far
	Done    uint64        // of Total, in the phases that know it: bytes of the filter
	Total   uint64        // 0 where the end is not known
	Elapsed time.Duration // since the call began
}

// RebuildReport says what a rebuild did.
type RebuildReport struct {
	Skipped    bool          // nothing: a generation is younger than MaxAge, which Params and Generation describe
	Items      uint64        // yielded by source
	Distinct   uint64        // of them, estimated from the bits
	Bytes      uint64        // length of the filter's string
	Generation uint64        // that was published
	Params     Params        // of it
	Elapsed    time.Duration // in all
}

const (
	defaultVerifySample = 1000
	defaultSettle       = time.Second
	defaultLease        = time.Minute
	minLease            = time.Second
	progressEvery       = 250 * time.Millisecond
	busyPoll            = 200 * time.Millisecond
	cleanupTimeout      = 10 * time.Second
)

// Rebuild reads every item from source into a new generation beside the live
// filter, and swaps it in atomically. The first one is the warm-up: until it is
// published, Exists says [ErrNotReady]. Readers and adders of any process go on
// meanwhile, without an error, also where the size changes.
//
// An item that source yields, or whose Add began after the new generation was
// opened, is in what is published, also where that Add returned [ErrNotReady] or
// [ErrCorrupt]. Source must see every row that was committed before Settle was
// over: open the query inside the iterator, on the primary. It yields an item, or an
// error, which ends the rebuild.
//
// A [Sharded] filter is swapped in shard by shard, once all shards are built and
// checked: readers meet some old and some new ones for a moment, each of them right
// for its items. A rebuild that breaks off among them leaves it so, and says so. The
// next one builds all shards again; with MaxAge, which looks at each shard, only
// those that are not young enough.
//
// It takes as much memory as the filter has bytes, here and in Redis. A panic of
// source, or a source that goes on after yield returned false, panics here. Only one
// rebuild of a filter runs at a time, in any process; another returns
// [ErrRebuilding], or waits with MaxAge. [ErrRebuildRefused] says that a check
// refused to publish. After an error the live filter is as it was, and what was being
// built is gone, or goes with its lease, but for two that say so:
// where no answer came to the publishing, that may be done; and with
// [Config].WaitReplicas a generation may be published that too few replicas have,
// which the report has then. Once it publishes, ctx does not end it: to know the
// outcome it may take up to twice Lease longer, and 10 s to clean up.
func (f *Filter) Rebuild(ctx context.Context, source iter.Seq2[string, error], opts *RebuildOptions) (RebuildReport, error) {
	backend, ok := f.backend.(rebuilder)
	if !ok {
		return RebuildReport{}, f.wrap("rebuild", fmt.Errorf("backend %T cannot be rebuilt: %w", f.backend, errors.ErrUnsupported))
	}
	if source == nil {
		return RebuildReport{}, f.wrap("rebuild", fmt.Errorf("nil source: %w", ErrInvalidParams))
	}
	var o RebuildOptions
	if opts != nil {
		o = *opts
	}
	if err := o.complete(); err != nil {
		return RebuildReport{}, f.wrap("rebuild", err)
	}
	r := &rebuild{opts: o, began: time.Now(), source: source}
	err := r.run(ctx, backend, f.wish(o))
	r.report.Elapsed = time.Since(r.began)
	return r.report, f.wrap("rebuild", err)
}

func (o *RebuildOptions) complete() error {
	setDefault(&o.VerifySample, defaultVerifySample)
	setDefault(&o.Settle, defaultSettle)
	setDefault(&o.Lease, defaultLease)
	switch {
	case o.FPRate != 0 && !(o.FPRate >= minFPRate && o.FPRate < 1):
		return fmt.Errorf("false-positive rate %v: want 0 (Config's), or at least %v and below 1: %w", o.FPRate, minFPRate, ErrInvalidParams)
	case o.MaxAge < 0:
		return fmt.Errorf("MaxAge %v: want 0 or more: %w", o.MaxAge, ErrInvalidParams)
	case o.VerifySample < 0:
		return fmt.Errorf("VerifySample %d: want 0 (%d) or more: %w", o.VerifySample, defaultVerifySample, ErrInvalidParams)
	case o.Lease < minLease:
		return fmt.Errorf("Lease %v: want at least %v: %w", o.Lease, minLease, ErrInvalidParams)
	}
	return nil
}

// wish is what a rebuild should make. Zero values are taken from the live filter.
type wish struct {
	config Config // Capacity is the least where atLeast is set
	// atLeast: the live filter's capacity, if it is larger, is kept.
	atLeast bool
	// follow: Config said nothing, so the layout is the live filter's.
	follow bool
	maxAge time.Duration
	lease  time.Duration
	ttl    time.Duration
	// empty: CreateEmpty of a sharded filter, which opens and publishes all shards
	// like a rebuild, but only where nothing is live.
	empty bool
}

// purpose is what the header of the generation will say.
func (w wish) purpose() uint8 {
	if w.empty {
		return purposeEmpty
	}
	return purposeRebuilt
}

func (f *Filter) wish(o RebuildOptions) wish {
	w := wish{config: f.cfg, atLeast: o.Capacity == 0, maxAge: o.MaxAge, lease: o.Lease, ttl: f.cfg.TTL}
	w.follow = f.cfg.Capacity == 0 && f.cfg.Layout == Classic
	if f.cfg.Capacity == 0 && !f.rateGiven {
		w.config.FPRate = 0
	}
	if o.Capacity != 0 {
		w.config.Capacity = o.Capacity
	}
	if o.FPRate != 0 {
		w.config.FPRate = o.FPRate
	}
	return w
}

// resolve completes a wish with the live filter's parameters, nil if there is none.
func (w wish) resolve(live *Params) (Config, error) {
	c := w.config
	if live != nil {
		if w.atLeast {
			c.Capacity = max(c.Capacity, live.Capacity)
		}
		if c.FPRate == 0 {
			c.FPRate = live.FPRate
		}
		if w.follow {
			c.Layout = live.Layout
		}
	}
	if c.FPRate == 0 {
		c.FPRate = defaultFPRate
	}
	if c.Capacity == 0 {
		return c, fmt.Errorf("no filter there to take the size from, and Config.Capacity is 0: %w", ErrInvalidParams)
	}
	return c, nil
}

// satisfiedBy reports whether a live filter is of at least the wanted size.
func (p Params) satisfiedBy(live Params) bool {
	return live.Layout == p.Layout && live.Capacity >= p.Capacity && live.FPRate <= p.FPRate
}

// rebuilder is a Backend that can be rebuilt.
type rebuilder interface {
	// openBuild opens staging, or returns ErrRebuilding, or errYoung with what the
	// filter is that makes the rebuild unnecessary.
	openBuild(ctx context.Context, w wish) (build, RebuildReport, error)
}

var errYoung = errors.New("a generation of the wanted size is young enough")

// errPresent ends a build that shall not replace a filter.
var errPresent = fmt.Errorf("there is a filter already: %w", ErrRebuildRefused)

// errLeaseLost ends a build whose staging is gone or another's.
var errLeaseLost = fmt.Errorf("what was built so far is gone, or another builder has taken over: %w", ErrRebuildRefused)

// build is one generation that is being built.
type build interface {
	params() Params
	bytes() uint64
	// add takes one item. It may keep it in this process.
	add(ctx context.Context, item string) error
	// merge brings all items into staging. It may be called again.
	merge(ctx context.Context, progress func(done, total uint64)) error
	// distinct estimates how many items differ.
	distinct() uint64
	// liveItems estimates what the live filter holds, 0 without one.
	liveItems(ctx context.Context) (uint64, error)
	// lookUp asks staging for items.
	lookUp(ctx context.Context, items []string) ([]bool, error)
	renew(ctx context.Context) error
	// publish swaps the generation in and returns its number. errMergeAgain asks
	// for another merge.
	publish(ctx context.Context) (uint64, error)
	// abort removes staging, if it still is this build's.
	abort(ctx context.Context) error
}

var errMergeAgain = errors.New("the server lost a part of what was merged")

// rebuild is one call of Rebuild.
type rebuild struct {
	opts   RebuildOptions
	source iter.Seq2[string, error]
	began  time.Time
	told   time.Time
	phase  string
	report RebuildReport
	sample []string
}

// run opens, fills, checks and publishes a generation, or removes it.
func (r *rebuild) run(ctx context.Context, backend rebuilder, w wish) (err error) {
	b, skip, err := r.open(ctx, backend, w)
	if errors.Is(err, errYoung) {
		skip.Skipped = true
		r.report = skip
		return nil
	}
	if err != nil {
		return err
	}
	r.report.Params, r.report.Bytes = b.params(), b.bytes()

	published := false
	defer func() {
		if published {
			return
		}
		// Not under the caller's context, which may be what ended the build.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if abortErr := b.abort(ctx); abortErr != nil && err != nil {
			err = fmt.Errorf("%w (and what was built so far stays until its lease ends: %w)", err, abortErr)
		}
	}()
	leased, release := keepLease(ctx, b, r.opts.Lease)
	defer release()
	if err := r.fill(leased, b); err != nil {
		if cause := context.Cause(leased); cause != nil && ctx.Err() == nil {
			return cause
		}
		return err
	}
	generation, err := r.publish(leased, b)
	if published = err == nil || isShort(err); published {
		r.report.Generation = generation
	}
	return err
}

// open opens staging. With MaxAge it waits for another rebuild to end.
func (r *rebuild) open(ctx context.Context, backend rebuilder, w wish) (build, RebuildReport, error) {
	for {
		b, skip, err := backend.openBuild(ctx, w)
		if !errors.Is(err, ErrRebuilding) || w.maxAge == 0 {
			return b, skip, err
		}
		r.enter("wait", 0, 0)
		if err := sleep(ctx, busyPoll); err != nil {
			return nil, skip, err
		}
	}
}

// fill brings source into staging and checks it.
func (r *rebuild) fill(ctx context.Context, b build) error {
	if r.opts.Settle > 0 {
		r.enter("settle", 0, 0)
		if err := sleep(ctx, r.opts.Settle); err != nil {
			return err
		}
	}
	if err := r.read(ctx, b); err != nil {
		return err
	}
	if err := r.merge(ctx, b); err != nil {
		return err
	}
	r.enter("check", 0, 0)
	if err := r.check(ctx, b); err != nil {
		return err
	}
	return ctx.Err()
}

// read takes every item of source, and keeps a sample of them.
func (r *rebuild) read(ctx context.Context, b build) error {
	r.enter("read", 0, 0)
	n := uint64(0)
	for item, err := range r.source {
		if err != nil {
			return fmt.Errorf("source, after %d items: %w", n, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := b.add(ctx, item); err != nil {
			return err
		}
		if n < uint64(r.opts.VerifySample) {
			r.sample = append(r.sample, item)
		} else if at := rand.Uint64N(n + 1); at < uint64(r.opts.VerifySample) {
			r.sample[at] = item // Vitter's reservoir
		}
		n++
		if r.report.Items = n; n%1024 == 0 {
			r.tell(0, 0)
		}
	}
	return ctx.Err()
}

func (r *rebuild) merge(ctx context.Context, b build) error {
	r.enter("merge", 0, 0)
	if err := b.merge(ctx, r.tell); err != nil {
		return err
	}
	r.report.Distinct = min(b.distinct(), r.report.Items)
	return nil
}

// check refuses what must not replace the live filter.
func (r *rebuild) check(ctx context.Context, b build) error {
	if r.report.Items == 0 {
		return fmt.Errorf("the source is empty: %w", ErrRebuildRefused)
	}
	least := r.opts.MinItems
	if least == 0 {
		live, err := b.liveItems(ctx)
		if err != nil {
			return err
		}
		least = live / 2
	}
	if r.short(least) {
		return fmt.Errorf("%d distinct items of %d that the source yielded, want at least %d: %w",
			r.report.Distinct, r.report.Items, least, ErrRebuildRefused)
	}
	found, err := b.lookUp(ctx, r.sample)
	if err != nil {
		return err
	}
	for i, ok := range found {
		if !ok {
			return fmt.Errorf("item %q of the source is not in what was built: %w", r.sample[i], ErrRebuildRefused)
		}
	}
	return nil
}

// short reports whether source yielded too little. Distinct is an estimate: its
// standard error is below √n, and RedisBloom's count takes false positives for
// items that are in. Source's own count is not.
func (r *rebuild) short(least uint64) bool {
	switch {
	case r.report.Items < least:
		return true
	case r.report.Distinct >= 2*r.report.Params.Capacity: // too full to tell, see itemsFor
		return false
	}
	n := float64(least)
	return float64(r.report.Distinct) < n-n*r.report.Params.FPRate-math.Sqrt(n)
}

// publish swaps the generation in. From here on the caller's context does not
// matter: the outcome must be known. The last try begins when the lease has ended,
// so that it is told for good, however long this process was stopped.
func (r *rebuild) publish(ctx context.Context, b build) (uint64, error) {
	r.enter("publish", 0, 0)
	for end := time.Now().Add(r.opts.Lease); ; {
		last := time.Now().After(end)
		generation, err := r.tryPublish(context.WithoutCancel(ctx), b)
		switch {
		case err == nil || isShort(err) || errors.Is(err, ErrRebuildRefused) || errors.Is(err, ErrCorrupt):
			return generation, err
		case isDenied(err): // and will be: the script has changed nothing
			return 0, err
		case last:
			return 0, fmt.Errorf("it is not known whether this was published: %w", err)
		case !errors.Is(err, errMergeAgain): // unknown: the script answers "done" if it was
			time.Sleep(busyPoll)
		}
	}
}

// tryPublish asks to publish once. With errMergeAgain it has merged again.
func (r *rebuild) tryPublish(ctx context.Context, b build) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Lease)
	defer cancel()
	generation, err := b.publish(ctx)
	if errors.Is(err, errMergeAgain) {
		if err := r.merge(ctx, b); err != nil {
			return 0, err
		}
		r.enter("publish", 0, 0)
	}
	return generation, err
}

// keepLease renews b's lease every third of it, and ends the context it returns
// once that is not certain any more.
func keepLease(ctx context.Context, b build, lease time.Duration) (leased context.Context, release func()) {
	leased, cancel := context.WithCancelCause(ctx)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		renewed := time.Now()
		for wait := lease / 3; ; {
			select {
			case <-stop:
				return
			case <-leased.Done():
				return
			case <-time.After(wait):
			}
			began := time.Now()
			attempt, done := context.WithTimeout(leased, lease/3)
			err := b.renew(attempt)
			done()
			switch {
			case err == nil:
				renewed, wait = began, lease/3
			case errors.Is(err, ErrRebuildRefused):
				cancel(err)
				return
			case time.Since(renewed) > lease*2/3:
				cancel(fmt.Errorf("lease not renewed for %v: %w (%w)", time.Since(renewed).Round(time.Millisecond), ErrRebuildRefused, err))
				return
			default:
				wait = lease / 12 // a passing fault leaves time for a few more tries
			}
		}
	}()
	return leased, func() {
		close(stop)
		cancel(context.Canceled)
		<-stopped
	}
}

// enter begins a phase.
func (r *rebuild) enter(phase string, done, total uint64) {
	if phase != r.phase {
		r.phase, r.told = phase, time.Time{}
	}
	r.tell(done, total)
}

// tell calls Progress, unless it was called a moment ago.
func (r *rebuild) tell(done, total uint64) {
	if r.opts.Progress == nil || time.Since(r.told) < progressEvery {
		return
	}
	r.told = time.Now()
	r.opts.Progress(Progress{Phase: r.phase, Items: r.report.Items, Done: done, Total: total, Elapsed: time.Since(r.began)})
}

// sleep waits, unless ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
