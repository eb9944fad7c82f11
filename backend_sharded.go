package bloom

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// Sharded is one filter over several backends, for more items than one key holds,
// or more traffic than one server or cluster slot serves. Every item has its shard,
// chosen by a hash of its own, so one item costs what it costs without shards: one
// round trip to one server. It is safe for concurrent use.
//
// Each shard stores which one it is, of how many. Shards in another order, or of
// another number, than those that are stored are [ErrParamsMismatch]; they are never
// read wrongly. So the number of shards of a filter is fixed: for another one make
// another filter, under other keys as [ShardKeys] names them, and drop the old one.
//
// A shard that is lost makes the calls that need it fail, and those alone: what the
// other shards say of their items stays certain. An error names the shards that
// failed; it is [ErrNotReady] only where nothing worse happened.
type Sharded struct {
	shards  []shard
	key     hashKey
	k0, k1  uint64 // with a key: see hashKey.forRouting
	refused error  // why there are none; Check tells
}

var _ Backend = (*Sharded)(nil)

// parallelShards bounds how many shards one call asks at once.
const parallelShards = 32

// NewSharded returns one filter over the given backends, 1 to 1024, in this order:
// Bitmap, RedisBloom (without Adopt) and Memory, also mixed. It does no I/O, and it
// leaves the backends as they are; used directly they would not find the filter's
// parts, which are not filters of their own. [New] refuses what cannot work: no
// shard, nil, a filter given twice, a Sharded within, a backend that this package
// does not have.
//
// Of a capacity each shard gets its share and an allowance for the luck of hashing,
// such that no shard is past its own capacity when all of them together hold that
// many items, but for a chance of 10⁻⁶: 0.5 % for 8 shards of 10⁶ items each.
func NewSharded(shards ...Backend) *Sharded {
	s := &Sharded{shards: make([]shard, len(shards))}
	switch {
	case len(shards) == 0:
		s.refused = fmt.Errorf("bloom: no shards: want 1 to %d: %w", maxShards, ErrInvalidParams)
	case len(shards) > maxShards:
		s.refused = fmt.Errorf("bloom: %d shards: want 1 to %d: %w", len(shards), maxShards, ErrInvalidParams)
	}
	for i, b := range shards {
		if b, ok := b.(shard); ok && s.refused == nil {
			s.shards[i] = b.placed(s.place(i))
			continue
		}
		if s.refused == nil {
			s.refused = refuseShard(i, b)
		}
	}
	if s.refused != nil {
		s.shards = nil
	}
	return s
}

func (s *Sharded) withReplicas(cfg Config) Backend {
	c := &Sharded{shards: make([]shard, len(s.shards)), key: s.key, k0: s.k0, k1: s.k1}
	for i, b := range s.shards {
		c.shards[i] = b
		if r, ok := b.(replicated); ok { // Memory is not
			c.shards[i] = r.withReplicas(cfg).(shard)
		}
	}
	return c
}

// refuseShard says why b is no shard.
func refuseShard(i int, b Backend) error {
	switch b.(type) {
	case nil:
		return fmt.Errorf("bloom: shard %d is nil: %w", i, ErrInvalidParams)
	case *Sharded:
		return fmt.Errorf("bloom: shard %d is a *Sharded: give its backends instead: %w", i, ErrInvalidParams)
	}
	return fmt.Errorf("bloom: shard %d is a %T, which does not store which shard it is: want *Bitmap, *RedisBloom or *Memory: %w",
		i, b, ErrInvalidParams)
}

// Key names the filter by its first shard.
func (s *Sharded) Key() string {
	switch {
	case len(s.shards) == 0:
		return "no shards"
	case len(s.shards) == 1:
		return s.shards[0].Key()
	}
	return fmt.Sprintf("%s and %d more", s.shards[0].Key(), len(s.shards)-1)
}

