package bloom

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Cache stores short byte strings, called entries, under ids. A [Guard] decides
// what they mean. An implementation is safe for concurrent use, never changes an
// entry it was given or gave, and keeps nothing without a lifetime.
//
// Lease and Fill are what makes a fill safe: an entry only ever replaces the
// lease that was taken before it was loaded, so whatever removes the lease
// meanwhile (Drop, expiry, eviction, a flush) also stops the fill. An entry must
// never be stored because nothing was there.
type Cache interface {
	// Read returns the entry of each id, nil where there is none.
	Read(ctx context.Context, ids []string) ([][]byte, error)

	// Lease stores a lease under id, for ttl, if nothing is stored there; and if over
	// is not empty, also in place of exactly those bytes. What it stores is lease and
	// eight more bytes, which make it one that was never stored before, also where the
	// call is repeated (RedisCache appends the server's clock). It returns what is
	// stored then, its own or what was there.
	Lease(ctx context.Context, id string, lease, over []byte, ttl time.Duration) ([]byte, error)

	// Fill stores entry for ttl if exactly lease is stored under id, and reports
	// whether it did.
	Fill(ctx context.Context, id string, lease, entry []byte, ttl time.Duration) (bool, error)

	// Drop removes the entries and leases of ids.
	Drop(ctx context.Context, ids []string) error
}

// RedisCache is a [Cache] of one Redis key per id, none of them without an expiry.
// An ACL user needs
//
//	~prefix* +get +set +del +time +eval +evalsha
type RedisCache struct {
	conn   conn
	prefix string
}

var _ Cache = (*RedisCache)(nil)

// NewRedisCache returns a cache at the keys that begin with prefix, which should
// be its alone: one for each type of rows, and a new one where its encoding changes.
// Where rdb is the very client of the guard's filter, both are read in one round
// trip, else in two at the same time.
func NewRedisCache(rdb redis.Cmdable, prefix string) *RedisCache {
	return &RedisCache{conn: conn{rdb: rdb}, prefix: prefix}
}

var (
	//go:embed lua/lease.lua
	luaLease string
	//go:embed lua/fill.lua
	luaFill string

	leaseScript = newScript(luaNow + luaLease)
	fillScript  = newScript(luaFill)
)

func (c *RedisCache) check() error {
	if c == nil {
		return fmt.Errorf("bloom: nil *RedisCache: %w", ErrInvalidParams)
	}
	return checkClient(c.conn.rdb, Config{}) // stale entries would break the Guard's promise, whatever the filter allows
}

func (c *RedisCache) key(id string) string { return c.prefix + id }

// maxCacheKeys bounds what one round trip asks for.
const maxCacheKeys = 1000

// Read gets the entries, a thousand in a round trip.
func (c *RedisCache) Read(ctx context.Context, ids []string) ([][]byte, error) {
	all := make([][]byte, 0, len(ids))
	for chunk := range slices.Chunk(ids, maxCacheKeys) {
		entries, errs := c.readMany(ctx, chunk)
		for _, err := range errs {
			if err != nil {
				return nil, err
			}
		}
		all = append(all, entries...)
	}
	return all, nil
}

// readMany is Read in one round trip.
func (c *RedisCache) readMany(ctx context.Context, ids []string) ([][]byte, []error) {
	entries, errs := make([][]byte, len(ids)), make([]error, len(ids))
	cmds := make([]redis.Cmder, len(ids))
	for i, id := range ids {
		cmds[i] = c.readCmd(ctx, id)
	}
	if len(ids) == 0 {
		return entries, errs
	}
	err := c.conn.do(ctx, cmds...)
	for i, cmd := range cmds {
		if errs[i] = err; err == nil {
			entries[i], errs[i] = readEntry(cmd.(*redis.StringCmd))
		}
	}
	return entries, errs
}

func (c *RedisCache) readCmd(ctx context.Context, id string) *redis.StringCmd {
	return redis.NewStringCmd(ctx, "get", c.key(id))
}

func readEntry(cmd *redis.StringCmd) ([]byte, error) {
	b, err := cmd.Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return b, err
}

// Lease implements [Cache], by one script.
func (c *RedisCache) Lease(ctx context.Context, id string, lease, over []byte, ttl time.Duration) ([]byte, error) {
	found, err := c.conn.evalStrings(ctx, leaseScript, []string{c.key(id)}, lease, over, ttl.Milliseconds())
	if err != nil {
		return nil, err
	}
	return []byte(found[0]), nil
}

// Fill implements [Cache], by one script.
func (c *RedisCache) Fill(ctx context.Context, id string, lease, entry []byte, ttl time.Duration) (bool, error) {
	n, err := c.conn.eval(ctx, fillScript, []string{c.key(id)}, lease, entry, ttl.Milliseconds())
	return n == int64(1), err
}

