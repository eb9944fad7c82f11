package bloom

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// createPoll is how often a creator looks whether another one is done.
const createPoll = 50 * time.Millisecond

// CreateEmpty attaches to a filter of which all shards are there and satisfy cfg, or
// makes an empty one where no shard is. Where some are and others are not it returns
// [ErrNotReady] and fills nothing: they were lost, or a creator died between two of
// them. Rebuild mends that, or Drop and then CreateEmpty, if nothing was ever added.
//
// Of several creators one makes the filter, and the others wait for it, in any
// process, until their context ends. The last step, of a round trip a shard, is
// brought to an end for up to 10 s after the context's.
func (s *Sharded) CreateEmpty(ctx context.Context, cfg Config) error {
	if err := s.Check(cfg); err != nil {
		return err
	}
	for partly := false; ; {
		states, errs := s.look(ctx)
		found := sortShards(states, errs)
		switch {
		case found.failed != nil:
			return joinShardErrors(found.failed)
		case len(found.missing) == 0:
			return s.attach(states, cfg)
		case found.rebuilding:
			return fmt.Errorf("%d of %d shards are missing: %w", len(found.missing), len(states), ErrRebuilding)
		case !found.creating && len(found.missing) < len(states):
			if partly {
				return s.errPartly(found.missing)
			}
			// They may have been made between two looks, so the second look decides: had
			// their creator opened all shards by the first one, this one finds that out.
			partly = true
			continue
		case !found.creating:
			if done, err := s.create(ctx, cfg); done || err != nil {
				return err
			}
		}
		partly = false
		if err := sleep(ctx, createPoll); err != nil {
			return err
		}
	}
}

// foundShards is what a look found.
type foundShards struct {
	missing    []int
	failed     []error
	creating   bool // somebody makes the filter
	rebuilding bool // somebody fills the next generation
}

func sortShards(states []shardState, errs []error) (f foundShards) {
	for i, state := range states {
		switch {
		case isNotReady(errs[i]):
			f.missing = append(f.missing, i)
		case errs[i] != nil:
			f.failed = append(f.failed, errs[i])
		}
		f.creating = f.creating || state.creating
		f.rebuilding = f.rebuilding || state.staging && !state.creating
	}
	return f
}

// attach decides whether the stored shards serve a configuration.
func (s *Sharded) attach(states []shardState, cfg Config) error {
	params := make([]Params, len(states))
	for i, state := range states {
		params[i] = state.params
	}
	stored := s.whole(params)
	want := Params{Capacity: cfg.Capacity, FPRate: cfg.FPRate * (1 + rateSlack), Layout: cfg.Layout}
	for i := range params {
		stored.Layout = params[i].Layout
		if attach(stored, want) != nil {
			want.FPRate = cfg.FPRate // as it was asked for
			return attach(stored, want)
		}
	}
	return nil
}

func (s *Sharded) errPartly(missing []int) error {
	var names []string
	for _, i := range missing {
		names = append(names, fmt.Sprintf("number %d (%q)", i, s.shards[i].Key()))
	}
	return fmt.Errorf("%d of %d shards missing, %s: lost, or their creator died; Rebuild mends that: %w",
		len(missing), len(s.shards), strings.Join(names, ", "), ErrNotReady)
}

// create makes all shards, or returns false where somebody else is at it.
//
// A shard that was lost must not be filled with emptiness beside others that hold
// items. So all stagings are opened first, in order, which whoever else would make or
// build a shard meets, and then each is proved to be still there: from the moment
// that the last one was opened on, which was a moment without any live shard, no
// shard was made by anybody else, or its staging is gone and cannot be published.
func (s *Sharded) create(ctx context.Context, cfg Config) (done bool, err error) {
	d, err := s.open(ctx, wish{config: cfg, lease: createWait, ttl: cfg.TTL, empty: true})
	if errors.Is(err, ErrRebuilding) || errors.Is(err, errPresent) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() {
		if !done {
			d.giveUp(ctx)
		}
	}()
	if err := d.renew(ctx); err != nil { // nobody else renews, so it leaves out none
		return false, ignoreRefused(err)
	}
	leased, release := keepLease(ctx, d, createWait)
	defer release()
	r := &rebuild{opts: RebuildOptions{Lease: createWait}, began: time.Now()}
	if _, err = r.publish(leased, d); err == nil || isShort(err) {
		return true, err
	}
	if n := d.publishedShards(); n > 0 {
		return false, fmt.Errorf("%d of %d shards were made, then: %w (%w)", n, len(s.shards), ErrNotReady, err)
	}
	return false, ignoreRefused(err)
}

// ignoreRefused: where staging is lost the next look tells why.
func ignoreRefused(err error) error {
	if errors.Is(err, ErrRebuildRefused) {
		return nil
	}
	return err
}
