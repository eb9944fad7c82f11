package main

import (
	"context"
	"fmt"
	"math"

	"github.com/alicebob/miniredis/v2"
	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/bloomtest"
	"github.com/redis/go-redis/v9"
)

// fills at which rates are measured, as parts of the capacity.
var fills = []float64{0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1, 1.25, 1.5, 2, 2.5, 3}

const (
	wrongEnough = 1000 // wrong answers after which a rate is known to some 3 %
	wrongLeast  = 8    // expected ones below which it is not looked for
	moduleLooks = 400_000
	nameScaling = "RedisBloom, scaling"
)

// measureAccuracy counts how often absent items are said to be there. Bitmap has the
// same bits as Memory, so that is what is asked; RedisBloom is asked at the server with
// the module, or its double in bloomtest, which hashes as it does.
func measureAccuracy(ctx context.Context, b *bench, s *section) error {
	s.Setting["capacity"] = fmt.Sprint(b.sc.capacity)
	s.Setting["absent items asked for"] = fmt.Sprintf("until %d are wrong, at most %d", wrongEnough, b.sc.looks)
	for _, x := range []struct {
		name   string
		layout bloom.Layout
	}{{"Classic", bloom.Classic}, {"Blocked", bloom.Blocked}} {
		for _, p := range b.sc.rates {
			f, err := bloom.New(bloom.NewMemory(), bloom.Config{Capacity: uint64(b.sc.capacity), FPRate: p, Layout: x.layout})
			if err != nil {
				return err
			}
			params, err := bloom.NewParams(uint64(b.sc.capacity), p, x.layout)
			if err != nil {
				return err
			}
			if err := b.rates(ctx, s, x.name, f, p, fills, params.FPRateAt, b.sc.looks); err != nil {
				return err
			}
		}
	}
	return b.moduleRates(ctx, s)
}

func (b *bench) moduleRates(ctx context.Context, s *section) error {
	rdb, where := (*redis.Client)(nil), ""
	if b.module != nil {
		rdb, where = b.module.rdb, "the module"
	} else {
		m := miniredis.NewMiniRedis()
		if err := m.Start(); err != nil {
			return err
		}
		defer m.Close()
		bloomtest.RedisBloom(m)
		rdb, where = redis.NewClient(&redis.Options{Addr: m.Addr(), ContextTimeoutEnabled: true}), "bloomtest"
		defer rdb.Close()
	}
	s.Setting["RedisBloom answered by"] = where
	for _, x := range []struct {
		name  string
		opts  *bloom.RedisBloomOptions
		fills []float64
	}{
		{nameModule, nil, []float64{0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1}}, // then it is full, and says so
		{nameScaling, &bloom.RedisBloomOptions{Scaling: 2}, fills},
	} {
		for _, p := range b.sc.rates {
			if p < 1e-4 {
				continue // too many look-ups for a server
			}
			f, err := bloom.New(bloom.NewRedisBloom(rdb, fmt.Sprintf("%srates:%g:%s", b.prefix, p, x.name), x.opts),
				bloom.Config{Capacity: uint64(b.sc.capacity), FPRate: p})
			if err != nil {
				return err
			}
			// The module's sizing is the textbook's, of one hash more than k where that is odd.
			predict := func(items uint64) float64 {
				q, err := bloom.NewParams(uint64(b.sc.capacity), p, bloom.Classic)
				if err != nil || x.opts != nil {
					return p
				}
				return q.FPRateAt(items)
			}
			err = b.rates(ctx, s, x.name, f, p, x.fills, predict, min(b.sc.looks, moduleLooks))
			if dropped := f.Drop(ctx); err == nil {
				err = dropped
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// rates fills f step by step and measures after each.
func (b *bench) rates(ctx context.Context, s *section, name string, f *bloom.Filter, p float64, fills []float64,
	predict func(items uint64) float64, most int) error {
	if err := f.CreateEmpty(ctx); err != nil {
		return err
	}
	have := 0
	for _, fill := range fills {
		want := int(fill * float64(b.sc.capacity))
		for have < want {
			batch := make([]string, min(10_000, want-have))
			for i := range batch {
				batch[i] = itemName(have + i)
			}
			if _, err := f.AddMulti(ctx, batch); err != nil {
				return err
			}
			have += len(batch)
		}
		predicted := predict(uint64(have))
		if predicted*float64(most) < wrongLeast {
			continue
		}
		wrong, looks, err := countWrong(ctx, f, most)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("p = %g, filled to %g", p, fill)
		s.record(name, what, fill, "measured rate", "", float64(wrong)/float64(looks))
		s.record(name, what, fill, "predicted rate", "", predicted)
		s.record(name, what, fill, "look-ups", "", float64(looks))
	}
	return nil
}

// countWrong asks for absent items until enough of the answers are wrong.
func countWrong(ctx context.Context, f *bloom.Filter, most int) (wrong, looks int, err error) {
	batch := make([]string, 5000)
	for looks < most && wrong < wrongEnough {
		for i := range batch {
			batch[i] = absentName(looks + i)
		}
		exists, err := f.ExistsMulti(ctx, batch)
		if err != nil {
			return 0, 0, err
		}
		for _, e := range exists {
			if e {
				wrong++
			}
		}
		looks += len(batch)
	}
	return wrong, looks, nil
}

// sigmas is by how many standard deviations of counting a rate is above what was predicted.
func sigmas(measured, predicted, looks float64) float64 {
	return (measured - predicted) / math.Sqrt(predicted*(1-predicted)/looks)
}
