package bloom

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// The first caller's cancel fails nobody else, and a waiter leaves on time (G3).
func TestGuardCallersLeave(t *testing.T) {
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a")
		l := newStepLoader(t)
		g := newTestGuard(t, s, l.load, nil)
		type key struct{}
		first, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		leader := goGet(first, g, "a")
		load := l.next()
		require.Equal(t, "value", load.ctx.Value(key{}), "the loader has the caller's values")
		deadline, ok := load.ctx.Deadline()
		require.True(t, ok)
		require.LessOrEqual(t, time.Until(deadline), defaultLoadTimeout)

		follower := goGet(t.Context(), g, "a")
		joined(t, g, 1)
		cancel()
		require.ErrorIs(t, receive(t, leader).err, context.Canceled)
		require.NoError(t, load.ctx.Err(), "the load goes on")

		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := g.Get(short, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, time.Since(start), time.Second)

		load.found("v")
		require.Equal(t, got[string]{"v", nil}, receive(t, follower))
		_, err = g.Get(t.Context(), "a")
		require.NoError(t, err)
		l.none()
		require.Equal(t, GuardStats{Gets: 4, Hits: 1, Loads: 1, SharedLoads: 2, Fills: 1}, g.Stats())
	})
}

// Nobody is left to have the result: it is cached all the same.
func TestGuardLoadOutlivesItsCallers(t *testing.T) {
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a")
		l := newStepLoader(t)
		g := newTestGuard(t, s, l.load, nil)
		ctx, cancel := context.WithCancel(t.Context())
		only := goGet(ctx, g, "a")
		load := l.next()
		cancel()
		require.ErrorIs(t, receive(t, only).err, context.Canceled)
		load.found("v")
		require.NoError(t, g.Close(t.Context()))
		s.requireTag(t, "a", tagValue, defaultTTL)
	})
}

// A panic is an error for all who wait, and the next call works (G4). So is a
// goroutine that the loader ends, as t.FailNow does.
func TestGuardLoaderPanics(t *testing.T) {
	for name, crash := range map[string]struct {
		f    func()
		text string
	}{
		"panic":     {func() { panic("boom") }, "panic: boom"},
		"nil map":   {func() { nilMap()["a"] = 1 }, "assignment to entry in nil map"},
		"panic nil": {func() { panic(nil) }, "panic called with nil"},
		"Goexit":    {runtime.Goexit, "loader ended its goroutine"},
	} {
		t.Run(name, func(t *testing.T) {
			eachGuardStore(t, func(t *testing.T, s guardStore) {
				s.known(t, "a")
				l := newStepLoader(t)
				g := newTestGuard(t, s, l.load, nil)
				var all []<-chan got[string]
				all = append(all, goGet(t.Context(), g, "a"))
				load := l.next()
				for range 5 {
					all = append(all, goGet(t.Context(), g, "a"))
				}
				joined(t, g, 5)
				load.answer <- func() (string, error) { crash.f(); return "", nil }
				for _, c := range all {
					answer := receive(t, c)
					require.ErrorContains(t, answer.err, crash.text)
					if name != "Goexit" {
						require.ErrorContains(t, answer.err, "guard_flight_test.go", "with the stack")
					}
				}
				require.Equal(t, GuardStats{Gets: 6, Loads: 1, LoadErrors: 1, SharedLoads: 5}, g.Stats())
				s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)

				next := goGet(t.Context(), g, "a")
				l.next().found("v")
				require.Equal(t, got[string]{"v", nil}, receive(t, next))
				s.requireTag(t, "a", tagValue, defaultTTL)
			})
		})
	}
}

// crashCodec is a Codec that does what it is told on the way.
type crashCodec struct{ marshal, unmarshal func() }

func (c crashCodec) Marshal(v string) ([]byte, error) {
	if c.marshal != nil {
		c.marshal()
	}
	return []byte(v), nil
}

func (c crashCodec) Unmarshal(b []byte) (string, error) {
	if c.unmarshal != nil {
		c.unmarshal()
	}
	return string(b), nil
}

