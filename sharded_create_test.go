package bloom

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// Who makes a sharded filter, and what comes of it when he breaks off.

// shardSeam is a shard whose builds are seen by a test.
type shardSeam struct {
	shard
	place shardPlace
	wrap  func(index int, b build) build
	open  func(index int) // in front of openBuild, if set
}

func (s shardSeam) placed(p shardPlace) shard {
	return shardSeam{s.shard.placed(p), p, s.wrap, s.open}
}

func (s shardSeam) openBuild(ctx context.Context, w wish) (build, RebuildReport, error) {
	if s.open != nil {
		s.open(int(s.place.index))
	}
	b, report, err := s.shard.openBuild(ctx, w)
	if b != nil && s.wrap != nil {
		b = s.wrap(int(s.place.index), b)
	}
	return b, report, err
}

// shardedSeams puts seams around shards.
func shardedSeams(shards []Backend, wrap func(int, build) build, open func(int)) (seams []Backend) {
	for _, b := range shards {
		seams = append(seams, shardSeam{shard: b.(shard), wrap: wrap, open: open})
	}
	return seams
}

// dyingBuild is of a builder that is killed in front of a publish: it does nothing
// from then on, and cleans up nothing.
type dyingBuild struct {
	build
	dead *bool
	dies func() // when it shall be published, if set
}

var errKilled = errors.New("killed")

func (d dyingBuild) publish(ctx context.Context) (uint64, error) {
	if d.dies != nil {
		*d.dead = true
		d.dies()
	}
	if *d.dead {
		return 0, errors.Join(errKilled, ErrRebuildRefused) // which ends it at once
	}
	return d.build.publish(ctx)
}

func (d dyingBuild) abort(ctx context.Context) error {
	if *d.dead {
		return nil
	}
	return d.build.abort(ctx)
}

// shardedDying returns a filter whose builder dies in front of publishing one shard,
// and then calls died.
func shardedDying(t testing.TB, cfg Config, shards []Backend, at int, died func()) *Filter {
	t.Helper()
	dead := new(bool)
	return shardedFilter(t, cfg, shardedSeams(shards, func(i int, b build) build {
		d := dyingBuild{build: b, dead: dead}
		if i == at {
			d.dies = died
		}
		return d
	}, nil)...)
}

// Fifty creators at once make one filter, of which nobody loses an item.
func TestShardedCreateAtOnce(t *testing.T) {
	t.Parallel()
	kinds := shardKinds(t)
	kinds["bitmap on a real server"] = func(t *testing.T, n int) (all []Backend) {
		rdb := redistest.Shared(t).Client(t)
		for _, key := range ShardKeys(redistest.Key(t), n) {
			all = append(all, NewBitmap(rdb, key))
		}
		return all
	}
	for kind, places := range kinds {
		t.Run(kind, func(t *testing.T) {
			all := places(t, 5)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var wg sync.WaitGroup
			for i := range 50 {
				f := shardedFilter(t, Config{Capacity: 200}, all...)
				wg.Add(1)
				go func() {
					defer wg.Done()
					item := rebuildItems("item ", 50)[i]
					if err := f.CreateEmpty(ctx); err != nil {
						t.Error(err)
						return
					}
					if _, err := f.Add(ctx, item); err != nil {
						t.Error(err)
					}
					if exists, err := f.Exists(ctx, item); !exists || err != nil {
						t.Error(exists, err)
					}
				}()
			}
			wg.Wait()
			f := shardedFilter(t, Config{}, all...)
			rebuildRequireAll(t, f, rebuildItems("item ", 50))
			info, err := f.Info(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 1, info.Generation)
			require.EqualValues(t, 200, info.Params.Capacity)
		})
	}
}

