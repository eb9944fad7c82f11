package bloom

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// shardKinds make n places of shards, by the name of what they are.
func shardKinds(t *testing.T) map[string]func(t *testing.T, n int) []Backend {
	t.Helper()
	mini := redistest.Mini(t)
	ModuleDouble(mini)
	double := redistest.MiniClient(t, mini)
	kinds := map[string]func(t *testing.T, n int) []Backend{
		"memory": func(_ *testing.T, n int) []Backend {
			var all []Backend
			for range n {
				all = append(all, NewMemory())
			}
			return all
		},
		"bitmap": func(t *testing.T, n int) []Backend {
			var all []Backend
			for _, key := range ShardKeys(redistest.Key(t), n) {
				all = append(all, NewBitmap(double, key))
			}
			return all
		},
		"redisbloom": func(t *testing.T, n int) []Backend {
			var all []Backend
			for _, key := range ShardKeys(redistest.Key(t), n) {
				all = append(all, NewRedisBloom(double, key, nil))
			}
			return all
		},
	}
	kinds["mixture"] = func(t *testing.T, n int) []Backend {
		all := kinds["bitmap"](t, n)
		for i := range all {
			switch i % 3 {
			case 1:
				all[i] = NewMemory()
			case 2:
				all[i] = NewRedisBloom(double, all[i].Key(), nil)
			}
		}
		return all
	}
	return kinds
}

func shardedFilter(t testing.TB, cfg Config, shards ...Backend) *Filter {
	t.Helper()
	f, err := New(NewSharded(shards...), cfg)
	require.NoError(t, err)
	return f
}

// shardedFails requires that every call on an item, and on the whole, fails with
// target and denies nothing.
func shardedFails(t *testing.T, f *Filter, target error, items []string) {
	t.Helper()
	found, err := f.ExistsMulti(t.Context(), items)
	require.ErrorIs(t, err, target)
	require.NotContains(t, found, false)
	added, err := f.AddMulti(t.Context(), items)
	require.ErrorIs(t, err, target)
	require.NotContains(t, added, false)
	for _, item := range items[:10] {
		exists, err := f.Exists(t.Context(), item)
		require.ErrorIs(t, err, target)
		require.True(t, exists)
		exists, err = f.Add(t.Context(), item)
		require.ErrorIs(t, err, target)
		require.True(t, exists)
	}
	_, err = f.Info(t.Context())
	require.ErrorIs(t, err, target)
	require.ErrorIs(t, f.Ready(t.Context()), target)
	require.ErrorIs(t, f.Reset(t.Context()), target)
	_, err = f.Verify(t.Context(), rebuildSource(items), nil)
	require.ErrorIs(t, err, target)
}

// Another number or order of shards than the stored one is noticed by every call,
// and so is a shard that is taken for a filter of its own; nothing is made, changed
// or removed.
func TestShardedMismatch(t *testing.T) {
	items := rebuildItems("row ", 60)
	for kind, places := range shardKinds(t) {
		t.Run(kind, func(t *testing.T) {
			cfg := Config{Capacity: 100}
			all := places(t, 4)
			f := shardedFilter(t, cfg, all...)
			_, err := f.Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
			require.NoError(t, err)
			rebuildRequireAll(t, f, items)
			swapped := slices.Clone(all)
			slices.Reverse(swapped)
			for name, wrong := range map[string][]Backend{
				"reversed":    swapped,
				"fewer":       all[:3],
				"the first":   all[:1],
				"fewer, last": all[1:],
			} {
				g := shardedFilter(t, cfg, wrong...)
				shardedFails(t, g, ErrParamsMismatch, items)
				require.ErrorIs(t, g.CreateEmpty(t.Context()), ErrParamsMismatch, name)
				require.ErrorIs(t, g.Drop(t.Context()), ErrParamsMismatch, name)
				_, err = g.Rebuild(t.Context(), rebuildUnread(t), rebuildQuick())
				require.ErrorIs(t, err, ErrParamsMismatch, name)
				_, err = g.Rebuild(t.Context(), rebuildUnread(t), rebuildDaily())
				require.ErrorIs(t, err, ErrParamsMismatch, name)
				rebuildRequireAll(t, f, items)
			}
			for _, b := range all {
				alone, err := New(b, cfg)
				require.NoError(t, err)
				shardedFails(t, alone, ErrParamsMismatch, items)
				require.ErrorIs(t, alone.CreateEmpty(t.Context()), ErrParamsMismatch)
				_, err = alone.Rebuild(t.Context(), rebuildUnread(t), rebuildQuick())
				require.ErrorIs(t, err, ErrParamsMismatch)
				require.ErrorIs(t, alone.Drop(t.Context()), ErrParamsMismatch)
			}
			more := shardedFilter(t, cfg, append(slices.Clone(all), NewMemory())...)
			found, err := more.ExistsMulti(t.Context(), items)
			require.ErrorIs(t, err, ErrParamsMismatch)
			require.NotContains(t, found, false)
			rebuildRequireAll(t, f, items)
			info, err := f.Info(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 1, info.Generation)
			require.Equal(t, "sharded", info.Backend)
			require.Equal(t, 4, info.Shards)
			require.EqualValues(t, 100, info.Params.Capacity)
		})
	}
}

