package bloom

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Every way a Get can end, and each field of Stats with it.
func TestGuardAnswers(t *testing.T) {
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		table := map[string]string{"row": "v"}
		invalid, broken := errors.New("not an id"), errors.New("database down")
		calls := 0
		g := newTestGuard(t, s, func(ctx context.Context, id string) (string, error) {
			calls++ // no two loads at once in this test
			if id == "broken" {
				return "w", broken
			}
			return rows(table)(ctx, id)
		}, &GuardOptions[string]{TTL: 10 * time.Second, NullTTL: 5 * time.Second, Jitter: -1,
			Validate: func(id string) error {
				if id == "007" {
					return invalid
				}
				return nil
			}})
		s.known(t, "row", "false positive", "broken", "007")

		var want GuardStats
		get := func(id, value string, err error) {
			t.Helper()
			want.Gets++
			v, gotErr := g.Get(t.Context(), id)
			require.ErrorIs(t, gotErr, err)
			require.Equal(t, value, v)
			require.Equal(t, want, g.Stats())
			require.EqualValues(t, want.Loads, calls)
		}

		want.Rejected = 1
		get("absent", "", ErrNotFound)
		s.requireTag(t, "absent", tagNone, 0)

		want.Loads, want.Fills = 1, 1
		get("row", "v", nil)
		s.requireTag(t, "row", tagValue, 10*time.Second)

		want.Hits = 1
		get("row", "v", nil)

		want.Loads, want.LoadsNotFound, want.Fills = 2, 1, 2
		get("false positive", "", ErrNotFound)
		s.requireTag(t, "false positive", tagNull, 5*time.Second)

		want.NullHits = 1
		get("false positive", "", ErrNotFound)

		want.Loads, want.LoadErrors = 3, 1
		get("broken", "", broken)
		s.requireTag(t, "broken", tagLease, 2*defaultLoadTimeout) // an error is not cached
		want.Loads, want.LoadErrors = 4, 2
		get("broken", "", broken)

		want.Invalid = 1
		get("007", "", invalid)

		// What is known of a row goes with an Invalidate, and comes back.
		table["row"] = "v2"
		require.NoError(t, g.Invalidate(t.Context(), "row"))
		s.requireTag(t, "row", tagNone, 0)
		want.Loads, want.Fills = 5, 3
		get("row", "v2", nil)

		// Register makes rows known and drops a "no such row".
		table["absent"], table["false positive"] = "new", "new"
		require.NoError(t, g.Register(t.Context(), "absent", "false positive"))
		want.Loads, want.Fills = 6, 4
		get("absent", "new", nil)
		want.Loads, want.Fills = 7, 5
		get("false positive", "new", nil)

		// No ids are no work.
		require.NoError(t, g.Register(t.Context()))
		require.NoError(t, g.Invalidate(t.Context()))
		require.Equal(t, want, g.Stats())
	})
}

// Errors name the id, but ErrNotFound is everyday and stays as it is.
func TestGuardErrorTexts(t *testing.T) {
	s := memoryStore(t)
	s.known(t, "7", "8")
	g := newTestGuard(t, s, func(_ context.Context, id string) (string, error) {
		if id == "8" {
			return "", fmt.Errorf("row 8: %w", ErrNotFound)
		}
		return "", errors.New("no connection")
	}, nil)
	_, err := g.Get(t.Context(), "7")
	require.EqualError(t, err, `bloom: get "7": no connection`)
	_, err = g.Get(t.Context(), "8")
	require.ErrorIs(t, err, ErrNotFound)
	_, err = g.Get(t.Context(), "9")
	require.Equal(t, ErrNotFound, err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = g.Get(ctx, "7")
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, `"7"`)
	require.ErrorIs(t, g.Invalidate(ctx, "7"), context.Canceled)
	require.ErrorIs(t, g.Register(ctx, "7"), context.Canceled)
}

