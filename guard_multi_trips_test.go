package bloom

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func rowOf(_ context.Context, id string) (string, error) { return "row of " + id, nil }

// rowsOf are what rowOf finds.
func rowsOf(ids []string) map[string]string {
	found := make(map[string]string, len(ids))
	for _, id := range ids {
		found[id] = "row of " + id
	}
	return found
}

// requireRows checks a GetMulti of rows that are all there.
func requireRows(t *testing.T, g *Guard[string], ids []string) {
	t.Helper()
	found, err := g.GetMulti(t.Context(), ids)
	require.NoError(t, err)
	if len(found) != len(ids) {
		t.Fatalf("%d rows of %d", len(found), len(ids))
	}
	for _, id := range ids {
		if found[id] != "row of "+id {
			t.Fatalf("%q: %q", id, found[id])
		}
	}
}

// Ten thousand ids are a round trip per thousand to read, and what has to be loaded
// one to lease and one to fill per five hundred, whatever the filter is.
func TestGuardMultiRoundTrips(t *testing.T) {
	n := 10_000
	if raceEnabled {
		n = 2500
	}
	ids := numberedIDs(n)
	reads, writes := int64((n+maxCacheKeys-1)/maxCacheKeys), 2*int64((n+maxLoadIDs-1)/maxLoadIDs)
	for _, layout := range []Layout{Classic, Blocked} {
		for _, clients := range []int{1, 2} {
			t.Run(fmt.Sprint(layout, ", clients: ", clients), func(t *testing.T) {
				client, prefix := sharedTarget(t).Client(t), redistest.Key(t)+":"
				other := client
				if clients == 2 {
					other = sharedTarget(t).Client(t)
				}
				f, err := New(NewBitmap(client, "filter of "+prefix), Config{Capacity: uint64(n + 1), Layout: layout})
				require.NoError(t, err)
				require.NoError(t, f.CreateEmpty(t.Context()))
				s := guardStore{filter: f, cache: NewRedisCache(other, prefix)}
				s.known(t, append(numberedIDs(n), "warm")...)
				loads := 0
				g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{
					LoadMulti: func(_ context.Context, ids []string) (map[string]string, error) {
						loads++
						return rowsOf(ids), nil
					},
				})
				require.Equal(t, clients == 1, g.rides.sharesTrip(&g.remote.conn, []string{"row"}))
				requireRows(t, g, []string{"warm"}) // header, commands and scripts
				loads = 0

				filterTrips, cacheTrips := new(redistest.Trips), new(redistest.Trips)
				client.AddHook(filterTrips)
				if clients == 2 {
					other.AddHook(cacheTrips)
				}
				count := func(filter, cache int64) {
					t.Helper()
					if clients == 1 {
						filter, cache = cache, 0
					}
					require.Equal(t, filter, filterTrips.N())
					require.Equal(t, cache, cacheTrips.N())
					filterTrips.Reset()
					cacheTrips.Reset()
				}
				requireRows(t, g, ids)
				require.Equal(t, (n+maxLoadIDs-1)/maxLoadIDs, loads)
				count(reads, reads+writes)
				requireRows(t, g, ids)
				require.EqualValues(t, n+1, g.Stats().Loads)
				count(reads, reads)
				require.NoError(t, g.Invalidate(t.Context(), ids...))
				count(0, reads)
			})
		}
	}
}

// A filter of the module is read along with the cache as well.
func TestGuardMultiRoundTripsOfModule(t *testing.T) {
	m := redistest.Mini(t)
	ModuleDouble(m)
	client := redistest.MiniClient(t, m)
	f, err := New(NewRedisBloom(client, "filter", nil), Config{Capacity: 2000})
	require.NoError(t, err)
	require.NoError(t, f.CreateEmpty(t.Context()))
	s := guardStore{filter: f, cache: NewRedisCache(client, "cache:")}
	ids := numberedIDs(maxCacheKeys + 100)
	s.known(t, ids...)
	for _, id := range ids[1:] {
		m.Set("cache:"+id, fmt.Sprintf("V%q", "row of "+id))
		m.SetTTL("cache:"+id, time.Minute)
	}
	g := newTestGuard(t, s, rowOf, nil)
	requireRows(t, g, ids)
	trips := new(redistest.Trips)
	client.AddHook(trips)
	found, err := g.GetMulti(t.Context(), append([]string{"denied"}, ids...))
	require.NoError(t, err)
	require.Len(t, found, len(ids))
	require.EqualValues(t, 2, trips.N())
	require.Equal(t, GuardStats{Gets: 2201, Rejected: 1, Hits: 2199, Loads: 1, Fills: 1}, g.Stats())
}

