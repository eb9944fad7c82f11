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

// measureLocal compares filters in this process, all of them full to capacity.
func measureLocal(ctx context.Context, b *bench, s *section) error {
	n := b.sc.local
	s.Setting["items"] = fmt.Sprint(n)
	type local struct {
		name   string
		exists func(i int) // of the i-th look-up
	}
	look := make([]string, 1<<16)
	raw := make([][]byte, len(look))
	for i := range look {
		look[i] = itemName(int(uint64(i) * 2654435761 % uint64(n)))
		raw[i] = []byte(look[i])
	}
	var all []local
	for _, x := range []struct {
		name   string
		layout bloom.Layout
	}{{"Memory, Classic", bloom.Classic}, {"Memory, Blocked", bloom.Blocked}} {
		f, err := bloom.New(bloom.NewMemory(), bloom.Config{Capacity: uint64(n), Layout: x.layout})
		if err != nil {
			return err
		}
		if err := f.CreateEmpty(ctx); err != nil {
			return err
		}
		took, err := timeChunks(n, func(item string) error {
			_, err := f.Add(ctx, item)
			return err
		})
		if err != nil {
			return err
		}
		s.record(x.name, "", 0, "add", "ns", float64(took.Nanoseconds())/float64(n))
		all = append(all, local{x.name, func(i int) { _, _ = f.Exists(ctx, look[i]) }})
	}
	f := peer.NewWithEstimates(uint(n), 0.01)
	took, err := timeChunks(n, func(item string) error {
		f.AddString(item)
		return nil
	})
	if err != nil {
		return err
	}
	s.record(namePeer, "", 0, "add", "ns", float64(took.Nanoseconds())/float64(n))
	all = append(all, local{namePeer, func(i int) { f.Test(raw[i]) }})

	const calls = 1 << 19
	return inTurn(ctx, b.sc.rounds, all, func(x local) error {
		settle()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		for i := range calls {
			x.exists(i & (1<<16 - 1))
		}
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		s.record(x.name, "", 0, "look-up", "ns", float64(took.Nanoseconds())/calls)
		s.record(x.name, "", 0, "allocations", "", float64((after.Mallocs-before.Mallocs)/calls))
		return nil
	})
}

// timeChunks calls add with the first n items and returns what that took, without the
// making of the items.
func timeChunks(n int, add func(item string) error) (took time.Duration, err error) {
	err = inChunks(n, func(items []string) error {
		began := time.Now()
		for _, item := range items {
			if err := add(item); err != nil {
				return err
			}
		}
		took += time.Since(began)
		return nil
	})
	return took, err
}
