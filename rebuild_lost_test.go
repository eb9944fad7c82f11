package bloom

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Servers that lose what they had acknowledged: a failover to a replica that lags,
// a restart from an older snapshot, a flush. A merge then goes back, or the rebuild
// ends; it never publishes a hole.

// rebuildMoments is every pair of moments between which a server's state can be
// set back: in front of the merge of each of three chunks, and of publishing.
func rebuildMoments() (pairs [][2]int) {
	for from := range 4 {
		for to := from + 1; to < 4; to++ {
			pairs = append(pairs, [2]int{from, to})
		}
	}
	return pairs
}

// rebuildOnMoment calls f in front of the merge of each chunk and of publishing,
// the first time it comes to that.
func (b *rebuildFaults) rebuildOnMoment(f func(moment int)) {
	var merges, publishes atomic.Int64
	b.proxy.Intercept(func(args []string) redistest.Action {
		switch rebuildScriptOf(args) {
		case "merge":
			if n := merges.Add(1); n <= 3 {
				f(int(n - 1))
			}
		case "publish":
			if publishes.Add(1) == 1 {
				f(3)
			}
		}
		return redistest.Pass
	})
}

// Staging is set back to what it was some chunks ago, as a lagging replica has it.
func TestRebuildMergeGoesBack(t *testing.T) {
	for i, pair := range rebuildMoments() {
		t.Run(fmt.Sprint(pair), func(t *testing.T) {
			b := newRebuildFaults(t, redistest.Shared(t), Layout(i%2))
			next, copied, merges := companionKey(b.key, "next"), "", atomic.Int64{}
			b.rebuildOnMoment(func(moment int) {
				var err error
				switch moment {
				case pair[0]:
					copied, err = b.rdb.Dump(t.Context(), next).Result()
				case pair[1]:
					err = b.rdb.RestoreReplace(t.Context(), next, time.Minute, copied).Err()
				}
				if err != nil {
					t.Error(err)
				}
			})
			trips := &redistest.Trips{Record: true}
			b.slow.backend.(*Bitmap).conn.rdb.(*redis.Client).AddHook(trips)
			before := b.generation(t)
			var told uint64
			report, err := b.slow.Rebuild(t.Context(), rebuildSource(b.items), &RebuildOptions{Settle: -1, Progress: func(p Progress) {
				if p.Phase == "merge" {
					told++
				}
			}})
			b.requireRebuilt(t, report, err, before, nil)
			for _, cmd := range trips.Commands() {
				if rebuildScriptOf(cmd) == "merge" {
					merges.Add(1)
				}
			}
			// All chunks, those that were lost again, and the one that found out unless it
			// was the first of those.
			want := 3 + pair[1] - pair[0] + 1
			if pair == [2]int{0, 3} {
				want--
			}
			require.EqualValues(t, want, merges.Load())
			require.Positive(t, told)
		})
	}
}

// A real server is killed and comes back with an older snapshot, in the middle of
// a rebuild.
func TestRebuildServerRestarts(t *testing.T) {
	t.Parallel()
	for i, pair := range rebuildMoments() {
		t.Run(fmt.Sprint(pair), func(t *testing.T) {
			s := redistest.Start(t)
			b := newRebuildFaultsRetrying(t, s, Layout(i%2), 200*time.Millisecond)
			b.rebuildOnMoment(func(moment int) {
				switch moment {
				case pair[0]:
					if err := b.rdb.Save(t.Context()).Err(); err != nil {
						t.Error(err)
					}
				case pair[1]:
					s.Restart(t)
				}
			})
			before := b.generation(t)
			report, err := b.slow.Rebuild(t.Context(), rebuildSource(b.items), rebuildQuick())
			b.requireRebuilt(t, report, err, before, nil)
		})
	}
}

// What the server forgot altogether ends the rebuild: staging, or everything.
func TestRebuildServerForgets(t *testing.T) {
	t.Parallel()
	for _, layout := range []Layout{Classic, Blocked} {
		s := redistest.Start(t)
		b := newRebuildFaultsRetrying(t, s, layout, 200*time.Millisecond)
		require.NoError(t, b.rdb.Save(t.Context()).Err())
		content := b.content(t)
		for moment := range 4 {
			b.rebuildOnMoment(func(at int) {
				if at == moment {
					s.Restart(t)
				}
			})
			_, err := b.slow.Rebuild(t.Context(), rebuildSource(b.items), rebuildQuick())
			require.ErrorIs(t, err, ErrRebuildRefused, moment)
			b.requireUntouched(t, content)
			rebuildRequireAll(t, b.slow, b.items)
		}
		for moment := range 4 {
			b.rebuildOnMoment(func(at int) {
				if at == moment {
					if err := b.rdb.FlushAll(t.Context()).Err(); err != nil {
						t.Error(err)
					}
				}
			})
			_, err := b.slow.Rebuild(t.Context(), rebuildSource(b.items), rebuildQuick())
			require.ErrorIs(t, err, ErrRebuildRefused, moment)
			b.requireUntouched(t, "")
			require.ErrorIs(t, b.slow.Ready(t.Context()), ErrNotReady)
			b.proxy.Intercept(nil)
			_, err = b.slow.Rebuild(t.Context(), rebuildSource(b.items), rebuildQuick())
			require.NoError(t, err)
		}
	}
}

// A server without memory to spare refuses to open staging, and keeps what it has.
func TestRebuildOutOfMemory(t *testing.T) {
	s := redistest.Start(t)
	b := newRebuildFaults(t, s, Classic)
	content := b.content(t)
	require.NoError(t, b.rdb.ConfigSet(t.Context(), "maxmemory", "1mb").Err())
	_, err := b.slow.Rebuild(t.Context(), rebuildUnread(t), rebuildQuick())
	require.ErrorContains(t, err, "OOM")
	require.NoError(t, b.rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	b.requireUntouched(t, content)

	// Midway, the scripts that want memory fail, but not those that give it back.
	_, err = b.slow.Rebuild(t.Context(), rebuildMidway(b.items, func() {
		require.NoError(t, b.rdb.ConfigSet(t.Context(), "maxmemory", "1mb").Err())
	}), rebuildQuick())
	require.ErrorContains(t, err, "OOM")
	b.requireUntouched(t, content)
	require.NoError(t, b.rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	before := b.generation(t)
	report, err := b.slow.Rebuild(t.Context(), rebuildSource(b.items), rebuildQuick())
	b.requireRebuilt(t, report, err, before, nil)
}
