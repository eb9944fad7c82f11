package bloom

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A loader that ignores its context: the callers get an error on time, what it
// finds later is neither returned nor cached, and its slot is taken until then.
func TestGuardLoadTimeout(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		const timeout = 150 * time.Millisecond // the second load has to end within it, on a slow machine too
		s.known(t, "a", "b")
		l := newStepLoader(t)
		g := newTestGuard(t, s, l.load, &GuardOptions[string]{LoadTimeout: timeout, MaxLoads: 1})
		start := time.Now()
		first := goGet(t.Context(), g, "a")
		load := l.next()
		second := goGet(t.Context(), g, "a")
		for _, c := range []<-chan got[string]{first, second} {
			err := receive(t, c).err
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "longer than 150ms")
		}
		require.GreaterOrEqual(t, time.Since(start), timeout)
		require.ErrorIs(t, load.ctx.Err(), context.DeadlineExceeded)
		require.EqualValues(t, 1, g.Stats().LoadErrors)

		waiting := goGet(t.Context(), g, "a")
		eventually(t, "queued", func() bool { return queueLength(g) == 1 })
		time.Sleep(timeout)
		l.none() // the slot is taken, and waiting for one is no load that could time out
		load.found("too late")
		next := l.next()
		s.requireNoValue(t, "a")
		next.found("in time")
		require.Equal(t, got[string]{"in time", nil}, receive(t, waiting))
		require.NoError(t, g.Close(t.Context()))
		require.EqualValues(t, 1, g.Stats().Fills)
	})
}

// requireNoValue checks that at most a lease is cached.
func (s guardStore) requireNoValue(t *testing.T, id string) {
	t.Helper()
	entry, _ := s.raw.get(id)
	require.Contains(t, []byte{tagNone, tagLease}, entryTag(entry), "%q", entry)
}

// The late result of a load that was given up must not end up as the result of
// the load that follows it under the same lease.
func TestGuardLateResult(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a")
		l := newStepLoader(t)
		// A lease lives for two timeouts, and the second load needs some of that.
		g := newTestGuard(t, s, l.load, &GuardOptions[string]{LoadTimeout: 150 * time.Millisecond})
		first := goGet(t.Context(), g, "a")
		load := l.next()
		require.ErrorIs(t, receive(t, first).err, context.DeadlineExceeded)
		second := goGet(t.Context(), g, "a")
		next := l.next()
		load.found("old")
		eventually(t, "the first loader's slot is free", func() bool { return len(g.flights.slots) == 1 })
		next.found("new")
		require.Equal(t, got[string]{"new", nil}, receive(t, second))
		require.NoError(t, g.Close(t.Context()))
		if entry, _ := s.raw.get("a"); entryTag(entry) == tagValue { // else the lease was gone by then
			require.Equal(t, `V"new"`, string(entry))
		}
	})
}

// MaxLoads run, as many wait, and who comes then is turned away (G7).
func TestGuardMaxLoads(t *testing.T) {
	s := memoryStore(t)
	const limit = 3
	ids := numberedIDs(2*limit + 2)
	s.known(t, ids...)
	s.raw.set("cached", []byte(`V"v"`), time.Minute)
	l := newStepLoader(t)
	g := newTestGuard(t, s, l.load, &GuardOptions[string]{MaxLoads: limit})

	var answers []<-chan got[string]
	var running []*stepCall
	for _, id := range ids[:limit] {
		answers = append(answers, goGet(t.Context(), g, id))
		running = append(running, l.next())
	}
	for i, id := range ids[limit : 2*limit] {
		answers = append(answers, goGet(t.Context(), g, id))
		eventually(t, "queued", func() bool { return queueLength(g) == i+1 })
	}
	for _, id := range ids[2*limit:] {
		_, err := g.Get(t.Context(), id)
		require.ErrorIs(t, err, ErrOverloaded)
		require.ErrorContains(t, err, id)
	}
	l.none()
	require.EqualValues(t, 2, g.Stats().Overloads)

	// Who needs no load of his own is served: hits, denials, and joins, of those
	// that wait as well.
	v, err := g.Get(t.Context(), "cached")
	require.NoError(t, err)
	require.Equal(t, "v", v)
	_, err = g.Get(t.Context(), "absent")
	require.ErrorIs(t, err, ErrNotFound)
	answers = append(answers, goGet(t.Context(), g, ids[0]), goGet(t.Context(), g, ids[2*limit-1]))
	joined(t, g, 2)

	// Each that ends lets one of the waiting in, and a further Get wait.
	running[0].found("v")
	fourth := l.next()
	require.Contains(t, ids[limit:2*limit], fourth.id)
	eventually(t, "a place in the queue", func() bool { return queueLength(g) == limit-1 })
	answers = append(answers, goGet(t.Context(), g, ids[2*limit]))
	eventually(t, "queued", func() bool { return queueLength(g) == limit })
	_, err = g.Get(t.Context(), ids[2*limit+1])
	require.ErrorIs(t, err, ErrOverloaded)

	for _, c := range append(running[1:], fourth) {
		c.found("v")
	}
	for range limit {
		l.next().found("v")
	}
	for _, c := range answers {
		require.Equal(t, got[string]{"v", nil}, receive(t, c))
	}
	require.NoError(t, g.Close(t.Context()))
	stats := g.Stats()
	require.EqualValues(t, 2*limit+1, stats.Loads)
	require.EqualValues(t, 3, stats.Overloads)
}

func numberedIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint("id ", i)
	}
	return ids
}

// Under a storm of Gets and Invalidates the limit holds, every Get is accounted
// for once, and no slot is lost.
func TestGuardMaxLoadsStorm(t *testing.T) {
	run := func(t *testing.T, s guardStore) {
		const limit, workers, calls = 4, 24, 60
		ids := numberedIDs(40)
		s.known(t, ids...)
		random := testSeed(t)
		var running, most, timedOut atomic.Int64
		g := newTestGuard(t, s, func(ctx context.Context, id string) (string, error) {
			n := running.Add(1)
			defer running.Add(-1)
			for {
				m := most.Load()
				if n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			if id == ids[0] {
				panic("boom")
			}
			time.Sleep(200 * time.Microsecond)
			if id == ids[1] { // ignores its context
				time.Sleep(8 * time.Millisecond)
				timedOut.Add(1)
			}
			return "row of " + id, nil
		}, &GuardOptions[string]{MaxLoads: limit, LoadTimeout: 5 * time.Millisecond})
		var all sync.WaitGroup
		for range workers {
			seed := random.Uint64()
			all.Add(1)
			go func() {
				defer all.Done()
				for i := range calls {
					seed = seed*lcgMultiplier + lcgIncrement
					id := ids[seed>>33%uint64(len(ids))]
					if i%7 == 0 {
						if err := g.Invalidate(t.Context(), id); err != nil {
							t.Error(err)
						}
						continue
					}
					v, err := g.Get(t.Context(), id)
					switch {
					case err == nil && v == "row of "+id:
					case errors.Is(err, ErrOverloaded), errors.Is(err, context.DeadlineExceeded):
					case err != nil && id == ids[0]:
					default:
						t.Errorf("%q: %q, %v", id, v, err)
					}
				}
			}()
		}
		all.Wait()
		require.NoError(t, g.Close(t.Context()))
		require.LessOrEqual(t, most.Load(), int64(limit))
		require.Zero(t, running.Load(), "Close waits for loaders")
		stats := g.Stats()
		require.Equal(t, stats.Gets, stats.Hits+stats.Loads+stats.SharedLoads+stats.Overloads, "%+v", stats)
		require.Positive(t, timedOut.Load())
		requireIdle(t, g)
	}
	t.Run("redis", func(t *testing.T) { run(t, redisStore(t, sharedTarget(t), Classic)) })
	t.Run("memory", func(t *testing.T) { run(t, memoryStore(t)) })
}

// Gets of a closed guard are served as long as they need no load.
func TestGuardClose(t *testing.T) {
	s := memoryStore(t)
	s.known(t, "a", "b", "queued")
	s.raw.set("cached", []byte(`V"v"`), time.Minute)
	l := newStepLoader(t)
	g := newTestGuard(t, s, l.load, &GuardOptions[string]{MaxLoads: 1})
	running := goGet(t.Context(), g, "a")
	load := l.next()
	queued := goGet(t.Context(), g, "queued")
	eventually(t, "queued", func() bool { return queueLength(g) == 1 })

	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := g.Close(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "close guard")

	_, err = g.Get(t.Context(), "b")
	require.ErrorIs(t, err, ErrOverloaded)
	v, err := g.Get(t.Context(), "cached")
	require.NoError(t, err)
	require.Equal(t, "v", v)
	late := goGet(t.Context(), g, "a")
	joined(t, g, 1)

	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- g.Close(context.Background()) }()
	}
	load.found("v")
	require.Equal(t, got[string]{"v", nil}, receive(t, running))
	require.Equal(t, got[string]{"v", nil}, receive(t, late))
	second := l.next()
	select {
	case <-closed:
		t.Fatal("a load is under way")
	case <-time.After(5 * time.Millisecond):
	}
	second.found("v")
	require.Equal(t, got[string]{"v", nil}, receive(t, queued))
	require.NoError(t, receive(t, closed))
	require.NoError(t, receive(t, closed))
	s.requireTag(t, "queued", tagValue, defaultTTL)

	for range 3 { // a slot each, were they not given back
		_, err = g.Get(t.Context(), "b")
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorContains(t, err, "guard is closed")
	}
	_, err = g.Get(t.Context(), "absent")
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, g.Register(t.Context(), "b"))
	require.NoError(t, g.Invalidate(t.Context(), "b"))
	require.NoError(t, g.Close(short), "nothing is left to wait for")
}
