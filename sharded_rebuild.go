package bloom

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
)

// shardedBuild is the next generation of a Sharded: of all shards, or with MaxAge of
// those that are not young enough.
type shardedBuild struct {
	s      *Sharded
	shards []shardBuild
}

type shardBuild struct {
	mu         sync.Mutex // held while it is opened, renewed or published
	build      build      // nil: not open, or young enough
	published  bool
	short      error  // published, but too few replicas have it
	generation uint64 // if published, or young
	young      *youngShard
}

// youngShard is a shard that is not built again.
type youngShard struct {
	report RebuildReport
	items  uint64
}

// openBuild opens staging on all shards. With MaxAge it leaves out those that are
// young enough, so that a rebuild that broke off between two shards goes on with the
// rest.
func (s *Sharded) openBuild(ctx context.Context, w wish) (build, RebuildReport, error) {
	states, errs := s.look(ctx)
	var live *Params
	for i, state := range states {
		switch {
		case errs[i] == nil:
			p := state.params
			// The least capacity that makes such a shard: after a resize that did not reach
			// all of them, the next rebuild takes the largest.
			p.Capacity = wholeCapacity(max(1, p.Capacity)-1, s.place(i)) + 1
			if live == nil {
				live = &p
			}
			live.Capacity = max(live.Capacity, p.Capacity)
			live.FPRate = math.Min(live.FPRate, p.FPRate)
		case !isNotReady(errs[i]) && !isCorrupt(errs[i]): // those are what a rebuild mends
			return nil, RebuildReport{}, errs[i]
		}
	}
	if live != nil && math.IsNaN(live.FPRate) {
		live.FPRate = 0 // the server does not tell
	}
	cfg, err := w.resolve(live)
	if err != nil {
		return nil, RebuildReport{}, err
	}
	if err := s.Check(cfg); err != nil {
		return nil, RebuildReport{}, err
	}
	w.config, w.atLeast, w.follow = cfg, false, false
	d, err := s.open(ctx, w)
	if err != nil {
		return nil, RebuildReport{}, err
	}
	for i := range d.shards {
		if d.shards[i].young == nil {
			return d, RebuildReport{}, nil
		}
	}
	return nil, RebuildReport{Generation: d.generation(), Params: d.params(), Bytes: d.bytes()}, errYoung
}

// open opens staging on each shard, or on none. It does so in order: of two builders
// one is first at the first shard that both want.
func (s *Sharded) open(ctx context.Context, w wish) (d *shardedBuild, err error) {
	if s.refused != nil {
		return nil, s.refused
	}
	configs, err := s.configs(w.config)
	if err != nil {
		return nil, err
	}
	d = &shardedBuild{s: s, shards: make([]shardBuild, len(s.shards))}
	// Making a large staging takes seconds, and the first may not wait that long.
	leased, release := keepLease(ctx, d, w.lease)
	defer release()
	for i := range s.shards {
		w.config = configs[i]
		if err := d.openShard(leased, i, w); err != nil {
			if cause := context.Cause(leased); cause != nil && ctx.Err() == nil {
				err = cause
			}
			d.giveUp(ctx)
			return nil, s.name(i, err)
		}
	}
	return d, nil
}

func (d *shardedBuild) openShard(ctx context.Context, i int, w wish) error {
	next, report, err := d.s.shards[i].openBuild(ctx, w)
	b := &d.shards[i]
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case errors.Is(err, errYoung):
		info, err := d.s.shards[i].Info(ctx)
		if err != nil {
			return err
		}
		b.young, b.generation = &youngShard{report, info.Items}, report.Generation
	case err != nil:
		return err
	default:
		b.build = next
	}
	return nil
}

// unpublished yields the shards that are being built, and not published yet.
func (d *shardedBuild) unpublished(yield func(int, *shardBuild) bool) {
	for i := range d.shards {
		if b := &d.shards[i]; b.build != nil && !b.published && !yield(i, b) {
			return
		}
	}
}

func (d *shardedBuild) publishedShards() (n int) {
	for i := range d.shards {
		if d.shards[i].published {
			n++
		}
	}
	return n
}

