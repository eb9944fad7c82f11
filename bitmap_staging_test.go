package bloom

import (
	"fmt"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What adders and creators do while staging stands at the companion key. Here it
// is made by hand, so that it can be of any kind.

// stage puts a whole, empty filter with staging's magic at b's companion key.
func stage(t *testing.T, b *Bitmap, g *geometry) {
	t.Helper()
	h := header{geom: g, purpose: purposeRebuilt, generation: 1, created: time.Now()}
	copy(h.token[:], randomToken())
	value := []byte(b.emptyString(t, &h))
	copy(value, magicStaging)
	require.NoError(t, b.conn.rdb.Set(t.Context(), b.next, value, time.Minute).Err())
}

// staged returns staging as if it were published.
func staged(t *testing.T, b *Bitmap) *Filter {
	t.Helper()
	value, err := b.conn.rdb.Get(t.Context(), b.next).Bytes()
	require.NoError(t, err)
	require.Equal(t, magicStaging, string(value[:8]))
	copy(value, magicLive)
	key := redistest.Key(t)
	require.NoError(t, b.conn.rdb.Set(t.Context(), key, value, 0).Err())
	f := bitmapAt(t, b.conn.rdb, key, Config{})
	require.NoError(t, f.Ready(t.Context()), "staging is whole")
	return f
}

func geometryOf(t *testing.T, n uint64, p float64, layout Layout) *geometry {
	t.Helper()
	params, err := NewParams(n, p, layout)
	require.NoError(t, err)
	return newGeometry(params, randomSeed(), alone)
}

func valueAt(t *testing.T, rdb redis.Cmdable, key string) string {
	t.Helper()
	value, err := rdb.Get(t.Context(), key).Result()
	require.NoError(t, err)
	return value
}

// Whatever geometry the two have, an acknowledged Add is in both, answers for the
// live filter, and does not touch staging's lease.
func TestAddWritesBoth(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		for _, layout := range []Layout{Classic, Blocked} {
			for name, geom := range map[string]func(live *geometry) *geometry{
				"same":         func(live *geometry) *geometry { return live },
				"another seed": func(live *geometry) *geometry { return newGeometry(live.params, live.seed+1, alone) },
				"larger":       func(*geometry) *geometry { return geometryOf(t, 300, 1e-6, layout) },
				"smaller":      func(*geometry) *geometry { return geometryOf(t, 30, 0.1, layout) },
				"other layout": func(*geometry) *geometry { return geometryOf(t, 100, 0.01, Classic+Blocked-layout) },
			} {
				t.Run(fmt.Sprintf("%v, %s", layout, name), func(t *testing.T) {
					b := NewBitmap(s.Client(t), redistest.Key(t))
					f, err := New(b, Config{Capacity: 100, FPRate: 1e-6, Layout: layout})
					require.NoError(t, err)
					require.NoError(t, f.CreateEmpty(t.Context()))
					_, err = f.Add(t.Context(), "before")
					require.NoError(t, err)
					stage(t, b, geom(b.geom.Load()))

					batch := numberedItems("batch", 60)
					added, err := f.Add(t.Context(), "one")
					require.NoError(t, err)
					require.True(t, added)
					added, err = f.Add(t.Context(), "before")
					require.NoError(t, err)
					require.False(t, added, "the live filter has it")
					many, err := f.AddMulti(t.Context(), batch)
					requireAll(t, true, many, err)

					want := append(batch, "one", "before")
					for _, g := range []*Filter{f, staged(t, b)} {
						got, err := g.ExistsMulti(t.Context(), want)
						requireAll(t, true, got, err)
					}
					require.Positive(t, b.conn.rdb.PTTL(t.Context(), b.next).Val())
					require.EqualValues(t, -1, b.conn.rdb.PTTL(t.Context(), b.key).Val())
				})
			}
		}
	})
}

