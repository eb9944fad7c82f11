package bloom

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Filters that other programs make.

var moduleAdopt = &RedisBloomOptions{Adopt: true}

// Adopt takes over what satisfies Config, as it is: with its items, its size and
// its TTL.
func TestModuleAdopt(t *testing.T) {
	theirs := moduleItems("theirs", 80)
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for name, c := range map[string]struct {
			rate     float64
			capacity int
			options  []any
		}{
			"exactly as wanted": {0.01, 100, []any{"NONSCALING"}},
			"scaling":           {0.01, 100, nil},
			"scaling by 4":      {0.01, 100, []any{"EXPANSION", 4}},
			"larger":            {0.01, 5000, nil},
			"tighter":           {0.0001, 100, []any{"NONSCALING"}},
			"grown":             {0.01, 50, nil},
		} {
			key := b.key(t)
			b.foreign(t, key, c.rate, c.capacity, c.options, theirs...)
			require.NoError(t, b.rdb.PExpire(t.Context(), key, time.Hour).Err())
			card := b.card(t, key)
			f := b.filter(t, key, Config{Capacity: 100, TTL: time.Minute}, moduleAdopt)
			require.ErrorIs(t, f.Ready(t.Context()), ErrNotReady, "New adopts nothing")
			for range 3 { // every start of a service does it
				require.NoError(t, f.CreateEmpty(t.Context()), name)
				require.Equal(t, card+sentinelCount, b.card(t, key), name)
			}
			require.Greater(t, b.pttl(t, key), time.Minute, "what others made keeps its TTL")
			for _, g := range []*Filter{f, b.filter(t, key, Config{}, nil)} {
				moduleRequire(t, g, true, theirs...)
				moduleRequire(t, g, false, "no such", "none")
				added, err := g.Add(t.Context(), "ours")
				require.NoError(t, err)
				require.Equal(t, g == f, added)
				info, err := g.Info(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, card+1, info.Items)
				require.InEpsilon(t, c.rate, info.Params.FPRate, 1e-12)
			}
			b.foreignAdd(t, key, "later")
			moduleRequire(t, f, true, "later", "ours")
			require.NoError(t, f.Reset(t.Context()), "it is ours now")
			moduleRequire(t, f, false, theirs...)
			require.NoError(t, f.Drop(t.Context()))
			b.requireNone(t, key)
		}
	})
}

// What does not satisfy Config, is empty or full is refused and stays as it is.
func TestModuleAdoptRefuses(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for name, c := range map[string]struct {
			rate     float64
			capacity int
			options  []any
			items    int
			err      error
			text     []string
		}{
			"too small":       {0.01, 99, nil, 50, ErrParamsMismatch, []string{"99", "100"}},
			"too loose":       {0.011, 100, nil, 50, ErrParamsMismatch, []string{"0.011", "0.01"}},
			"too loose fixed": {0.02, 100, []any{"NONSCALING"}, 50, ErrParamsMismatch, []string{"0.02", "0.01"}},
			"empty":           {0.01, 100, nil, 0, ErrParamsMismatch, []string{"empty"}},
			"full":            {0.01, 100, []any{"NONSCALING"}, 120, ErrFull, []string{"3 sentinels"}},
			"room for two":    {0.01, 100, []any{"NONSCALING"}, 98, ErrFull, []string{"3 sentinels"}},
		} {
			key := b.key(t)
			b.foreign(t, key, c.rate, c.capacity, c.options)
			for _, item := range moduleItems("theirs", c.items) {
				err := b.rdb.Do(t.Context(), "BF.ADD", key, item).Err()
				require.True(t, err == nil || c.err == ErrFull && isFullText(err.Error()), "%v", err)
			}
			before := b.content(t, key)
			err := b.filter(t, key, Config{Capacity: 100}, moduleAdopt).CreateEmpty(t.Context())
			require.ErrorIs(t, err, c.err, name)
			for _, text := range c.text {
				require.ErrorContains(t, err, text, name)
			}
			require.True(t, before == b.content(t, key), "%s: it was changed", name)
			require.EqualValues(t, 1, b.count(t, moduleKeys(key)...), name)
			require.ErrorIs(t, b.filter(t, key, Config{}, nil).Ready(t.Context()), ErrNotReady)
		}
		key := b.key(t)
		err := b.filter(t, key, Config{Capacity: 100}, moduleAdopt).CreateEmpty(t.Context())
		require.ErrorIs(t, err, ErrNotReady)
		require.ErrorContains(t, err, "nothing to adopt")
		require.Zero(t, b.count(t, moduleKeys(key)...), "Adopt makes nothing")
	})
}

