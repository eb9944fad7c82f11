package bloom_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Damage to the string: every answer is an error or right.

// damaged is a filter of which every byte may go missing.
type damaged struct {
	rdb     *redis.Client
	key     string
	whole   string
	members []string
	warm    *bloom.Filter // knew the filter when it was whole
	layout  bloom.Layout
}

// damage runs f over both layouts and every way of reading: BITFIELD_RO, the
// script on Redis, the script on miniredis.
func damage(t *testing.T, f func(*testing.T, damaged)) {
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		redistest.Each(t, func(t *testing.T, s redistest.Target) {
			for _, native := range []bool{true, false} {
				if native != s.Real && layout == bloom.Blocked || native && !s.Real {
					continue // Blocked reads the same everywhere
				}
				t.Run(map[bool]string{true: "native", false: "script"}[native], func(t *testing.T) {
					d := damaged{rdb: s.Client(t), key: redistest.Key(t), members: numbered("member", 12), layout: layout}
					if !native {
						d.rdb.AddHook(refusing("bitfield_ro"))
					}
					d.warm = filled(t, d.rdb, d.key, 12, layout, d.members)
					requireMembers(t, d.warm, d.members)
					var err error
					d.whole, err = d.rdb.Get(t.Context(), d.key).Result()
					require.NoError(t, err)
					f(t, d)
				})
			}
		})
	})
}

// put stores another value in place of the whole filter and checks it, every
// other time first by an Add of a handle that knows no better.
func (d damaged) put(t *testing.T, value string) {
	t.Helper()
	require.NoError(t, d.rdb.Set(t.Context(), d.key, d.whole, 0).Err())
	require.NoError(t, d.warm.Ready(t.Context()))
	require.NoError(t, d.rdb.Set(t.Context(), d.key, value, 0).Err())
	if rand.IntN(2) == 0 {
		_, err := d.warm.Add(t.Context(), "new")
		requireDamaged(t, err, value)
	}
	d.check(t, value)
}

// check requires that value, which stands at the key and is not whole, is found
// out by a handle that knew the whole filter and by one that reads it for the
// first time: whatever they answer is right, and they change nothing.
func (d damaged) check(t *testing.T, value string) {
	t.Helper()
	require.NotEqual(t, d.whole, value)
	for _, f := range []*bloom.Filter{d.warm, attached(t, d.rdb, d.key)} {
		err := neverDenies(t, f, d.members)
		if err != nil {
			requireDamaged(t, err, value)
		}
		requireDamaged(t, f.Ready(t.Context()), value)
		_, err = f.Info(t.Context())
		requireDamaged(t, err, value)
		_, err = f.Add(t.Context(), "new")
		requireDamaged(t, err, value)
		_, err = f.AddMulti(t.Context(), []string{"new", "newer"})
		requireDamaged(t, err, value)
		requireDamaged(t, f.Reset(t.Context()), value)
		if value != "" {
			require.ErrorIs(t, mustNew(t, bloom.NewBitmap(d.rdb, d.key), bloom.Config{Capacity: 1}).CreateEmpty(t.Context()), bloom.ErrCorrupt)
		}
	}
	now, err := d.rdb.Get(t.Context(), d.key).Result()
	require.NoError(t, err)
	require.Equal(t, value, now)
}

// requireDamaged requires the one of two sentinels that fits.
func requireDamaged(t *testing.T, err error, value string) {
	t.Helper()
	if value == "" {
		require.ErrorIs(t, err, bloom.ErrNotReady)
		return
	}
	require.ErrorIs(t, err, bloom.ErrCorrupt)
}

// A string that lost its end, at every byte, and then was made longer again by a
// foreign command.
func TestTruncated(t *testing.T) {
	t.Parallel()
	damage(t, func(t *testing.T, d damaged) {
		size := len(d.whole)
		for length := range size {
			if length%9 != 0 && length > 9 && length < size-9 && length%64 > 1 && length%64 < 59 {
				continue // every boundary of header, block, tag and trailer, and some between
			}
			d.put(t, d.whole[:length])
			if length%4 == 0 {
				zeros := d.whole[:length] + strings.Repeat("\x00", size-length)
				require.NoError(t, d.rdb.SetRange(t.Context(), d.key, int64(size-1), "\x00").Err())
				d.check(t, zeros)
				require.NoError(t, d.rdb.SetBit(t.Context(), d.key, int64(size)*8, 1).Err())
				d.check(t, zeros+"\x80")
			}
		}
		require.NoError(t, d.rdb.Set(t.Context(), d.key, d.whole, 0).Err())
		requireMembers(t, d.warm, d.members)
	})
}

// A string that grew is as unlike what CreateEmpty made as one that shrank.
func TestOverlong(t *testing.T) {
	damage(t, func(t *testing.T, d damaged) {
		for _, tail := range []string{"\x00", "\xff", strings.Repeat("\x00", 64), d.whole} {
			d.put(t, d.whole+tail)
		}
	})
}

// A string that lost bytes in its middle ends as it should. (Blocked finds out
// unless they were whole blocks, which no command of Redis takes away.)
func TestSpliced(t *testing.T) {
	damage(t, func(t *testing.T, d damaged) {
		for _, from := range []int{64, 192, 195, 256} {
			for _, lost := range []int{1, 8, 63} {
				if from+lost <= len(d.whole)-8 {
					d.put(t, d.whole[:from]+d.whole[from+lost:])
				}
			}
		}
	})
}

// The same length, but zeroed, or only in part.
func TestZeroed(t *testing.T) {
	damage(t, func(t *testing.T, d damaged) {
		size := len(d.whole)
		d.put(t, strings.Repeat("\x00", size))
		d.put(t, strings.Repeat("\x00", 64)+d.whole[64:])
		for from := 1; from < size; from += 37 {
			if from < size-8 || d.layout == bloom.Classic {
				d.put(t, d.whole[:from]+strings.Repeat("\x00", size-from))
			}
		}
		d.put(t, d.whole[:size-1]+"\x00")
		d.put(t, d.whole[1:]+"\x00")
		d.put(t, d.whole[64:]+strings.Repeat("\x00", 64))
	})
}

// A key that a foreign SETBIT or SETRANGE made after the filter had gone.
func TestRemadeByForeignWrite(t *testing.T) {
	damage(t, func(t *testing.T, d damaged) {
		size := len(d.whole)
		for _, end := range []int{1, 8, 192, 193, size - 8, size - 1, size, size + 1, 2 * size} {
			require.NoError(t, d.rdb.Del(t.Context(), d.key).Err())
			require.NoError(t, d.rdb.SetBit(t.Context(), d.key, int64(end)*8-1, 1).Err())
			d.check(t, strings.Repeat("\x00", end-1)+"\x01")
		}
	})
}

// A flipped bit of the header is found out wherever the header is read, and
// never turns an answer.
func TestHeaderFlips(t *testing.T) {
	damage(t, func(t *testing.T, d damaged) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for range 60 {
			bit := random.IntN(88 * 8) // the part that never changes
			flipped := []byte(d.whole)
			flipped[bit/8] ^= 0x80 >> (bit % 8)
			d.put(t, string(flipped))
		}
	})
}

// refusing is a hook that refuses commands as a server does that does not know
// them.
type refusing string

type refusal string

func (r refusal) Error() string { return string(r) }
func (r refusal) RedisError()   {}

func (r refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == string(r) {
			return refusal("ERR unknown command '" + cmd.Name() + "', with args beginning with: ")
		}
		return next(ctx, cmd)
	}
}

func (r refusing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
