package bloom

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// shard is what a backend must be able to do to be one part of a [Sharded]: above
// all to store which part, so that no filter is ever read for another one.
type shard interface {
	Backend
	rebuilder
	// placed returns another handle on the same filter, taken for that part.
	placed(shardPlace) shard
	// identity is equal for handles on one filter, as far as can be told without I/O.
	identity() any
	// mostItems is how many items at a rate it can hold.
	mostItems(cfg Config) float64
	// look reads what is stored, staging first. What keeps the filter from being read
	// is an error, beside which the rest is known.
	look(ctx context.Context) (shardState, error)
}

// shardState is what is stored of a shard.
type shardState struct {
	params   Params // where there is no error
	staging  bool   // a rebuild fills the next generation,
	creating bool   // or rather CreateEmpty is about to make the filter
}

// redisPlace identifies a key on the server of a client.
type redisPlace struct {
	rdb redis.Cmdable
	key string
}

func (b *Bitmap) identity() any { return redisPlace{b.conn.rdb, b.key} }

func (b *Bitmap) placed(p shardPlace) shard {
	if b == nil {
		return b
	}
	return &Bitmap{conn: conn{rdb: b.conn.rdb}, key: b.key, next: b.next, place: p}
}

func (b *Bitmap) keyed(key hashKey) Backend { return b.placed(keyedPlace(key)) }

func (b *Bitmap) mostItems(cfg Config) float64 { return keyItems(cfg.FPRate, cfg.Layout) }

func (b *Bitmap) look(ctx context.Context) (s shardState, err error) {
	next := redis.NewStringCmd(ctx, "getrange", b.next, 0, headerBytes-1)
	if err := b.read(ctx, next); err != nil {
		return s, err
	}
	if err := next.Err(); err != nil {
		return s, fmt.Errorf("%q: %w", b.next, b.keyError(err))
	}
	if v := next.Val(); v != "" {
		s.staging = true
		s.creating = len(v) == headerBytes && v[offPurpose] == purposeEmpty
	}
	h, err := b.readWhole(ctx)
	if err == nil {
		s.params = h.geom.params
	}
	return s, err
}

func (b *Bitmap) keys() []string { return filterKeys(b.key) }

func (b *Bitmap) sharesTrip(c *conn, _ []string) bool { return b.conn.sameServer(c) }

func (b *RedisBloom) identity() any { return redisPlace{b.conn.rdb, b.key} }

func (b *RedisBloom) placed(p shardPlace) shard {
	if b == nil {
		return b
	}
	k := b.handle()
	k.sentinels, k.hashKey = p.sentinels(), p.key
	k.k0, k.k1 = p.key.forModule()
	return k
}

// handle returns another handle like b.
func (b *RedisBloom) handle() *RedisBloom {
	return &RedisBloom{
		conn:      conn{rdb: b.conn.rdb},
		key:       b.key,
		next:      b.next,
		build:     b.build,
		ticket:    b.ticket,
		sentinels: b.sentinels,
		hashKey:   b.hashKey,
		k0:        b.k0,
		k1:        b.k1,
		scaling:   b.scaling,
		adopt:     b.adopt,
	}
}

// sentinels name the hash key too, if there is one.
func (p shardPlace) sentinels() []string {
	s := RedisBloomSentinels(int(p.index), int(p.count))
	if p.key.isSet() {
		for i := range s {
			s[i] += fmt.Sprintf(":key:%016x", p.key.fingerprint)
		}
	}
	return s
}

func (b *RedisBloom) keyed(key hashKey) Backend { return b.placed(keyedPlace(key)) }

func (b *RedisBloom) mostItems(Config) float64 { return maxModuleCapacity - sentinelCount }

func (b *RedisBloom) look(ctx context.Context) (s shardState, err error) {
	// The state lives as long as staging, and one command reads both of its fields.
	next := redis.NewSliceCmd(ctx, "hmget", b.build, "token", "next purpose")
	if err := b.conn.read(ctx, b.key, next); err != nil {
		return s, err
	}
	if err := next.Err(); err != nil {
		return s, fmt.Errorf("%q: %w", b.build, b.keyError(err))
	}
	if v := next.Val(); len(v) == 2 && v[0] != nil {
		s.staging, s.creating = true, v[1] == moduleEmpty
	}
	state, err := b.state(ctx)
	switch {
	case err != nil:
	case !state.sealed():
		err = b.errUnsealed(state)
	default:
		s.params = state.params()
	}
	return s, err
}

func (b *RedisBloom) keys() []string { return append(filterKeys(b.key), b.ticket) }

func (b *RedisBloom) sharesTrip(c *conn, _ []string) bool { return b.conn.sameServer(c) }

func (m *Memory) identity() any {
	s, _ := m.at()
	return s
}

func (m *Memory) placed(p shardPlace) shard {
	if m == nil {
		return m
	}
	s, _ := m.at()
	return &Memory{shared: s, place: p}
}

func (m *Memory) keyed(key hashKey) Backend {
	if m != nil {
		s, _ := m.at()
		s.key.Store(&key)
	}
	return m.placed(keyedPlace(key))
}

func (m *Memory) mostItems(cfg Config) float64 { return keyItems(cfg.FPRate, cfg.Layout) }

func (m *Memory) look(ctx context.Context) (s shardState, err error) {
	state, _ := m.at()
	if next := state.next.Load(); next != nil {
		s.staging, s.creating = true, next.purpose == purposeEmpty
	}
	f, err := m.filter(ctx)
	if err == nil {
		s.params = f.geom.params
	}
	return s, err
}
