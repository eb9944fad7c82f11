package bloom

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"strings"

	"github.com/redis/go-redis/v9"
)

// RedisBloom keeps a filter in the RedisBloom module's own type (Redis Stack,
// Redis 8, Valkey with its bloom module), under a key that programs in other
// languages can share. It is safe for concurrent use.
//
// The module answers 0 for a key that is missing or of another type, so presence
// is proved by three sentinel items that this backend adds when it makes a
// filter: every read asks for them too, and a 0 for one of them is an error. A
// filter that another program filled is taken over with
// [RedisBloomOptions].Adopt, or by that program adding [RedisBloomSentinels]
// last.
type RedisBloom struct {
	conn      conn
	key       string
	next      string // companion key: where a rebuild fills the next generation
	build     string // a rebuild's state
	ticket    string // see lua/rb_ticket.lua
	sentinels []string
	hashKey   hashKey
	k0, k1    uint64 // with a hash key: see hashKey.forModule
	scaling   int
	adopt     bool
}

var _ Backend = (*RedisBloom)(nil)

// RedisBloomOptions are the knobs of [NewRedisBloom]. The zero value, or nil, is
// the default.
type RedisBloomOptions struct {
	// Scaling, if set, lets the filter grow: each further sub-filter is that many
	// times as large as the one before (EXPANSION). Such a filter takes half the
	// asked rate for its first sub-filter, so about 15 % more memory, and reads
	// look into all of them. The default is NONSCALING: a full filter refuses new
	// items with ErrFull. 1 to 32768.
	Scaling int
	// Adopt lets CreateEmpty take over a filter that another program made and
	// filled: if it is large and tight enough and not empty, the sentinels are
	// added to it. With Adopt CreateEmpty makes no filter. Adopt only what is
	// filled: rows that are missing from it are denied from then on.
	Adopt bool
}

const (
	// maxModuleCapacity is what the module takes since version 8; before that, a
	// much larger one ends the server process.
	maxModuleCapacity = 1 << 30
	// maxModuleRate: above it newer modules silently build for 0.25.
	maxModuleRate  = 0.25
	maxScaling     = 32768
	sentinelCount  = 3
	maxModuleItems = 1000 // of one command: a few milliseconds of the server's time, and what Lua can unpack
)

var (
	//go:embed lua/rb_ticket.lua
	luaTicket string
	//go:embed lua/rb_change.lua
	luaChange string
	//go:embed lua/rb_size.lua
	luaSize string
	//go:embed lua/rb_add.lua
	luaModuleAdd string

	ticketScript    = newScript(luaTicket)
	changeScript    = newScript(luaSize + luaChange)
	moduleAddScript = newScript(luaModuleAdd)
)

// RedisBloomSentinels returns the items that mark a filter as whole, for other
// programs that make filters which this package shall read: add all of them,
// after the last item, and reserve capacity for three items more. shard and
// shards are 0 and 1 for a filter that is alone.
func RedisBloomSentinels(shard, shards int) []string {
	s := make([]string, sentinelCount)
	for i := range s {
		s[i] = fmt.Sprintf("bloomguard:v1:shard:%d/%d:whole:%d", shard, shards, i)
	}
	return s
}

// NewRedisBloom returns the filter at key on the server of rdb, a client as for
// [NewBitmap]. It does no I/O; what is wrong with rdb, key or opts, [New] says.
func NewRedisBloom(rdb redis.Cmdable, key string, opts *RedisBloomOptions) *RedisBloom {
	b := &RedisBloom{
		conn:      conn{rdb: rdb},
		key:       key,
		next:      companionKey(key, "next"),
		build:     companionKey(key, "build"),
		ticket:    companionKey(key, "build-ticket"),
		sentinels: RedisBloomSentinels(0, 1),
	}
	if opts != nil {
		b.scaling, b.adopt = opts.Scaling, opts.Adopt
	}
	return b
}

func (b *RedisBloom) withReplicas(cfg Config) Backend {
	c := b.handle()
	c.conn.setReplicas(cfg)
	return c
}

// Key returns the filter's key.
func (b *RedisBloom) Key() string { return b.key }