// A Codec that crashes takes neither the process nor later calls with it.
func TestGuardCodecCrashes(t *testing.T) {
	for name, crash := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		t.Run("Marshal "+name, func(t *testing.T) {
			s := memoryStore(t)
			s.known(t, "a")
			var fixed atomic.Bool
			codec := crashCodec{marshal: func() {
				if !fixed.Load() {
					crash()
				}
			}}
			g := newTestGuard(t, s, rows(map[string]string{"a": "v"}), &GuardOptions[string]{Codec: codec})
			answer := receive(t, goGet(t.Context(), g, "a"))
			require.Error(t, answer.err)
			s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)
			fixed.Store(true)
			v, err := g.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, "v", v)
			s.requireTag(t, "a", tagValue, defaultTTL)
		})
	}

	// Bytes that Unmarshal panics on are bytes that do not decode.
	t.Run("Unmarshal panic", func(t *testing.T) {
		s := memoryStore(t)
		s.known(t, "a")
		s.raw.set("a", []byte("Vold"), time.Minute)
		var crashes atomic.Int32
		codec := crashCodec{unmarshal: func() {
			if crashes.Add(1) == 1 {
				panic("boom")
			}
		}}
		g := newTestGuard(t, s, rows(map[string]string{"a": "v"}), &GuardOptions[string]{Codec: codec})
		for range 2 {
			v, err := g.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, "v", v)
		}
		require.Equal(t, GuardStats{Gets: 2, Hits: 1, Loads: 1, Fills: 1}, g.Stats())
	})

	// A value that came between the read and the lease is decoded in the flight.
	for name, crash := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		t.Run("Unmarshal of the lease's answer "+name, func(t *testing.T) {
			s := memoryStore(t)
			s.known(t, "a")
			hook := &hookedCache{Cache: s.cache}
			hook.beforeLease = func() { s.raw.set("a", []byte("Vnew"), time.Minute) }
			s.cache = hook
			g := newTestGuard(t, s, rows(map[string]string{"a": "v"}), &GuardOptions[string]{Codec: crashCodec{unmarshal: crash}})
			answer := receive(t, goGet(t.Context(), g, "a"))
			if name == "Goexit" {
				require.ErrorContains(t, answer.err, "ended its goroutine")
			} else {
				require.Equal(t, got[string]{"v", nil}, answer, "replaced, as what does not decode is")
			}
		})
	}
}

// hookedCache is a Cache that calls a function on the way, each only once.
type hookedCache struct {
	Cache
	beforeRead, afterRead, beforeLease, afterLease, beforeFill func()
}

func once(f *func()) {
	onceMu.Lock()
	g := *f
	*f = nil
	onceMu.Unlock()
	if g != nil {
		g()
	}
}

var onceMu sync.Mutex // leases of a GetMulti may be asked for at once

func (c *hookedCache) Read(ctx context.Context, ids []string) ([][]byte, error) {
	once(&c.beforeRead)
	defer once(&c.afterRead)
	return c.Cache.Read(ctx, ids)
}

func (c *hookedCache) Lease(ctx context.Context, id string, lease, over []byte, ttl time.Duration) ([]byte, error) {
	once(&c.beforeLease)
	defer once(&c.afterLease)
	return c.Cache.Lease(ctx, id, lease, over, ttl)
}

func (c *hookedCache) Fill(ctx context.Context, id string, lease, entry []byte, ttl time.Duration) (bool, error) {
	once(&c.beforeFill)
	return c.Cache.Fill(ctx, id, lease, entry, ttl)
}

// A Cache of the caller's own that panics is an error, whichever goroutine it is
// in, and no slot is lost: requireIdle looks.
func TestGuardCachePanics(t *testing.T) {
	boom := func() { panic("boom") }
	for name, hook := range map[string]*hookedCache{
		"Read": {beforeRead: boom}, "Lease": {beforeLease: boom}, "Fill": {beforeFill: boom},
		"Lease exits": {beforeLease: runtime.Goexit}, "Fill exits": {beforeFill: runtime.Goexit},
	} {
		t.Run(name, func(t *testing.T) {
			s := memoryStore(t)
			s.known(t, "a")
			hook.Cache = s.cache
			s.cache = hook
			g := newTestGuard(t, s, rows(map[string]string{"a": "v"}), &GuardOptions[string]{MaxLoads: 1})
			answer := receive(t, goGet(t.Context(), g, "a"))
			if name == "Read" {
				require.Equal(t, got[string]{"v", nil}, answer, "a cache that cannot answer fails open")
				require.EqualValues(t, 1, g.Stats().FailOpens)
			} else {
				require.Error(t, answer.err)
			}
			require.Equal(t, got[string]{"v", nil}, receive(t, goGet(t.Context(), g, "a")))
		})
	}
}

