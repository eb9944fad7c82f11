package shop

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/stretchr/testify/require"
)

// keepWarm runs KeepWarm for the length of the test.
func keepWarm(t *testing.T, b *bed) {
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.KeepWarm(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
}

func ready(t *testing.T, b *bed) {
	t.Helper()
	require.Eventually(t, func() bool { return b.Filter.Ready(t.Context()) == nil }, 30*time.Second, 10*time.Millisecond)
}

// Everything is served while the filter is built, and what is written meanwhile is
// in it.
func TestServesDuringTheWarmUp(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Settle = time.Second })
	keepWarm(t, b)
	require.Eventually(t, func() bool { return b.redis.Exists("{shop:filter}:next") }, 10*time.Second, time.Millisecond)
	require.Error(t, b.Filter.Ready(t.Context()), "the test comes too late")

	code, p := b.get(t, 8)
	require.Equal(t, http.StatusOK, code)
	require.EqualValues(t, 8, p.ID)
	code, _ = b.get(t, 9)
	require.Equal(t, http.StatusNotFound, code)
	require.Equal(t, Lookups{Found: 1, Absent: 1}, b.DB.Lookups(), "all is let through")
	made := b.post(t, `{"name":"meanwhile"}`)

	ready(t, b)
	for _, id := range []int64{8, SeededID(seeded), made.ID} {
		code, _ = b.get(t, id)
		require.Equal(t, http.StatusOK, code, "product %d", id)
	}
	const absent = 100
	before := b.DB.Lookups().Absent
	for i := range int64(absent) {
		code, _ = b.get(t, made.ID+1+i)
		require.Equal(t, http.StatusNotFound, code)
	}
	// One audit a second, and what the filter's rate lets through.
	require.Less(t, b.DB.Lookups().Absent-before, uint64(absent/4))
}

// A second shop, on another machine, takes the filter that is there.
func TestSecondShopSkips(t *testing.T) {
	b := warmBed(t)
	require.NoError(t, b.warm(t.Context()))
	info, err := b.Filter.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, info.Generation)
}

// A filter that was evicted is built again.
func TestBuiltAgainOnceGone(t *testing.T) {
	b := warmBed(t)
	b.redis.FlushAll()
	require.Error(t, b.Filter.Ready(t.Context()))
	code, _ := b.get(t, 8)
	require.Equal(t, http.StatusOK, code)
	keepWarm(t, b)
	ready(t, b)
	code, _ = b.get(t, SeededID(2))
	require.Equal(t, http.StatusOK, code)
}

// A table that has outgrown its filter gets a larger one.
func TestOutgrown(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Capacity = 100 })
	require.NoError(t, b.warm(t.Context()))
	b.cfg.Capacity = 0
	require.NoError(t, b.warm(t.Context()))
	info, err := b.Filter.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, leastCapacity, info.Params.Capacity)
	require.EqualValues(t, 2, info.Generation)
	require.InDelta(t, seeded, info.Items, 10)

	b.cfg.MaxAge = time.Millisecond // and one that is old is built anew
	time.Sleep(10 * time.Millisecond)
	require.NoError(t, b.warm(t.Context()))
	info, err = b.Filter.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, info.Generation)
}

// An empty table gets no filter, which would deny what others insert unregistered;
// the first products work all the same.
func TestEmptyTable(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Seed = 0 })
	require.ErrorIs(t, b.warm(t.Context()), bloom.ErrRebuildRefused)
	p := b.post(t, `{"name":"first"}`)
	code, _ := b.get(t, p.ID)
	require.Equal(t, http.StatusOK, code)
	require.NoError(t, b.warm(t.Context()))
	code, _ = b.get(t, p.ID)
	require.Equal(t, http.StatusOK, code)
}