// A creator that dies before anything is live is in nobody's way for longer than
// its lease; one that dies between two shards leaves ErrNotReady, which Rebuild or
// Drop mends.
func TestShardedCreatorDies(t *testing.T) {
	for kind, places := range shardKinds(t) {
		if kind == "memory" || kind == "mixture" {
			continue // whose builders die with their filters
		}
		t.Run(kind, func(t *testing.T) {
			for at := range 3 {
				all := places(t, 3)
				cfg := Config{Capacity: 100}
				f := shardedFilter(t, cfg, all...)
				life, dies := context.WithCancel(t.Context())
				require.Error(t, shardedDying(t, cfg, all, at, dies).CreateEmpty(life))

				// What it left is a creation under way.
				found := sortShards(f.backend.(*Sharded).look(t.Context()))
				require.True(t, found.creating)
				require.Len(t, found.missing, 3-at)
				short, cancel := context.WithTimeout(t.Context(), 3*createPoll)
				require.ErrorIs(t, f.CreateEmpty(short), context.DeadlineExceeded, "it waits for the other one")
				cancel()
				_, err := f.Rebuild(t.Context(), rebuildUnread(t), rebuildQuick())
				require.ErrorIs(t, err, ErrRebuilding)
				for i, item := range rebuildItems("row ", 10) {
					exists, err := f.Exists(t.Context(), item)
					require.Equal(t, route(item, 3) >= at, err != nil, i)
					require.Equal(t, err != nil, exists)
				}

				expireStagings(t, all)
				if at == 0 {
					require.NoError(t, f.CreateEmpty(t.Context()))
					continue
				}
				for range 2 {
					require.ErrorIs(t, f.CreateEmpty(t.Context()), ErrNotReady)
				}
				g := shardedFilter(t, cfg, all...)
				if at == 1 {
					require.NoError(t, f.Drop(t.Context()))
					require.NoError(t, g.CreateEmpty(t.Context()))
				} else {
					_, err = g.Rebuild(t.Context(), rebuildSource([]string{"row"}), rebuildQuick())
					require.NoError(t, err)
				}
				require.NoError(t, f.Ready(t.Context()))
			}
		})
	}
}

// expireStagings lets the leases of what is being built end. RedisBloom's state goes
// with it.
func expireStagings(t *testing.T, shards []Backend) {
	t.Helper()
	for _, b := range shards {
		var c *conn
		keys := []string{companionKey(b.Key(), "next")}
		switch b := b.(type) {
		case *Bitmap:
			c = &b.conn
		case *RedisBloom:
			c, keys = &b.conn, append(keys, b.build)
		}
		if c.rdb.Exists(t.Context(), keys[0]).Val() == 1 {
			require.NoError(t, c.rdb.Del(t.Context(), keys...).Err())
		}
	}
}

// A creator who is slow between two openings finds a filter that others made, filled
// and lost a part of meanwhile. He must not take its part for a place that is free.
func TestShardedSlowCreator(t *testing.T) {
	items := rebuildItems("row ", 60)
	for kind, places := range shardKinds(t) {
		if kind == "memory" || kind == "mixture" {
			continue // whose stagings have no lease that could end
		}
		for pause := range 3 {
			for lost := range 3 {
				all := places(t, 3)
				cfg := Config{Capacity: 200}
				met := false
				slow := shardedFilter(t, cfg, shardedSeams(all, nil, func(i int) {
					if i != pause || met {
						return
					}
					met = true
					expireStagings(t, all)
					f := shardedFilter(t, cfg, all...)
					require.NoError(t, f.CreateEmpty(t.Context()))
					_, err := f.AddMulti(t.Context(), items)
					require.NoError(t, err)
					for other := range 3 {
						// The case that is hardest to see: what the slow one opened is all that is left.
						if other == lost || pause > 0 && other >= pause && lost%2 == 1 {
							require.NoError(t, f.backend.(*Sharded).shards[other].Drop(t.Context()))
						}
					}
				})...)
				err := slow.CreateEmpty(t.Context())
				require.True(t, met)
				require.ErrorIs(t, err, ErrNotReady, "%s, paused at %d, %d lost", kind, pause, lost)
				f := shardedFilter(t, cfg, all...)
				found, err := f.ExistsMulti(t.Context(), items)
				require.ErrorIs(t, err, ErrNotReady)
				require.NotContains(t, found, false, "%s, paused at %d, %d lost", kind, pause, lost)
			}
		}
	}
}

