package bloom

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Any number of creators make one filter, and one that dies half-way is in
// nobody's way for long.

func TestManyCreators(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		for _, layout := range []Layout{Classic, Blocked} {
			t.Run(layout.String(), func(t *testing.T) {
				key := redistest.Key(t)
				var wg sync.WaitGroup
				start := make(chan struct{})
				for i := range 50 {
					// A pool each, as instances have.
					f := bitmapAt(t, s.Client(t, func(o *redis.Options) { o.PoolSize = 1 }), key,
						Config{Capacity: 200, FPRate: 1e-6, Layout: layout, TTL: time.Hour})
					wg.Add(1)
					go func() {
						defer wg.Done()
						<-start
						if err := f.CreateEmpty(t.Context()); err != nil {
							t.Errorf("instance %d: %v", i, err)
							return
						}
						// What one adds as soon as it may, no other must wipe out.
						if added, err := f.Add(t.Context(), fmt.Sprint(i)); err != nil || !added {
							t.Errorf("instance %d: added %v, %v", i, added, err)
						}
					}()
				}
				close(start)
				wg.Wait()
				f := bitmapAt(t, s.Client(t), key, Config{})
				items := make([]string, 50)
				for i := range items {
					items[i] = fmt.Sprint(i)
				}
				got, err := f.ExistsMulti(t.Context(), items)
				requireAll(t, true, got, err)
				info, err := f.Info(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, 1, info.Generation)
				require.InDelta(t, 50, info.Items, 3)
			})
		}
	})
}

// Creators that want different filters agree on one; those it does not satisfy
// are told.
func TestCreatorsDisagree(t *testing.T) {
	s := redistest.Shared(t)
	key := redistest.Key(t)
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		f := bitmapAt(t, s.Client(t), key, Config{Capacity: uint64(100 + i%2*100)})
		wg.Add(1)
		go func() { defer wg.Done(); errs[i] = f.CreateEmpty(t.Context()) }()
	}
	wg.Wait()
	info, err := bitmapAt(t, s.Client(t), key, Config{}).Info(t.Context())
	require.NoError(t, err)
	for i, err := range errs {
		if uint64(100+i%2*100) <= info.Params.Capacity {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ErrParamsMismatch)
		}
	}
}

// claimByHand runs the first half of CreateEmpty, as a creator does that dies
// right after it.
func claimByHand(t *testing.T, b *Bitmap) (token string) {
	t.Helper()
	reply, err := b.conn.evalStrings(t.Context(), claimScript, []string{b.key, b.next}, magicMarker, randomToken(),
		createWait.Milliseconds())
	require.NoError(t, err)
	require.Len(t, reply, 2)
	require.Equal(t, "marker", reply[0])
	return reply[1]
}

// createByHand runs the second.
func createByHand(t *testing.T, b *Bitmap, token string) string {
	t.Helper()
	p, err := NewParams(100, 0.01, Classic)
	require.NoError(t, err)
	h := header{geom: newGeometry(p, randomSeed(), alone), purpose: purposeEmpty, generation: 1}
	reply, err := b.conn.evalStrings(t.Context(), createScript, []string{b.key, b.next}, magicMarker, token,
		h.encode(magicLive), h.geom.size, h.geom.trailer(), h.geom.tagString(), 0, offCreated)
	require.NoError(t, err)
	return reply[0]
}