// Check refuses shards that cannot work together, and sizes that they cannot hold.
func (s *Sharded) Check(cfg Config) error {
	if s == nil {
		return fmt.Errorf("bloom: nil *Sharded: %w", ErrInvalidParams)
	}
	if s.refused != nil {
		return s.refused
	}
	configs, err := s.configs(cfg)
	if err != nil {
		return err
	}
	seen := map[any]int{}
	for i, b := range s.shards {
		if err := b.Check(configs[i]); err != nil {
			if errors.Is(err, ErrTooLarge) {
				return s.tooLarge(cfg, err)
			}
			return fmt.Errorf("bloom: shard %d: %w", i, err)
		}
		if m, ok := b.(*RedisBloom); ok && m.adopt && len(s.shards) > 1 {
			return fmt.Errorf("bloom: shard %d, %q: another program's filter is no shard: want RedisBloomOptions without Adopt: %w",
				i, b.Key(), ErrInvalidParams)
		}
		if first, ok := seen[b.identity()]; ok {
			return fmt.Errorf("bloom: shards %d and %d are both %q: %w", first, i, b.Key(), ErrInvalidParams)
		}
		seen[b.identity()] = i
	}
	return nil
}

// configs is what each shard of a filter has to be. A capacity of 0 stays 0.
func (s *Sharded) configs(cfg Config) ([]Config, error) {
	total := uint64(0)
	if cfg.Capacity > 0 {
		var ok bool
		if total, ok = shardTotal(cfg.Capacity, len(s.shards)); !ok {
			return nil, s.tooLarge(cfg, ErrTooLarge)
		}
	}
	configs := make([]Config, len(s.shards))
	for i := range configs {
		configs[i] = cfg
		if cfg.Capacity > 0 {
			configs[i].Capacity = shardCapacity(total, s.place(i))
		}
	}
	return configs, nil
}

func (s *Sharded) place(i int) shardPlace {
	return shardPlace{uint32(i), uint32(len(s.shards)), s.key}
}

// tooLarge says how many shards like these would do.
func (s *Sharded) tooLarge(cfg Config, err error) error {
	most := math.Inf(1)
	for _, b := range s.shards {
		most = min(most, b.mostItems(cfg))
	}
	return fmt.Errorf("bloom: %d items at %v (%v) in %d shards: %s: %w",
		cfg.Capacity, cfg.FPRate, cfg.Layout, len(s.shards), shardAdvice(float64(cfg.Capacity), most), err)
}

// keyed returns the same filter, hashed with a key.
func (s *Sharded) keyed(key hashKey) Backend {
	if s == nil || s.refused != nil {
		return s
	}
	k := &Sharded{shards: make([]shard, len(s.shards)), key: key}
	k.k0, k.k1 = key.forRouting()
	for i, b := range s.shards {
		k.shards[i] = b.placed(k.place(i))
	}
	return k
}

func (s *Sharded) route(item string) int {
	if s.key.isSet() {
		return keyedRoute(s.k0, s.k1, item, len(s.shards))
	}
	return route(item, len(s.shards))
}

// of returns the shard of an item.
func (s *Sharded) of(item string) (int, error) {
	if len(s.shards) == 0 {
		return 0, s.refused
	}
	return s.route(item), nil
}

// name says which shard an error is of.
func (s *Sharded) name(i int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("shard %d of %d, %q: %w", i, len(s.shards), s.shards[i].Key(), err)
}

// each calls f for the shards of which wanted, if given, is true, side by side, and
// waits for all.
func (s *Sharded) each(wanted func(i int) bool, f func(i int) error) error {
	if len(s.shards) == 0 {
		return s.refused
	}
	errs := make([]error, len(s.shards))
	var group errgroup.Group
	group.SetLimit(parallelShards)
	for i := range s.shards {
		if wanted == nil || wanted(i) {
			group.Go(func() error {
				errs[i] = s.name(i, f(i))
				return nil // the others go on
			})
		}
	}
	_ = group.Wait()
	return joinShardErrors(errs)
}

// shardErrors are those of several shards.
type shardErrors []error

