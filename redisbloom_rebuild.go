package bloom

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	moduleEmpty   = "empty"
	moduleRebuilt = "rebuilt"

	// batchesPerTrip of maxModuleItems each go to the server in one round trip.
	batchesPerTrip = 4
	// After each trip the builder pauses for this share of the time it took, which
	// leaves the server to others.
	pausePerTrip = 0.5
)

var (
	//go:embed lua/rb_open.lua
	luaModuleOpen string
	//go:embed lua/rb_batch.lua
	luaModuleBatch string
	//go:embed lua/rb_renew.lua
	luaModuleRenew string
	//go:embed lua/rb_publish.lua
	luaModulePublish string

	moduleOpenScript    = newScript(luaNow + luaSize + luaModuleOpen)
	moduleBatchScript   = newScript(luaModuleBatch)
	moduleRenewScript   = newScript(luaModuleRenew)
	modulePublishScript = newScript(luaModulePublish)
)

// moduleBuild is the next generation of a RedisBloom filter. The module hashes on
// the server, so items go there in batches.
type moduleBuild struct {
	b       *RedisBloom
	want    Config
	wish    wish
	token   string
	pending []string // not sent yet
	batches uint64   // taken by staging
	card    uint64   // of staging, once merged
}

// openBuild opens staging by lua/rb_open.lua.
func (b *RedisBloom) openBuild(ctx context.Context, w wish) (build, RebuildReport, error) {
	random := randomToken()
	for range 1 + maxRereads {
		live, err := b.liveState(ctx)
		if err != nil {
			return nil, RebuildReport{}, err
		}
		if live != nil && live.sealed() && w.empty {
			return nil, RebuildReport{}, errPresent
		}
		if live != nil && b.isOther(live) {
			return nil, RebuildReport{}, b.errUnsealed(live)
		}
		want, maxAge, err := b.decide(w, live)
		if err != nil {
			return nil, RebuildReport{}, err
		}
		size, published := "", ""
		if live != nil {
			size, published = strconv.FormatUint(live.bytes, 10), live.published
		}
		args := []any{random, formatRate(want.FPRate), want.Capacity + sentinelCount, b.scaling,
			w.lease.Milliseconds(), size, published, maxAge.Microseconds(), w.modulePurpose()}
		reply, err := b.conn.evalStrings(ctx, moduleOpenScript, b.rebuildKeys(), appendStrings(args, b.sentinels)...)
		if err != nil {
			return nil, RebuildReport{}, b.keyError(err)
		}
		switch status := reply[0]; {
		case status == "open" && len(reply) == 2:
			return &moduleBuild{b: b, want: want, wish: w, token: reply[1]}, RebuildReport{}, nil
		case status == "busy":
			return nil, RebuildReport{}, fmt.Errorf("%q is leased for another %s ms: %w", b.next, reply[1], ErrRebuilding)
		case status == "young":
			return nil, RebuildReport{Generation: live.generation, Params: live.params(), Bytes: live.bytes}, errYoung
		case status == "unsealed":
			return nil, RebuildReport{}, fmt.Errorf("another program's filter would be replaced, "+
				"see RedisBloomOptions.Adopt: %w", ErrParamsMismatch)
		case status == "done":
			return nil, RebuildReport{}, fmt.Errorf("a token came twice: %w", ErrRebuilding)
		}
	}
	return nil, RebuildReport{}, fmt.Errorf("the filter changed %d times meanwhile: %w", maxRereads, ErrRebuilding)
}

// modulePurpose is what the state says of a filter: was it made empty?
func (w wish) modulePurpose() string {
	if w.empty {
		return moduleEmpty
	}
	return moduleRebuilt
}

// liveState is nil where there is no filter.
func (b *RedisBloom) liveState(ctx context.Context) (*moduleState, error) {
	s, err := b.state(ctx)
	if isNotReady(err) {
		return nil, nil
	}
	return s, err
}

