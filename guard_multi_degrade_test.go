package bloom

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// loadMulti counts a call for many ids as one load of each.
func (c *loadCount) loadMulti(_ context.Context, ids []string) (map[string]string, error) {
	c.mu.Lock()
	if c.byID == nil {
		c.byID, c.calls = map[string]int{}, map[string]int{}
	}
	c.running++
	for _, id := range ids {
		c.byID[id]++
		c.calls[id]++
		c.mostOfOne = max(c.mostOfOne, c.byID[id])
	}
	c.most = max(c.most, c.running)
	c.mu.Unlock()
	time.Sleep(c.pause)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	for _, id := range ids {
		c.byID[id]--
	}
	return rowsOf(ids), nil
}

// multiOutageBound leaves room for the time-outs of 200 ms that a GetMulti takes while
// its server stops to answer: one to read, and where that was answered still, one to
// lease or fill each half of what one round trip read.
const multiOutageBound = 3 * time.Second

// With Redis out of reach thousands of ids are answered from the database within
// what a few time-outs take, not one per round trip, at most MaxLoads at once and
// each once. FailClosed answers none. When Redis is back, so is all the rest.
func TestGuardMultiOutage(t *testing.T) {
	ids := numberedIDs(5000)
	if raceEnabled {
		ids = ids[:2500]
	}
	for name := range outages(&redistest.Server{}, t) {
		for _, clients := range []int{1, 2} {
			if clients == 2 && name == "stopped" {
				continue // which is over too soon to make a difference
			}
			t.Run(name+map[int]string{1: "", 2: ", two clients"}[clients], func(t *testing.T) {
				server, s := ownServer(t, Classic)
				if clients == 2 {
					s.cache = NewRedisCache(server.Client(t, impatient), s.prefix)
				}
				count := &loadCount{}
				g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: count.loadMulti, MaxLoads: 4})
				closed := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: count.loadMulti, FailClosed: true})
				require.NoError(t, g.Register(t.Context(), ids...))
				requireRows(t, g, ids[:1])
				outage := outages(server, t)[name]

				outage[0]()
				start := time.Now()
				requireRows(t, g, ids)
				require.Less(t, time.Since(start), multiOutageBound)
				require.LessOrEqual(t, count.most, 4)
				for id, n := range count.calls {
					if n > 1 && id != ids[0] {
						t.Errorf("%q was loaded %d times", id, n)
					}
				}
				require.EqualValues(t, len(ids), g.Stats().FailOpens)

				start = time.Now()
				found, err := closed.GetMulti(t.Context(), ids)
				require.Less(t, time.Since(start), multiOutageBound)
				require.Empty(t, found)
				require.Len(t, failures(t, errors.Unwrap(err)), len(ids))
				require.ErrorContains(t, err, s.filter.backend.Key())
				require.Less(t, len(err.Error()), 2000)
				require.Zero(t, closed.Stats().Loads)

				// A caller's own deadline holds.
				short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				start = time.Now()
				found, err = g.GetMulti(short, ids)
				require.Less(t, time.Since(start), time.Second)
				require.Len(t, ids, len(found)+len(failures(t, errors.Unwrap(err))))

				outage[1]()
				eventually(t, "Redis is back", func() bool { return g.Invalidate(t.Context(), "any") == nil })
				if name == "stopped" { // and empty
					require.NoError(t, s.filter.CreateEmpty(t.Context()))
					require.NoError(t, g.Register(t.Context(), ids...))
				}
				require.NoError(t, g.Close(t.Context()))
				g = newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: count.loadMulti})
				eventually(t, "all is as before", func() bool { // a slow machine may run into a time-out yet
					before := g.Stats()
					requireRows(t, g, ids)
					return g.Stats().Hits == before.Hits+uint64(len(ids)) && g.Stats().FailOpens == before.FailOpens
				})
			})
		}
	}
}

// Redis freezes once the ids have been read: their leases and fills time out, and
// the rest is not asked for again and again.
func TestGuardMultiFreezesWhileLoading(t *testing.T) {
	server, s := ownServer(t, Blocked)
	ids := numberedIDs(5000)
	count := &loadCount{}
	freeze := sync.OnceFunc(server.Freeze)
	g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{
		LoadMulti: func(ctx context.Context, ids []string) (map[string]string, error) {
			if len(ids) > 1 {
				freeze()
			}
			return count.loadMulti(ctx, ids)
		},
	})
	require.NoError(t, g.Register(t.Context(), ids...))
	requireRows(t, g, ids[:1])
	start := time.Now()
	requireRows(t, g, ids)
	require.Less(t, time.Since(start), multiOutageBound)
	require.Equal(t, 1, count.mostOfOne)
	server.Thaw()
	require.EqualValues(t, maxLoadIDs, g.Stats().FillErrors)
	requireRows(t, g, ids)
}

