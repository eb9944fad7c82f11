package bloom

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// How batches are cut, and that what the string is allocated with is what it
// keeps.

func numberedItems(prefix string, n int) []string {
	items := make([]string, n)
	for i := range items {
		items[i] = prefix + " " + strconv.Itoa(i)
	}
	return items
}

func bitmapAt(t testing.TB, rdb redis.Cmdable, key string, cfg Config) *Filter {
	t.Helper()
	f, err := New(NewBitmap(rdb, key), cfg)
	require.NoError(t, err)
	return f
}

func requireAll(t testing.TB, want bool, got []bool, err error) {
	t.Helper()
	require.NoError(t, err)
	require.NotContains(t, got, !want)
}

// A batch takes a round trip a chunk and no more (case F13), also one as large
// as no single script could answer (case F14).
func TestBatchTrips(t *testing.T) {
	for _, c := range []struct {
		layout Layout
		rate   float64
		k, n   int
	}{
		{Classic, 0.01, 7, 20_000},
		{Classic, 1e-10, 33, 100_000},
		{Blocked, 0.01, 6, 20_000},
	} {
		t.Run(fmt.Sprintf("%v k=%d", c.layout, c.k), func(t *testing.T) {
			if raceEnabled {
				c.n /= 5
			}
			rdb := redistest.Shared(t).Client(t)
			trips := &redistest.Trips{}
			rdb.AddHook(trips)
			f := bitmapAt(t, rdb, redistest.Key(t), Config{Capacity: uint64(c.n), FPRate: c.rate, Layout: c.layout})
			require.NoError(t, f.CreateEmpty(t.Context()))
			_, err := f.Add(t.Context(), "warm")
			require.NoError(t, err)
			_, err = f.Exists(t.Context(), "warm")
			require.NoError(t, err)
			info, err := f.Info(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.k, info.Params.Hashes)

			items := numberedItems("item", c.n)
			chunk := chunkItems(c.k, addChunkBits)
			require.Greater(t, chunk, 50)
			trips.Reset()
			added, err := f.AddMulti(t.Context(), items)
			require.NoError(t, err)
			require.Len(t, added, c.n)
			require.LessOrEqual(t, trips.N(), int64((c.n+chunk-1)/chunk))

			items = items[c.n-c.n/5:]
			chunk = chunkItems(c.k, readChunkBits)
			trips.Reset()
			exists, err := f.ExistsMulti(t.Context(), items)
			require.LessOrEqual(t, trips.N(), int64((len(items)+chunk-1)/chunk))
			requireAll(t, true, exists, err)
			require.Len(t, exists, len(items))
			require.NoError(t, f.Drop(t.Context()))
		})
	}
}

// Batches of every length around the chunk's answer in order and in as many
// trips as they have chunks.
func TestChunkEdges(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	f := bitmapAt(t, rdb, redistest.Key(t), Config{Capacity: 1000, FPRate: 5.5e-20})
	require.NoError(t, f.CreateEmpty(t.Context()))
	info, err := f.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, maxHashes, info.Params.Hashes)
	_, err = f.Add(t.Context(), "warm")
	require.NoError(t, err)
	trips := &redistest.Trips{}
	rdb.AddHook(trips)
	add, read := chunkItems(maxHashes, addChunkBits), chunkItems(maxHashes, readChunkBits)
	for _, n := range []int{1, 2, add - 1, add, add + 1, 2*add - 1, 2 * add, 2*add + 1, read, read + 1} {
		items := numberedItems(fmt.Sprint("batch of ", n), n)
		trips.Reset()
		added, err := f.AddMulti(t.Context(), items)
		requireAll(t, true, added, err)
		require.Len(t, added, n)
		require.EqualValues(t, (n+add-1)/add, trips.N(), "AddMulti of %d", n)
		trips.Reset()
		exists, err := f.ExistsMulti(t.Context(), items)
		requireAll(t, true, exists, err)
		require.EqualValues(t, (n+read-1)/read, trips.N(), "ExistsMulti of %d", n)
	}
}

