package bloom

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Exists reports whether item may be in the filter.
func (b *RedisBloom) Exists(ctx context.Context, item string) (bool, error) {
	exists := [1]bool{true}
	err := b.existsChunk(ctx, []string{item}, exists[:])
	return exists[0], err
}

// existsWith asks about as many of the first items as go into one round trip, see
// rider.
func (b *RedisBloom) existsWith(ctx context.Context, items []string, riders []redis.Cmder) ([]bool, error) {
	n := min(len(items), maxModuleItems)
	exists := allTrue(n)
	return exists, b.existsChunk(ctx, items[:n], exists, present(riders[:n])...)
}

// ExistsMulti reports for each item whether it may be in the filter.
func (b *RedisBloom) ExistsMulti(ctx context.Context, items []string) ([]bool, error) {
	exists := allTrue(len(items))
	for from := 0; from < len(items); from += maxModuleItems {
		to := min(len(items), from+maxModuleItems)
		if err := b.existsChunk(ctx, items[from:to], exists[from:to]); err != nil {
			return exists, err
		}
	}
	return exists, nil
}

// existsChunk asks for the sentinels and some items by one native command. On an
// error exists stays as it is.
func (b *RedisBloom) existsChunk(ctx context.Context, items []string, exists []bool, riders ...redis.Cmder) error {
	args := make([]any, 0, 2+sentinelCount+len(items))
	args = b.appendItems(appendStrings(append(args, "bf.mexists", b.key), b.sentinels), items)
	cmd := redis.NewBoolSliceCmd(ctx, args...)
	if err := b.conn.do(ctx, append([]redis.Cmder{cmd}, riders...)...); err != nil {
		return err
	}
	sealed, err := b.readFound(cmd, exists)
	if err == nil && !sealed && b.conn.replicas { // a replica is not believed that there is no filter
		cmd = redis.NewBoolSliceCmd(ctx, args...)
		if err := b.conn.read(ctx, b.key, cmd); err != nil {
			return err
		}
		sealed, err = b.readFound(cmd, exists)
	}
	if err == nil && !sealed {
		err = b.whyUnsealed(ctx)
	}
	return err
}

// readFound reads a reply into exists if the sentinels are in the filter.
func (b *RedisBloom) readFound(cmd *redis.BoolSliceCmd, exists []bool) (sealed bool, err error) {
	found, err := cmd.Result()
	if err != nil {
		return false, b.keyError(err)
	}
	if len(found) != sentinelCount+len(exists) {
		return false, fmt.Errorf("BF.MEXISTS answered %d of %d items", len(found), sentinelCount+len(exists))
	}
	if slices.Contains(found[:sentinelCount], false) {
		return false, nil
	}
	copy(exists, found[sentinelCount:])
	return true, nil
}

// whyUnsealed tells a missing filter from one of another program and from a key
// of another type, for all of which the module answers 0.
func (b *RedisBloom) whyUnsealed(ctx context.Context) error {
	s, err := b.state(ctx)
	switch {
	case err != nil:
		return err
	case s.sealed():
		return fmt.Errorf("the filter was made anew a moment ago: %w", ErrNotReady)
	}
	return b.errUnsealed(s)
}

// Add puts item into the filter, and into the one that a rebuild is filling.
func (b *RedisBloom) Add(ctx context.Context, item string) (bool, error) {
	added := [1]bool{true}
	_, err := b.addChunk(ctx, b.conn.change, []string{item}, added[:])
	return added[0], err
}

// AddMulti adds all items, chunk by chunk. It goes on where items were refused, since
// those that are in already need no room, and where there is no filter but the
// one that a rebuild fills: what it publishes must have all of them. added is true
// where an item was refused.
func (b *RedisBloom) AddMulti(ctx context.Context, items []string) ([]bool, error) {
	added := allTrue(len(items))
	var failed error
	run := b.conn.change
	for from := 0; from < len(items); from += maxModuleItems {
		to := min(len(items), from+maxModuleItems)
		goOn, err := b.addChunk(ctx, run, items[from:to], added[from:to])
		if isShort(err) {
			run = b.conn.evalStrings // the first chunk has waited for all of them
		}
		if failed = worse(failed, err); err != nil && !goOn {
			return added, failed
		}
	}
	return added, failed
}

// addChunk adds some items by one script. added is written for the items whose
// outcome is known. goOn says that more items may have another outcome than an error,
// or are wanted by a rebuild.
func (b *RedisBloom) addChunk(ctx context.Context, run scriptRunner, items []string, added []bool) (goOn bool, err error) {
	args := make([]any, 0, 1+sentinelCount+len(items))
	args = b.appendItems(appendStrings(append(args, sentinelCount), b.sentinels), items)
	reply, err := run(ctx, moduleAddScript, []string{b.key, b.next, b.build}, args...)
	if err != nil && !isShort(err) {
		return false, b.keyError(err)
	}
	switch {
	case reply[0] == "staged" && err != nil:
		return true, err // what was promised has to be kept, although there is no filter yet
	case reply[0] == "missing" || reply[0] == "staged":
		return reply[0] == "staged", b.whyUnsealed(ctx)
	case reply[0] == "other" && len(reply) == 2:
		return false, fmt.Errorf("a rebuild fills %q for the sentinel %q, wanted is %q: %w",
			b.next, reply[1], b.sentinels[0], ErrParamsMismatch)
	case reply[0] != "added" || len(reply) != 3 || len(reply[1]) > len(items):
		return false, fmt.Errorf("add script answered %.100q", reply)
	}
	known := 0
	for i, digit := range []byte(reply[1]) {
		if digit == '0' || digit == '1' {
			added[i] = digit == '1'
			known++
		}
	}
	if known == len(items) {
		return true, err // nil, or too few replicas
	}
	if problem := reply[2]; problem != "" && !isFullText(problem) {
		return true, fmt.Errorf("%d of %d items not added: %s", len(items)-known, len(items), problem)
	}
	return true, fmt.Errorf("%d of %d items not added: make the filter anew with more capacity, or let it scale: %w",
		len(items)-known, len(items), ErrFull)
}