// decide says what to build, and how old what is live may be to do, 0 if it doesn't.
func (b *RedisBloom) decide(w wish, live *moduleState) (want Config, maxAge time.Duration, err error) {
	var now *Params
	if live != nil {
		p := live.params()
		if !live.rateKnown() {
			p.FPRate = 0
		}
		now = &p
	}
	if want, err = w.resolve(now); err != nil {
		return want, 0, err
	}
	if err := b.Check(want); err != nil {
		return want, 0, err
	}
	if live != nil && live.published != "" && live.purpose != moduleEmpty && live.sealed() && live.capacity >= want.Capacity+sentinelCount &&
		live.rate <= want.FPRate*(1+rateSlack) {
		maxAge = w.maxAge
	}
	return want, maxAge, nil
}

func (b *RedisBloom) rebuildKeys() []string { return []string{b.key, b.next, b.build} }

func (s *moduleState) params() Params {
	return Params{Capacity: s.userCapacity(), FPRate: s.rate, Layout: Classic, Bits: s.bits(), Hashes: s.hashes()}
}

func formatRate(rate float64) string { return strconv.FormatFloat(rate, 'g', -1, 64) }

// appendItems appends items as the server gets them.
func (b *RedisBloom) appendItems(args []any, items []string) []any {
	if !b.hashKey.isSet() {
		return appendStrings(args, items)
	}
	for _, item := range items {
		args = append(args, keyedItem(b.k0, b.k1, item))
	}
	return args
}

func appendStrings(args []any, s []string) []any {
	for i := range s {
		args = append(args, s[i])
	}
	return args
}

// ln 2 and its square as the module has them. With more digits a rate of 1/4 would
// get a hash less.
const (
	moduleLn2        = 0.693147180559945
	moduleLn2Squared = 0.480453013918201
)

// params are those that the module chooses (see its sizing: bits are rounded up
// to 64, and a scaling filter begins with half the rate).
func (d *moduleBuild) params() Params {
	rate := d.want.FPRate
	if d.b.scaling > 0 {
		rate /= 2
	}
	perItem := -math.Log(rate) / moduleLn2Squared
	bits := max(1, uint64(float64(d.want.Capacity+sentinelCount)*perItem))
	return Params{
		Capacity: d.want.Capacity,
		FPRate:   d.want.FPRate,
		Bits:     (bits + 63) / 64 * 64,
		Hashes:   int(math.Ceil(moduleLn2 * perItem)),
	}
}

func (d *moduleBuild) bytes() uint64 { return d.params().Bits/8 + moduleOverhead }

const moduleOverhead = 32 + 64 // of a filter and a sub-filter, as BF.INFO counts them

func (d *moduleBuild) add(ctx context.Context, item string) error {
	if d.pending = append(d.pending, item); len(d.pending) < batchesPerTrip*maxModuleItems {
		return nil
	}
	return d.send(ctx)
}

// send puts the pending items into staging, and then lets others at the server.
func (d *moduleBuild) send(ctx context.Context) error {
	if len(d.pending) == 0 {
		return nil
	}
	began := time.Now()
	last, cmds := d.batches, []redis.Cmder(nil)
	for from := 0; from < len(d.pending); from += maxModuleItems {
		batch := d.pending[from:min(len(d.pending), from+maxModuleItems)]
		cmds = append(cmds, evalCmd(ctx, "evalsha", moduleBatchScript.sha, d.b.rebuildKeys()[1:],
			d.b.appendItems([]any{d.token, last}, batch)))
		last++
	}
	if err := d.b.conn.do(ctx, cmds...); err != nil {
		return err
	}
	for i, cmd := range cmds {
		if err := d.taken(ctx, cmd.(*redis.Cmd), i); err != nil {
			return err
		}
	}
	d.pending = d.pending[:0]
	return sleep(ctx, time.Duration(pausePerTrip*float64(time.Since(began))))
}

// taken sees to it that the i-th batch of a trip is in. One whose script the server
// did not have is sent again, and so are those behind it, which it did not take
// then, since their numbers did not fit.
func (d *moduleBuild) taken(ctx context.Context, cmd *redis.Cmd, i int) error {
	count, err := d.countOf(cmd.Result())
	if isNoScript(err) || isTryAgain(err) || isMoved(err) || err == nil && count <= d.batches {
		batch := d.pending[i*maxModuleItems : min(len(d.pending), (i+1)*maxModuleItems)]
		count, err = d.countOf(d.b.conn.eval(ctx, moduleBatchScript, d.b.rebuildKeys()[1:],
			d.b.appendItems([]any{d.token, d.batches}, batch)...))
	}
	if err == nil && count <= d.batches {
		return errLeaseLost // the server lost batches that it had taken
	}
	if err != nil {
		return err
	}
	d.batches++
	return nil
}

