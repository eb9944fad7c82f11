package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
)

// The Guard's defaults, so that the three ways differ in nothing else.
const (
	valueTTL = time.Hour
	nullTTL  = time.Minute
)

// way is one way to put Redis in front of a database.
type way struct {
	name   string
	prefix string // of every key that its cache makes
	open   func(prefix string, db *database) (opened, error)
}

// opened answers requests until finish, which waits for what still runs. The
// statistics are the Guard's; the other ways have none.
type opened struct {
	get    bloom.Loader[item]
	finish func(ctx context.Context) (bloom.GuardStats, error)
}

func threeWays(st *store, f *bloom.Filter) []way {
	return []way{
		{name: "no protection", prefix: st.prefix + "plain:", open: openCacheAside(st, 0)},
		{name: "null caching", prefix: st.prefix + "nulls:", open: openCacheAside(st, nullTTL)},
		{name: "Guard", prefix: st.prefix + "guard:", open: openGuard(st, f)},
	}
}

// openGuard is all that a service needs once its filter is built.
func openGuard(st *store, f *bloom.Filter) func(string, *database) (opened, error) {
	return func(prefix string, db *database) (opened, error) {
		guard, err := bloom.NewGuard(f, bloom.NewRedisCache(st.rdb, prefix), db.load, nil)
		if err != nil {
			return opened{}, err
		}
		return opened{get: guard.Get, finish: func(ctx context.Context) (bloom.GuardStats, error) {
			err := guard.Close(ctx)
			return guard.Stats(), err
		}}, nil
	}
}

func openCacheAside(st *store, nullTTL time.Duration) func(string, *database) (opened, error) {
	return func(prefix string, db *database) (opened, error) {
		c := &cacheAside{rdb: st.rdb, prefix: prefix, load: db.load, nullTTL: nullTTL}
		return opened{get: c.get, finish: func(context.Context) (bloom.GuardStats, error) {
			return bloom.GuardStats{}, nil
		}}, nil
	}
}

// cacheAside is what most services do by hand: look in Redis, else ask the
// database and keep the answer. It keeps "not there" too where nullTTL is set.
type cacheAside struct {
	rdb     redis.Cmdable
	prefix  string
	load    bloom.Loader[item]
	nullTTL time.Duration
}

func (c *cacheAside) get(ctx context.Context, id string) (item, error) {
	cached, err := c.rdb.Get(ctx, c.prefix+id).Bytes()
	if errors.Is(err, redis.Nil) {
		return c.fill(ctx, id)
	}
	if err != nil {
		return item{}, err
	}
	if len(cached) == 0 {
		return item{}, bloom.ErrNotFound
	}
	var v item
	err = json.Unmarshal(cached, &v)
	return v, err
}

func (c *cacheAside) fill(ctx context.Context, id string) (item, error) {
	v, err := c.load(ctx, id)
	if errors.Is(err, bloom.ErrNotFound) && c.nullTTL > 0 {
		if err := c.rdb.Set(ctx, c.prefix+id, "", c.nullTTL).Err(); err != nil {
			return item{}, err
		}
	}
	if err != nil {
		return item{}, err
	}
	encoded, err := json.Marshal(v)
	if err != nil {
		return item{}, err
	}
	return v, c.rdb.Set(ctx, c.prefix+id, encoded, valueTTL).Err()
}
