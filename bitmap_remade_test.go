package bloom_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A filter that is made anew under its readers, of the same size, of another
// size or layout.

// beforeEach is a hook that runs a function before every round trip.
type beforeEach func()

func (f beforeEach) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f beforeEach) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { f(); return next(ctx, cmd) }
}

func (f beforeEach) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { f(); return next(ctx, cmds) }
}

// models makes filters that all hold members, of two sizes of the layout and one
// of the other, to be copied over a live key.
func models(t *testing.T, rdb *redis.Client, layout bloom.Layout, members []string) []string {
	t.Helper()
	var keys []string
	for i, capacity := range []uint64{600, 600, 5000} {
		key := redistest.Key(t)
		if i == 1 {
			layout = bloom.Classic + bloom.Blocked - layout
		}
		filled(t, rdb, key, capacity, layout, members)
		keys = append(keys, key)
	}
	return keys
}

// Where every look finds another filter, a call gives up after three re-reads
// (case F4).
func TestGivesUp(t *testing.T) {
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		rdb, restless := redistest.Shared(t).Client(t), redistest.Shared(t).Client(t)
		members := numbered("member", 50)
		key, two := redistest.Key(t), []string{redistest.Key(t), redistest.Key(t)}
		for i, model := range two {
			filled(t, rdb, model, uint64(100+i), layout, members) // another size, another seed
		}
		filled(t, rdb, key, 100, layout, members)
		f := attached(t, restless, key)
		requireMembers(t, f, members)

		trips := &redistest.Trips{}
		restless.AddHook(trips)
		swaps := 0
		restless.AddHook(beforeEach(func() {
			swaps++
			require.NoError(t, rdb.Copy(t.Context(), two[swaps%2], key, 0, true).Err())
		}))
		for what, op := range map[string]func() (bool, error){
			"Exists":      func() (bool, error) { return f.Exists(t.Context(), members[0]) },
			"ExistsMulti": func() (bool, error) { return allOf(f.ExistsMulti(t.Context(), members)) },
			"Add":         func() (bool, error) { return f.Add(t.Context(), "new") },
			"AddMulti":    func() (bool, error) { return allOf(f.AddMulti(t.Context(), []string{"new", "newer"})) },
			"Ready":       func() (bool, error) { return true, f.Ready(t.Context()) },
			"Reset":       func() (bool, error) { return true, f.Reset(t.Context()) },
			"Info":        func() (bool, error) { _, err := f.Info(t.Context()); return true, err },
		} {
			trips.Reset()
			maybe, err := op()
			require.True(t, maybe, what)
			require.Error(t, err, what)
			require.Greater(t, trips.N(), int64(3), what)
			limit := int64(2 * (1 + 3)) // a question and a header, four times
			if strings.HasPrefix(what, "Add") {
				limit += 1 + 4 // staging, and whether that was published meanwhile
			}
			require.LessOrEqual(t, trips.N(), limit, what)
		}
	})
}

func allOf(got []bool, err error) (bool, error) {
	for _, is := range got {
		if !is {
			return false, err
		}
	}
	return true, err
}

// A filter that is swapped once within a call costs two round trips more and
// nobody an error.
func TestFollows(t *testing.T) {
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		redistest.Each(t, func(t *testing.T, s redistest.Target) {
			rdb, observed := s.Client(t), s.Client(t)
			members := numbered("member", 50)
			key := redistest.Key(t)
			trips := &redistest.Trips{}
			f := attached(t, observed, key)
			for i, model := range models(t, rdb, layout, members) {
				require.NoError(t, rdb.Rename(t.Context(), model, key).Err())
				if i == 0 {
					requireMembers(t, f, members)
					observed.AddHook(trips)
					continue
				}
				trips.Reset()
				exists, err := f.Exists(t.Context(), members[0])
				require.NoError(t, err)
				require.True(t, exists)
				if s.Real { // elsewhere a refused BITFIELD_RO may be among them
					require.LessOrEqual(t, trips.N(), int64(3))
				}
				requireMembers(t, f, members)
				added, err := f.Add(t.Context(), fmt.Sprint("new ", i))
				require.NoError(t, err)
				require.True(t, added)
			}
		})
	})
}