// countOf reads how many batches staging has taken.
func (d *moduleBuild) countOf(reply any, err error) (uint64, error) {
	status, err := stringsOf(reply, err)
	switch {
	case err != nil:
		return 0, d.b.keyError(err)
	case status[0] == "full":
		return 0, d.errFull()
	case status[0] != "taken" || len(status) != 2:
		return 0, errLeaseLost
	}
	return strconv.ParseUint(status[1], 10, 64)
}

func (d *moduleBuild) errFull() error {
	return fmt.Errorf("there are more items than the capacity of %d: %w (%w)", d.want.Capacity, ErrRebuildRefused, ErrFull)
}

func (d *moduleBuild) merge(ctx context.Context, progress func(done, total uint64)) error {
	if err := d.send(ctx); err != nil {
		return err
	}
	card := redis.NewIntCmd(ctx, "bf.card", d.b.next)
	if err := d.b.conn.read(ctx, d.b.key, card); err != nil {
		return err
	}
	if err := card.Err(); err != nil {
		return d.b.keyError(err)
	}
	d.card = uint64(card.Val())
	progress(d.bytes(), d.bytes())
	return nil
}

func (d *moduleBuild) distinct() uint64 { return d.card }

func (d *moduleBuild) liveItems(ctx context.Context) (uint64, error) {
	live, err := d.b.liveState(ctx)
	if err != nil || live == nil {
		return 0, err
	}
	return live.items - min(live.items, sentinelCount), nil
}

// lookUp asks staging, which has no sentinels yet. A staging that is gone answers
// "no" to all, which refuses the rebuild as well.
func (d *moduleBuild) lookUp(ctx context.Context, items []string) ([]bool, error) {
	found := make([]bool, 0, len(items))
	for len(items) > 0 {
		part := items[:min(len(items), maxModuleItems)]
		cmd := redis.NewBoolSliceCmd(ctx, d.b.appendItems([]any{"bf.mexists", d.b.next}, part)...)
		if err := d.b.conn.read(ctx, d.b.key, cmd); err != nil {
			return nil, err
		}
		if err := cmd.Err(); err != nil {
			return nil, d.b.keyError(err)
		}
		if len(cmd.Val()) != len(part) {
			return nil, fmt.Errorf("BF.MEXISTS answered %d of %d items", len(cmd.Val()), len(part))
		}
		found, items = append(found, cmd.Val()...), items[len(part):]
	}
	return found, nil
}

func (d *moduleBuild) renew(ctx context.Context) error {
	reply, err := d.b.conn.evalStrings(ctx, moduleRenewScript, d.b.rebuildKeys(), d.token, d.wish.lease.Milliseconds())
	if err != nil {
		return d.b.keyError(err)
	}
	if reply[0] != "renewed" {
		return errLeaseLost
	}
	return nil
}

func (d *moduleBuild) publish(ctx context.Context) (uint64, error) {
	reply, err := d.b.conn.change(ctx, modulePublishScript, append(d.b.rebuildKeys(), d.b.ticket),
		appendStrings([]any{d.token, d.batches, d.wish.ttl.Milliseconds(), d.wish.modulePurpose()}, d.b.sentinels)...)
	if err != nil && !isShort(err) {
		return 0, d.b.keyError(err)
	}
	switch status := reply[0]; {
	case status == "done" && len(reply) == 2:
		return publishedAs(reply[1], err)
	case status == "full":
		return 0, d.errFull()
	case status == "present":
		return 0, errPresent
	case status == "written" && len(reply) == 3:
		return 0, fmt.Errorf("the live filter got %s items meanwhile, of which this package added %s: "+
			"another program writes to it and must pause: %w", reply[1], reply[2], ErrRebuildRefused)
	}
	return 0, errLeaseLost
}

func (d *moduleBuild) abort(ctx context.Context) error {
	_, err := d.b.conn.eval(ctx, moduleRenewScript, d.b.rebuildKeys(), d.token, 0)
	return err
}
