package bloom

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stormDB counts the loads that run at once, in all and of each id, and makes
// some fail, panic and take too long.
type stormDB struct {
	mu       sync.Mutex
	running  int // calls
	most     int
	timedOut int
	rows     uint64 // ids asked for
}

func (db *stormDB) enter(ids int) (leave func()) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.running++
	db.most = max(db.most, db.running)
	db.rows += uint64(ids)
	return func() {
		db.mu.Lock()
		defer db.mu.Unlock()
		db.running--
	}
}

func (db *stormDB) misbehave(id string) error {
	switch id {
	case "id 0":
		panic("boom")
	case "id 1": // ignores its context
		db.mu.Lock()
		db.timedOut++
		db.mu.Unlock()
		time.Sleep(8 * time.Millisecond)
	case "id 2":
		return errInjected
	}
	return nil
}

func (db *stormDB) load(_ context.Context, id string) (string, error) {
	defer db.enter(1)()
	time.Sleep(200 * time.Microsecond)
	return "row of " + id, db.misbehave(id)
}

func (db *stormDB) loadMulti(_ context.Context, ids []string) (map[string]string, error) {
	defer db.enter(len(ids))()
	time.Sleep(200 * time.Microsecond)
	for _, id := range ids {
		if rand.IntN(10) == 0 {
			if err := db.misbehave(id); err != nil {
				return nil, err
			}
		}
	}
	return rowsOf(ids), nil
}

// Under a storm of Gets, GetMultis and Invalidates the limit holds, every id is
// accounted for once, and no slot is lost, also with a Close in the middle.
func TestGuardMultiStorm(t *testing.T) {
	run := func(t *testing.T, s guardStore, together bool) {
		const limit, workers, calls = 3, 16, 40
		ids := numberedIDs(60)
		s.known(t, ids...)
		seed := testSeed(t).Uint64()
		db := &stormDB{}
		opts := GuardOptions[string]{MaxLoads: limit, LoadTimeout: 5 * time.Millisecond}
		if together {
			opts.LoadMulti = db.loadMulti
		}
		g := newTestGuard(t, s, db.load, &opts)
		var asked, failed, failedAfter atomic.Int64
		check := func(id, v string, err error) {
			var closed bool
			switch {
			case err == nil && v == "row of "+id:
			case errors.Is(err, ErrClosed):
				closed = true
			case errors.Is(err, ErrOverloaded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, errInjected):
				failed.Add(1)
			case err != nil && (together || id == "id 0"):
				failed.Add(1)
			default:
				t.Errorf("%q: %q, %v", id, v, err)
			}
			if closed {
				failedAfter.Add(1)
			}
		}
		closed := make(chan error, 1)
		var all sync.WaitGroup
		for w := range workers {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			all.Add(1)
			go func() {
				defer all.Done()
				for i := range calls {
					if w == 0 && i == calls*3/4 {
						go func() { closed <- g.Close(context.Background()) }()
					}
					switch r.IntN(5) {
					case 0:
						if err := g.Invalidate(t.Context(), ids[r.IntN(len(ids))]); err != nil {
							t.Error(err)
						}
					case 1, 2:
						id := ids[r.IntN(len(ids))]
						asked.Add(1)
						v, err := g.Get(t.Context(), id)
						check(id, v, err)
					default:
						some := make([]string, 1+r.IntN(20))
						for i := range some {
							some[i] = ids[r.IntN(len(ids))]
						}
						found, err := g.GetMulti(t.Context(), some)
						byID := failures(t, errors.Unwrap(err))
						distinct := map[string]bool{}
						for _, id := range some {
							if distinct[id] {
								continue
							}
							distinct[id] = true
							v, ok := found[id]
							if failure := byID[id]; !ok && failure == nil {
								t.Errorf("%q has neither a row nor an error", id)
							} else {
								check(id, v, failure)
							}
						}
						asked.Add(int64(len(distinct)))
						if len(found)+len(byID) != len(distinct) {
							t.Errorf("%d rows and %d errors of %d ids", len(found), len(byID), len(distinct))
						}
					}
				}
			}()
		}
		all.Wait()
		require.NoError(t, receive(t, closed))
		db.mu.Lock()
		defer db.mu.Unlock()
		require.Zero(t, db.running, "Close waits for loaders")
		require.LessOrEqual(t, db.most, limit)
		stats := g.Stats()
		t.Logf("%+v; %d failed, %d after Close, %d slow", stats, failed.Load(), failedAfter.Load(), db.timedOut)
		require.EqualValues(t, asked.Load(), stats.Gets)
		require.Equal(t, db.rows, stats.Loads)
		// Those that a closed guard refused were launched as far as they are concerned.
		accounted := stats.Hits + stats.Loads + stats.SharedLoads + stats.Overloads
		require.LessOrEqual(t, accounted, stats.Gets)
		require.LessOrEqual(t, stats.Gets-accounted, uint64(failedAfter.Load()))
		require.Positive(t, stats.SharedLoads)
		requireIdle(t, g)
	}
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprint("redis, together: ", together), func(t *testing.T) {
			run(t, redisStore(t, sharedTarget(t), Blocked), together)
		})
		t.Run(fmt.Sprint("memory, together: ", together), func(t *testing.T) { run(t, memoryStore(t), together) })
	}
}