// Three more is what fits beside the sentinels, and no more is asked for.
func TestModuleAdoptLastRoom(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		key := b.key(t)
		b.foreign(t, key, 1e-6, 100, []any{"NONSCALING"}, moduleItems("theirs", 97)...)
		f := b.filter(t, key, Config{Capacity: 100, FPRate: 1e-6}, moduleAdopt)
		require.NoError(t, f.CreateEmpty(t.Context()))
		moduleRequire(t, f, true, moduleItems("theirs", 97)...)
		_, err := f.Add(t.Context(), "new")
		require.ErrorIs(t, err, ErrFull)
		require.NoError(t, f.CreateEmpty(t.Context()))

		// Some sentinels are in already: less room is enough.
		key = b.key(t)
		b.foreign(t, key, 1e-6, 100, []any{"NONSCALING"}, append(moduleItems("theirs", 97), sentinels[:2]...)...)
		f = b.filter(t, key, Config{Capacity: 100, FPRate: 1e-6}, moduleAdopt)
		require.NoError(t, f.CreateEmpty(t.Context()))
		require.NoError(t, f.Ready(t.Context()))
	})
}

// The filter that is looked at must be the one that is taken: others made it anew
// in between.
func TestModuleAdoptMeanwhile(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for name, c := range map[string]struct {
			meanwhile func(t *testing.T, key string)
			err       error
		}{
			"smaller": {func(t *testing.T, key string) { b.foreign(t, key, 0.01, 10, nil, "a", "b") }, ErrParamsMismatch},
			"looser":  {func(t *testing.T, key string) { b.foreign(t, key, 0.1, 100, nil, "a", "b") }, ErrParamsMismatch},
			"empty":   {func(t *testing.T, key string) { b.foreign(t, key, 0.01, 100, nil) }, ErrParamsMismatch},
			"gone":    {func(*testing.T, string) {}, ErrNotReady},
			"ours":    {func(t *testing.T, key string) { b.made(t, key, 100, "a") }, nil},
		} {
			key := b.key(t)
			b.foreign(t, key, 0.01, 100, nil, "a", "b")
			rdb := b.client(t)
			rdb.AddHook(moduleBefore(changeScript, func() {
				require.NoError(t, b.rdb.Del(t.Context(), key).Err())
				c.meanwhile(t, key)
			}))
			err := moduleFilter(t, rdb, key, Config{Capacity: 100}, moduleAdopt).CreateEmpty(t.Context())
			require.True(t, errors.Is(err, c.err), "%s: %v", name, err)
			ready := b.filter(t, key, Config{}, nil).Ready(t.Context())
			require.Equal(t, c.err == nil, ready == nil, "%s: %v", name, ready)
		}
	})
}

