package bloom

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A Get is one round trip for filter and cache together; a load takes one more to
// lease and one to fill.
func TestGuardRoundTrips(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		for _, layout := range []Layout{Classic, Blocked} {
			t.Run(fmt.Sprint(layout), func(t *testing.T) {
				s := redisStore(t, target, layout)
				g := newTestGuard(t, s, rows(map[string]string{"row": "v"}), nil)
				s.known(t, "row", "null", "warm")
				_, err := g.Get(t.Context(), "warm") // reads the header, finds out commands, loads scripts
				require.ErrorIs(t, err, ErrNotFound)

				trips := &redistest.Trips{Record: true}
				s.client.AddHook(trips)
				for _, step := range []struct {
					id    string
					err   error
					trips int64
				}{
					{"row", nil, 3}, {"row", nil, 1},
					{"null", ErrNotFound, 3}, {"null", ErrNotFound, 1},
					{"absent", ErrNotFound, 1},
				} {
					trips.Reset()
					_, err := g.Get(t.Context(), step.id)
					require.ErrorIs(t, err, step.err)
					require.Equal(t, step.trips, trips.N(), "%q: %q", step.id, trips.Commands())
				}
				trips.Reset()
				require.NoError(t, g.Invalidate(t.Context(), "a", "b", "c"))
				require.EqualValues(t, 1, trips.N())
				trips.Reset()
				require.NoError(t, g.Register(t.Context(), "a", "b", "c"))
				require.EqualValues(t, 2, trips.N())
			})
		}
	})
}

// A guard whose filter is not there must not pay for that with round trips, of a
// new handle either.
func TestGuardRoundTripsNotReady(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		s := redisStore(t, target, Classic)
		require.NoError(t, s.filter.Drop(t.Context()))
		g := newTestGuard(t, s, rows(map[string]string{"row": "v"}), nil)
		s.raw.set("cached", []byte(`V"v"`), time.Minute)
		trips := &redistest.Trips{Record: true}
		s.client.AddHook(trips)
		_, err := g.Get(t.Context(), "cached")
		require.NoError(t, err)
		require.EqualValues(t, 1, trips.N(), "%q", trips.Commands())
		trips.Reset()
		_, err = g.Get(t.Context(), "row")
		require.NoError(t, err)
		// The scripts are new to miniredis, so EVALSHA is followed by EVAL.
		require.LessOrEqual(t, trips.N(), int64(5), "%q", trips.Commands())
		trips.Reset()
		_, err = g.Get(t.Context(), "row2")
		require.ErrorIs(t, err, ErrNotFound)
		require.EqualValues(t, 3, trips.N(), "%q", trips.Commands())
	})
}

// Filter and cache with clients of their own are asked at the same time.
func TestGuardTwoClients(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		s := redisStore(t, target, Classic)
		proxy := redistest.NewProxy(t, target.Addr)
		other := target.Client(t, func(o *redis.Options) { o.Addr, o.MaxRetries, o.DialerRetries = proxy.Addr(), -1, 1 })
		s.cache = NewRedisCache(other, s.prefix)
		g := newTestGuard(t, s, rows(map[string]string{"row": "v"}), nil)
		require.False(t, g.rides.sharesTrip(&g.remote.conn, []string{"row"}))
		s.known(t, "row")
		for range 2 {
			v, err := g.Get(t.Context(), "row")
			require.NoError(t, err)
			require.Equal(t, "v", v)
		}
		filterTrips, cacheTrips := &redistest.Trips{}, &redistest.Trips{}
		s.client.AddHook(filterTrips)
		other.AddHook(cacheTrips)
		_, err := g.Get(t.Context(), "row")
		require.NoError(t, err)
		require.EqualValues(t, 1, filterTrips.N())
		require.EqualValues(t, 1, cacheTrips.N())

		// Either reply justifies its own answer.
		before := g.Stats()
		proxy.Refuse(true)
		proxy.Sever()
		_, err = g.Get(t.Context(), "absent")
		require.ErrorIs(t, err, ErrNotFound)
		require.Equal(t, before.Rejected+1, g.Stats().Rejected)
		v, err := g.Get(t.Context(), "row")
		require.NoError(t, err)
		require.Equal(t, "v", v)
		require.Equal(t, before.FailOpens+1, g.Stats().FailOpens)
		require.Equal(t, before.Loads+1, g.Stats().Loads)
	})
}