// The string has its whole length from the start, exactly, and adding does not
// change it (case F16), whatever remains of the division by 8 or by a block.
func TestStringLength(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		rdb := s.Client(t)
		for range 40 {
			cfg := Config{
				Capacity: 1 + random.Uint64N(300),
				FPRate:   []float64{0.5, 0.1, 0.01, 1e-6, 5.5e-20}[random.IntN(5)],
				Layout:   Layout(random.IntN(2)),
			}
			key := redistest.Key(t)
			f := bitmapAt(t, rdb, key, cfg)
			require.NoError(t, f.CreateEmpty(t.Context()))
			params, err := NewParams(cfg.Capacity, cfg.FPRate, cfg.Layout)
			require.NoError(t, err)
			length := func() uint64 { return uint64(rdb.StrLen(t.Context(), key).Val()) }
			require.Equal(t, params.Bytes(), length(), "%+v", cfg)
			require.NoError(t, f.Ready(t.Context()))

			items := numberedItems("item", 20)
			_, err = f.AddMulti(t.Context(), items)
			require.NoError(t, err)
			exists, err := f.ExistsMulti(t.Context(), items)
			requireAll(t, true, exists, err)
			require.Equal(t, params.Bytes(), length(), "%+v", cfg)
			require.NoError(t, f.Ready(t.Context()))
			require.NoError(t, f.Reset(t.Context()))
			require.Equal(t, params.Bytes(), length())
		}
	})
}

// What Redis allocates is what the string needs. The sizes are such that they
// just fit into 1 MiB: the next size of jemalloc is 1.25 MiB.
func TestMemoryUsage(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	for layout, capacity := range map[Layout]uint64{Classic: 850_000, Blocked: 760_000} {
		key := redistest.Key(t)
		f := bitmapAt(t, rdb, key, Config{Capacity: capacity, Layout: layout})
		require.NoError(t, f.CreateEmpty(t.Context()))
		info, err := f.Info(t.Context())
		require.NoError(t, err)
		require.Greater(t, info.Bytes, uint64(900_000))
		for _, after := range []string{"CreateEmpty", "Add", "Reset"} {
			used, err := rdb.MemoryUsage(t.Context(), key).Result()
			require.NoError(t, err)
			require.LessOrEqual(t, float64(used), 1.1*float64(info.Bytes), "after %s", after)
			if after == "CreateEmpty" {
				_, err = f.AddMulti(t.Context(), numberedItems("item", 1000))
			} else {
				err = f.Reset(t.Context())
			}
			require.NoError(t, err)
		}
		require.NoError(t, f.Drop(t.Context()))
	}
}

// The same bits come of Add, of AddMulti in any order, and of Memory.
func TestSameBits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		for _, layout := range []Layout{Classic, Blocked} {
			rdb, key := s.Client(t), redistest.Key(t)
			b := NewBitmap(rdb, key)
			f, err := New(b, Config{Capacity: 300, FPRate: 0.003, Layout: layout})
			require.NoError(t, err)
			require.NoError(t, f.CreateEmpty(t.Context()))
			items := numberedItems("item", 300)
			h, err := b.readWhole(t.Context())
			require.NoError(t, err)
			m := newMemoryFilter(*h)
			for _, item := range items {
				m.add(item)
			}
			memory := NewMemory()
			memory.live.Store(m)
			want := string(mustBytes(t, memory))

			shuffled := slices.Clone(items)
			rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			_, err = f.AddMulti(t.Context(), shuffled)
			require.NoError(t, err)
			require.Equal(t, want, rdb.Get(t.Context(), key).Val(), "%v", layout)

			require.NoError(t, rdb.Set(t.Context(), key, b.emptyString(t, h), 0).Err())
			for _, item := range items {
				_, err := f.Add(t.Context(), item)
				require.NoError(t, err)
			}
			require.Equal(t, want, rdb.Get(t.Context(), key).Val(), "%v", layout)
		}
	})
}

// emptyString is the string of an empty filter with this header.
func (b *Bitmap) emptyString(t *testing.T, h *header) string {
	t.Helper()
	memory := NewMemory()
	memory.live.Store(newMemoryFilter(*h))
	return string(mustBytes(t, memory))
}