// leaseMany is Lease for many ids in one round trip.
func (c *RedisCache) leaseMany(
	ctx context.Context, ids []string, leases, overs [][]byte, ttl time.Duration,
) ([][]byte, []error) {
	found, errs := make([][]byte, len(ids)), make([]error, len(ids))
	cmds := c.evalEach(ctx, leaseScript, ids, errs, func(i int) []any {
		return []any{leases[i], overs[i], ttl.Milliseconds()}
	})
	for i, cmd := range cmds {
		text, err := cmd.Text()
		found[i], errs[i] = []byte(text), err
	}
	return found, errs
}

// fillMany is Fill for many ids in one round trip.
func (c *RedisCache) fillMany(
	ctx context.Context, ids []string, leases, entries [][]byte, ttls []time.Duration,
) ([]bool, []error) {
	filled, errs := make([]bool, len(ids)), make([]error, len(ids))
	cmds := c.evalEach(ctx, fillScript, ids, errs, func(i int) []any {
		return []any{leases[i], entries[i], ttls[i].Milliseconds()}
	})
	for i, cmd := range cmds {
		n, err := cmd.Int()
		filled[i], errs[i] = n == 1, err
	}
	return filled, errs
}

// evalEach runs a script for each id, or tells in errs why it can't be known
// whether it has.
func (c *RedisCache) evalEach(
	ctx context.Context, s *script, ids []string, errs []error, args func(i int) []any,
) []*redis.Cmd {
	keys, all := make([]string, len(ids)), make([][]any, len(ids))
	for i, id := range ids {
		keys[i], all[i] = c.key(id), args(i)
	}
	cmds, err := c.conn.evalEach(ctx, s, keys, all)
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return nil
	}
	return cmds
}

// Drop deletes the keys, a thousand in a round trip. DEL needs no memory, so it
// works on a server that is full. After an error it goes on: what can be dropped
// shall be.
func (c *RedisCache) Drop(ctx context.Context, ids []string) error {
	var failed error
	for chunk := range slices.Chunk(ids, maxCacheKeys) {
		cmds := make([]redis.Cmder, len(chunk))
		for i, id := range chunk {
			cmds[i] = redis.NewIntCmd(ctx, "del", c.key(id))
		}
		if err := c.conn.do(ctx, cmds...); err != nil {
			return err
		}
		for _, cmd := range cmds {
			if err := cmd.Err(); err != nil && failed == nil {
				failed = err
			}
		}
		if isOutage(failed) {
			break
		}
	}
	return failed
}

// MemoryCache is a [Cache] in this process, for tests and for services of one
// process. It holds what has not expired, without another bound.
type MemoryCache struct {
	mu      sync.Mutex
	entries map[string]memoryEntry
	sweepAt int // number of entries at which expired ones are looked for
	clock   uint64
}

var _ Cache = (*MemoryCache)(nil)

type memoryEntry struct {
	bytes   []byte
	expires time.Time
}

// NewMemoryCache returns an empty cache in this process.
func NewMemoryCache() *MemoryCache {
	return &MemoryCache{entries: map[string]memoryEntry{}, sweepAt: minSweep}
}

const minSweep = 1024

func (c *MemoryCache) check() error {
	if c == nil {
		return fmt.Errorf("bloom: nil *MemoryCache: %w", ErrInvalidParams)
	}
	return nil
}

// Read returns what has not expired.
func (c *MemoryCache) Read(ctx context.Context, ids []string) ([][]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	entries := make([][]byte, len(ids))
	for i, id := range ids {
		entries[i] = c.get(id)
	}
	return entries, nil
}

// Lease implements [Cache].
func (c *MemoryCache) Lease(ctx context.Context, id string, lease, over []byte, ttl time.Duration) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.get(id); found != nil && (len(over) == 0 || !bytes.Equal(found, over)) {
		return found, nil
	}
	c.clock++
	token := binary.BigEndian.AppendUint64(bytes.Clone(lease), c.clock)
	c.set(id, token, ttl)
	return token, nil
}

// Fill replaces exactly lease.
func (c *MemoryCache) Fill(ctx context.Context, id string, lease, entry []byte, ttl time.Duration) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.get(id); found == nil || !bytes.Equal(found, lease) {
		return false, nil
	}
	c.set(id, bytes.Clone(entry), ttl)
	return true, nil
}

// Drop removes entries.
func (c *MemoryCache) Drop(ctx context.Context, ids []string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		delete(c.entries, id)
	}
	return nil
}

// get wants c.mu held.
func (c *MemoryCache) get(id string) []byte {
	e, ok := c.entries[id]
	if !ok || !time.Now().Before(e.expires) {
		return nil
	}
	return e.bytes
}

// set wants c.mu held. Expired entries go once there are twice as many as were
// left the last time, so the cost of a set stays constant on average.
func (c *MemoryCache) set(id string, b []byte, ttl time.Duration) {
	c.entries[id] = memoryEntry{b, time.Now().Add(ttl)}
	if len(c.entries) < c.sweepAt {
		return
	}
	now := time.Now()
	for id, e := range c.entries {
		if !now.Before(e.expires) {
			delete(c.entries, id)
		}
	}
	c.sweepAt = max(minSweep, 2*len(c.entries))
}