// joinShardErrors returns nil, one error or all. What merely was not ready is left
// out beside other errors: who meets ErrNotReady takes it that nothing was promised.
func joinShardErrors(errs []error) error {
	var failed, notReady shardErrors
	for _, err := range errs {
		switch {
		case err == nil:
		case isNotReady(err):
			notReady = append(notReady, err)
		default:
			failed = append(failed, err)
		}
	}
	if failed == nil {
		failed = notReady
	}
	switch len(failed) {
	case 0:
		return nil
	case 1:
		return failed[0]
	}
	return failed
}

func (e shardErrors) Error() string {
	if len(e) == 2 {
		return fmt.Sprintf("%v; %v", e[0], e[1])
	}
	return fmt.Sprintf("%v; and %d more shards failed", e[0], len(e)-1)
}

func (e shardErrors) Unwrap() []error { return e }

// Ready reports whether all shards are present and whole.
func (s *Sharded) Ready(ctx context.Context) error {
	return s.each(nil, func(i int) error { return s.shards[i].Ready(ctx) })
}

// Add puts item into its shard, and into what a rebuild is filling there.
func (s *Sharded) Add(ctx context.Context, item string) (bool, error) {
	i, err := s.of(item)
	if err != nil {
		return true, err
	}
	added, err := s.shards[i].Add(ctx, item)
	return added, s.name(i, err)
}

// AddMulti adds all items, the shards side by side. What is known of the items of
// other shards comes beside the error of one.
func (s *Sharded) AddMulti(ctx context.Context, items []string) ([]bool, error) {
	return s.batch(items, func(i int, part []string, _ []int) ([]bool, error) {
		return s.shards[i].AddMulti(ctx, part)
	})
}

// Exists reports whether item may be in the filter: it asks one shard.
func (s *Sharded) Exists(ctx context.Context, item string) (bool, error) {
	i, err := s.of(item)
	if err != nil {
		return true, err
	}
	exists, err := s.shards[i].Exists(ctx, item)
	return exists, s.name(i, err)
}

// ExistsMulti reports for each item whether it may be in the filter, the shards
// side by side. What is known of the items of other shards comes beside the error
// of one.
func (s *Sharded) ExistsMulti(ctx context.Context, items []string) ([]bool, error) {
	return s.batch(items, func(i int, part []string, _ []int) ([]bool, error) {
		return s.shards[i].ExistsMulti(ctx, part)
	})
}

// batch splits items by shard, asks the shards, each for its part of the items and
// where those stood, and puts the answers in order.
func (s *Sharded) batch(items []string, ask func(i int, part []string, at []int) ([]bool, error)) ([]bool, error) {
	answers := allTrue(len(items))
	if len(s.shards) == 0 {
		return answers, s.refused
	}
	parts, at := s.split(items)
	err := s.each(func(i int) bool { return len(parts[i]) > 0 }, func(i int) error {
		got, err := ask(i, parts[i], at[i])
		if len(got) == len(parts[i]) {
			for j, answer := range got {
				answers[at[i][j]] = answer
			}
		} else if err == nil {
			err = fmt.Errorf("answered %d of %d items", len(got), len(parts[i]))
		}
		return err
	})
	return answers, err
}

// split returns the items of each shard, in order, and where they stood.
func (s *Sharded) split(items []string) (parts [][]string, at [][]int) {
	parts, at = make([][]string, len(s.shards)), make([][]int, len(s.shards))
	for j, item := range items {
		i := s.route(item)
		parts[i], at[i] = append(parts[i], item), append(at[i], j)
	}
	return parts, at
}

// Info describes the filter as a whole: Items, Bytes, Bits and SubFilters are sums,
// Capacity what the shards were sized for together, FPRate the mean of all shards,
// Generation and Created those of the oldest.
func (s *Sharded) Info(ctx context.Context) (Info, error) {
	infos := make([]Info, len(s.shards))
	err := s.each(nil, func(i int) (err error) {
		infos[i], err = s.shards[i].Info(ctx)
		return err
	})
	if err != nil {
		return Info{}, err
	}
	params := make([]Params, len(infos))
	sum := infos[0]
	sum.Backend, sum.Shards = "sharded", 0
	sum.Items, sum.Fill, sum.FPRate, sum.Bytes, sum.SubFilters = 0, 0, 0, 0, 0
	for i, info := range infos {
		params[i] = info.Params
		sum.Shards += info.Shards
		sum.SubFilters += info.SubFilters
		sum.Items += info.Items
		sum.Bytes += info.Bytes
		sum.FPRate += info.FPRate / float64(len(infos))
		sum.Fill += info.Fill * float64(info.Params.Bits)
		sum.Generation = min(sum.Generation, info.Generation)
		if info.Created.Before(sum.Created) {
			sum.Created = info.Created
		}
	}
	sum.Params = s.whole(params)
	sum.Fill /= float64(sum.Params.Bits)
	return sum, nil
}

