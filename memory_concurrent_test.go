package bloom

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// memAdder adds its own items one after another. Others may rely on the first
// done of them.
type memAdder struct {
	name string
	done atomic.Int64
}

func (a *memAdder) item(i int64) string { return fmt.Sprint(a.name, ":", i) }

func (a *memAdder) add(ctx context.Context, m *Memory) error {
	i := a.done.Load()
	_, err := m.Add(ctx, a.item(i))
	if err == nil {
		a.done.Store(i + 1)
	}
	return err
}

// memParallel runs functions at once until the first has returned or one has
// failed; running tells them.
func memParallel(t *testing.T, first func(running func() bool) error, others ...func(running func() bool) error) {
	t.Helper()
	var stop atomic.Bool
	running := func() bool { return !stop.Load() }
	failures := make([]error, len(others)+1)
	var wg sync.WaitGroup
	for i, other := range others {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if failures[i] = other(running); failures[i] != nil {
				stop.Store(true)
			}
		}()
	}
	failures[len(others)] = first(running)
	stop.Store(true)
	wg.Wait()
	require.NoError(t, errors.Join(failures...))
}

// Without a Reset there is no moment at which an item whose Add has returned is
// denied: not by the filter, and not by a copy that was written afterwards.
func TestMemoryConcurrent(t *testing.T) {
	t.Parallel()
	const copies, most = 15, 3000 // most: items of an adder
	for _, layout := range sizingLayouts {
		t.Run(layout.String(), func(t *testing.T) {
			ctx := t.Context()
			m := memMake(t, Config{Capacity: 2 * most, FPRate: 0.001, Layout: layout})
			adders := []*memAdder{{name: "a"}, {name: "b"}}
			fill := func(i int) func(func() bool) error {
				return func(running func() bool) error {
					for running() && adders[i].done.Load() < most {
						if err := adders[i].add(ctx, m); err != nil {
							return err
						}
					}
					return nil
				}
			}
			read := func(running func() bool) error {
				for running() {
					a := adders[rand.IntN(len(adders))]
					n := a.done.Load()
					if n == 0 {
						continue
					}
					item := a.item(rand.Int64N(n))
					if found, err := m.Exists(ctx, item); err != nil || !found {
						return fmt.Errorf("%s: %v, %v", item, found, err)
					}
				}
				return nil
			}
			write := func(running func() bool) error {
				for running() && (adders[0].done.Load() == 0 || adders[1].done.Load() == 0) {
					runtime.Gosched() // or it is over before the others have begun
				}
				for n := 0; n < copies && running(); n++ {
					before := []int64{adders[0].done.Load(), adders[1].done.Load()}
					var out bytes.Buffer
					if _, err := m.WriteTo(&out); err != nil {
						return err
					}
					c := NewMemory()
					if _, err := c.ReadFrom(&out); err != nil {
						return err
					}
					for i, a := range adders {
						for j := range before[i] {
							if found, err := c.Exists(ctx, a.item(j)); err != nil || !found {
								return fmt.Errorf("copy %d, %s: %v, %v", n, a.item(j), found, err)
							}
						}
					}
				}
				return nil
			}
			describe := func(running func() bool) error {
				for running() {
					if info, err := m.Info(ctx); err != nil || info.Items > 2.1*most {
						return fmt.Errorf("%+v, %w", info, err)
					}
				}
				return nil
			}
			memParallel(t, write, fill(0), fill(1), read, read, describe)
			for _, a := range adders {
				require.NotZero(t, a.done.Load())
				for i := range a.done.Load() {
					require.True(t, m.live.Load().exists(a.item(i)), a.item(i))
				}
			}
		})
	}
}