// Storms of GetMultis of the same ids while Redis is away: never more than MaxLoads,
// never an id twice at once, and no answer is wrong.
func TestGuardMultiOutageStorm(t *testing.T) {
	for _, together := range []bool{true, false} {
		server, s := ownServer(t, Classic)
		ids := numberedIDs(40)
		count := &loadCount{pause: time.Millisecond}
		opts := GuardOptions[string]{MaxLoads: 4}
		if together {
			opts.LoadMulti = count.loadMulti
		}
		g := newTestGuard(t, s, count.load, &opts)
		require.NoError(t, g.Register(t.Context(), ids...))
		storm := func() {
			var all sync.WaitGroup
			for i := range 12 {
				all.Add(1)
				go func() {
					defer all.Done()
					some := append(append([]string{}, ids[i:]...), ids[:i]...)
					found, err := g.GetMulti(t.Context(), some)
					byID := failures(t, errors.Unwrap(err))
					if len(found)+len(byID) != len(ids) {
						t.Errorf("%d rows, %d errors", len(found), len(byID))
					}
					for id, v := range found {
						if v != "row of "+id {
							t.Errorf("%q: %q", id, v)
						}
					}
					for id, err := range byID {
						if !errors.Is(err, ErrOverloaded) {
							t.Errorf("%q: %v", id, err)
						}
					}
				}()
			}
			all.Wait()
			require.LessOrEqual(t, count.most, 4)
			require.Equal(t, 1, count.mostOfOne)
		}
		storm()
		server.Freeze()
		storm()
		server.Thaw()
		server.Stop()
		storm()
		server.Restart(t) // empty
		eventually(t, "Redis is back", func() bool { return g.Invalidate(t.Context(), "any") == nil })
		storm()
		require.ErrorIs(t, s.filter.Ready(t.Context()), ErrNotReady)
		require.NoError(t, s.filter.CreateEmpty(t.Context()))
		require.NoError(t, g.Register(t.Context(), ids...))
		requireRows(t, g, ids)
		requireRows(t, g, ids)
		require.NoError(t, g.Close(t.Context()))
	}
}

// A server that is full gives no leases: each id is loaded again, one at a time, and
// nothing is cached. News goes out all the same.
func TestGuardMultiServerIsFull(t *testing.T) {
	_, s := ownServer(t, Classic)
	ids := numberedIDs(50)
	count := &loadCount{pause: time.Millisecond}
	g := newTestGuard(t, s, count.load, &GuardOptions[string]{LoadMulti: count.loadMulti})
	require.NoError(t, g.Register(t.Context(), ids...))
	requireRows(t, g, ids[:10])
	require.NoError(t, s.client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	before := g.Stats()
	var all sync.WaitGroup
	for range 6 {
		all.Add(1)
		go func() {
			defer all.Done()
			found, err := g.GetMulti(t.Context(), append([]string{"denied"}, ids...))
			if len(found) != len(ids) || err != nil {
				t.Error(len(found), err)
			}
		}()
	}
	all.Wait()
	now := g.Stats()
	require.Equal(t, 1, count.mostOfOne)
	require.Equal(t, before.Fills, now.Fills)
	require.Zero(t, now.FailOpens)
	require.EqualValues(t, 6, now.Rejected)
	require.Equal(t, before.Hits+60, now.Hits)
	require.NoError(t, g.Invalidate(t.Context(), ids...))
	s.requireTag(t, ids[0], tagNone, 0)
	require.NoError(t, s.client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	requireRows(t, g, ids)
	s.requireTag(t, ids[49], tagValue, defaultTTL)
}

// The connections break while LoadMulti runs: its rows are returned, not cached.
func TestGuardMultiSevered(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		s, proxy := proxiedStore(t, target, impatient)
		l := newStepMulti(t)
		g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: l.load})
		both := map[string]string{"a": "v", "warm": "v"}
		first := goMulti(t.Context(), g, "a", "warm")
		require.NoError(t, s.cache.Drop(t.Context(), []string{"other"}))
		load := l.next()
		ids := load.ids
		proxy.Refuse(true)
		proxy.Sever()
		load.row("v")
		answer := receive(t, first)
		require.NoError(t, answer.err)
		require.EqualValues(t, len(ids), g.Stats().FillErrors)
		require.Zero(t, g.Stats().Fills)

		blind := goMulti(t.Context(), g, "a", "warm")
		l.next().row("v")
		requireFound(t, both, blind)
		require.EqualValues(t, 2, g.Stats().FailOpens)
		proxy.Refuse(false)
		later := goMulti(t.Context(), g, "a")
		l.next().row("new")
		requireFound(t, map[string]string{"a": "new"}, later)
		requireState(t, s, got[string]{"new", nil}, g)
	})
}
