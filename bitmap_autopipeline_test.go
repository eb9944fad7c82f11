package bloom_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Both faces of go-redis' AutoPipeliner: the calls of many goroutines share round
// trips, and each caller's wait is its own.

// bothFaces runs f with each face of a client of s.
func bothFaces(t *testing.T, addr string, f func(t *testing.T, client *redis.Client, ap *redis.AutoPipeliner)) {
	for _, blocking := range []bool{true, false} {
		t.Run(map[bool]string{true: "blocking", false: "deferred"}[blocking], func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1, ReadTimeout: 10 * time.Second})
			defer client.Close()
			face := client.AsyncAutoPipeline
			if blocking {
				face = client.AutoPipeline
			}
			ap, err := face()
			require.NoError(t, err)
			f(t, client, ap)
		})
	}
}

// 64 goroutines add and read what they added: each sees its own, and together
// they take fewer trips than calls.
func TestAutoPipelineCoalesces(t *testing.T) {
	bothFaces(t, redistest.Shared(t).Addr(), func(t *testing.T, client *redis.Client, ap *redis.AutoPipeliner) {
		bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
			f := filled(t, ap, redistest.Key(t), 5000, layout, []string{"warm"})
			requireMembers(t, f, []string{"warm"})
			trips := &redistest.Trips{}
			client.AddHook(trips)
			const goroutines, rounds = 64, 10
			var wg sync.WaitGroup
			for g := range goroutines {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for r := range rounds {
						mine := numbered(fmt.Sprintf("%d in %d", g, r), 3)
						_, err := f.Add(t.Context(), mine[0])
						if err == nil {
							_, err = f.AddMulti(t.Context(), mine[1:])
						}
						ok, err2 := f.Exists(t.Context(), mine[0])
						all, err3 := allOf(f.ExistsMulti(t.Context(), mine))
						none, err4 := f.Exists(t.Context(), fmt.Sprintf("absent %d in %d", g, r))
						if err != nil || err2 != nil || err3 != nil || err4 != nil || !ok || !all {
							t.Errorf("%v %v %v %v: %v %v", err, err2, err3, err4, ok, all)
							return
						}
						_ = none // may be a false positive
					}
				}()
			}
			wg.Wait()
			calls := int64(goroutines * rounds * 5)
			t.Logf("%d calls took %d trips", calls, trips.N())
			require.Less(t, trips.N(), calls/2)
			absent, err := f.ExistsMulti(t.Context(), numbered("never", 1000))
			require.NoError(t, err)
			requireFew(t, absent)
		})
	})
}

// requireFew requires that the answers are not all yes: then a denial means
// something.
func requireFew(t *testing.T, got []bool) {
	t.Helper()
	n := 0
	for _, is := range got {
		if is {
			n++
		}
	}
	require.Less(t, n, len(got)/10)
}

// A caller leaves with its context while the server stands still, and those who
// stay get their answer.
func TestAutoPipelineLeaves(t *testing.T) {
	s := redistest.Start(t)
	bothFaces(t, s.Addr(), func(t *testing.T, _ *redis.Client, ap *redis.AutoPipeliner) {
		bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
			key := redistest.Key(t)
			members := numbered("member", 50)
			f := filled(t, ap, key, 100, layout, members)
			requireMembers(t, f, members)

			s.Freeze()
			stays := make(chan error, 1)
			go func() {
				ok, err := f.Exists(t.Context(), members[0])
				if err == nil && !ok {
					err = fmt.Errorf("false negative")
				}
				stays <- err
			}()
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(50*time.Millisecond, cancel)
					start := time.Now()
					ok, err := f.Exists(ctx, members[i])
					if !ok || err == nil || time.Since(start) > time.Second {
						t.Errorf("left with %v, %v after %v", ok, err, time.Since(start))
					}
				}()
			}
			wg.Wait()
			requireFailingInTime(t, f)
			s.Thaw()
			require.NoError(t, <-stays)
			requireMembers(t, f, members)
		})
	})
}

// A closed face is an error, not a hang and not a no.
func TestAutoPipelineClosed(t *testing.T) {
	bothFaces(t, redistest.Shared(t).Addr(), func(t *testing.T, _ *redis.Client, ap *redis.AutoPipeliner) {
		members := numbered("member", 10)
		f := filled(t, ap, redistest.Key(t), 100, bloom.Blocked, members)
		requireMembers(t, f, members)
		require.NoError(t, ap.Close())
		require.ErrorIs(t, neverDenies(t, f, members), redis.ErrClosed)
		_, err := f.Add(t.Context(), "new")
		require.ErrorIs(t, err, redis.ErrClosed)
		require.ErrorIs(t, f.Drop(t.Context()), redis.ErrClosed)
	})
}