// Where there is no filter, staging gets every item of the batch all the same,
// since it is going to be one; but nobody promised to keep them.
func TestAddToStagingAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		for _, layout := range []Layout{Classic, Blocked} {
			for _, warm := range []bool{false, true} { // the handle knew a filter that is gone
				for _, marker := range []bool{false, true} { // a creator is about to fail
					t.Run(fmt.Sprintf("%v, warm %v, marker %v", layout, warm, marker), func(t *testing.T) {
						b := NewBitmap(s.Client(t), redistest.Key(t))
						f, err := New(b, Config{Capacity: 300, Layout: layout})
						require.NoError(t, err)
						if warm {
							require.NoError(t, f.CreateEmpty(t.Context()))
							_, err := f.Add(t.Context(), "before")
							require.NoError(t, err)
							require.NoError(t, b.conn.rdb.Del(t.Context(), b.key).Err())
						}
						if marker {
							claimByHand(t, b)
						}
						before := b.conn.rdb.Exists(t.Context(), b.key).Val()
						stage(t, b, geometryOf(t, 300, 0.01, layout))

						batch := numberedItems("batch", 200) // more than one chunk of unknown geometry
						require.Greater(t, len(batch), 2*chunkItems(maxHashes, addChunkBits))
						got, err := f.AddMulti(t.Context(), batch)
						require.ErrorIs(t, err, ErrNotReady)
						require.Len(t, got, len(batch))
						require.NotContains(t, got, false)
						one, err := f.Add(t.Context(), "one")
						require.ErrorIs(t, err, ErrNotReady)
						require.True(t, one)

						g := staged(t, b)
						got, err = g.ExistsMulti(t.Context(), append(batch, "one"))
						requireAll(t, true, got, err)
						absent, err := g.ExistsMulti(t.Context(), numberedItems("absent", 20))
						require.NoError(t, err)
						require.Contains(t, absent, false)
						require.Equal(t, before, b.conn.rdb.Exists(t.Context(), b.key).Val(), "no filter came of it")
					})
				}
			}
		}
	})
}

// Where the filter is damaged, staging is what will mend it, and gets all the
// same; the caller learns of the damage, and the damage stays as it is.
func TestAddToStagingBesideDamage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		for name, spoil := range map[string]func(string) string{
			"no end":      func(v string) string { return v[:len(v)-1] },
			"too long":    func(v string) string { return v + "\x00" },
			"half a head": func(v string) string { return v[:100] },
			"checksum":    func(v string) string { return v[:offChecksum] + "12345678" + v[offChecksum+8:] },
			"foreign":     func(string) string { return "somebody's" },
		} {
			for _, same := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, same geometry %v", name, same), func(t *testing.T) {
					b := NewBitmap(s.Client(t), redistest.Key(t))
					f, err := New(b, Config{Capacity: 300, Layout: Blocked})
					require.NoError(t, err)
					require.NoError(t, f.CreateEmpty(t.Context()))
					_, err = f.Add(t.Context(), "before")
					require.NoError(t, err)
					g := b.geom.Load()
					if !same {
						g = geometryOf(t, 400, 0.01, Classic)
					}
					stage(t, b, g)
					damaged := spoil(valueAt(t, b.conn.rdb, b.key))
					require.NoError(t, b.conn.rdb.Set(t.Context(), b.key, damaged, 0).Err())

					batch := numberedItems("batch", 200)
					one, err := f.Add(t.Context(), "one")
					require.ErrorIs(t, err, ErrCorrupt)
					require.True(t, one)
					many, err := f.AddMulti(t.Context(), batch)
					require.ErrorIs(t, err, ErrCorrupt)
					require.Len(t, many, len(batch))
					require.NotContains(t, many, false)
					got, err := staged(t, b).ExistsMulti(t.Context(), append(batch, "one"))
					requireAll(t, true, got, err)
					require.Equal(t, damaged, valueAt(t, b.conn.rdb, b.key))
				})
			}
		}
	})
}

// A filter that appears in the middle of a batch does not make its first half
// acknowledged.
func TestAddWhilePublished(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	b := NewBitmap(rdb, redistest.Key(t))
	stage(t, b, geometryOf(t, 3000, 0.01, Blocked))
	adds := 0
	rdb.AddHook(beforeScript{addScript, func() {
		if adds++; adds == 4 {
			require.NoError(t, b.conn.rdb.SetRange(t.Context(), b.next, 0, magicLive).Err())
			require.NoError(t, b.conn.rdb.Rename(t.Context(), b.next, b.key).Err())
		}
	}})
	batch := numberedItems("batch", 3000)
	_, err := b.AddMulti(t.Context(), batch)
	require.ErrorIs(t, err, ErrNotReady)
	require.Greater(t, adds, 4)
	got, err := b.ExistsMulti(t.Context(), batch)
	requireAll(t, true, got, err)
}

// Where staging vanishes and there is no filter, a batch ends: going on would be
// a thousand round trips for nothing.
func TestAddStopsWithStaging(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	b := NewBitmap(rdb, redistest.Key(t))
	stage(t, b, geometryOf(t, 10_000, 0.01, Blocked))
	adds := 0
	rdb.AddHook(beforeScript{addScript, func() {
		if adds++; adds == 4 {
			require.NoError(t, b.conn.rdb.Del(t.Context(), b.next).Err())
		}
	}})
	got, err := b.AddMulti(t.Context(), numberedItems("batch", 10_000))
	require.ErrorIs(t, err, ErrNotReady)
	require.Len(t, got, 10_000)
	require.NotContains(t, got, false)
	require.Equal(t, 4, adds)
}

