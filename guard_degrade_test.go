package bloom

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// ownServer starts a server that a test may ill-treat, and a store on it whose
// client gives up soon.
func ownServer(t *testing.T, layout Layout) (*redistest.Server, guardStore) {
	t.Helper()
	server := redistest.Start(t)
	s := redisStore(t, redistest.Target{Name: "redis", Addr: server.Addr(), Real: true}, layout)
	client := server.Client(t, impatient)
	var err error
	s.filter, err = New(NewBitmap(client, s.filter.backend.Key()), Config{Capacity: 1000, Layout: layout})
	require.NoError(t, err)
	s.cache = NewRedisCache(client, s.prefix)
	return server, s
}

func impatient(o *redis.Options) {
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = 100*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond
	o.MaxRetries, o.DialerRetries, o.PoolSize = -1, 1, 200
}

// loadCount is a loader that knows how many of its calls ran at once, in all and
// for one id.
type loadCount struct {
	mu        sync.Mutex
	running   int
	byID      map[string]int
	most      int
	mostOfOne int
	calls     map[string]int
	pause     time.Duration
}

func (c *loadCount) load(_ context.Context, id string) (string, error) {
	c.mu.Lock()
	if c.byID == nil {
		c.byID, c.calls = map[string]int{}, map[string]int{}
	}
	c.running++
	c.byID[id]++
	c.calls[id]++
	c.most, c.mostOfOne = max(c.most, c.running), max(c.mostOfOne, c.byID[id])
	c.mu.Unlock()
	time.Sleep(c.pause)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	c.byID[id]--
	if id == "" || id[0] == '-' {
		return "", ErrNotFound
	}
	return "row of " + id, nil
}

// storm makes many Gets of many ids and checks each answer. Those turned away are
// counted.
func storm(t *testing.T, g *Guard[string], ids []string, callers int) (overloaded int64) {
	t.Helper()
	var refused atomic.Int64
	var all sync.WaitGroup
	for i := range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			id := ids[i%len(ids)]
			v, err := g.Get(t.Context(), id)
			switch {
			case errors.Is(err, ErrOverloaded):
				refused.Add(1)
			case err != nil || v != "row of "+id:
				t.Errorf("%q: %q, %v", id, v, err)
			}
		}()
	}
	all.Wait()
	return refused.Load()
}

// outages are ways for a server to be out of reach, each with the way back.
func outages(server *redistest.Server, t *testing.T) map[string][2]func() {
	return map[string][2]func(){
		"stopped": {server.Stop, func() { server.Restart(t) }},
		"frozen":  {server.Freeze, server.Thaw},
	}
}

// With Redis out of reach answers stay right, but no more loads run than MaxLoads
// at once, and of one id one at once; what is more is turned away (G7). When it is
// back, so is everything else, without help.
func TestGuardOutage(t *testing.T) {
	for name := range outages(&redistest.Server{}, t) {
		t.Run(name, func(t *testing.T) {
			server, s := ownServer(t, Classic)
			outage := outages(server, t)[name]
			const limit = 4
			count := &loadCount{pause: 2 * time.Millisecond}
			g := newTestGuard(t, s, count.load, &GuardOptions[string]{MaxLoads: limit})
			ids := numberedIDs(40)
			require.NoError(t, g.Register(t.Context(), ids...))
			_, err := g.Get(t.Context(), ids[0])
			require.NoError(t, err)
			before := g.Stats()

			outage[0]()
			overloaded := storm(t, g, ids, 40)
			stats := g.Stats()
			require.LessOrEqual(t, count.most, limit)
			require.Equal(t, 1, count.mostOfOne)
			require.EqualValues(t, 40-overloaded, stats.Loads-before.Loads)
			require.EqualValues(t, overloaded, stats.Overloads)
			require.EqualValues(t, 40, stats.FailOpens)
			require.Positive(t, 40-overloaded)

			require.Zero(t, storm(t, g, ids[:1], 60), "one id is one flight at a time, which all join")
			require.Equal(t, 1, count.mostOfOne)
			require.Less(t, g.Stats().Loads-stats.Loads, uint64(60))

			require.Error(t, g.Register(t.Context(), "a"))
			require.Error(t, g.Invalidate(t.Context(), "a"))

			// Who has gone starts no load, and a caller's own deadline holds.
			loads := g.Stats().Loads
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = g.Get(gone, ids[1])
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, loads, g.Stats().Loads)
			for range 10 {
				short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				start := time.Now()
				_, err = g.Get(short, ids[1])
				cancel()
				require.Less(t, time.Since(start), time.Second)
				if err != nil { // half of it may be too short for a load
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
			}

			outage[1]()
			eventually(t, "Redis is back", func() bool { return g.Invalidate(t.Context(), "any") == nil })
			failOpens := g.Stats().FailOpens
			if name == "stopped" { // it came back empty: the filter is gone
				require.ErrorIs(t, s.filter.Ready(t.Context()), ErrNotReady)
				_, err := g.Get(t.Context(), ids[2])
				require.NoError(t, err)
				require.Equal(t, failOpens+1, g.Stats().FailOpens)
				require.NoError(t, s.filter.CreateEmpty(t.Context()))
				require.NoError(t, g.Register(t.Context(), ids...))
			}
			stats = g.Stats()
			for range 2 {
				v, err := g.Get(t.Context(), ids[1])
				require.NoError(t, err)
				require.Equal(t, "row of "+ids[1], v)
				_, err = g.Get(t.Context(), "absent")
				require.ErrorIs(t, err, ErrNotFound)
			}
			now := g.Stats()
			require.Equal(t, stats.FailOpens, now.FailOpens)
			require.Equal(t, stats.Rejected+2, now.Rejected)
			require.GreaterOrEqual(t, now.Hits, stats.Hits+1)
		})
	}
}