// whole describes what shards of such parameters are together. Where they differ,
// as after a resize that did not reach all of them, it is what all of them satisfy.
func (s *Sharded) whole(shards []Params) Params {
	all := shards[0]
	all.Bits, all.Capacity = 0, math.MaxUint64
	for i, p := range shards {
		all.Bits += p.Bits
		all.Capacity = min(all.Capacity, wholeCapacity(p.Capacity, s.place(i)))
		all.FPRate = max(all.FPRate, p.FPRate)
		all.Hashes = max(all.Hashes, p.Hashes)
		all.Layout = min(all.Layout, p.Layout)
	}
	return all
}

// Reset makes all shards empty again, one after the other, if all are present and
// none is being rebuilt. An error in the middle leaves some of them empty: repeat it,
// unless it only says that too few replicas have it.
func (s *Sharded) Reset(ctx context.Context) error {
	if s.refused != nil {
		return s.refused
	}
	states, errs := s.look(ctx)
	if err := joinShardErrors(errs); err != nil {
		return err
	}
	for i, state := range states {
		if state.staging {
			return s.name(i, ErrRebuilding)
		}
	}
	var short shardErrors
	for i, b := range s.shards {
		err := s.name(i, b.Reset(ctx))
		if isShort(err) {
			short = append(short, err)
		} else if err != nil {
			return err
		}
	}
	return joinShardErrors(short)
}

// look reads what is stored of each shard.
func (s *Sharded) look(ctx context.Context) (states []shardState, errs []error) {
	states, errs = make([]shardState, len(s.shards)), make([]error, len(s.shards))
	_ = s.each(nil, func(i int) (err error) {
		states[i], err = s.shards[i].look(ctx)
		errs[i] = s.name(i, err)
		return nil
	})
	return states, errs
}

// Drop removes all shards, and what a rebuild is filling. It tries all of them,
// whatever the errors of some.
func (s *Sharded) Drop(ctx context.Context) error {
	return s.each(nil, func(i int) error { return s.shards[i].Drop(ctx) })
}

// existsWith asks about all items, each shard in as many round trips as its part
// takes, see rider.
func (s *Sharded) existsWith(ctx context.Context, items []string, riders []redis.Cmder) ([]bool, error) {
	return s.batch(items, func(i int, part []string, at []int) ([]bool, error) {
		mine := make([]redis.Cmder, len(at))
		for j, where := range at {
			mine[j] = riders[where]
		}
		b := s.shards[i].(rider)
		exists, failed := make([]bool, 0, len(part)), error(nil)
		for len(exists) < len(part) {
			done := len(exists)
			got, err := b.existsWith(ctx, part[done:], mine[done:])
			exists = append(exists, got...)
			if failed == nil {
				failed = err
			}
			if isOutage(err) { // the others would only wait as long again
				for _, rider := range present(mine[len(exists):]) {
					rider.SetErr(err)
				}
				exists = append(exists, allTrue(len(part)-len(exists))...)
			}
		}
		return exists, failed
	})
}

func (s *Sharded) sharesTrip(c *conn, items []string) bool {
	for _, item := range items {
		i, err := s.of(item)
		if err != nil {
			return false
		}
		if b, ok := s.shards[i].(rider); !ok || !b.sharesTrip(c, nil) {
			return false
		}
	}
	return true
}

func (s *Sharded) keys() []string {
	var keys []string
	for _, b := range s.shards {
		if b, ok := b.(rider); ok {
			keys = append(keys, b.keys()...)
		}
	}
	return keys
}