// Register is right only if both of its halves were: an error of either must
// reach the caller, and the cache is dropped even if the filter failed.
func TestGuardRegisterErrors(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		s := redisStore(t, target, Classic)
		g := newTestGuard(t, s, rows(nil), nil)
		s.known(t, "a")
		_, err := g.Get(t.Context(), "a")
		require.ErrorIs(t, err, ErrNotFound)

		key := s.filter.backend.Key()
		require.NoError(t, s.client.Set(t.Context(), key, "something else", time.Minute).Err())
		err = g.Register(t.Context(), "a", "b")
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, key)
		s.requireTag(t, "a", tagNone, 0)

		require.NoError(t, s.client.Del(t.Context(), key).Err())
		require.NoError(t, g.Register(t.Context(), "a"), "a filter that is not ready is no error")

		closed := redis.NewClient(&redis.Options{Addr: target.Addr})
		require.NoError(t, closed.Close())
		s.cache = NewRedisCache(closed, s.prefix)
		require.NoError(t, s.filter.CreateEmpty(t.Context()))
		g = newTestGuard(t, s, rows(nil), nil)
		err = g.Register(t.Context(), "a", "b")
		require.ErrorIs(t, err, redis.ErrClosed)
		require.ErrorContains(t, err, "invalidate 2 ids")
		exists, err := s.filter.Exists(t.Context(), "b")
		require.NoError(t, err)
		require.True(t, exists)
	})
}

// A cached value behind a certain "no" is returned, counted, and the filter
// mended (G10). A cached null agrees with the filter.
func TestGuardHeals(t *testing.T) {
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		g := newTestGuard(t, s, rows(nil), nil)
		s.raw.set("unregistered", []byte(`V"v"`), time.Minute)
		s.raw.set("null", []byte("N"), time.Minute)
		v, err := g.Get(t.Context(), "unregistered")
		require.NoError(t, err)
		require.Equal(t, "v", v)
		_, err = g.Get(t.Context(), "null")
		require.ErrorIs(t, err, ErrNotFound)
		require.NoError(t, g.Close(t.Context()))
		require.Equal(t, GuardStats{Gets: 2, Hits: 1, NullHits: 1, Anomalies: 1, Heals: 1}, g.Stats())
		exists, err := s.filter.ExistsMulti(t.Context(), []string{"unregistered", "null"})
		require.NoError(t, err)
		require.Equal(t, []bool{true, false}, exists)
	})
}

// A damaged filter in front of a warm cache must not start a goroutine per Get.
func TestGuardBoundsHeals(t *testing.T) {
	s := memoryStore(t)
	block := make(chan struct{})
	f, err := New(blockedAdds{s.filter.backend, block}, Config{})
	require.NoError(t, err)
	s.filter = f
	g := newTestGuard(t, s, rows(nil), nil)
	for i := range 10 * maxHeals {
		id := fmt.Sprint(i)
		s.raw.set(id, []byte(`V"v"`), time.Minute)
		_, err := g.Get(t.Context(), id)
		require.NoError(t, err)
	}
	close(block)
	require.NoError(t, g.Close(t.Context()))
	require.EqualValues(t, 10*maxHeals, g.Stats().Anomalies)
	require.EqualValues(t, maxHeals, g.Stats().Heals)
	_, err = g.Get(t.Context(), "100")
	require.NoError(t, err, "hits go on, but nothing is healed once closed")
	require.EqualValues(t, maxHeals, g.Stats().Heals)
}

type blockedAdds struct {
	Backend
	block chan struct{}
}

func (b blockedAdds) Add(ctx context.Context, item string) (bool, error) {
	<-b.block
	return b.Backend.Add(ctx, item)
}

