package bloom

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// gate stops a goroutine at a hook until the test lets it go on.
type gate struct{ reached, open chan struct{} }

func newGate() gate { return gate{make(chan struct{}), make(chan struct{})} }

func (g gate) pass() {
	close(g.reached)
	<-g.open
}

// eachSharedStore runs f over caches that two processes can share; without a real
// second process a second Guard stands for it, since Guards share nothing else.
func eachSharedStore(t *testing.T, f func(t *testing.T, s guardStore)) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) { f(t, redisStore(t, target, Classic)) })
	t.Run("memory", func(t *testing.T) { f(t, memoryStore(t)) })
}

// A flight was told by the cache what was there: an entry, or the lease of a load
// that runs already. Then the row changes and another process invalidates it. A
// Get that starts now must not get what the flight was told.
func TestGuardStaleAnswerOfALease(t *testing.T) {
	for name, there := range map[string]struct {
		entry string
		first got[string] // what the Get that came before the change may have
	}{
		"value": {`V"old"`, got[string]{"old", nil}},
		"null":  {"N", got[string]{"", ErrNotFound}},
	} {
		t.Run(name, func(t *testing.T) {
			eachSharedStore(t, func(t *testing.T, s guardStore) {
				s.known(t, "a")
				there2 := there
				var row atomic.Pointer[string]
				load := func(context.Context, string) (string, error) {
					if v := row.Load(); v != nil {
						return *v, nil
					}
					return "", errors.New("the entry comes before the first load")
				}
				elsewhere := newTestGuard(t, s, load, nil)
				answered := newGate()
				s.cache = &hookedCache{
					Cache:       s.cache,
					beforeLease: func() { s.raw.set("a", []byte(there2.entry), time.Minute) }, // another's fill
					afterLease:  answered.pass,
				}
				g := newTestGuard(t, s, load, nil)

				first := goGet(t.Context(), g, "a")
				receive(t, answered.reached)
				changed := "new"
				row.Store(&changed)
				require.NoError(t, elsewhere.Invalidate(t.Context(), "a"))
				second := goGet(t.Context(), g, "a")
				joined(t, g, 1)
				close(answered.open)
				require.Equal(t, got[string]{"new", nil}, receive(t, second))
				require.Contains(t, []got[string]{there2.first, {"new", nil}}, receive(t, first))

				v, err := g.Get(t.Context(), "a")
				require.NoError(t, err)
				require.Equal(t, "new", v)
				s.requireTag(t, "a", tagValue, defaultTTL)
			})
		})
	}
}

// Without a change in between such an answer is good for all who came before it:
// a value that another process filled meanwhile needs no load.
func TestGuardAnswerOfALease(t *testing.T) {
	for entry, want := range map[string]got[string]{`V"v"`: {"v", nil}, "N": {"", ErrNotFound}} {
		eachSharedStore(t, func(t *testing.T, s guardStore) {
			s.known(t, "a")
			hold := newGate()
			s.cache = &hookedCache{Cache: s.cache, beforeLease: func() {
				hold.pass()
				s.raw.set("a", []byte(entry), time.Minute)
			}}
			g := newTestGuard(t, s, rows(nil), nil)
			first := goGet(t.Context(), g, "a")
			receive(t, hold.reached)
			second := goGet(t.Context(), g, "a")
			joined(t, g, 1)
			close(hold.open)
			require.Equal(t, want, receive(t, first))
			require.Equal(t, want, receive(t, second))
			stats := g.Stats()
			require.Zero(t, stats.Loads)
			require.EqualValues(t, 1, stats.Hits+stats.NullHits)
		})
	}
}

// slowRead starts a Get that reads that nothing is cached, and holds it until the
// returned function is called.
func slowRead(t *testing.T, g *Guard[string], hook *hookedCache) (answer <-chan got[string], release func()) {
	t.Helper()
	read := newGate()
	hook.afterRead = read.pass
	answer = goGet(t.Context(), g, "a")
	receive(t, read.reached)
	return answer, func() { close(read.open) }
}

// A Get whose read was slow finds a load running that it may not join by what it
// saw, asks for a lease, and meets the lease of that load: then it may.
func TestGuardSharesByLease(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a")
		l := newStepLoader(t)
		hook := &hookedCache{Cache: s.cache}
		s.cache = hook
		g := newTestGuard(t, s, l.load, nil)
		slow, release := slowRead(t, g, hook)
		first := goGet(t.Context(), g, "a")
		load := l.next()
		release()
		joined(t, g, 1)
		load.found("v")
		require.Equal(t, got[string]{"v", nil}, receive(t, first))
		require.Equal(t, got[string]{"v", nil}, receive(t, slow))
		require.Equal(t, GuardStats{Gets: 2, Loads: 1, SharedLoads: 1, Fills: 1}, g.Stats())
	})
}