// The other way round: a filter of its own is no shard. One shard alone is a filter
// like any other.
func TestShardedOfFiltersAlone(t *testing.T) {
	items := rebuildItems("row ", 60)
	for kind, places := range shardKinds(t) {
		t.Run(kind, func(t *testing.T) {
			all := places(t, 2)
			for _, b := range all {
				f, err := New(b, Config{Capacity: 100})
				require.NoError(t, err)
				_, err = f.Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
				require.NoError(t, err)
			}
			g := shardedFilter(t, Config{Capacity: 100}, all...)
			if kind == "redisbloom" || kind == "mixture" {
				// Of a filter that CreateEmpty made the module does not tell who it is.
				require.ErrorIs(t, g.CreateEmpty(t.Context()), ErrParamsMismatch)
			}
			shardedFails(t, g, ErrParamsMismatch, items)
			require.ErrorIs(t, g.CreateEmpty(t.Context()), ErrParamsMismatch)
			one := shardedFilter(t, Config{}, all[0])
			rebuildRequireAll(t, one, items)
			_, err := one.Add(t.Context(), "by the only shard")
			require.NoError(t, err)
			f, err := New(all[0], Config{})
			require.NoError(t, err)
			rebuildRequireAll(t, f, []string{"by the only shard"})
		})
	}
}