// A server forgets its scripts between lease and fill, and before each.
func TestGuardMultiScriptsFlushed(t *testing.T) {
	s := redisStore(t, redistest.Target{Name: "redis", Addr: redistest.Start(t).Addr(), Real: true}, Classic)
	ids := numberedIDs(600)
	s.known(t, ids...)
	flush := func() { require.NoError(t, s.client.ScriptFlush(t.Context()).Err()) }
	g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{
		LoadMulti: func(_ context.Context, ids []string) (map[string]string, error) {
			flush()
			return rowsOf(ids), nil
		},
	})
	flush()
	requireRows(t, g, ids)
	require.EqualValues(t, len(ids), g.Stats().Fills)
	requireRows(t, g, ids)
	require.EqualValues(t, len(ids), g.Stats().Loads)
}

// A key of another type under one id is the trouble of that id alone, also of
// round trips.
func TestGuardMultiWrongType(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		for _, clients := range []int{1, 2} {
			t.Run(fmt.Sprint("clients: ", clients), func(t *testing.T) {
				s := redisStore(t, target, Classic)
				if clients == 2 {
					s.client = target.Client(t)
					s.cache = NewRedisCache(s.client, s.prefix)
				}
				ids := numberedIDs(60)
				s.known(t, append(ids, "warm")...)
				key := s.prefix + ids[7]
				require.NoError(t, s.client.LPush(t.Context(), key, "x").Err())
				require.NoError(t, s.client.Expire(t.Context(), key, time.Minute).Err())
				g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: multiRows(rowOf)})
				requireRows(t, g, []string{"warm"})
				requireRows(t, g, ids)
				require.Equal(t, GuardStats{Gets: 61, Loads: 61, FailOpens: 1, Fills: 60}, g.Stats())
				trips := new(redistest.Trips)
				s.client.AddHook(trips)
				requireRows(t, g, ids)
				require.Equal(t, GuardStats{Gets: 121, Hits: 59, Loads: 62, FailOpens: 2, Fills: 60}, g.Stats())
				require.EqualValues(t, 1, trips.N(), "to read, and none for a lease that the reading says is in vain")
				require.Equal(t, []string{"x"}, s.client.LRange(t.Context(), key, 0, -1).Val())

				closed := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: multiRows(rowOf), FailClosed: true})
				found, err := closed.GetMulti(t.Context(), ids)
				require.Len(t, found, 59)
				require.ErrorContains(t, err, "WRONGTYPE")
				require.ErrorContains(t, err, ids[7])
				require.Equal(t, GuardStats{Gets: 60, Hits: 59}, closed.Stats())
			})
		}
	})
}

// A Cache of the caller's own that has no calls for many ids is asked again id by
// id where a read of many fails, and leased and filled id by id, some at once.
func TestGuardMultiOwnCache(t *testing.T) {
	s := memoryStore(t)
	ids := numberedIDs(100)
	s.known(t, ids...)
	cache := &countingCache{Cache: s.cache, broken: ids[7]}
	s.cache = cache
	g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: multiRows(rowOf)})
	for range 2 {
		requireRows(t, g, ids)
	}
	require.Equal(t, GuardStats{Gets: 200, Hits: 99, Loads: 101, FailOpens: 2, Fills: 99}, g.Stats())
	require.LessOrEqual(t, cache.most.Load(), int64(maxCacheCalls))
}

// countingCache counts what runs at once, and cannot read one id.
type countingCache struct {
	Cache
	broken        string
	running, most atomic.Int64
}