// While it waits for that load, the row changes. A Get that starts after the
// Invalidate of another process must join neither of the two.
func TestGuardStaleLoadSharedByLease(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a")
		l := newStepLoader(t)
		elsewhere := newTestGuard(t, s, l.load, nil)
		hook := &hookedCache{Cache: s.cache}
		s.cache = hook
		g := newTestGuard(t, s, l.load, nil)
		slow, release := slowRead(t, g, hook)
		first := goGet(t.Context(), g, "a")
		load := l.next() // reads the old row
		release()
		joined(t, g, 1)

		require.NoError(t, elsewhere.Invalidate(t.Context(), "a"))
		later := goGet(t.Context(), g, "a")
		fresh := l.next()
		load.found("old")
		require.Equal(t, got[string]{"old", nil}, receive(t, first))
		require.Equal(t, got[string]{"old", nil}, receive(t, slow))
		fresh.found("new")
		require.Equal(t, got[string]{"new", nil}, receive(t, later))
		v, err := g.Get(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, "new", v)
		require.EqualValues(t, 1, g.Stats().Fills, "the old row was not cached")
	})
}

// The same, with the Invalidate between the answer of the lease and its use: the
// later Get has joined a flight that must then not settle for the running load.
func TestGuardStaleLoadMetAfterInvalidate(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a")
		l := newStepLoader(t)
		elsewhere := newTestGuard(t, s, l.load, nil)
		hook := &hookedCache{Cache: s.cache}
		s.cache = hook
		g := newTestGuard(t, s, l.load, nil)
		slow, release := slowRead(t, g, hook)
		first := goGet(t.Context(), g, "a")
		load := l.next() // reads the old row
		leased := newGate()
		hook.afterLease = leased.pass
		release()
		receive(t, leased.reached)

		require.NoError(t, elsewhere.Invalidate(t.Context(), "a"))
		later := goGet(t.Context(), g, "a")
		joined(t, g, 1)
		close(leased.open)
		l.next().found("new")
		require.Equal(t, got[string]{"new", nil}, receive(t, later))
		require.Equal(t, got[string]{"new", nil}, receive(t, slow))
		load.found("old")
		require.Equal(t, got[string]{"old", nil}, receive(t, first))
		require.EqualValues(t, 1, g.Stats().Fills, "the old row was not cached")
	})
}

// A Get meets the lease of a load that lands before the Get can join it: it asks
// again and finds the value.
func TestGuardMeetsALandedLease(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a")
		l := newStepLoader(t)
		hook := &hookedCache{Cache: s.cache}
		s.cache = hook
		g := newTestGuard(t, s, l.load, nil)
		slow, release := slowRead(t, g, hook)
		first := goGet(t.Context(), g, "a")
		load := l.next()
		leased := newGate()
		hook.afterLease = leased.pass
		release()
		receive(t, leased.reached)
		load.found("v")
		require.Equal(t, got[string]{"v", nil}, receive(t, first))
		close(leased.open)
		require.Equal(t, got[string]{"v", nil}, receive(t, slow))
		require.Equal(t, GuardStats{Gets: 2, Hits: 1, Loads: 1, Fills: 1}, g.Stats())
	})
}

// Another process holds the lease: it is adopted, and those here who saw it share
// one load, that of an earlier flight too.
func TestGuardAdoptsLeases(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a")
		l := newStepLoader(t)
		elsewhere := newTestGuard(t, s, l.load, nil)
		hook := &hookedCache{Cache: s.cache}
		s.cache = hook
		g := newTestGuard(t, s, l.load, nil)
		slow, release := slowRead(t, g, hook)
		there := goGet(t.Context(), elsewhere, "a")
		loadThere := l.next()
		token, _ := s.raw.get("a")

		here := goGet(t.Context(), g, "a")
		loadHere := l.next()
		also := goGet(t.Context(), g, "a")
		joined(t, g, 1)
		release()
		joined(t, g, 2)
		left, _ := s.raw.get("a")
		require.Equal(t, token, left, "one lease for all")
		l.none()

		loadHere.found("here")
		for _, c := range []<-chan got[string]{here, also, slow} {
			require.Equal(t, got[string]{"here", nil}, receive(t, c))
		}
		loadThere.found("there")
		require.Equal(t, got[string]{"there", nil}, receive(t, there))
		require.EqualValues(t, 1, g.Stats().Fills)
		require.EqualValues(t, 0, elsewhere.Stats().Fills, "the lease was used up")
	})
}

// A flight that waits for a slot has not looked at anything yet. Gets that come
// after an Invalidate, of this process or of another, may join it.
func TestGuardInvalidateWhileQueued(t *testing.T) {
	for _, here := range []bool{true, false} {
		eachSharedStore(t, func(t *testing.T, s guardStore) {
			s.known(t, "a", "b")
			l := newStepLoader(t)
			g := newTestGuard(t, s, l.load, &GuardOptions[string]{MaxLoads: 1})
			by := g
			if !here {
				by = newTestGuard(t, s, l.load, nil)
			}
			running := goGet(t.Context(), g, "b")
			load := l.next()
			queued := goGet(t.Context(), g, "a")
			eventually(t, "queued", func() bool { return queueLength(g) == 1 })
			require.NoError(t, by.Invalidate(t.Context(), "a"))
			later := goGet(t.Context(), g, "a")
			joined(t, g, 1)
			load.found("b")
			require.Equal(t, got[string]{"b", nil}, receive(t, running))
			l.next().found("new")
			require.Equal(t, got[string]{"new", nil}, receive(t, queued))
			require.Equal(t, got[string]{"new", nil}, receive(t, later))
			s.requireTag(t, "a", tagValue, defaultTTL)
		})
	}
}

func queueLength[V any](g *Guard[V]) int {
	g.flights.mu.Lock()
	defer g.flights.mu.Unlock()
	return g.flights.queue
}