// New refuses what cannot work, and names it.
func TestShardedRefuses(t *testing.T) {
	rdb := redistest.MiniClient(t, redistest.Mini(t))
	other := redistest.MiniClient(t, redistest.Mini(t))
	m := NewMemory()
	a, b := NewBitmap(rdb, "a"), NewBitmap(rdb, "b")
	for name, c := range map[string]struct {
		shards []Backend
		cfg    Config
		err    error
		text   []string
	}{
		"none":                     {nil, Config{}, ErrInvalidParams, []string{"no shards", "1 to 1024"}},
		"too many":                 {make([]Backend, 1025), Config{}, ErrInvalidParams, []string{"1025", "1 to 1024"}},
		"nil":                      {[]Backend{a, nil}, Config{}, ErrInvalidParams, []string{"shard 1", "nil"}},
		"nil bitmap":               {[]Backend{a, (*Bitmap)(nil)}, Config{}, ErrInvalidParams, []string{"shard 1", "nil *"}},
		"nil memory":               {[]Backend{(*Memory)(nil), a}, Config{}, ErrInvalidParams, []string{"shard 0", "nil *"}},
		"nil redisbloom":           {[]Backend{a, (*RedisBloom)(nil)}, Config{}, ErrInvalidParams, []string{"shard 1", "nil *"}},
		"nil sharded":              {[]Backend{a, (*Sharded)(nil)}, Config{}, ErrInvalidParams, []string{"shard 1", "*Sharded"}},
		"the same":                 {[]Backend{b, a, a}, Config{}, ErrInvalidParams, []string{"shards 1 and 2", `"a"`}},
		"the same key":             {[]Backend{a, NewBitmap(rdb, "a")}, Config{}, ErrInvalidParams, []string{"shards 0 and 1", `"a"`}},
		"the same key, other kind": {[]Backend{a, NewRedisBloom(rdb, "a", nil)}, Config{}, ErrInvalidParams, []string{"shards 0 and 1"}},
		"the same memory":          {[]Backend{m, a, m}, Config{}, ErrInvalidParams, []string{"shards 0 and 2", "memory"}},
		"nested":                   {[]Backend{a, NewSharded(b)}, Config{}, ErrInvalidParams, []string{"shard 1", "*Sharded"}},
		"of another package":       {[]Backend{a, struct{ Backend }{b}}, Config{}, ErrInvalidParams, []string{"shard 1", "want *Bitmap"}},
		"adopt": {[]Backend{a, NewRedisBloom(rdb, "b", &RedisBloomOptions{Adopt: true})}, Config{}, ErrInvalidParams,
			[]string{"shard 1", "Adopt"}},
		"a bad key":    {[]Backend{a, NewBitmap(rdb, "{")}, Config{}, ErrInvalidParams, []string{"shard 1", `"{"`}},
		"a nil client": {[]Backend{a, NewBitmap(nil, "b")}, Config{}, ErrInvalidParams, []string{"shard 1", "nil"}},
		"a layout":     {[]Backend{a, NewRedisBloom(rdb, "b", nil)}, Config{Capacity: 1, Layout: Blocked}, ErrInvalidParams, []string{"shard 1", "Classic"}},
		"too large":    {[]Backend{a, b}, Config{Capacity: 1e9}, ErrTooLarge, []string{"1000000000", "in 2 shards", "3 shards would do"}},
		"too large for the module": {[]Backend{NewRedisBloom(rdb, "a", nil), NewRedisBloom(rdb, "b", nil)}, Config{Capacity: 4e9}, ErrTooLarge,
			[]string{"4000000000", "in 2 shards", "4 shards would do"}},
		"beyond counting": {[]Backend{a, b}, Config{Capacity: 1<<64 - 1}, ErrTooLarge, []string{"at most 1024 are possible"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(NewSharded(c.shards...), c.cfg)
			require.ErrorIs(t, err, c.err)
			for _, text := range c.text {
				require.ErrorContains(t, err, text)
			}
		})
	}
	_, err := New((*Sharded)(nil), Config{})
	require.ErrorIs(t, err, ErrInvalidParams)
	_, err = New(NewSharded(a, NewBitmap(other, "a"), m), Config{Capacity: 100})
	require.NoError(t, err, "one key on two servers")
	_, err = New(NewSharded(a, b, NewBitmap(rdb, "c")), Config{Capacity: 1e9})
	require.NoError(t, err, "as many as were named")

	// Used without New it refuses likewise.
	s := NewSharded()
	require.Equal(t, "no shards", s.Key())
	exists, err := s.Exists(t.Context(), "a")
	require.True(t, exists)
	require.ErrorIs(t, err, ErrInvalidParams)
	added, err := s.AddMulti(t.Context(), []string{"a", "b"})
	require.Equal(t, []bool{true, true}, added)
	require.ErrorIs(t, err, ErrInvalidParams)
	_, err = s.Info(t.Context())
	for _, err := range []error{err, s.CreateEmpty(t.Context(), Config{Capacity: 1, FPRate: 0.1}), s.Ready(t.Context()), s.Reset(t.Context()), s.Drop(t.Context())} {
		require.ErrorIs(t, err, ErrInvalidParams)
	}
}

