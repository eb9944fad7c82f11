package bloom

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// A flood of unknown ids: the database sees the false positives of the filter, at
// most 1.2 times as many as configured, and each only once per null TTL (G9).
func TestGuardFlood(t *testing.T) {
	t.Parallel()
	flood := func(t *testing.T, b Backend, c Cache, layout Layout, capacity, n int) {
		f, err := New(b, Config{Capacity: uint64(capacity), Layout: layout})
		require.NoError(t, err)
		require.NoError(t, f.CreateEmpty(t.Context()))
		_, err = f.AddMulti(t.Context(), numberedIDs(capacity))
		require.NoError(t, err)
		if raceEnabled || testing.Short() {
			n /= 5
		}
		count := &loadCount{}
		g := newTestGuard(t, guardStore{filter: f, cache: c}, count.load, nil)
		random := testSeed(t).Uint64()
		for range 2 { // the same ids again are no further loads
			var next atomic.Int64
			var all sync.WaitGroup
			for range 16 {
				all.Add(1)
				go func() {
					defer all.Done()
					for {
						i := next.Add(1)
						if i > int64(n) || t.Failed() {
							return
						}
						id := fmt.Sprintf("-%x", random+uint64(i)*lcgMultiplier)
						if _, err := g.Get(context.Background(), id); err != ErrNotFound { //nolint:errorlint // the loader's is plain
							t.Errorf("%q: %v", id, err)
						}
					}
				}()
			}
			all.Wait()
			mean := defaultFPRate * float64(n)
			t.Logf("%d loads of %d", g.Stats().Loads, n)
			// Six standard deviations on top: few enough for a small n to be safe.
			require.LessOrEqual(t, float64(g.Stats().Loads), 1.2*mean+6*math.Sqrt(mean))
			require.Equal(t, int(g.Stats().Loads), len(count.calls))
			for id, calls := range count.calls {
				require.Equal(t, 1, calls, "loads of %q", id)
			}
		}
		stats := g.Stats()
		require.Equal(t, stats.Loads, stats.LoadsNotFound)
		require.Equal(t, uint64(2*n), stats.Rejected+stats.NullHits+stats.Loads)
		require.Equal(t, stats.Loads, stats.NullHits)
	}
	for _, layout := range []Layout{Classic, Blocked} {
		t.Run(fmt.Sprint(layout), func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, target redistest.Target) {
				client, key := target.Client(t), redistest.Key(t)
				capacity, n := 10_000, 20_000
				if !target.Real {
					capacity, n = 1000, 1000
				}
				flood(t, NewBitmap(client, key), NewRedisCache(client, key+":"), layout, capacity, n)
				requireLifetimes(t, client, key+":")
			})
			t.Run("memory", func(t *testing.T) {
				flood(t, NewMemory(), NewMemoryCache(), layout, 10_000, 100_000)
			})
		})
	}
}