// Staging that this library cannot write whole, of a later format say, or that is
// damaged, gets nothing, and neither does the filter.
func TestAddWritesNeither(t *testing.T) {
	damage := map[string]func(string) string{
		"later version": func(v string) string { return v[:offVersion] + "\x02" + v[offVersion+1:] },
		"unknown hash":  func(v string) string { return v[:offHash] + "\x07" + v[offHash+1:] },
		"fingerprint":   func(v string) string { return v[:offFingerprint] + "12345678" + v[offFingerprint+8:] },
		"no end":        func(v string) string { return v[:len(v)-1] },
		"too long":      func(v string) string { return v + "\x00" },
		"no body":       func(v string) string { return v[:headerBytes] },
		"half a header": func(v string) string { return v[:100] },
		"magic only":    func(v string) string { return v[:8] },
		"live magic":    func(v string) string { return magicLive + v[8:] },
		"marker":        func(v string) string { return magicMarker + v[8:] },
		"foreign":       func(string) string { return "somebody's" },
	}
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		for name, spoil := range damage {
			for _, own := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, geometry %v", name, own), func(t *testing.T) {
					b := NewBitmap(s.Client(t), redistest.Key(t))
					f, err := New(b, Config{Capacity: 100, Layout: Blocked})
					require.NoError(t, err)
					require.NoError(t, f.CreateEmpty(t.Context()))
					_, err = f.Add(t.Context(), "before")
					require.NoError(t, err)
					g := b.geom.Load()
					if !own {
						g = geometryOf(t, 300, 0.01, Classic)
					}
					stage(t, b, g)
					require.NoError(t, b.conn.rdb.Set(t.Context(), b.next, spoil(valueAt(t, b.conn.rdb, b.next)), 0).Err())
					live, next := valueAt(t, b.conn.rdb, b.key), valueAt(t, b.conn.rdb, b.next)

					added, err := f.Add(t.Context(), "new")
					require.ErrorIs(t, err, ErrCorrupt)
					require.True(t, added)
					many, err := f.AddMulti(t.Context(), []string{"new", "newer"})
					require.ErrorIs(t, err, ErrCorrupt)
					require.Equal(t, []bool{true, true}, many)
					require.Equal(t, live, valueAt(t, b.conn.rdb, b.key))
					require.Equal(t, next, valueAt(t, b.conn.rdb, b.next))
					got, err := f.ExistsMulti(t.Context(), []string{"before"})
					requireAll(t, true, got, err)
				})
			}
		}
	})
}

// CreateEmpty and Reset stay away from a rebuild, Drop ends it.
func TestOthersWhileStaging(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		rdb := s.Client(t)
		b := NewBitmap(rdb, redistest.Key(t))
		f, err := New(b, Config{Capacity: 100, Layout: Blocked})
		require.NoError(t, err)
		stage(t, b, geometryOf(t, 300, 0.01, Classic))
		next := valueAt(t, b.conn.rdb, b.next)

		created := 0
		rdb.AddHook(beforeScript{createScript, func() { created++ }})
		require.ErrorIs(t, f.CreateEmpty(t.Context()), ErrRebuilding)
		require.Zero(t, created, "not even a marker was planted")
		require.ErrorIs(t, f.Reset(t.Context()), ErrNotReady)
		require.Zero(t, b.conn.rdb.Exists(t.Context(), b.key).Val())
		require.Equal(t, next, valueAt(t, b.conn.rdb, b.next))

		require.NoError(t, b.conn.rdb.Del(t.Context(), b.next).Err())
		require.NoError(t, f.CreateEmpty(t.Context()))
		_, err = f.Add(t.Context(), "a")
		require.NoError(t, err)
		stage(t, b, geometryOf(t, 300, 0.01, Classic))
		next, live := valueAt(t, b.conn.rdb, b.next), valueAt(t, b.conn.rdb, b.key)
		require.NoError(t, f.CreateEmpty(t.Context()), "it attaches, whatever else runs")
		require.ErrorIs(t, f.Reset(t.Context()), ErrRebuilding)
		require.Equal(t, live, valueAt(t, b.conn.rdb, b.key))
		require.Equal(t, next, valueAt(t, b.conn.rdb, b.next))

		require.NoError(t, f.Drop(t.Context()))
		require.Zero(t, b.conn.rdb.Exists(t.Context(), filterKeys(b.key)...).Val())
	})
}

// Drop ends what it read, not the rebuild or filter that came since.
func TestDropLeavesNewerStaging(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	b := NewBitmap(rdb, redistest.Key(t))
	require.NoError(t, b.CreateEmpty(t.Context(), Config{Capacity: 100, FPRate: 0.01}))
	g := geometryOf(t, 300, 0.01, Classic)
	stage(t, b, g)
	rdb.AddHook(beforeScript{dropScript, func() { stage(t, b, g) }})
	require.NoError(t, b.Drop(t.Context()))
	require.Zero(t, rdb.Exists(t.Context(), b.key).Val())
	require.EqualValues(t, 1, rdb.Exists(t.Context(), b.next).Val())
}
