package bloom

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a filter holds, how large it is and what happens past its capacity.

// The recorded sizes of 1000 reserved items: bits per item, hashes, bytes.
var moduleSizes = []struct {
	rate            float64
	scaling, fixed  uint64 // bytes of the bitmap
	scalingK, fixeK int
}{
	{0.25, 544, 368, 4, 3},
	{0.1, 784, 600, 5, 4},
	{0.05, 960, 784, 6, 5},
	{0.01, 1384, 1200, 8, 7},
	{0.001, 1984, 1800, 11, 10},
	{0.0001, 2584, 2400, 15, 14},
	{1e-06, 3776, 3600, 21, 20},
}

// NONSCALING by default, of the documented size, sentinels included; a rebuild makes
// the same and says so beforehand (case F19).
func TestModuleSize(t *testing.T) {
	const head = 96 // BF.INFO counts it beside the bitmap
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for _, c := range moduleSizes {
			for _, scaling := range []int{0, 2} {
				name := fmt.Sprint(c.rate, " ", scaling)
				bytes, hashes := c.fixed, c.fixeK
				if scaling > 0 {
					bytes, hashes = c.scaling, c.scalingK
				}
				key := b.key(t)
				f := b.filter(t, key, Config{Capacity: 997, FPRate: c.rate}, &RedisBloomOptions{Scaling: scaling})
				require.NoError(t, f.CreateEmpty(t.Context()))
				info, err := f.Info(t.Context())
				require.NoError(t, err)
				require.Equal(t, Params{Capacity: 997, FPRate: c.rate, Bits: bytes * 8, Hashes: hashes}, info.Params, name)
				require.Equal(t, bytes+head, info.Bytes, name)
				require.Equal(t, "redisbloom", info.Backend)
				require.Zero(t, info.Items)
				require.True(t, math.IsNaN(info.Fill))
				require.InDelta(t, 0, info.FPRate, 1e-3)
				require.Equal(t, 1, info.Shards)
				require.Equal(t, 1, info.SubFilters)
				require.Zero(t, info.Generation, "unknown")
				require.Zero(t, info.Created)
				s, err := NewRedisBloom(b.rdb, key, nil).state(t.Context())
				require.NoError(t, err)
				require.Equal(t, scaling, s.expansion, "0 is NONSCALING")

				report, err := f.Rebuild(t.Context(), rebuildSource([]string{"a"}), &RebuildOptions{Settle: -1, MinItems: 1})
				require.NoError(t, err)
				rebuilt, err := f.Info(t.Context())
				require.NoError(t, err)
				require.Equal(t, info.Params, rebuilt.Params, name)
				require.Equal(t, rebuilt.Params, report.Params, name)
				require.Equal(t, rebuilt.Bytes, report.Bytes, name)
			}
		}
	})
}

// What a rebuild says beforehand is right for sizes and rates of any kind.
func TestModulePredictedSize(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		b.once(t)
		for _, rate := range []float64{0.25, 0.125, 0.0625, 0.2, 0.03, 1.0 / 3e3, 1e-9, minFPRate} {
			for _, capacity := range []uint64{1, 2, 61, 1000, 4097} {
				key := b.key(t)
				for _, scaling := range []int{0, 1} {
					opts := &RedisBloomOptions{Scaling: scaling}
					f := b.filter(t, key, Config{Capacity: capacity, FPRate: rate}, opts)
					require.NoError(t, f.CreateEmpty(t.Context()))
					info, err := f.Info(t.Context())
					require.NoError(t, err)
					build := &moduleBuild{b: NewRedisBloom(b.rdb, key, opts), want: Config{Capacity: capacity, FPRate: rate}}
					require.Equal(t, info.Params, build.params())
					require.Equal(t, info.Bytes, build.bytes())
					require.NoError(t, f.Drop(t.Context()))
				}
			}
		}
	})
}

// A full filter refuses what is new with what is known per item, and goes on
// answering for what it holds (case F17).
func TestModuleFull(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		key := b.key(t)
		f := b.made(t, key, 20)
		// Each item twice: a shift by one would show.
		in, out := moduleItems("in", 20), moduleItems("out", 10)
		var twice []string
		var want []bool
		for _, item := range append(in[:20:20], out...) {
			twice, want = append(twice, item, item), append(want, true, false)
		}
		for i := 40; i < 60; i++ {
			want[i] = true // unknown: the module stopped at the first refusal
		}
		got, err := f.AddMulti(t.Context(), twice)
		require.ErrorIs(t, err, ErrFull)
		require.ErrorContains(t, err, "20 of 60 items not added")
		require.Equal(t, want, got)
		moduleRequire(t, f, true, in...)
		moduleRequire(t, f, false, out...)

		one, err := f.Add(t.Context(), "new")
		require.ErrorIs(t, err, ErrFull)
		require.ErrorContains(t, err, "1 of 1 items not added")
		require.True(t, one)
		moduleRequire(t, f, false, "new")

		got, err = f.AddMulti(t.Context(), in)
		require.NoError(t, err, "they need no room")
		require.Equal(t, make([]bool, 20), got)
		one, err = f.Add(t.Context(), in[0])
		require.NoError(t, err)
		require.False(t, one)
		got, err = f.AddMulti(t.Context(), []string{in[3], "new", in[4], "newer"})
		require.ErrorIs(t, err, ErrFull)
		require.ErrorContains(t, err, "3 of 4 items not added")
		require.Equal(t, []bool{false, true, true, true}, got)

		info, err := f.Info(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 20, info.Items)
		require.EqualValues(t, 20, info.Params.Capacity)
		require.Equal(t, 1, info.SubFilters)
		require.InDelta(t, 0.005, info.FPRate, 0.001, "256 bits, where 221 were enough for 1 %")
		require.NoError(t, f.Ready(t.Context()))
		require.NoError(t, f.CreateEmpty(t.Context()))
		require.NoError(t, f.Reset(t.Context()))
		_, err = f.Add(t.Context(), "new")
		require.NoError(t, err)
	})
}