// FailClosed keeps everything away from the database, and says why.
func TestGuardFailClosed(t *testing.T) {
	for name := range outages(&redistest.Server{}, t) {
		t.Run(name, func(t *testing.T) {
			server, s := ownServer(t, Blocked)
			l := newStepLoader(t)
			g := newTestGuard(t, s, l.load, &GuardOptions[string]{FailClosed: true})
			require.NoError(t, g.Register(t.Context(), "a"))
			outage := outages(server, t)[name]
			outage[0]()
			_, err := g.Get(t.Context(), "a")
			require.Error(t, err)
			require.ErrorContains(t, err, `bloom: get "a"`)
			require.ErrorContains(t, err, s.filter.backend.Key())
			require.NotErrorIs(t, err, ErrNotFound)
			l.none()
			require.Equal(t, GuardStats{Gets: 1}, g.Stats())
			outage[1]()
			if name == "stopped" {
				require.NoError(t, s.filter.CreateEmpty(t.Context()))
				require.NoError(t, g.Register(t.Context(), "a"))
			}
			l.get(g, "v")
			requireState(t, s, got[string]{"v", nil}, g)
		})
	}
}

// A server that is full answers reads and DEL and refuses the rest: no leases, so
// nothing is cached, each id is loaded again and again, but one at a time.
func TestGuardServerIsFull(t *testing.T) {
	_, s := ownServer(t, Classic)
	count := &loadCount{pause: time.Millisecond}
	g := newTestGuard(t, s, count.load, nil)
	ids := numberedIDs(5)
	require.NoError(t, g.Register(t.Context(), ids...))
	_, err := g.Get(t.Context(), ids[0])
	require.NoError(t, err)
	s.raw.set("stale", []byte(`V"old"`), time.Minute)
	full := func(limit string) {
		require.NoError(t, s.client.ConfigSet(t.Context(), "maxmemory", limit).Err())
	}
	full("1")
	require.ErrorContains(t, s.client.Set(t.Context(), "x", "y", time.Minute).Err(), "OOM")

	_, err = g.Get(t.Context(), ids[0])
	require.NoError(t, err, "what is cached is there")
	require.EqualValues(t, 1, g.Stats().Hits)
	_, err = g.Get(t.Context(), "absent")
	require.ErrorIs(t, err, ErrNotFound)
	require.EqualValues(t, 1, g.Stats().Rejected)

	before := g.Stats()
	for range 5 {
		require.Zero(t, storm(t, g, ids[1:3], 60))
	}
	after := g.Stats()
	require.Equal(t, 1, count.mostOfOne)
	require.Less(t, after.Loads-before.Loads, uint64(150), "Gets that come before a load begins share it")
	require.Equal(t, before.Fills, after.Fills)
	require.Zero(t, after.FailOpens, "the filter answers")
	s.requireTag(t, ids[1], tagNone, 0)

	// News goes out all the same.
	require.NoError(t, g.Invalidate(t.Context(), "stale"))
	s.requireTag(t, "stale", tagNone, 0)
	require.NoError(t, g.Invalidate(t.Context(), ids[0]))
	s.requireTag(t, ids[0], tagNone, 0)
	s.requireTag(t, "stale", tagNone, 0)
	require.ErrorContains(t, g.Register(t.Context(), "another"), "OOM", "who inserts must know")

	full("0")
	_, err = g.Get(t.Context(), ids[1])
	require.NoError(t, err)
	s.requireTag(t, ids[1], tagValue, defaultTTL)
}

