package bloom

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A rebuild that breaks off between two shards leaves each of them old or new, which
// is right; the next one works, and with MaxAge it builds only what is not young.
func TestShardedRebuildDies(t *testing.T) {
	t.Parallel()
	old, fresh := rebuildItems("row ", 60), rebuildItems("fresh ", 20)
	rows := append(append([]string{}, old...), fresh...)
	for kind, places := range shardKinds(t) {
		if kind == "memory" || kind == "mixture" {
			continue // whose builders die with their filters
		}
		for at := range 4 {
			for _, resize := range []uint64{300, 600} {
				t.Run(fmt.Sprintf("%s/at %d to %d", kind, at, resize), func(t *testing.T) {
					all := places(t, 4)
					f := shardedFilter(t, Config{Capacity: 300}, all...)
					_, err := f.Rebuild(t.Context(), rebuildSource(old), rebuildQuick())
					require.NoError(t, err)
					_, err = f.AddMulti(t.Context(), fresh)
					require.NoError(t, err)

					dying := shardedDying(t, Config{Capacity: resize}, all, at, func() {})
					_, err = dying.Rebuild(t.Context(), rebuildSource(rows), rebuildQuick())
					require.ErrorIs(t, err, errKilled)
					if at > 0 {
						require.ErrorContains(t, err, fmt.Sprintf("%d of 4 shards are published", at))
					}
					rebuildRequireAll(t, f, rows)
					_, err = f.Add(t.Context(), "between")
					require.NoError(t, err)
					info, err := f.Info(t.Context())
					require.NoError(t, err)
					require.EqualValues(t, 1, info.Generation, "the oldest shard's")
					require.EqualValues(t, 300, info.Params.Capacity, "the smallest shard's")
					if at > 0 && resize > 300 {
						err = shardedFilter(t, Config{Capacity: resize}, all...).CreateEmpty(t.Context())
						require.ErrorIs(t, err, ErrParamsMismatch)
						require.ErrorContains(t, err, "300")
						require.ErrorContains(t, err, "600")
					}
					_, err = f.Rebuild(t.Context(), rebuildUnread(t), rebuildQuick())
					require.ErrorIs(t, err, ErrRebuilding, "until its lease ends")
					expireStagings(t, all)

					built := make([]bool, 4)
					watched := shardedFilter(t, Config{Capacity: resize}, shardedSeams(all, func(i int, b build) build {
						built[i] = true
						return b
					}, nil)...)
					report, err := watched.Rebuild(t.Context(), rebuildSource(append(rows, "between")), &RebuildOptions{Settle: -1, MaxAge: time.Minute, MinItems: 70})
					require.NoError(t, err)
					// The old generation is young as well; of the wanted size it does, where it is
					// known: what the module's state told of it went with the lease.
					again := resize > 300 || kind == "redisbloom"
					for i := range built {
						require.Equal(t, i >= at && again, built[i], "shard %d", i)
					}
					require.Equal(t, !again, report.Skipped)
					require.Equal(t, resize, report.Params.Capacity)
					rebuildRequireAll(t, f, append(rows, "between"))

					_, err = f.Rebuild(t.Context(), rebuildSource(rows), &RebuildOptions{Settle: -1})
					require.NoError(t, err)
					rebuildRequireAll(t, f, rows)
					info, err = f.Info(t.Context())
					require.NoError(t, err)
					require.EqualValues(t, resize, info.Params.Capacity, "it keeps the larger")
					require.NoError(t, f.Ready(t.Context()))
				})
			}
		}
	}
}

// MaxAge goes by the oldest shard.
func TestShardedMaxAge(t *testing.T) {
	for kind, places := range shardKinds(t) {
		t.Run(kind, func(t *testing.T) {
			all := places(t, 3)
			f := shardedFilter(t, Config{Capacity: 100}, all...)
			rows := rebuildItems("row ", 30)
			_, err := f.Rebuild(t.Context(), rebuildSource(rows), rebuildQuick())
			require.NoError(t, err)
			age := 300 * time.Millisecond
			time.Sleep(age)
			// One shard is made anew by itself, as by a rebuild that then died.
			s := f.backend.(*Sharded)
			configs, err := s.configs(f.cfg)
			require.NoError(t, err)
			d, _, err := s.shards[1].openBuild(t.Context(), wish{config: configs[1], lease: time.Minute})
			require.NoError(t, err)
			for _, row := range rows {
				if route(row, 3) == 1 {
					require.NoError(t, d.add(t.Context(), row))
				}
			}
			require.NoError(t, d.merge(t.Context(), func(uint64, uint64) {}))
			_, err = d.publish(t.Context())
			require.NoError(t, err)

			report, err := f.Rebuild(t.Context(), rebuildSource(rows), &RebuildOptions{Settle: -1, MaxAge: age})
			require.NoError(t, err)
			require.False(t, report.Skipped, "two shards are too old")
			require.EqualValues(t, 2, report.Generation)
			require.InDelta(t, 30, report.Distinct, 3, "those of the young one included")
			rebuildRequireAll(t, f, rows)
			info, err := f.Info(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 2, info.Generation, "of all three")
			report, err = f.Rebuild(t.Context(), rebuildUnread(t), &RebuildOptions{Settle: -1, MaxAge: time.Minute})
			require.NoError(t, err)
			require.True(t, report.Skipped)
		})
	}
}