// Check refuses what the module takes in another sense, or not at all.
func (b *RedisBloom) Check(cfg Config) error {
	if b == nil {
		return fmt.Errorf("bloom: nil *RedisBloom: %w", ErrInvalidParams)
	}
	if err := checkClient(b.conn.rdb, cfg); err != nil {
		return err
	}
	if err := checkKey(b.key); err != nil {
		return err
	}
	switch {
	case b.adopt && b.hashKey.isSet():
		return fmt.Errorf("bloom: HashKey with Adopt: another program's filter holds items that no key has hashed: %w", ErrInvalidParams)
	case strings.EqualFold(b.key, "nonscaling") || strings.EqualFold(b.key, "expansion"):
		return fmt.Errorf("bloom: key %q: BF.RESERVE takes it for its option: %w", b.key, ErrInvalidParams)
	case b.scaling < 0 || b.scaling > maxScaling:
		return fmt.Errorf("bloom: Scaling %d: want 1 to %d, or 0 for NONSCALING: %w", b.scaling, maxScaling, ErrInvalidParams)
	case cfg.Layout != Classic:
		return fmt.Errorf("bloom: layout %v: the module has its own, want Classic: %w", cfg.Layout, ErrInvalidParams)
	case cfg.Capacity > maxModuleCapacity-sentinelCount:
		return fmt.Errorf("bloom: capacity %d: the module takes at most %d items and %d sentinels: %w",
			cfg.Capacity, maxModuleCapacity-sentinelCount, sentinelCount, ErrTooLarge)
	case cfg.FPRate > maxModuleRate:
		return fmt.Errorf("bloom: false-positive rate %v: the module builds for at most %v: %w",
			cfg.FPRate, maxModuleRate, ErrInvalidParams)
	}
	return nil
}

// Ready reports whether the filter is present with its sentinels.
func (b *RedisBloom) Ready(ctx context.Context) error {
	return b.existsChunk(ctx, nil, nil)
}

// CreateEmpty attaches to a filter that satisfies cfg, or makes an empty one, or
// with Adopt takes over another program's.
func (b *RedisBloom) CreateEmpty(ctx context.Context, cfg Config) error {
	for range maxRereads {
		s, err := b.state(ctx)
		change := moduleChange{name: "create", rate: cfg.FPRate, capacity: cfg.Capacity + sentinelCount,
			expansion: b.scaling, ttl: cfg.TTL.Milliseconds()}
		switch {
		case err == nil && s.sealed():
			return b.attach(s, cfg)
		case err == nil && b.isOther(s):
			return b.errUnsealed(s)
		case err == nil && !b.adopt:
			return fmt.Errorf("the filter there has no sentinels, so another program made it; "+
				"RedisBloomOptions.Adopt takes it over: %w", ErrParamsMismatch)
		case err == nil:
			if err := b.adoptable(s, cfg); err != nil {
				return err
			}
			change = moduleChange{name: "adopt", seen: s.bytes}
		case isNotReady(err) && b.adopt:
			return fmt.Errorf("nothing to adopt: %w", err)
		case !isNotReady(err):
			return err
		}
		switch status, err := b.apply(ctx, change); {
		case err != nil:
			return err
		case status == "done":
			return nil
		case status == "staging":
			return fmt.Errorf("%q exists: %w", b.next, ErrRebuilding)
		case status == "full":
			return errNoRoom()
		}
	}
	return fmt.Errorf("the key changed %d times meanwhile: %w", maxRereads, ErrNotReady)
}

// attach decides whether a stored filter serves cfg. Of one that was adopted the
// sentinels take a part of the capacity.
func (b *RedisBloom) attach(s *moduleState, cfg Config) error {
	least := cfg.Capacity
	if !b.adopt {
		least += sentinelCount
	}
	if s.capacity < least || s.rateKnown() && s.rate > cfg.FPRate*(1+rateSlack) {
		return fmt.Errorf("stored is for %d items at %v, wanted %d at %v: %w",
			s.userCapacity(), s.rate, cfg.Capacity, cfg.FPRate, ErrParamsMismatch)
	}
	return nil
}

// rateSlack allows for rates that were worked out from sizes, which the module
// rounds up to 64 bits.
const rateSlack = 1e-6

// adoptable decides whether another program's filter serves cfg.
func (b *RedisBloom) adoptable(s *moduleState, cfg Config) error {
	switch {
	case s.capacity < cfg.Capacity || s.rateKnown() && s.rate > cfg.FPRate*(1+rateSlack):
		return fmt.Errorf("the filter to adopt is for %d items at %v, wanted %d at %v: %w",
			s.capacity, s.rate, cfg.Capacity, cfg.FPRate, ErrParamsMismatch)
	case s.items == 0:
		return fmt.Errorf("the filter to adopt is empty: %w", ErrParamsMismatch)
	case s.expansion == 0 && s.items+uint64(s.unsealed) > s.capacity:
		return errNoRoom()
	}
	return nil
}

func errNoRoom() error { return fmt.Errorf("no room for %d sentinels: %w", sentinelCount, ErrFull) }