// A lost shard fails the calls that need it, and no others; its items are let
// through, those of the other shards are answered.
func TestShardedPartlyLost(t *testing.T) {
	items := rebuildItems("row ", 100)
	absent := rebuildItems("absent ", 100)
	for kind, places := range shardKinds(t) {
		t.Run(kind, func(t *testing.T) {
			all := places(t, 4)
			f := shardedFilter(t, Config{Capacity: 1000, FPRate: 1e-6}, all...)
			_, err := f.Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
			require.NoError(t, err)
			lost := f.backend.(*Sharded).shards[2]
			require.NoError(t, lost.Drop(t.Context()))

			found, err := f.ExistsMulti(t.Context(), append(items, absent...))
			require.ErrorIs(t, err, ErrNotReady)
			require.ErrorContains(t, err, "shard 2 of 4")
			require.ErrorContains(t, err, fmt.Sprintf("%q", lost.Key()))
			for i, item := range append(items, absent...) {
				require.Equal(t, i < len(items) || route(item, 4) == 2, found[i], item)
			}
			added, err := f.AddMulti(t.Context(), append(items, absent...))
			require.ErrorIs(t, err, ErrNotReady)
			for i, item := range append(items, absent...) {
				require.Equal(t, i >= len(items) || route(item, 4) == 2, added[i], item)
			}
			for _, item := range items[:20] {
				exists, err := f.Exists(t.Context(), item)
				require.True(t, exists)
				require.Equal(t, route(item, 4) == 2, errors.Is(err, ErrNotReady))
				require.Equal(t, route(item, 4) == 2, err != nil)
			}
			for range 2 {
				err = f.CreateEmpty(t.Context())
				require.ErrorIs(t, err, ErrNotReady, "it must not be filled with emptiness")
				require.ErrorContains(t, err, "2 (")
				require.ErrorIs(t, f.Ready(t.Context()), ErrNotReady)
				require.ErrorIs(t, f.Reset(t.Context()), ErrNotReady)
			}
			_, err = f.Info(t.Context())
			require.ErrorIs(t, err, ErrNotReady)
			rest := func() (rest []string) {
				for _, item := range items {
					if route(item, 4) != 2 {
						rest = append(rest, item)
					}
				}
				return rest
			}()
			rebuildRequireAll(t, f, rest)

			// With MaxAge the lost one alone is built again.
			report, err := f.Rebuild(t.Context(), rebuildSource(items), rebuildDaily())
			require.NoError(t, err)
			require.False(t, report.Skipped)
			require.EqualValues(t, len(items), report.Items)
			rebuildRequireAll(t, f, items)
			report, err = f.Rebuild(t.Context(), rebuildUnread(t), rebuildDaily())
			require.NoError(t, err)
			require.True(t, report.Skipped)

			// What is wholly lost can be made anew.
			require.NoError(t, f.Drop(t.Context()))
			require.NoError(t, f.CreateEmpty(t.Context()))
			found, err = f.ExistsMulti(t.Context(), items)
			require.NoError(t, err)
			require.NotContains(t, found, true)
		})
	}
}

// Worse than a missing shard is one that cannot be asked: then nobody may take it
// that nothing was promised.
func TestShardedErrorsTogether(t *testing.T) {
	notReady := fmt.Errorf("one: %w", ErrNotReady)
	corrupt := fmt.Errorf("two: %w", ErrCorrupt)
	require.NoError(t, joinShardErrors([]error{nil, nil}))
	require.Equal(t, notReady, joinShardErrors([]error{nil, notReady}))
	err := joinShardErrors([]error{notReady, corrupt, notReady})
	require.ErrorIs(t, err, ErrCorrupt)
	require.NotErrorIs(t, err, ErrNotReady)
	err = joinShardErrors([]error{notReady, notReady, notReady})
	require.ErrorIs(t, err, ErrNotReady)
	require.ErrorContains(t, err, "2 more")
	err = joinShardErrors([]error{corrupt, context.Canceled})
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorIs(t, err, context.Canceled)
	require.NotContains(t, err.Error(), "\n")

	rdb := redistest.MiniClient(t, redistest.Mini(t))
	gone := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = gone.Close() })
	f := shardedFilter(t, Config{Capacity: 100}, NewBitmap(rdb, "a"), NewBitmap(gone, "b"))
	g, err := NewGuard(f, NewMemoryCache(), func(context.Context, string) (string, error) { return "", ErrNotFound }, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Close(context.Background()) })
	err = g.Register(t.Context(), rebuildItems("row ", 20)...)
	require.Error(t, err, "one shard is merely not ready, the other did not answer")
	require.NotErrorIs(t, err, ErrNotReady)
}