// A shard that refuses to open, or whose check fails, leaves all shards as they were.
func TestShardedRebuildAllOrNone(t *testing.T) {
	rows := rebuildItems("row ", 60)
	for kind, places := range shardKinds(t) {
		t.Run(kind, func(t *testing.T) {
			all := places(t, 3)
			f := shardedFilter(t, Config{Capacity: 100}, all...)
			_, err := f.Rebuild(t.Context(), rebuildSource(rows), rebuildQuick())
			require.NoError(t, err)
			unchanged := func() {
				t.Helper()
				rebuildRequireAll(t, f, rows)
				info, err := f.Info(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, 1, info.Generation)
				for _, b := range f.backend.(*Sharded).shards {
					s, err := b.look(t.Context())
					require.NoError(t, err)
					require.False(t, s.staging)
				}
			}
			// Another builder has the last shard.
			d, _, err := f.backend.(*Sharded).shards[2].openBuild(t.Context(), wish{config: Config{Capacity: 100, FPRate: 0.01}, lease: time.Minute})
			require.NoError(t, err)
			_, err = f.Rebuild(t.Context(), rebuildUnread(t), rebuildQuick())
			require.ErrorIs(t, err, ErrRebuilding)
			require.ErrorContains(t, err, "shard 2 of 3")
			require.NoError(t, d.abort(t.Context()))
			unchanged()

			_, err = f.Rebuild(t.Context(), rebuildSource(rows[:20]), rebuildQuick())
			require.ErrorIs(t, err, ErrRebuildRefused, "less than half of all")
			unchanged()

			broken := errors.New("broken")
			for _, step := range []string{"add", "merge", "check"} {
				g := shardedFilter(t, Config{}, shardedSeams(all, func(i int, b build) build {
					return rebuildSteps{b, func(s string) error {
						if i == 2 && s == step {
							return broken
						}
						return nil
					}}
				}, nil)...)
				_, err = g.Rebuild(t.Context(), rebuildSource(rows), rebuildQuick())
				require.ErrorIs(t, err, broken, step)
				require.ErrorContains(t, err, "shard 2 of 3")
				unchanged()
			}
			ctx, cancel := context.WithCancel(t.Context())
			_, err = f.Rebuild(ctx, rebuildMidway(rows, cancel), rebuildQuick())
			require.ErrorIs(t, err, context.Canceled)
			unchanged()
		})
	}
}

// A publish that is not heard of is asked for again, and goes on where it was.
func TestShardedPublishUnheard(t *testing.T) {
	rows := rebuildItems("row ", 60)
	for kind, places := range shardKinds(t) {
		if kind == "memory" || kind == "mixture" {
			continue
		}
		all := places(t, 3)
		asked := make([]int, 3)
		f := shardedFilter(t, Config{Capacity: 100}, shardedSeams(all, func(i int, b build) build {
			return unheardBuild{b, func() bool { asked[i]++; return i == 1 && asked[i] == 1 }}
		}, nil)...)
		report, err := f.Rebuild(t.Context(), rebuildSource(rows), rebuildQuick())
		require.NoError(t, err)
		require.EqualValues(t, 1, report.Generation)
		require.Equal(t, []int{1, 2, 1}, asked)
		rebuildRequireAll(t, f, rows)
	}
}

// unheardBuild loses the answers to some publishes.
type unheardBuild struct {
	build
	lose func() bool
}

func (u unheardBuild) publish(ctx context.Context) (uint64, error) {
	generation, err := u.build.publish(ctx)
	if u.lose() {
		return 0, errors.New("connection reset")
	}
	return generation, err
}
