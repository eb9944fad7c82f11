package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// measureLatency times single look-ups of one caller.
func measureLatency(ctx context.Context, b *bench, s *section) error {
	d := b.main()
	drop, err := b.stored(ctx, d)
	defer drop()
	if err != nil {
		return err
	}
	all, err := b.subjects(b.plain(), d)
	if err != nil {
		return err
	}
	all = append(b.floors(b.plain(), d), all...)
	s.Setting["items"] = fmt.Sprint(d.items)
	s.Setting["calls a round"] = fmt.Sprint(b.sc.ops)
	items := probes(b.sc.ops, d.items)
	return timeInTurn(ctx, b.sc.rounds, b.sc.ops, all, func(x *subject) string { return x.name },
		func(x *subject, i int) error {
			_, err := x.exists(ctx, items[i])
			return err
		},
		func(x *subject, took []time.Duration) {
			s.record(x.name, "", 0, "p50", "µs", micros(quantile(took, 0.50)))
			s.record(x.name, "", 0, "p99", "µs", micros(quantile(took, 0.99)))
		})
}

// timeInTurn times ops calls of each subject in each round, one at a time in turn: a
// processor that sleeps until it is woken, which takes longer than what is timed, does
// so for all alike. The first round is done twice, the first time for nothing but to
// warm up.
func timeInTurn[S any](ctx context.Context, rounds, ops int, subjects []S, name func(S) string,
	call func(S, int) error, record func(S, []time.Duration)) error {
	for round := range 1 + rounds {
		settle()
		took := make([][]time.Duration, len(subjects))
		for op := range ops {
			if err := ctx.Err(); err != nil {
				return err
			}
			for i := range subjects {
				at := (i + op) % len(subjects)
				began := time.Now()
				if err := call(subjects[at], op); err != nil {
					return fmt.Errorf("%s: %w", name(subjects[at]), err)
				}
				took[at] = append(took[at], time.Since(began))
			}
		}
		if round > 0 {
			for i, x := range subjects {
				record(x, took[i])
			}
		}
	}
	return nil
}

func quantile(d []time.Duration, q float64) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[min(len(d)-1, int(q*float64(len(d))))]
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