// Reset makes the filter empty again, with the size, rate, expansion and TTL
// that it has.
func (b *RedisBloom) Reset(ctx context.Context) error {
	for range maxRereads {
		s, err := b.state(ctx)
		if err != nil {
			return err
		}
		if !s.sealed() {
			return b.errUnsealed(s)
		}
		if !s.rateKnown() {
			return fmt.Errorf("the server does not tell the rate of the filter, so it cannot be made again: %w", ErrCorrupt)
		}
		status, err := b.apply(ctx, moduleChange{name: "reset", rate: s.rate, capacity: s.firstCapacity,
			expansion: s.expansion, seen: s.bytes})
		switch {
		case err != nil:
			return err
		case status == "done":
			return nil
		case status == "staging":
			return fmt.Errorf("%q exists: %w", b.next, ErrRebuilding)
		}
	}
	return fmt.Errorf("the filter changed %d times meanwhile: %w", maxRereads, ErrNotReady)
}

// Drop removes the filter and what a rebuild is filling. What is no filter stays,
// with ErrCorrupt, and so does another program's, with ErrNotReady.
func (b *RedisBloom) Drop(ctx context.Context) error {
	for range maxRereads {
		s, err := b.state(ctx)
		if err != nil && !isNotReady(err) {
			return err
		}
		if err == nil && !s.sealed() {
			return b.errUnsealed(s)
		}
		status, err := b.apply(ctx, moduleChange{name: "drop"})
		if err != nil {
			return err
		}
		if status == "done" {
			return nil
		}
	}
	return fmt.Errorf("others changed the filter %d times meanwhile: %w", maxRereads, ErrNotReady)
}

// moduleChange is one use of lua/rb_change.lua.
type moduleChange struct {
	name      string
	rate      float64
	capacity  uint64
	expansion int
	ttl       int64
	seen      uint64 // size of the filter to change
}

// apply gets a ticket for a change and makes it. "lost" and "changed" mean that
// somebody else was faster.
func (b *RedisBloom) apply(ctx context.Context, c moduleChange) (string, error) {
	life := createWait.Milliseconds()
	ticket, err := b.conn.evalStrings(ctx, ticketScript, []string{b.ticket}, randomToken(), life, c.name)
	if err != nil {
		return "", b.keyError(err)
	}
	args := appendStrings([]any{ticket[0], life, c.name, formatRate(c.rate), c.capacity, c.expansion, c.ttl, c.seen}, b.sentinels)
	status, err := b.conn.change(ctx, changeScript, []string{b.key, b.next, b.ticket, b.build}, args...)
	return first(status), b.keyError(err)
}

// keyError maps errors of Redis that tell about the key or the server.
func (b *RedisBloom) keyError(err error) error {
	switch {
	case isWrongType(err):
		return fmt.Errorf("the key is no RedisBloom filter: %w (%w)", ErrCorrupt, err)
	case isUnknownCommand(err):
		return fmt.Errorf("%w: use NewBitmap, which needs none, or a server with it "+
			"(Redis 8, Redis Stack, Valkey with valkey-bloom): %w", ErrNoModule, err)
	}
	return err
}

// isOther reports whether a filter without our sentinels is known to be another part
// of a sharded filter than this backend takes it for.
func (b *RedisBloom) isOther(s *moduleState) bool {
	return !s.sealed() && s.first != "" && s.first != b.sentinels[0]
}

func (b *RedisBloom) errUnsealed(s *moduleState) error {
	if b.isOther(s) {
		return fmt.Errorf("stored is the filter with the sentinel %q, wanted is that with %q: %w",
			s.first, b.sentinels[0], ErrParamsMismatch)
	}
	return fmt.Errorf("the filter there has no sentinels: another program made it, "+
		"see RedisBloomOptions.Adopt: %w", ErrNotReady)
}

// Info describes the filter. Items is the module's own count: adds that set a bit.
func (b *RedisBloom) Info(ctx context.Context) (Info, error) {
	s, err := b.state(ctx)
	if err != nil {
		return Info{}, err
	}
	if !s.sealed() {
		return Info{}, b.errUnsealed(s)
	}
	info := Info{
		Backend:    "redisbloom",
		Params:     s.params(),
		Items:      s.items - min(s.items, sentinelCount),
		Fill:       math.NaN(),
		FPRate:     s.currentRate(),
		Bytes:      s.bytes,
		Shards:     1,
		SubFilters: s.subFilters,
		Generation: s.generation,
		Created:    s.created,
	}
	return info, nil
}