// While a rebuild runs, nobody makes an empty filter, and none replaces a filter
// that came meanwhile.
func TestShardedCreateMeetsRebuild(t *testing.T) {
	for kind, places := range shardKinds(t) {
		t.Run(kind, func(t *testing.T) {
			all := places(t, 3)
			f := shardedFilter(t, Config{Capacity: 100}, all...)
			rows := rebuildItems("row ", 20)
			_, err := f.Rebuild(t.Context(), rebuildMidway(rows, func() {
				require.ErrorIs(t, f.CreateEmpty(t.Context()), ErrRebuilding)
				require.ErrorIs(t, f.Reset(t.Context()), ErrNotReady)
			}), rebuildQuick())
			require.NoError(t, err)
			require.NoError(t, f.CreateEmpty(t.Context()), "it attaches")
			_, err = f.Rebuild(t.Context(), rebuildMidway(rows, func() {
				require.NoError(t, f.CreateEmpty(t.Context()), "whatever else runs")
				require.ErrorIs(t, f.Reset(t.Context()), ErrRebuilding)
				rebuildRequireAll(t, f, rows)
			}), rebuildQuick())
			require.NoError(t, err)
			rebuildRequireAll(t, f, rows)

			s := f.backend.(*Sharded)
			for _, b := range s.shards {
				_, _, err := b.openBuild(t.Context(), wish{config: Config{Capacity: 10, FPRate: 0.01}, lease: time.Minute, empty: true})
				require.ErrorIs(t, err, errPresent)
			}
		})
	}
}

// The same where the filter comes between opening and publishing.
func TestShardedCreateReplacesNothing(t *testing.T) {
	for kind, places := range shardKinds(t) {
		t.Run(kind, func(t *testing.T) {
			b := places(t, 2)[1].(shard).placed(placeAt(1, 2))
			d, _, err := b.openBuild(t.Context(), wish{config: Config{Capacity: 100, FPRate: 0.01}, lease: time.Minute, empty: true})
			require.NoError(t, err)
			switch b := b.(type) {
			case *Memory:
				b.shared.live.Store(newMemoryFilter(newHeader(newGeometry(sizingParams(t, 100, 0.01, Classic), 1, b.place), 1)))
			case *Bitmap:
				other := NewBitmap(b.conn.rdb, b.key+" other").placed(b.place)
				require.NoError(t, other.CreateEmpty(t.Context(), Config{Capacity: 100, FPRate: 0.01}))
				require.NoError(t, b.conn.rdb.Rename(t.Context(), other.Key(), b.key).Err())
			case *RedisBloom:
				other := NewRedisBloom(b.conn.rdb, b.key+" other", nil).placed(placeAt(1, 2))
				require.NoError(t, other.CreateEmpty(t.Context(), Config{Capacity: 100, FPRate: 0.01}))
				require.NoError(t, b.conn.rdb.Rename(t.Context(), other.Key(), b.key).Err())
			}
			_, err = b.Add(t.Context(), "kept")
			require.NoError(t, err)
			_, err = d.publish(t.Context())
			require.ErrorIs(t, err, errPresent)
			exists, err := b.Exists(t.Context(), "kept")
			require.NoError(t, err)
			require.True(t, exists)
		})
	}
}

// The TTL is that of every shard.
func TestShardedTTL(t *testing.T) {
	for _, kind := range []string{"bitmap", "redisbloom"} {
		all := shardKinds(t)[kind](t, 3)
		f := shardedFilter(t, Config{Capacity: 100, TTL: time.Hour}, all...)
		require.NoError(t, f.CreateEmpty(t.Context()))
		_, err := f.Rebuild(t.Context(), rebuildSource([]string{"row"}), rebuildQuick())
		require.NoError(t, err)
		for _, b := range all {
			rdb := b.(shard).identity().(redisPlace).rdb
			ttl, err := rdb.PTTL(t.Context(), b.Key()).Result()
			require.NoError(t, err)
			require.InDelta(t, time.Hour, ttl, float64(time.Minute))
		}
	}
}