func (d *shardedBuild) params() Params {
	params := make([]Params, len(d.shards))
	for i := range d.shards {
		if b := &d.shards[i]; b.young != nil {
			params[i] = b.young.report.Params
		} else {
			params[i] = b.build.params()
		}
	}
	return d.s.whole(params)
}

func (d *shardedBuild) bytes() (sum uint64) {
	for i := range d.shards {
		if b := &d.shards[i]; b.young != nil {
			sum += b.young.report.Bytes
		} else {
			sum += b.build.bytes()
		}
	}
	return sum
}

// generation is that of the oldest shard.
func (d *shardedBuild) generation() uint64 {
	oldest := d.shards[0].generation
	for i := range d.shards {
		oldest = min(oldest, d.shards[i].generation)
	}
	return oldest
}

func (d *shardedBuild) add(ctx context.Context, item string) error {
	i := d.s.route(item)
	if d.shards[i].build == nil {
		return nil
	}
	return d.s.name(i, d.shards[i].build.add(ctx, item))
}

func (d *shardedBuild) merge(ctx context.Context, progress func(done, total uint64)) error {
	before, total := uint64(0), d.bytes()
	for i, b := range d.unpublished {
		err := b.build.merge(ctx, func(done, _ uint64) { progress(before+done, total) })
		if err != nil {
			return d.s.name(i, err)
		}
		before += b.build.bytes()
	}
	return nil
}

func (d *shardedBuild) distinct() (sum uint64) {
	for i := range d.shards {
		if b := &d.shards[i]; b.young != nil {
			sum += b.young.items
		} else {
			sum += b.build.distinct()
		}
	}
	return sum
}

func (d *shardedBuild) liveItems(ctx context.Context) (sum uint64, err error) {
	for i := range d.shards {
		b := &d.shards[i]
		if b.young != nil {
			sum += b.young.items
			continue
		}
		items, err := b.build.liveItems(ctx)
		if err != nil {
			return 0, d.s.name(i, err)
		}
		sum += items
	}
	return sum, nil
}

// lookUp asks each staging for its items. Those of a shard that is young enough are
// not asked for: they are not in question.
func (d *shardedBuild) lookUp(ctx context.Context, items []string) ([]bool, error) {
	return d.s.batch(items, func(i int, part []string, _ []int) ([]bool, error) {
		if d.shards[i].build == nil {
			return allTrue(len(part)), nil
		}
		return d.shards[i].build.lookUp(ctx, part)
	})
}

// renew renews what is open. It leaves out what is being published meanwhile.
func (d *shardedBuild) renew(ctx context.Context) error {
	return d.s.each(nil, func(i int) error {
		b := &d.shards[i]
		if !b.mu.TryLock() {
			return nil
		}
		defer b.mu.Unlock()
		if b.build == nil || b.published {
			return nil
		}
		return b.build.renew(ctx)
	})
}

// publish swaps the shards in, one after the other. Asked again it goes on where it
// stopped. A set of which only some are published is right all the same, since
// every item has one shard.
func (d *shardedBuild) publish(ctx context.Context) (uint64, error) {
	for i, b := range d.unpublished {
		b.mu.Lock()
		generation, err := b.build.publish(ctx)
		if err == nil || isShort(err) {
			b.published, b.generation = true, generation
		}
		b.mu.Unlock()
		if isShort(err) {
			b.short = d.s.name(i, err)
			continue
		}
		if err != nil {
			if n := d.publishedShards(); n > 0 && !errors.Is(err, errMergeAgain) {
				err = fmt.Errorf("%w (%d of %d shards are published, the others are as they were)", err, n, len(d.shards))
			}
			return 0, d.s.name(i, err)
		}
	}
	var short []error
	for i := range d.shards {
		short = append(short, d.shards[i].short)
	}
	return d.generation(), joinShardErrors(short)
}

func (d *shardedBuild) abort(ctx context.Context) error {
	var errs []error
	for i, b := range d.unpublished {
		errs = append(errs, d.s.name(i, b.build.abort(ctx)))
	}
	return joinShardErrors(errs)
}

// giveUp removes what was opened, where an error tells already what went wrong.
func (d *shardedBuild) giveUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	_ = d.abort(ctx) // what is left goes with its lease
}