// Both faces of an AutoPipeliner coalesce the reads of concurrent Gets.
func TestGuardAutoPipeliner(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		for _, face := range []string{"blocking", "async"} {
			t.Run(face, func(t *testing.T) {
				s := redisStore(t, target, Blocked)
				ap, err := s.client.AutoPipeline()
				if face == "async" {
					ap, err = s.client.AsyncAutoPipeline()
				}
				require.NoError(t, err)
				s.filter, err = New(NewBitmap(ap, s.filter.backend.Key()), Config{})
				require.NoError(t, err)
				s.cache = NewRedisCache(ap, s.prefix)
				g := newTestGuard(t, s, rows(map[string]string{"row": "v"}), nil)
				require.True(t, g.rides.sharesTrip(&g.remote.conn, []string{"row"}))
				require.NoError(t, g.Register(t.Context(), "row", "null"))
				trips := &redistest.Trips{}
				s.client.AddHook(trips)

				const callers, calls = 32, 30
				var all sync.WaitGroup
				for range callers {
					all.Add(1)
					go func() {
						defer all.Done()
						for range calls {
							if v, err := g.Get(t.Context(), "row"); v != "v" || err != nil {
								t.Errorf("row: %q, %v", v, err)
							}
							for _, id := range []string{"null", "absent"} {
								if _, err := g.Get(t.Context(), id); !errors.Is(err, ErrNotFound) {
									t.Errorf("%s: %v", id, err)
								}
							}
						}
					}()
				}
				all.Wait()
				const gets = callers * calls * 3
				require.EqualValues(t, gets, g.Stats().Gets)
				require.EqualValues(t, 2, g.Stats().Loads)
				require.EqualValues(t, callers*calls, g.Stats().Rejected)
				require.Less(t, trips.N(), int64(gets/2), "round trips of %d Gets", gets)
			})
		}
	})
}

// In a cluster the keys of filter and cache live in different slots.
func TestGuardCluster(t *testing.T) {
	server := redistest.Start(t, "--cluster-enabled", "yes")
	node := server.Client(t)
	require.NoError(t, node.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
	eventually(t, "cluster is up", func() bool { return node.Set(t.Context(), "up", 1, time.Second).Err() == nil })
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })

	for _, layout := range []Layout{Classic, Blocked} {
		t.Run(fmt.Sprint(layout), func(t *testing.T) {
			prefix := redistest.Key(t) + ":"
			s := guardStore{
				filter: testFilter(t, NewBitmap(client, "filter of "+prefix), layout),
				cache:  NewRedisCache(client, prefix),
				raw:    rawRedis{t, node, prefix},
			}
			g := newTestGuard(t, s, rows(map[string]string{"row": "v", "{tag}": "w"}), nil)
			require.True(t, g.rides.sharesTrip(&g.remote.conn, []string{"row"}), "read in one round trip")
			require.NoError(t, g.Register(t.Context(), "row", "{tag}", "null"))
			for range 2 {
				v, err := g.Get(t.Context(), "row")
				require.NoError(t, err)
				require.Equal(t, "v", v)
				v, err = g.Get(t.Context(), "{tag}")
				require.NoError(t, err)
				require.Equal(t, "w", v)
				for _, id := range []string{"null", "absent"} {
					_, err = g.Get(t.Context(), id)
					require.ErrorIs(t, err, ErrNotFound)
				}
			}
			require.Equal(t, GuardStats{Gets: 8, Rejected: 2, Hits: 2, NullHits: 1, Loads: 3, LoadsNotFound: 1, Fills: 3}, g.Stats())
			require.NoError(t, g.Invalidate(t.Context(), "row", "{tag}", "null"))
			s.requireTag(t, "row", tagNone, 0)
			requireLifetimes(t, node, prefix)
		})
	}
}