// crowd is eight readers of known members, each with a handle of its own. A
// denial fails the test.
type crowd struct {
	wg       sync.WaitGroup
	done     atomic.Bool
	calls    [8]atomic.Int64
	notReady atomic.Int64
}

func readers(t *testing.T, s *redistest.Server, key string, members []string) *crowd {
	t.Helper()
	c := new(crowd)
	for i := range c.calls {
		f := attached(t, s.Client(t), key)
		requireMembers(t, f, members)
		c.wg.Add(1)
		go func() {
			defer c.wg.Done()
			for n := i; !c.done.Load() && !t.Failed(); n++ {
				var ok bool
				var err error
				if n%4 == 0 {
					ok, err = allOf(f.ExistsMulti(t.Context(), members))
				} else {
					ok, err = f.Exists(t.Context(), members[n%len(members)])
				}
				if errors.Is(err, bloom.ErrNotReady) {
					c.notReady.Add(1)
				} else if err != nil {
					t.Errorf("reader %d: %v", i, err)
				}
				if !ok {
					t.Errorf("reader %d: false negative beside error %v", i, err)
				}
				c.calls[i].Add(1)
			}
		}()
	}
	return c
}

// turn waits until every reader has ended a call, so that no call sees more than
// two of the changes between turns.
func (c *crowd) turn(t *testing.T) {
	var from [len(c.calls)]int64
	for i := range from {
		from[i] = c.calls[i].Load()
	}
	for i := range from {
		for c.calls[i].Load() == from[i] && !t.Failed() {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

func (c *crowd) stop() {
	c.done.Store(true)
	c.wg.Wait()
}

// A loaded filter is renamed over the live one, again and again, half of them of
// another size or layout: no reader sees an error, let alone a no (case F5).
func TestSwapsUnderReaders(t *testing.T) {
	t.Parallel()
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		s := redistest.Shared(t)
		rdb, key := s.Client(t), redistest.Key(t)
		members := numbered("member", 100)
		filled(t, rdb, key, 600, layout, members)
		kinds := models(t, rdb, layout, members)
		c := readers(t, s, key, members)
		defer c.stop()
		next := redistest.Key(t)
		for i := range 100 {
			if t.Failed() {
				return
			}
			kind := kinds[0]
			if i%2 == 1 {
				kind = kinds[i/2%2+1]
			}
			require.NoError(t, rdb.Copy(t.Context(), kind, next, 0, true).Err())
			require.NoError(t, rdb.Rename(t.Context(), next, key).Err())
			c.turn(t)
		}
		require.Zero(t, c.notReady.Load())
	})
}

// The same with a moment in which there is none: then ErrNotReady is right, and
// still no reader sees a no.
func TestRemadeUnderReaders(t *testing.T) {
	t.Parallel()
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		s := redistest.Shared(t)
		rdb, key := s.Client(t), redistest.Key(t)
		members := numbered("member", 100)
		f := filled(t, rdb, key, 600, layout, members)
		c := readers(t, s, key, members)
		defer c.stop()
		for i := range 30 {
			if t.Failed() {
				return
			}
			next := redistest.Key(t)
			filled(t, rdb, next, uint64(600+i%2*1000), layout, members)
			require.NoError(t, f.Drop(t.Context()))
			c.turn(t)
			require.NoError(t, rdb.Rename(t.Context(), next, key).Err())
			c.turn(t)
		}
		require.Positive(t, c.notReady.Load(), "they met the gap")
	})
}

// Reset under readers and adders: nobody sees an error (case F20).
func TestResetsUnderReaders(t *testing.T) {
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		redistest.Each(t, func(t *testing.T, s redistest.Target) {
			rdb, key := s.Client(t), redistest.Key(t)
			members := numbered("member", 20)
			f := filled(t, rdb, key, 100, layout, members)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for ctx.Err() == nil {
						var err error
						if i == 0 {
							_, err = f.AddMulti(t.Context(), members)
						} else {
							_, err = f.ExistsMulti(t.Context(), members)
						}
						if err != nil {
							t.Errorf("while it is reset: %v", err)
							return
						}
					}
				}()
			}
			resets := map[bool]int{true: 50, false: 10}[s.Real]
			for range resets {
				require.NoError(t, f.Reset(t.Context()))
			}
			cancel()
			wg.Wait()
			info, err := f.Info(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 1+resets, info.Generation)
		})
	})
}