// Another program may add the sentinels itself.
func TestModuleSentinelsOfOthers(t *testing.T) {
	require.Equal(t, []string{
		"bloomguard:v1:shard:0/1:whole:0", "bloomguard:v1:shard:0/1:whole:1", "bloomguard:v1:shard:0/1:whole:2",
	}, RedisBloomSentinels(0, 1), "other programs have them by heart")
	require.Equal(t, "bloomguard:v1:shard:2/8:whole:1", RedisBloomSentinels(2, 8)[1])
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		key := b.key(t)
		f := b.filter(t, key, Config{Capacity: 100}, nil)
		b.foreign(t, key, 0.01, 103, []any{"NONSCALING"}, moduleItems("theirs", 100)...)
		require.ErrorIs(t, f.Ready(t.Context()), ErrNotReady)
		b.foreignAdd(t, key, RedisBloomSentinels(1, 2)...)
		require.ErrorIs(t, f.Ready(t.Context()), ErrNotReady, "of a shard")
		require.NoError(t, b.rdb.Del(t.Context(), key).Err())

		b.foreign(t, key, 0.01, 103, []any{"NONSCALING"}, moduleItems("theirs", 90)...)
		b.foreignAdd(t, key, RedisBloomSentinels(0, 1)...)
		require.NoError(t, f.Ready(t.Context()))
		require.NoError(t, f.CreateEmpty(t.Context()))
		moduleRequire(t, f, true, moduleItems("theirs", 90)...)
		moduleRequire(t, f, false, "none")
		info, err := f.Info(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 100, info.Params.Capacity)
		require.InDelta(t, 90, info.Items, 2)
		_, err = f.Rebuild(t.Context(), rebuildSource(moduleItems("row", 90)), rebuildQuick())
		require.NoError(t, err)
		moduleRequire(t, f, true, moduleItems("row", 90)...)
	})
}

// CreateEmpty attaches to what satisfies it, and names both sides where it doesn't.
func TestModuleAttach(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		key := b.key(t)
		f := b.filter(t, key, Config{Capacity: 200, FPRate: 0.001}, nil)
		require.NoError(t, f.CreateEmpty(t.Context()))
		_, err := f.AddMulti(t.Context(), moduleItems("ours", 50))
		require.NoError(t, err)
		before := b.content(t, key)
		for _, c := range []struct {
			cfg  Config
			text []string
		}{
			{Config{Capacity: 200, FPRate: 0.001}, nil},
			{Config{Capacity: 10, FPRate: 0.2}, nil},
			{Config{Capacity: 201, FPRate: 0.001}, []string{"200", "201"}},
			{Config{Capacity: 200, FPRate: 0.0009}, []string{"0.001", "0.0009"}},
		} {
			for _, opts := range []*RedisBloomOptions{nil, {Scaling: 2}} {
				err := b.filter(t, key, c.cfg, opts).CreateEmpty(t.Context())
				if c.text == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, ErrParamsMismatch)
				}
				for _, text := range c.text {
					require.ErrorContains(t, err, text)
				}
			}
		}
		require.True(t, before == b.content(t, key))
		require.ErrorIs(t, b.filter(t, key, Config{}, nil).CreateEmpty(t.Context()), ErrInvalidParams)
	})
}

// An adopted filter is nobody's generation: what a rebuild left there before says
// nothing about it, and a rebuild with MaxAge runs.
func TestModuleAdoptForgetsTheRebuilt(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		key := b.key(t)
		f := b.filter(t, key, Config{Capacity: 100}, moduleAdopt)
		_, err := f.Rebuild(t.Context(), rebuildSource(moduleItems("row", 50)), rebuildQuick())
		require.NoError(t, err)
		require.NoError(t, b.rdb.Del(t.Context(), key).Err()) // evicted, say
		b.foreign(t, key, 0.01, 200, nil, "theirs")
		require.NoError(t, f.CreateEmpty(t.Context()))
		info, err := f.Info(t.Context())
		require.NoError(t, err)
		require.Zero(t, info.Generation)
		require.Zero(t, info.Created)
		report, err := f.Rebuild(t.Context(), rebuildSource(moduleItems("row", 50)), &RebuildOptions{Settle: -1, MaxAge: time.Hour})
		require.NoError(t, err)
		require.False(t, report.Skipped)
		moduleRequire(t, f, true, moduleItems("row", 50)...)
	})
}