// 100 Gets at once are one load (G8), however they arrive.
func TestGuardOneLoad(t *testing.T) {
	random := testSeed(t)
	for name, spread := range map[string]time.Duration{"at once": 0, "staggered": 2 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			rounds := 15
			run := func(t *testing.T, s guardStore) {
				var loads atomic.Int64
				g := newTestGuard(t, s, func(_ context.Context, id string) (string, error) {
					loads.Add(1)
					time.Sleep(time.Millisecond)
					return "row of " + id, nil
				}, nil)
				for round := range rounds {
					id := fmt.Sprint(round)
					s.known(t, id)
					var all sync.WaitGroup
					start := make(chan struct{})
					for range 100 {
						pause := time.Duration(random.Int64N(int64(spread) + 1))
						all.Add(1)
						go func() {
							defer all.Done()
							<-start
							if pause > 0 {
								time.Sleep(pause)
							}
							if v, err := g.Get(t.Context(), id); v != "row of "+id || err != nil {
								t.Errorf("%q, %v", v, err)
							}
						}()
					}
					close(start)
					all.Wait()
					require.EqualValues(t, round+1, loads.Load())
				}
				stats := g.Stats()
				require.EqualValues(t, rounds, stats.Fills)
				require.Equal(t, stats.Gets, stats.Loads+stats.SharedLoads+stats.Hits, "each Get is answered once")
			}
			redistest.Each(t, func(t *testing.T, target redistest.Target) { run(t, redisStore(t, target, Blocked)) })
			t.Run("memory", func(t *testing.T) {
				rounds = 100
				run(t, memoryStore(t))
			})
		})
	}
}

// The same across processes: another's lease is adopted, and what both load is
// filled once. That is at most one load per process.
func TestGuardOneLoadPerProcess(t *testing.T) {
	s := redisStore(t, sharedTarget(t), Classic)
	s.known(t, "a")
	var loads atomic.Int64
	load := func(context.Context, string) (string, error) {
		loads.Add(1)
		time.Sleep(5 * time.Millisecond)
		return "v", nil
	}
	var guards []*Guard[string]
	for range 3 {
		guards = append(guards, newTestGuard(t, s, load, nil))
	}
	var all sync.WaitGroup
	for i := range 90 {
		all.Add(1)
		go func() {
			defer all.Done()
			if v, err := guards[i%3].Get(t.Context(), "a"); v != "v" || err != nil {
				t.Errorf("%q, %v", v, err)
			}
		}()
	}
	all.Wait()
	require.LessOrEqual(t, loads.Load(), int64(3))
	var fills uint64
	for _, g := range guards {
		fills += g.Stats().Fills
	}
	require.GreaterOrEqual(t, fills, uint64(1))
	s.requireTag(t, "a", tagValue, defaultTTL)
}

// An error is for those who waited for it, and is not remembered.
func TestGuardLoadErrorIsShared(t *testing.T) {
	s := memoryStore(t)
	s.known(t, "a")
	l := newStepLoader(t)
	g := newTestGuard(t, s, l.load, nil)
	down := errors.New("database down")
	first := goGet(t.Context(), g, "a")
	load := l.next()
	second := goGet(t.Context(), g, "a")
	joined(t, g, 1)
	load.fails(down)
	require.ErrorIs(t, receive(t, first).err, down)
	require.ErrorIs(t, receive(t, second).err, down)
	third := goGet(t.Context(), g, "a")
	l.next().found("v")
	require.Equal(t, got[string]{"v", nil}, receive(t, third))
}

// nilMap hides from static analysis that writing to it panics.
func nilMap() map[string]int { return nil }
