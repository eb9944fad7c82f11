package bloom

import (
	"context"
	"strings"
	"testing"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A large filter is counted in ranges that neither overlap nor leave gaps.
func TestInfoCountsRanges(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	for layout, capacity := range map[Layout]uint64{Classic: 8_000_000, Blocked: 7_000_000} {
		b := NewBitmap(rdb, redistest.Key(t))
		f, err := New(b, Config{Capacity: capacity, Layout: layout})
		require.NoError(t, err)
		require.NoError(t, f.CreateEmpty(t.Context()))
		g, err := b.geometry(t.Context())
		require.NoError(t, err)
		require.Greater(t, g.size, uint64(2*countRange))
		set, err := b.countBits(t.Context(), g)
		require.NoError(t, err)
		require.Zero(t, set)

		// Both sides of every range's end, and of the body. Tags are counted off, so
		// for Blocked the bits go where no tag is.
		want, ones := uint64(0), strings.Repeat("\xff", 32)
		body := g.size - trailerBytes - headerBytes
		for _, from := range []uint64{0, countRange - 32, countRange, 2*countRange - 32, 2 * countRange, (body - 64) / 64 * 64} {
			if layout == Blocked && from%64 == 32 {
				from -= 32
			}
			require.NoError(t, rdb.SetRange(t.Context(), b.key, int64(headerBytes+from), ones).Err())
			want += 32 * 8
		}
		trips := &redistest.Trips{}
		rdb.AddHook(trips)
		set, err = b.countBits(t.Context(), g)
		require.NoError(t, err)
		require.Equal(t, want, set)
		require.EqualValues(t, 3, trips.N())
		require.NoError(t, f.Drop(t.Context()))
	}
}

// A filter that is swapped while its bits are counted is counted again: what Info
// says is of one filter.
func TestInfoOfOneFilter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		for _, layout := range []Layout{Classic, Blocked} {
			rdb, counting := s.Client(t), s.Client(t)
			key, full := redistest.Key(t), redistest.Key(t)
			cfg := Config{Capacity: 300, FPRate: 0.001, Layout: layout}
			require.NoError(t, bitmapAt(t, rdb, key, cfg).CreateEmpty(t.Context()))
			other := bitmapAt(t, rdb, full, cfg)
			require.NoError(t, other.CreateEmpty(t.Context()))
			_, err := other.AddMulti(t.Context(), numberedItems("item", 300))
			require.NoError(t, err)
			require.NoError(t, other.Reset(t.Context()))
			_, err = other.AddMulti(t.Context(), numberedItems("item", 300))
			require.NoError(t, err)

			swapped := false
			counting.AddHook(beforeCommand{"bitcount", func() {
				if !swapped {
					swapped = true
					require.NoError(t, rdb.Rename(t.Context(), full, key).Err())
				}
			}})
			info, err := bitmapAt(t, counting, key, Config{}).Info(t.Context())
			require.NoError(t, err)
			require.True(t, swapped)
			require.EqualValues(t, 2, info.Generation)
			require.InDelta(t, 300, info.Items, 15)

			swapped = true
			counting.AddHook(beforeCommand{"bitcount", func() { _ = rdb.Del(t.Context(), key) }})
			_, err = bitmapAt(t, counting, key, Config{}).Info(t.Context())
			require.ErrorIs(t, err, ErrNotReady, "nothing was counted")
		}
	})
}

// beforeCommand is a hook that runs a function before each command of a name.
type beforeCommand struct {
	name string
	f    func()
}

func (h beforeCommand) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h beforeCommand) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == h.name {
			h.f()
		}
		return next(ctx, cmd)
	}
}

func (h beforeCommand) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