// Resets and everything else at once: nobody meets an error, and what an Add put
// in after the last Reset is there.
func TestMemoryConcurrentReset(t *testing.T) {
	const resets, afterwards = 25, 200
	for _, layout := range sizingLayouts {
		t.Run(layout.String(), func(t *testing.T) {
			ctx := t.Context()
			m := memMake(t, Config{Capacity: 5000, FPRate: 0.01, Layout: layout})
			adders := []*memAdder{{name: "a"}, {name: "b"}}
			lasting := make([]int64, len(adders)) // first item whose Add began after the last Reset
			fill := func(i int) func(func() bool) error {
				return func(running func() bool) error {
					a := adders[i]
					for running() {
						if err := a.add(ctx, m); err != nil {
							return err
						}
					}
					lasting[i] = a.done.Load()
					for range afterwards {
						if err := a.add(ctx, m); err != nil {
							return err
						}
					}
					return nil
				}
			}
			read := func(running func() bool) error {
				for running() {
					if _, err := m.ExistsMulti(ctx, []string{"x", "y"}); err != nil {
						return err
					}
					if _, err := m.Info(ctx); err != nil {
						return err
					}
				}
				return nil
			}
			write := func(running func() bool) error {
				for running() {
					var out bytes.Buffer
					if _, err := m.WriteTo(&out); err != nil {
						return err
					}
					if _, err := NewMemory().ReadFrom(&out); err != nil { // one whole generation
						return err
					}
				}
				return nil
			}
			reset := func(running func() bool) error {
				for range resets {
					if err := m.Reset(ctx); err != nil {
						return err
					}
					for at := adders[0].done.Load(); at == adders[0].done.Load() && running(); {
						runtime.Gosched() // or all resets are over before the others have begun
					}
				}
				return nil
			}
			memParallel(t, reset, fill(0), fill(1), read, write)
			for i, a := range adders {
				for j := lasting[i]; j < a.done.Load(); j++ {
					require.True(t, m.live.Load().exists(a.item(j)), a.item(j))
				}
			}
			info, err := m.Info(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 1+resets, info.Generation)
		})
	}
}

// An Add that returns after a Reset has returned put its item into the filter
// that the Reset made, also where it had begun with the one before.
func TestMemoryResetDuringAdd(t *testing.T) {
	item := strings.Repeat("x", 8<<20) // takes long enough to hash for a Reset to come between
	const wanted = 5
	overlaps, lost := 0, 0
	for range 40 * wanted {
		if overlaps == wanted {
			break
		}
		m := memMake(t, Config{Capacity: 100})
		began, reset := make(chan struct{}), make(chan bool)
		var returned atomic.Bool
		go func() {
			began <- struct{}{} // the filter is about to be looked up
			time.Sleep(50 * time.Microsecond)
			_ = m.Reset(context.Background())
			reset <- !returned.Load()
		}()
		_, err := m.Add(&memHookContext{t.Context(), func() { <-began }}, item)
		returned.Store(true)
		require.NoError(t, err)
		if <-reset {
			overlaps++
			if !m.live.Load().exists(item) {
				lost++
			}
		}
	}
	require.Equal(t, wanted, overlaps, "no Reset came between: make item longer")
	// One may be: from Add's last look to the line after it, a Reset is later.
	require.LessOrEqual(t, lost, wanted/2)
}

// Creators and droppers at once: every answer is of a whole filter or none, and
// the filter that stays is one.
func TestMemoryConcurrentCreate(t *testing.T) {
	ctx := t.Context()
	m := NewMemory()
	cfg := Config{Capacity: 100, FPRate: 0.01, Layout: Blocked}
	use := func(running func() bool) error {
		for running() {
			if err := m.CreateEmpty(ctx, cfg); err != nil {
				return err
			}
			for _, op := range []func() error{
				func() error { _, err := m.Add(ctx, "a"); return err },
				func() error { _, err := m.WriteTo(io.Discard); return err },
				func() error { return m.Reset(ctx) },
			} {
				if err := op(); err != nil && !isNotReady(err) {
					return err
				}
			}
		}
		return nil
	}
	memParallel(t, func(func() bool) error {
		for range 300 {
			if err := m.Drop(ctx); err != nil {
				return err
			}
		}
		return nil
	}, use, use)

}

// Any number of creators at once make one filter: had a second one made another,
// the items of Adds that have returned would be gone.
func TestMemoryCreateOnce(t *testing.T) {
	ctx := t.Context()
	for round := range 20 {
		m, start := NewMemory(), make(chan struct{})
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				<-start
				if err := m.CreateEmpty(ctx, Config{Capacity: 50_000, FPRate: 0.01}); err != nil {
					t.Error(err)
				}
				if _, err := m.Add(ctx, fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			}()
		}
		close(start)
		wg.Wait()
		for i := range 16 {
			require.True(t, m.live.Load().exists(fmt.Sprint(i)), "round %d, item %d", round, i)
		}
	}
}