// An unbuilt filter denies nothing (G11): whatever is in the table is found.
func TestGuardFilterNotReady(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		s := redisStore(t, target, Classic)
		require.NoError(t, s.filter.Drop(t.Context()))
		g := newTestGuard(t, s, rows(map[string]string{"a": "v"}), nil)
		for range 2 {
			v, err := g.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, "v", v)
			_, err = g.Get(t.Context(), "b")
			require.ErrorIs(t, err, ErrNotFound)
		}
		require.Equal(t, GuardStats{Gets: 4, Hits: 1, NullHits: 1, Loads: 2, LoadsNotFound: 1, Fills: 2, FailOpens: 2}, g.Stats())

		g = newTestGuard(t, s, rows(nil), &GuardOptions[string]{FailClosed: true})
		v, err := g.Get(t.Context(), "a")
		require.NoError(t, err, "what is cached needs no filter")
		require.Equal(t, "v", v)
		_, err = g.Get(t.Context(), "c")
		require.ErrorIs(t, err, ErrNotReady)
		require.ErrorContains(t, err, `bloom: get "c"`)
		require.Equal(t, GuardStats{Gets: 2, Hits: 1}, g.Stats())
	})
}

// A key of another type under a cache key, or of the filter, is an error of
// Redis: it is let through and left alone, and Invalidate clears the way.
func TestGuardWrongTypes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		s := redisStore(t, target, Blocked)
		s.known(t, "a")
		key := s.prefix + "a"
		require.NoError(t, s.client.LPush(t.Context(), key, "x").Err())
		require.NoError(t, s.client.Expire(t.Context(), key, time.Minute).Err())
		g := newTestGuard(t, s, rows(map[string]string{"a": "v"}), nil)
		for range 2 {
			v, err := g.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, "v", v)
		}
		require.Equal(t, GuardStats{Gets: 2, Loads: 2, FailOpens: 2}, g.Stats())
		require.Equal(t, []string{"x"}, s.client.LRange(t.Context(), key, 0, -1).Val())
		_, err := g.Get(t.Context(), "certainly not")
		require.ErrorIs(t, err, ErrNotFound, "the filter answers for itself")
		require.EqualValues(t, 1, g.Stats().Rejected)

		require.NoError(t, g.Invalidate(t.Context(), "a"))
		_, err = g.Get(t.Context(), "a")
		require.NoError(t, err)
		s.requireTag(t, "a", tagValue, defaultTTL)
	})
}

// Scripts vanish from a server whenever it likes (F15).
func TestGuardScriptsFlushed(t *testing.T) {
	s := redisStore(t, redistest.Target{Name: "redis", Addr: redistest.Start(t).Addr(), Real: true}, Classic)
	g := newTestGuard(t, s, rows(map[string]string{"a": "v"}), nil)
	for range 3 {
		require.NoError(t, s.client.ScriptFlush(t.Context()).Err())
		require.NoError(t, g.Register(t.Context(), "a"))
		require.NoError(t, s.client.ScriptFlush(t.Context()).Err())
		v, err := g.Get(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, "v", v)
	}
	require.Equal(t, GuardStats{Gets: 3, Loads: 3, Fills: 3}, g.Stats())
}

// "down" in miniredis is every command refused, which is no network error.
func TestGuardRefusedCommands(t *testing.T) {
	m := miniredis.RunT(t)
	s := redisStore(t, redistest.Target{Name: "miniredis", Addr: m.Addr()}, Classic)
	g := newTestGuard(t, s, rows(map[string]string{"a": "v"}), nil)
	closed := newTestGuard(t, s, rows(nil), &GuardOptions[string]{FailClosed: true})
	m.SetError("LOADING Redis is loading the dataset in memory")
	v, err := g.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, "v", v)
	require.Equal(t, GuardStats{Gets: 1, Loads: 1, FailOpens: 1}, g.Stats())
	_, err = closed.Get(t.Context(), "a")
	require.ErrorContains(t, err, "LOADING")
	require.Error(t, g.Register(t.Context(), "a"))
	m.SetError("")
	require.NoError(t, g.Register(t.Context(), "a"))
}
