package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	peer "github.com/bits-and-blooms/bloom/v3"
	"github.com/bloomguard/bloom"
)

const namePeer = "bits-and-blooms/bloom/v3"

// A local is a filter in this process.
type local struct {
	name   string
	add    func(item string) error
	exists func(item string, raw []byte)
}

// measureLocal compares filters in this process: adds while they are filled to
// capacity, part by part in turn, and then look-ups.
func measureLocal(ctx context.Context, b *bench, s *section) error {
	n := b.sc.local
	s.Setting["items"] = fmt.Sprint(n)
	all, err := locals(ctx, n)
	if err != nil {
		return err
	}
	part := n / b.sc.rounds
	for round := range b.sc.rounds {
		for i := range all {
			x := all[(i+round)%len(all)]
			took, err := x.fill(ctx, round*part, (round+1)*part)
			if err != nil {
				return err
			}
			s.record(x.name, "", 0, "add", "ns", float64(took.Nanoseconds())/float64(part))
		}
	}
	look := make([]string, 1<<16)
	raw := make([][]byte, len(look))
	for i := range look {
		look[i] = itemName(int(uint64(i) * 2654435761 % uint64(part*b.sc.rounds)))
		raw[i] = []byte(look[i])
	}
	const calls = 1 << 21 // of which the first that meet an item wait for memory longest
	return inTurn(ctx, b.sc.rounds, all, func(x local) error {
		settle()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		for i := range calls {
			x.exists(look[i&(1<<16-1)], raw[i&(1<<16-1)])
		}
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		s.record(x.name, "", 0, "look-up", "ns", float64(took.Nanoseconds())/calls)
		s.record(x.name, "", 0, "allocations", "", float64((after.Mallocs-before.Mallocs)/calls))
		return nil
	})
}

// locals are empty filters for n items at 1 %.
func locals(ctx context.Context, n int) (all []local, err error) {
	for _, x := range []struct {
		name   string
		layout bloom.Layout
	}{{"Memory, Classic", bloom.Classic}, {"Memory, Blocked", bloom.Blocked}} {
		f, err := bloom.New(bloom.NewMemory(), bloom.Config{Capacity: uint64(n), Layout: x.layout})
		if err != nil {
			return nil, err
		}
		if err := f.CreateEmpty(ctx); err != nil {
			return nil, err
		}
		all = append(all, local{
			name:   x.name,
			add:    func(item string) error { _, err := f.Add(ctx, item); return err },
			exists: func(item string, _ []byte) { _, _ = f.Exists(ctx, item) },
		})
	}
	f := peer.NewWithEstimates(uint(n), 0.01)
	return append(all, local{
		name:   namePeer,
		add:    func(item string) error { f.AddString(item); return nil },
		exists: func(_ string, raw []byte) { f.Test(raw) }, // TestString would copy
	}), nil
}

// fill adds the items from…to and returns what that took, without the making of them.
func (x local) fill(ctx context.Context, from, to int) (took time.Duration, err error) {
	items := make([]string, 0, 10_000)
	for from < to && ctx.Err() == nil {
		items = items[:0]
		for ; from < to && len(items) < cap(items); from++ {
			items = append(items, itemName(from))
		}
		began := time.Now()
		for _, item := range items {
			if err := x.add(item); err != nil {
				return took, err
			}
		}
		took += time.Since(began)
	}
	return took, ctx.Err()
}
