package bloom

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// patient is what go-redis is unless told otherwise: a Redis that hangs costs it more
// than any request has.
func patient(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 5*time.Second, 3 }

// A Redis that hangs leaves time for the load, however patient the client is, on all
// ways to read filter and cache.
func TestGuardLeavesTimeToLoad(t *testing.T) {
	const within = 600 * time.Millisecond
	plain := func(_ *testing.T, c *redis.Client) redis.Cmdable { return c }
	for name, via := range map[string]struct {
		filter, cache func(t *testing.T, c *redis.Client) redis.Cmdable
	}{
		"one trip": {plain, nil},
		"AutoPipeliner": {func(t *testing.T, c *redis.Client) redis.Cmdable {
			ap, err := c.AutoPipeline()
			require.NoError(t, err)
			t.Cleanup(func() { _ = ap.Close() })
			return ap
		}, nil},
		"two clients": {plain, plain},
	} {
		t.Run(name, func(t *testing.T) {
			server, s := ownServer(t, Blocked)
			rdb := via.filter(t, server.Client(t, patient))
			filter, err := New(NewBitmap(rdb, s.filter.backend.Key()), Config{})
			require.NoError(t, err)
			if via.cache != nil {
				rdb = via.cache(t, server.Client(t, patient))
			}
			count := &loadCount{}
			ids := numberedIDs(10)
			for _, closed := range []bool{false, true} {
				g, err := NewGuard(filter, NewRedisCache(rdb, s.prefix), count.load, &GuardOptions[string]{FailClosed: closed})
				require.NoError(t, err)
				require.NoError(t, g.Register(t.Context(), ids...))
				_, err = g.Get(t.Context(), ids[0]) // connections are there, and the filter is known
				require.NoError(t, err)

				server.Freeze()
				ctx, cancel := context.WithTimeout(t.Context(), within)
				began := time.Now()
				v, getErr := g.Get(ctx, ids[1])
				took := time.Since(began)
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), within)
				found, multiErr := g.GetMulti(ctx, ids)
				cancel()
				server.Thaw()
				require.NoError(t, g.Close(t.Context()))

				if closed {
					require.ErrorIs(t, getErr, context.DeadlineExceeded)
					require.ErrorIs(t, multiErr, context.DeadlineExceeded)
					require.Empty(t, found)
					continue
				}
				require.NoError(t, getErr)
				require.Equal(t, "row of "+ids[1], v)
				require.Greater(t, took, within/3, "Redis has its half")
				require.NoError(t, multiErr)
				require.Len(t, found, len(ids))
				require.EqualValues(t, 1+len(ids), g.Stats().FailOpens)
			}
		})
	}
}
