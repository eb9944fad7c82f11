package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/dtm-labs/rockscache"
	"github.com/go-redis/cache/v9"
	"github.com/redis/go-redis/v9"
	zerobloom "github.com/zeromicro/go-zero/core/bloom"
	zerocache "github.com/zeromicro/go-zero/core/stores/cache"
	"github.com/zeromicro/go-zero/core/syncx"
)

const (
	nameGuardClassic = "Guard, Classic"
	nameGuardBlocked = "Guard, Blocked"
	nameGuardModule  = "Guard, RedisBloom"
	nameZeroCache    = "go-zero core/stores/cache"
	nameZeroBoth     = "go-zero bloom, then cache"
	nameCacheV9      = "go-redis/cache/v9"
	nameRocks        = "rockscache"
)

type guardBackend struct {
	name    string
	backend bloom.Backend
	layout  bloom.Layout
	rdb     redis.Cmdable
}

func (b *bench) guardBackends(r rig, d dataset) []guardBackend {
	all := []guardBackend{
		{nameGuardClassic, bloom.NewBitmap(r.rdb, d.key("classic")), bloom.Classic, r.rdb},
		{nameGuardBlocked, bloom.NewBitmap(r.rdb, d.key("blocked")), bloom.Blocked, r.rdb},
	}
	if r.module != nil {
		all = append(all, guardBackend{nameGuardModule, bloom.NewRedisBloom(r.module, d.key("module"), nil), bloom.Classic, r.module})
	}
	return all
}

// guards are all that are compared, each with cache keys and a database of its own.
func (b *bench) guards(r rig, d dataset, keys string) (all []*guarded, closeAll func(), err error) {
	var closes []func()
	closeAll = func() {
		for _, c := range closes {
			c()
		}
	}
	for _, x := range b.guardBackends(r, d) {
		f, err := bloom.New(x.backend, bloom.Config{})
		if err != nil {
			return nil, closeAll, err
		}
		loads := new(atomic.Int64)
		load := func(_ context.Context, id string) (product, error) {
			p, err := database(id, loads)
			if errors.Is(err, errNoRow) {
				err = bloom.ErrNotFound
			}
			return p, err
		}
		g, err := bloom.NewGuard(f, bloom.NewRedisCache(x.rdb, b.prefix+keys+x.name), load, nil)
		if err != nil {
			return nil, closeAll, err
		}
		closes = append(closes, func() { _ = g.Close(context.Background()) })
		all = append(all, &guarded{name: x.name, loads: loads, get: func(ctx context.Context, id string) (bool, error) {
			_, err := g.Get(ctx, id)
			return found(err, bloom.ErrNotFound)
		}})
	}
	rdb, ok := r.rdb.(*redis.Client)
	if !ok {
		return nil, closeAll, errors.New("the peers want a plain client")
	}
	zero := b.zeroCache(r, b.prefix+keys+"zero:")
	return append(all,
		zero,
		b.zeroBoth(r, d, b.prefix+keys+"both:"),
		cacheV9(rdb, b.prefix+keys+"v9:"),
		rocks(rdb, b.prefix+keys+"rocks:"),
	), closeAll, nil
}

// found turns a "not found" of whatever kind into false.
func found(err, notFound error) (bool, error) {
	if errors.Is(err, notFound) {
		return false, nil
	}
	return err == nil, err
}

// zeroCache caches nulls for a minute and has no filter.
func (b *bench) zeroCache(r rig, prefix string) *guarded {
	loads := new(atomic.Int64)
	c := zerocache.NewNode(r.zero, syncx.NewSingleFlight(), zeroStat, errNoRow)
	return &guarded{name: nameZeroCache, loads: loads, get: func(ctx context.Context, id string) (bool, error) {
		var p product
		err := c.TakeCtx(ctx, &p, prefix+id, func(v any) (err error) {
			*v.(*product), err = database(id, loads)
			return err
		})
		return found(err, errNoRow)
	}}
}

// zeroBoth is what a service has that asks go-zero's filter first.
func (b *bench) zeroBoth(r rig, d dataset, prefix string) *guarded {
	p, _ := bloom.NewParams(d.capacity, d.rate, bloom.Classic) // was good when it was stored
	filter := zerobloom.New(r.zero, d.key("zero"), uint(p.Bits))
	behind := b.zeroCache(r, prefix)
	return &guarded{name: nameZeroBoth, loads: behind.loads, get: func(ctx context.Context, id string) (bool, error) {
		if exists, err := filter.ExistsCtx(ctx, []byte(id)); err != nil || !exists {
			return false, err
		}
		return behind.get(ctx, id)
	}}
}

// zeroStat counts for all, since each runs a goroutine that never ends.
var zeroStat = zerocache.NewStat("benchmarks")

// cacheV9 does not cache nulls: an error of Do is no value.
func cacheV9(rdb *redis.Client, prefix string) *guarded {
	loads := new(atomic.Int64)
	c := cache.New(&cache.Options{Redis: rdb})
	return &guarded{name: nameCacheV9, loads: loads, get: func(ctx context.Context, id string) (bool, error) {
		var p product
		err := c.Once(&cache.Item{Ctx: ctx, Key: prefix + id, Value: &p, TTL: time.Hour, Do: func(*cache.Item) (any, error) {
			p, err := database(id, loads)
			return p, err
		}})
		return found(err, errNoRow)
	}}
}

// rocks caches the empty string for a minute. It runs a script for every look-up.
func rocks(rdb *redis.Client, prefix string) *guarded {
	loads := new(atomic.Int64)
	c := rockscache.NewClient(rdb, rockscache.NewDefaultOptions())
	return &guarded{name: nameRocks, loads: loads, get: func(ctx context.Context, id string) (bool, error) {
		text, err := c.Fetch2(ctx, prefix+id, time.Hour, func() (string, error) {
			p, err := database(id, loads)
			if err != nil {
				return "", nil
			}
			text, err := json.Marshal(p)
			return string(text), err
		})
		if err != nil || text == "" {
			return false, err
		}
		var p product
		return true, json.Unmarshal([]byte(text), &p)
	}}
}