// Chunks behind the one that was refused are tried all the same.
func TestModuleFullInChunks(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		f := b.made(t, b.key(t), 20)
		in := moduleItems("in", 20)
		_, err := f.AddMulti(t.Context(), in)
		require.NoError(t, err)
		items := make([]string, 2*maxModuleItems+5)
		for i := range items {
			items[i] = in[i%20]
		}
		items[7], items[2*maxModuleItems+1] = "new", "newer"
		got, err := f.AddMulti(t.Context(), items)
		require.ErrorIs(t, err, ErrFull)
		require.Len(t, got, len(items))
		for i := range items {
			unknown := i >= 7 && i < maxModuleItems || i > 2*maxModuleItems
			require.Equal(t, unknown, got[i], i)
		}
	})
}

// A scaling filter grows, keeps all and stays within the asked rate.
func TestModuleScaling(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		key := b.key(t)
		f := b.filter(t, key, Config{Capacity: 97, FPRate: 0.01}, &RedisBloomOptions{Scaling: 2})
		require.NoError(t, f.CreateEmpty(t.Context()))
		items := moduleItems("item", 600)
		for subFilters, upTo := range []int{90, 250, 600} { // 100, 200 and 400 items fit
			_, err := f.AddMulti(t.Context(), items[:upTo])
			require.NoError(t, err)
			moduleRequire(t, f, true, items[:upTo]...)
			info, err := f.Info(t.Context())
			require.NoError(t, err)
			require.Equal(t, subFilters+1, info.SubFilters)
			require.InDelta(t, upTo, info.Items, 6)
			require.LessOrEqual(t, info.FPRate, 0.01)
		}
		info, err := f.Info(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 697, info.Params.Capacity)
		require.InEpsilon(t, 0.01, info.Params.FPRate, 1e-12, "as asked, not that of a sub-filter")
		require.NoError(t, f.CreateEmpty(t.Context()), "it satisfies what made it")
		got, err := f.ExistsMulti(t.Context(), moduleItems("absent", 5000))
		require.NoError(t, err)
		found := moduleCount(got)
		require.Less(t, found, 75)
		require.Positive(t, found)

		// Reset goes back to the first sub-filter.
		require.NoError(t, f.Reset(t.Context()))
		info, err = f.Info(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, info.SubFilters)
		require.EqualValues(t, 97, info.Params.Capacity)
		require.InEpsilon(t, 0.01, info.Params.FPRate, 1e-12)
		_, err = f.AddMulti(t.Context(), items)
		require.NoError(t, err, "it grows again")
	})
}

func moduleCount(got []bool) (n int) {
	for _, is := range got {
		if is {
			n++
		}
	}
	return n
}

// The measured rate of a NONSCALING filter at capacity is the asked one, and the
// double answers for each item as the module does.
func TestModuleMeasuredRate(t *testing.T) {
	const capacity, probes = 20_000, 200_000
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		b.once(t)
		f := b.made(t, b.key(t), capacity)
		added, err := f.AddMulti(t.Context(), moduleItems("member", capacity))
		require.NoError(t, err)
		info, err := f.Info(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, moduleCount(added), info.Items, "the module counts what it answered 1")
		require.InDelta(t, capacity, info.Items, capacity*0.003)
		require.InEpsilon(t, 0.01, info.FPRate, 0.02)

		found := 0
		for from := 0; from < probes; from += 20_000 {
			got, err := f.ExistsMulti(t.Context(), moduleItems(fmt.Sprint("absent ", from), 20_000))
			require.NoError(t, err)
			found += moduleCount(got)
		}
		require.InDelta(t, 0.01, float64(found)/probes, 0.001, "%d of %d", found, probes)
		require.Equal(t, 1927, found, "the items are the same everywhere, and so must be the answers")
		moduleRequire(t, f, true, moduleItems("member", capacity)...)
	})
}

// A large batch, which a server's Lua or the double's could not take at once (case
// F14).
func TestModuleLargeBatch(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		b.once(t)
		n := 100_000
		if !b.real() {
			n = 20_000
		}
		if b.resp == 2 {
			n /= 4
		}
		f := b.filter(t, b.key(t), Config{Capacity: uint64(n), FPRate: 1e-10}, nil) // 34 hashes
		require.NoError(t, f.CreateEmpty(t.Context()))
		items := moduleItems("item", n)
		added, err := f.AddMulti(t.Context(), items)
		require.NoError(t, err)
		require.Len(t, added, n)
		require.NotContains(t, added, false)
		info, err := f.Info(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, n, info.Items)
		require.Equal(t, 34, info.Params.Hashes)
		moduleRequire(t, f, true, items...)
		_, err = f.Add(t.Context(), "one more")
		require.ErrorIs(t, err, ErrFull)
	})
}