// One item costs one round trip to one server; a batch costs each shard what its
// part costs it alone, side by side.
func TestShardedTrips(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		var shards []Backend
		var trips []*redistest.Trips
		for _, key := range ShardKeys(redistest.Key(t), 3) {
			rdb := target.Client(t)
			trips = append(trips, &redistest.Trips{})
			rdb.AddHook(trips[len(trips)-1])
			shards = append(shards, NewBitmap(rdb, key))
		}
		f := shardedFilter(t, Config{Capacity: 1000, Layout: Blocked}, shards...)
		require.NoError(t, f.CreateEmpty(t.Context()))
		_, err := f.AddMulti(t.Context(), rebuildItems("row ", 30))
		require.NoError(t, err)
		rebuildRequireAll(t, f, rebuildItems("row ", 30))
		count := func(call func()) (n []int64) {
			for i := range trips {
				trips[i].Reset()
			}
			call()
			for i := range trips {
				n = append(n, trips[i].N())
			}
			return n
		}
		for i := range 20 {
			item := fmt.Sprintf("row %d", i)
			want := make([]int64, 3)
			want[route(item, 3)] = 1
			require.Equal(t, want, count(func() { _, _ = f.Exists(t.Context(), item) }))
			require.Equal(t, want, count(func() { _, _ = f.Add(t.Context(), item) }))
		}
		require.Equal(t, []int64{1, 1, 1}, count(func() { _, _ = f.ExistsMulti(t.Context(), rebuildItems("row ", 300)) }))
		require.Equal(t, []int64{1, 1, 1}, count(func() { _, _ = f.AddMulti(t.Context(), rebuildItems("row ", 300)) }))
		require.Equal(t, []int64{1, 1, 1}, count(func() { require.NoError(t, f.Ready(t.Context())) }))
	})
}

// A Guard reads filter and cache in one round trip where the item's shard and the
// cache have one client, and leaves alone every key of every shard.
func TestShardedGuard(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		rdb, other := target.Client(t), target.Client(t)
		name := redistest.Key(t)
		keys := ShardKeys(name, 3)
		f := shardedFilter(t, Config{Capacity: 100, Layout: Blocked},
			NewBitmap(rdb, keys[0]), NewBitmap(other, keys[1]), NewMemory())
		require.NoError(t, f.CreateEmpty(t.Context()))
		row := func(_ context.Context, id string) (string, error) { return "row of " + id, nil }
		g, err := NewGuard(f, NewRedisCache(rdb, ""), row, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, g.Close(context.Background())) }()
		ids := rebuildItems(name+" id ", 30)
		require.NoError(t, g.Register(t.Context(), ids...))
		here, there := &redistest.Trips{}, &redistest.Trips{}
		rdb.AddHook(here)
		other.AddHook(there)
		for _, id := range ids {
			v, err := g.Get(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, "row of "+id, v)
			here.Reset()
			there.Reset()
			v, err = g.Get(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, "row of "+id, v)
			require.EqualValues(t, 1, here.N(), "filter and cache, or the cache alone")
			require.Equal(t, route(id, 3) == 1, there.N() == 1)
		}
		_, err = g.Get(t.Context(), name+" absent")
		require.ErrorIs(t, err, ErrNotFound)

		// The id of an attacker who knows the keys.
		for _, key := range keys[:2] {
			for _, id := range filterKeys(key) {
				require.True(t, g.isReserved(id), id)
				require.NoError(t, g.Invalidate(t.Context(), id))
			}
		}
		require.NoError(t, f.Ready(t.Context()), "no shard was taken for a cache entry")
	})
}

// The backends that NewSharded gets stay what they are.
func TestShardedLeavesItsBackends(t *testing.T) {
	a, b := NewMemory(), NewMemory()
	own, err := New(a, Config{Capacity: 10})
	require.NoError(t, err)
	f := shardedFilter(t, Config{Capacity: 100}, a, b)
	require.NoError(t, own.CreateEmpty(t.Context()))
	require.NoError(t, own.Ready(t.Context()))
	require.ErrorIs(t, f.CreateEmpty(t.Context()), ErrParamsMismatch)
	require.NoError(t, own.Drop(t.Context()))
	require.NoError(t, f.CreateEmpty(t.Context()))
	g := shardedFilter(t, Config{}, a, b)
	_, err = f.Add(t.Context(), "x")
	require.NoError(t, err)
	rebuildRequireAll(t, g, []string{"x"})
}