func TestCreatorDies(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		rdb := s.Client(t)
		t.Run("the next completes it", func(t *testing.T) {
			b := NewBitmap(rdb, redistest.Key(t))
			token := claimByHand(t, b)
			f, err := New(b, Config{Capacity: 100})
			require.NoError(t, err)
			for range 2 {
				_, err = f.Exists(t.Context(), "a")
				require.ErrorIs(t, err, ErrNotReady)
				require.ErrorContains(t, err, "being created")
				_, err = f.Add(t.Context(), "a")
				require.ErrorIs(t, err, ErrNotReady)
			}
			require.Equal(t, token, claimByHand(t, b), "a second creator adopts the marker")
			require.NoError(t, f.CreateEmpty(t.Context()))
			_, err = f.Add(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, "lost", createByHand(t, b, token), "the first was not dead but slow")
			got, err := f.ExistsMulti(t.Context(), []string{"a"})
			requireAll(t, true, got, err)
			require.EqualValues(t, -1, rdb.PTTL(t.Context(), b.key).Val(), "the marker's TTL is not the filter's")
		})
		t.Run("it expires", func(t *testing.T) {
			b := NewBitmap(rdb, redistest.Key(t))
			token := claimByHand(t, b)
			ttl := rdb.PTTL(t.Context(), b.key).Val()
			require.Greater(t, ttl, createWait/2)
			require.LessOrEqual(t, ttl, createWait)
			if s.Real {
				require.NoError(t, rdb.PExpire(t.Context(), b.key, 5*time.Millisecond).Err())
				time.Sleep(10 * time.Millisecond)
			} else {
				s.Advance(createWait)
			}
			require.Zero(t, rdb.Exists(t.Context(), b.key).Val())
			require.Equal(t, "lost", createByHand(t, b, token), "too late: it must not make an empty filter now")
			require.Zero(t, rdb.Exists(t.Context(), b.key).Val())
		})
		t.Run("dropped", func(t *testing.T) {
			b := NewBitmap(rdb, redistest.Key(t))
			token := claimByHand(t, b)
			require.NoError(t, b.Drop(t.Context()))
			require.Zero(t, rdb.Exists(t.Context(), b.key).Val())
			require.Equal(t, "lost", createByHand(t, b, token))
		})
		t.Run("a rebuild began", func(t *testing.T) {
			b := NewBitmap(rdb, redistest.Key(t))
			token := claimByHand(t, b)
			require.NoError(t, rdb.Set(t.Context(), b.next, magicStaging, 0).Err())
			require.Equal(t, "staging", createByHand(t, b, token))
			require.ErrorIs(t, b.CreateEmpty(t.Context(), Config{Capacity: 100, FPRate: 0.01}), ErrRebuilding)
			require.Zero(t, rdb.Exists(t.Context(), b.key).Val())
		})
	})
}

// Where the marker is not exactly one, nothing is made of it.
func TestDamagedMarker(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		rdb := s.Client(t)
		b := NewBitmap(rdb, redistest.Key(t))
		token := claimByHand(t, b)
		marker := magicMarker + token
		for _, value := range []string{marker + "\x00", marker + marker, marker[:31], "x" + marker[1:]} {
			require.NoError(t, rdb.Set(t.Context(), b.key, value, 0).Err())
			require.Equal(t, "lost", createByHand(t, b, token))
			require.Equal(t, value, rdb.Get(t.Context(), b.key).Val())
		}
	})
}

// A filter of the very same bits may be sized for another capacity, as a rebuild
// makes it that fills up the last block: a handle follows that, too.
func TestSameBitsOtherCapacity(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		rdb := s.Client(t)
		b := NewBitmap(rdb, redistest.Key(t))
		f, err := New(b, Config{Capacity: 100, Layout: Blocked})
		require.NoError(t, err)
		require.NoError(t, f.CreateEmpty(t.Context()))
		h, err := b.readWhole(t.Context())
		require.NoError(t, err)
		fewer := h.geom.params
		fewer.Capacity, fewer.FPRate = 90, 0.009
		h.geom = newGeometry(fewer, h.geom.seed, alone)
		require.NoError(t, rdb.Set(t.Context(), b.key, b.emptyString(t, h), 0).Err())

		for range 2 {
			require.ErrorIs(t, f.CreateEmpty(t.Context()), ErrParamsMismatch)
			info, err := f.Info(t.Context())
			require.NoError(t, err)
			require.Equal(t, fewer, info.Params)
		}
	})
}
