package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// grown is how many items are in the filters of measureGrowth at most. What a read
// costs depends on the size and k, not on how many bits are set, except for scripts
// that stop at the first 0.
const grown = 1_000_000

// measureGrowth measures look-ups in filters of growing size, and of falling rate.
func measureGrowth(ctx context.Context, b *bench, s *section) error {
	s.Setting["batch"] = "1000"
	s.Setting["items stored"] = fmt.Sprintf("capacity, at most %d", grown)
	for _, n := range b.sc.sizes {
		if err := b.measureSize(ctx, s, fmt.Sprintf("n = %d", n), float64(n), n, 0.01); err != nil {
			return err
		}
	}
	for _, p := range b.sc.rates {
		if err := b.measureSize(ctx, s, fmt.Sprintf("p = %g", p), p, uint64(b.sc.items), p); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) measureSize(ctx context.Context, s *section, what string, x float64, capacity uint64, rate float64) error {
	d := dataset{prefix: b.prefix + "grow:", capacity: capacity, rate: rate, items: int(min(capacity, grown))}
	drop, err := b.stored(ctx, d)
	defer drop()
	if err != nil {
		return err
	}
	all, err := b.subjects(b.plain(), d)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(x *subject) bool {
		return x.many == nil || x.name == nameBare || x.name == nameSet
	})
	for _, sub := range all {
		_, size, err := sub.server.memory(ctx, sub.key)
		if err != nil {
			return err
		}
		s.record(sub.name, what, x, "size", "bytes", size/float64(capacity))
	}
	all = append(all, b.floors(b.plain(), d)[1])
	items := probes(1<<15, d.items)
	for _, size := range []int{1, 1000} {
		if err := inShortTurns(ctx, b.sc.rounds, b.sc.window/3, turnOf(size), all, func(sub *subject, window time.Duration, sum *cost) error {
			return sub.cost(ctx, size, window, sum, items)
		}, func(sub *subject, sum cost) {
			if size == 1 {
				s.record(sub.name, what, x, "one look-up", "µs", sum.perItem(sum.took))
			} else {
				s.record(sub.name, what, x, "server CPU, batch of 1000", "µs", sum.perItem(sum.server))
			}
		}); err != nil {
			return err
		}
	}
	return nil
}
