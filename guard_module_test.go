package bloom_test

import (
	"context"
	"testing"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/bloomtest"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// A Guard over RedisBloom also reads filter and cache in one round trip, and the
// sentinels in it prove what the filter denies.
func TestGuardOverRedisBloom(t *testing.T) {
	m := redistest.Mini(t)
	bloomtest.RedisBloom(m)
	rdb := redistest.MiniClient(t, m)
	f, err := bloom.New(bloom.NewRedisBloom(rdb, "filter", nil), bloom.Config{Capacity: 1000})
	require.NoError(t, err)
	require.NoError(t, f.CreateEmpty(t.Context()))
	loads := 0
	g, err := bloom.NewGuard(f, bloom.NewRedisCache(rdb, "cache:"), func(_ context.Context, id string) (string, error) {
		loads++
		return "row " + id, nil
	}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close(context.Background())) }()
	require.NoError(t, g.Register(t.Context(), "a"))
	v, err := g.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, "row a", v)

	trips := new(redistest.Trips)
	rdb.AddHook(trips)
	for id, want := range map[string]error{"a": nil, "absent": bloom.ErrNotFound} {
		trips.Reset()
		_, err := g.Get(t.Context(), id)
		require.ErrorIs(t, err, want)
		require.EqualValues(t, 1, trips.N(), id)
	}
	require.Equal(t, 1, loads)

	m.Del("filter") // the module would answer 0 now: nothing is denied
	v, err = g.Get(t.Context(), "b")
	require.NoError(t, err)
	require.Equal(t, "row b", v)
}