func (c *countingCache) enter() func() {
	n := c.running.Add(1)
	for m := c.most.Load(); n > m && !c.most.CompareAndSwap(m, n); m = c.most.Load() {
	}
	time.Sleep(100 * time.Microsecond)
	return func() { c.running.Add(-1) }
}

func (c *countingCache) Read(ctx context.Context, ids []string) ([][]byte, error) {
	defer c.enter()()
	for _, id := range ids {
		if id == c.broken {
			return nil, brokenReply{}
		}
	}
	return c.Cache.Read(ctx, ids)
}

func (c *countingCache) Lease(ctx context.Context, id string, lease, over []byte, ttl time.Duration) ([]byte, error) {
	defer c.enter()()
	return c.Cache.Lease(ctx, id, lease, over, ttl)
}

func (c *countingCache) Fill(ctx context.Context, id string, lease, entry []byte, ttl time.Duration) (bool, error) {
	defer c.enter()()
	return c.Cache.Fill(ctx, id, lease, entry, ttl)
}

// brokenReply is an answer, so there is no outage.
type brokenReply struct{}

func (brokenReply) Error() string { return "ERR broken" }
func (brokenReply) RedisError()   {}

// Both faces of an AutoPipeliner, with many GetMultis and Gets at once.
func TestGuardMultiAutoPipeliner(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		for _, async := range []bool{false, true} {
			for _, layout := range []Layout{Classic, Blocked} {
				s := redisStore(t, target, layout)
				ap, err := s.client.AutoPipeline()
				if async {
					ap, err = s.client.AsyncAutoPipeline()
				}
				require.NoError(t, err)
				s.filter, err = New(NewBitmap(ap, s.filter.backend.Key()), Config{})
				require.NoError(t, err)
				s.cache = NewRedisCache(ap, s.prefix)
				ids := numberedIDs(20)
				s.known(t, ids...)
				g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: multiRows(rowOf)})
				require.NotNil(t, g.rides)
				requireRows(t, g, ids)
				trips := &redistest.Trips{}
				s.client.AddHook(trips)
				callers, calls := 16, 10
				if !target.Real {
					callers, calls = 4, 4
				}
				var all sync.WaitGroup
				for range callers {
					all.Add(1)
					go func() {
						defer all.Done()
						for range calls {
							found, err := g.GetMulti(t.Context(), append([]string{"denied"}, ids...))
							if len(found) != len(ids) || err != nil {
								t.Error(len(found), err)
							}
							if _, err := g.Get(t.Context(), ids[0]); err != nil {
								t.Error(err)
							}
						}
					}()
				}
				all.Wait()
				require.EqualValues(t, len(ids), g.Stats().Loads)
				require.EqualValues(t, callers*calls, g.Stats().Rejected)
				require.Less(t, trips.N(), int64(2*callers*calls*3))
			}
		}
	})
}

// In a cluster the cache keys of one GetMulti live in different slots.
func TestGuardMultiCluster(t *testing.T) {
	server := redistest.Start(t, "--cluster-enabled", "yes")
	node := server.Client(t)
	require.NoError(t, node.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
	eventually(t, "cluster is up", func() bool { return node.Set(t.Context(), "up", 1, time.Second).Err() == nil })
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	for _, layout := range []Layout{Classic, Blocked} {
		prefix := redistest.Key(t) + fmt.Sprint(layout, ":")
		s := guardStore{
			filter: testFilter(t, NewBitmap(client, "filter of "+prefix), layout),
			cache:  NewRedisCache(client, prefix),
			raw:    rawRedis{t, node, prefix},
		}
		ids := append(numberedIDs(1200), "{tag}", "{")
		s.known(t, ids...)
		g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: multiRows(rowOf)})
		require.NotNil(t, g.rides, "read in one round trip")
		for range 2 {
			requireRows(t, g, ids)
		}
		require.EqualValues(t, len(ids), g.Stats().Hits)
		require.EqualValues(t, len(ids), g.Stats().Fills)
		require.NoError(t, g.Invalidate(t.Context(), ids...))
		s.requireTag(t, ids[0], tagNone, 0)
		requireLifetimes(t, node, prefix)
	}
}