// The connection breaks while a load runs: its result is returned, not cached,
// and the next Get starts anew.
func TestGuardSevered(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		s, proxy := proxiedStore(t, target, impatient)
		l := newStepLoader(t)
		g := newTestGuard(t, s, l.load, nil)
		first := goGet(t.Context(), g, "a")
		load := l.next()
		proxy.Refuse(true)
		proxy.Sever()
		load.found("v")
		requireAnswer(t, got[string]{"v", nil}, first)
		require.Equal(t, GuardStats{Gets: 1, Loads: 1, FillErrors: 1}, g.Stats())
		s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)

		l.get(g, "v2")
		require.EqualValues(t, 1, g.Stats().FailOpens)
		proxy.Refuse(false)
		l.get(g, "v3")
		requireState(t, s, got[string]{"v3", nil}, g)
	})
}

// A process that is cut off loads without a lease. Another changes the row. When
// the first is back, its Gets neither join that load nor find what it brings.
func TestGuardCutOff(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		s, proxy := proxiedStore(t, target, impatient)
		l := newStepLoader(t)
		g := newTestGuard(t, s, l.load, nil)
		other := s
		other.cache = NewRedisCache(s.client, s.prefix)
		elsewhere := newTestGuard(t, other, l.load, nil)

		proxy.Refuse(true)
		proxy.Sever()
		first := goGet(t.Context(), g, "a")
		load := l.next() // reads the old row
		blind := goGet(t.Context(), g, "a")
		joined(t, g, 1)
		require.NoError(t, elsewhere.Invalidate(t.Context(), "a"))
		proxy.Refuse(false)

		later := goGet(t.Context(), g, "a")
		load.found("old")
		requireAnswer(t, got[string]{"old", nil}, first)
		requireAnswer(t, got[string]{"old", nil}, blind)
		l.next().found("new")
		requireAnswer(t, got[string]{"new", nil}, later)
		requireState(t, s, got[string]{"new", nil}, g, elsewhere)
	})
}

// Without leases the Gets of one id take turns: who has come after a load began,
// and might know of a change, gets a later one, together with all who wait.
func TestGuardUnleasedTakeTurns(t *testing.T) {
	s := memoryStore(t)
	s.known(t, "a")
	cache := &failingCache{Cache: s.cache}
	cache.lease.Store(true)
	s.cache = cache
	l := newStepLoader(t)
	g := newTestGuard(t, s, l.load, nil)
	first := goGet(t.Context(), g, "a")
	load := l.next()
	var second []<-chan got[string]
	for range 3 {
		second = append(second, goGet(t.Context(), g, "a"))
	}
	joined(t, g, 2)

	// One whose read fails as well shares even the load that runs.
	cache.read.Store(true)
	blind := goGet(t.Context(), g, "a")
	joined(t, g, 3)
	cache.read.Store(false)

	// An Invalidate in this process is known of, with a cache or without.
	require.NoError(t, g.Invalidate(t.Context(), "a"))
	cache.read.Store(true)
	third := goGet(t.Context(), g, "a")
	newest := l.next()
	newest.found("third")
	requireAnswer(t, got[string]{"third", nil}, third)
	l.none()
	load.found("first")
	requireAnswer(t, got[string]{"first", nil}, first)
	requireAnswer(t, got[string]{"first", nil}, blind)
	l.next().found("second")
	for _, c := range second {
		requireAnswer(t, got[string]{"second", nil}, c)
	}
	require.EqualValues(t, 3, g.Stats().Loads)
	require.Zero(t, g.Stats().Fills)
	s.requireTag(t, "a", tagNone, 0)
}

// failingCache refuses some of what it is asked.
type failingCache struct {
	Cache
	read, lease atomic.Bool
}

func (c *failingCache) Read(ctx context.Context, ids []string) ([][]byte, error) {
	if c.read.Load() {
		return nil, errInjected
	}
	return c.Cache.Read(ctx, ids)
}

func (c *failingCache) Lease(ctx context.Context, id string, lease, over []byte, ttl time.Duration) ([]byte, error) {
	if c.lease.Load() {
		return nil, errInjected
	}
	return c.Cache.Lease(ctx, id, lease, over, ttl)
}

// A cache that breaks its contract is an error, not a wrong answer.
func TestGuardCacheOfWrongLength(t *testing.T) {
	s := memoryStore(t)
	s.known(t, "a")
	s.cache = emptyReads{s.cache}
	g := newTestGuard(t, s, rows(map[string]string{"a": "v"}), &GuardOptions[string]{FailClosed: true})
	_, err := g.Get(t.Context(), "a")
	require.ErrorContains(t, err, "0 entries for 1 ids")
}

type emptyReads struct{ Cache }

func (emptyReads) Read(context.Context, []string) ([][]byte, error) { return nil, nil }
