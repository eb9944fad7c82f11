package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/examples/shop/internal/shop"
	"github.com/redis/go-redis/v9"
)

// way is how the shop answers for a product. All have the same database, pool and
// Redis.
type way struct {
	name   string
	about  string
	filter bool // asks it
	nulls  bool // caches them
	reader func(s *shop.Shop, prefix string) shop.Reader
}

const (
	valueTTL = time.Hour   // the Guard's default
	nullTTL  = time.Minute // likewise
)

var ways = []way{
	{
		name: "no protection", about: "products are cached in Redis; an absent one is looked up in the database",
		reader: func(s *shop.Shop, prefix string) shop.Reader { return &cacheAside{shop: s, prefix: prefix} },
	},
	{
		name: "null caching", about: `likewise, and "no such product" is cached for a minute`, nulls: true,
		reader: func(s *shop.Shop, prefix string) shop.Reader {
			return &cacheAside{shop: s, prefix: prefix, nulls: true}
		},
	},
	{
		name: "filter only", about: "a Bloom filter in front of the database, and no cache", filter: true,
		reader: func(s *shop.Shop, _ string) shop.Reader { return filterOnly{s} },
	},
	{
		name: "Guard", about: "bloom's Guard: filter, cache and nulls, in one round trip", filter: true, nulls: true,
		reader: func(s *shop.Shop, _ string) shop.Reader { return s.Guard },
	},
}

// cacheAside is what most services do. It knows nothing of writes, and none happen
// while it is measured.
type cacheAside struct {
	shop   *shop.Shop
	prefix string
	nulls  bool
}

// null is no JSON of a product.
const null = "-"

func (c *cacheAside) Get(ctx context.Context, id string) (shop.Product, error) {
	var p shop.Product
	if err := shop.ValidateID(id); err != nil {
		return p, err
	}
	key := c.prefix + id
	cached, err := c.shop.Redis.Get(ctx, key).Bytes()
	switch {
	case err == nil && string(cached) == null:
		return p, bloom.ErrNotFound
	case err == nil:
		return p, json.Unmarshal(cached, &p)
	case !errors.Is(err, redis.Nil):
		return p, err
	}
	p, err = c.shop.DB.Lookup(ctx, id)
	switch {
	case errors.Is(err, bloom.ErrNotFound) && c.nulls:
		if err := c.shop.Redis.Set(ctx, key, null, nullTTL).Err(); err != nil {
			return p, err
		}
	case err == nil:
		b, err := json.Marshal(p)
		if err != nil {
			return p, err
		}
		return p, c.shop.Redis.Set(ctx, key, b, valueTTL).Err()
	}
	return p, err
}

type filterOnly struct{ shop *shop.Shop }

func (f filterOnly) Get(ctx context.Context, id string) (shop.Product, error) {
	if err := shop.ValidateID(id); err != nil {
		return shop.Product{}, err
	}
	if maybe, err := f.shop.Filter.Exists(ctx, id); err == nil && !maybe {
		return shop.Product{}, bloom.ErrNotFound
	}
	return f.shop.DB.Lookup(ctx, id)
}
