package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
)

// nameGuard is a guard that finds its value in the cache.
const nameGuard = "Guard.Get, Blocked, hit"

// measureThroughput counts look-ups of many callers, over ordinary clients and over
// AutoPipeliners.
func measureThroughput(ctx context.Context, b *bench, s *section) error {
	d := b.main()
	drop, err := b.stored(ctx, d)
	defer drop()
	if err != nil {
		return err
	}
	coalescing, closeAll, err := b.coalescing()
	defer closeAll()
	if err != nil {
		return err
	}
	type way struct {
		*subject
		circumstance string
		callers      int
	}
	ways := map[time.Duration][]way{}
	for _, via := range []struct {
		name string
		rig  rig
	}{{"plain", b.plain()}, {"AutoPipeliner", coalescing}} {
		all, err := b.subjects(via.rig, d)
		if err != nil {
			return err
		}
		guard, closeGuard, err := b.hitGuard(ctx, via.rig.rdb, d)
		if err != nil {
			return err
		}
		defer closeGuard()
		all = append(append(b.floors(via.rig, d), all...), guard)
		for _, x := range all {
			for _, callers := range b.sc.callers {
				turn := longTurn
				if callers == 1 {
					turn = shortTurn
				}
				ways[turn] = append(ways[turn], way{x, fmt.Sprintf("%s, %d", via.name, callers), callers})
			}
		}
	}
	s.Setting["items"] = fmt.Sprint(d.items)
	s.Setting["window"] = b.sc.window.String()
	items := probes(1<<14, d.items)
	measure := func(w way, window time.Duration, sum *cost) error {
		err := count(ctx, w.callers, window, sum, func(ctx context.Context, i int) error {
			_, err := w.exists(ctx, items[i&(1<<14-1)])
			return err
		})
		if err != nil {
			return fmt.Errorf("%s, %s: %w", w.name, w.circumstance, err)
		}
		return nil
	}
	record := func(w way, sum cost) {
		s.record(w.name, w.circumstance, float64(w.callers), "look-ups", "1/s", float64(sum.items)/sum.took.Seconds())
	}
	for _, turn := range []time.Duration{shortTurn, longTurn} {
		if err := inShortTurns(ctx, b.sc.rounds, b.sc.window, turn, ways[turn], measure, record); err != nil {
			return err
		}
	}
	return nil
}

// count adds to sum the calls that so many callers complete in the window.
func count(ctx context.Context, callers int, window time.Duration, sum *cost, call func(ctx context.Context, i int) error) error {
	var wg sync.WaitGroup
	done, failed := make([]int, callers), make([]error, callers)
	began := time.Now()
	end := began.Add(window)
	for c := range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := c; time.Now().Before(end); i += callers {
				if failed[c] = call(ctx, i); failed[c] != nil {
					return
				}
				done[c]++
			}
		}()
	}
	wg.Wait()
	sum.took += time.Since(began)
	for _, n := range done {
		sum.items += n
	}
	return errors.Join(failed...)
}

// hitGuard is a guard, as a subject, whose every look-up is of one of a hundred cached rows.
func (b *bench) hitGuard(ctx context.Context, rdb redis.Cmdable, d dataset) (*subject, func(), error) {
	f, err := bloom.New(bloom.NewBitmap(rdb, d.key("blocked")), bloom.Config{})
	if err != nil {
		return nil, nil, err
	}
	load := func(_ context.Context, id string) (product, error) { return product{ID: id, Name: "Towel"}, nil }
	g, err := bloom.NewGuard(f, bloom.NewRedisCache(rdb, b.prefix+"hit:"), load, nil)
	if err != nil {
		return nil, nil, err
	}
	const rows = 128
	for i := range rows {
		if _, err := g.Get(ctx, itemName(i)); err != nil {
			return nil, nil, err
		}
	}
	var ids [rows]string
	for i := range ids {
		ids[i] = itemName(i)
	}
	x := &subject{name: nameGuard, server: b.local, exists: func(ctx context.Context, item string) (bool, error) {
		_, err := g.Get(ctx, ids[hashOf(item)%rows])
		return true, err
	}}
	return x, func() { _ = g.Close(context.WithoutCancel(ctx)) }, nil
}

// hashOf spreads items over few: its last digits do.
func hashOf(item string) (n int) {
	for _, c := range []byte(item) {
		n = n*31 + int(c)&0xff
		n &= 1<<20 - 1
	}
	return n
}

// product is the row that guards and caches hold.
type product struct{ ID, Name string }
