package main

import (
	"context"
	"strconv"

	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
	zeroredis "github.com/zeromicro/go-zero/core/stores/redis"
)

// Names of what is compared, as they stand in the tables.
const (
	nameClassic  = "Bitmap, Classic"
	nameBlocked  = "Bitmap, Blocked"
	nameModule   = "RedisBloom"
	nameBare     = "BF.EXISTS, bare"
	nameZero     = "go-zero core/bloom"
	nameTextbook = "k × GETBIT, pipelined"
	nameLua      = "Lua GETBIT loop"
	nameSet      = "SISMEMBER of a set"
	namePing     = "PING"
	nameGet      = "GET of 5 bytes"
	nameRange    = "GETRANGE of 64 bytes"
)

// A subject is one way to ask whether items are in a set that Redis holds.
type subject struct {
	name   string
	server *host
	key    string // what it stores; "": nothing
	exists func(ctx context.Context, item string) (bool, error)
	// many asks about a batch; nil where the subject offers only single look-ups,
	// which are then made one by one.
	many func(ctx context.Context, items []string) ([]bool, error)
	// add puts a batch in; nil for the floors.
	add func(ctx context.Context, items []string) error
}

// ask looks up a batch in the way the subject offers.
func (s *subject) ask(ctx context.Context, items []string) error {
	if len(items) > 1 && s.many != nil {
		_, err := s.many(ctx, items)
		return err
	}
	for _, item := range items {
		if _, err := s.exists(ctx, item); err != nil {
			return err
		}
	}
	return nil
}

// A rig is how subjects reach their servers.
type rig struct {
	rdb    redis.Cmdable    // the server that all are compared on
	module redis.Cmdable    // the one with RedisBloom; nil: none
	zero   *zeroredis.Redis // nil: go-zero cannot go this way
}

// A dataset is the stored sets of one size, the same items in each.
type dataset struct {
	prefix   string
	capacity uint64
	rate     float64
	items    int // stored: "item:0" and so on
}

func (d dataset) key(subject string) string { return d.prefix + subject }

// subjects returns all ways over rig to ask about d.
func (b *bench) subjects(r rig, d dataset) ([]*subject, error) {
	p, err := bloom.NewParams(d.capacity, d.rate, bloom.Classic)
	if err != nil {
		return nil, err
	}
	classic, err := b.ours(nameClassic, b.local, bloom.NewBitmap(r.rdb, d.key("classic")))
	if err != nil {
		return nil, err
	}
	blocked, err := b.ours(nameBlocked, b.local, bloom.NewBitmap(r.rdb, d.key("blocked")))
	if err != nil {
		return nil, err
	}
	all := []*subject{classic, blocked}
	if r.module != nil {
		ours, err := b.ours(nameModule, b.module, bloom.NewRedisBloom(r.module, d.key("module"), nil))
		if err != nil {
			return nil, err
		}
		all = append(all, ours, bare(b.module, r.module, d.key("module")))
	}
	if r.zero != nil {
		all = append(all, goZero(b.local, r.zero, d.key("zero"), p))
	}
	return append(all,
		textbook(b.local, r.rdb, d.key("bits"), p),
		luaLoop(b.local, r.rdb, d.key("bits"), p),
		plainSet(b.local, r.rdb, d.key("set")),
	), nil
}

// ours wraps a filter of this module.
func (b *bench) ours(name string, server *host, backend bloom.Backend) (*subject, error) {
	f, err := bloom.New(backend, bloom.Config{})
	if err != nil {
		return nil, err
	}
	return &subject{
		name: name, server: server, key: backend.Key(),
		exists: f.Exists,
		many:   f.ExistsMulti,
		add: func(ctx context.Context, items []string) error {
			_, err := f.AddMulti(ctx, items)
			return err
		},
	}, nil
}

// floors are what a question to Redis costs at least: a round trip, the smallest read,
// and the command that Blocked reads with.
func (b *bench) floors(r rig, d dataset) []*subject {
	const key = "floor"
	blocked := d.key("blocked")
	return []*subject{
		{name: namePing, server: b.local, exists: func(ctx context.Context, _ string) (bool, error) {
			return true, r.rdb.Ping(ctx).Err()
		}},
		{name: nameGet, server: b.local, key: key,
			exists: func(ctx context.Context, _ string) (bool, error) { return true, r.rdb.Get(ctx, key).Err() },
			many:   pipelined(r.rdb, func(ctx context.Context, p redis.Pipeliner) { p.Get(ctx, key) })},
		{name: nameRange, server: b.local, key: blocked,
			exists: func(ctx context.Context, _ string) (bool, error) {
				return true, r.rdb.GetRange(ctx, blocked, 256, 256+63).Err()
			},
			many: pipelined(r.rdb, func(ctx context.Context, p redis.Pipeliner) { p.GetRange(ctx, blocked, 256, 256+63) })},
	}
}

// pipelined asks the same for each item of a batch.
func pipelined(rdb redis.Cmdable, ask func(ctx context.Context, p redis.Pipeliner)) func(context.Context, []string) ([]bool, error) {
	return func(ctx context.Context, items []string) ([]bool, error) {
		return nil, inPipelines(items, func(chunk []string) error {
			_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
				for range chunk {
					ask(ctx, p)
				}
				return nil
			})
			return err
		})
	}
}

// pipelineItems is how many items the peers get in one pipeline or script: as many as
// our own batches.
const pipelineItems = 1024

func inPipelines(items []string, do func(chunk []string) error) error {
	for len(items) > 0 {
		n := min(len(items), pipelineItems)
		if err := do(items[:n]); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

// itemName is the i-th item that is stored; absentName one that is not.
func itemName(i int) string   { return "item:" + strconv.Itoa(i) }
func absentName(i int) string { return "none:" + strconv.Itoa(i) }

// probes are look-ups, every second one of an item that is stored.
func probes(n, stored int) []string {
	items := make([]string, n)
	for i := range items {
		if i%2 == 0 {
			items[i] = itemName(int(uint64(i) * 2654435761 % uint64(stored)))
		} else {
			items[i] = absentName(i)
		}
	}
	return items
}
