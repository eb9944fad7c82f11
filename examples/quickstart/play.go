package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bloomguard/bloom"
)

// finishTimeout is above what the Guard allows a load, which is 5 s.
const finishTimeout = 10 * time.Second

// outcome is what one way did under the attack.
type outcome struct {
	name          string
	queriesFound  int64 // database queries for ids that exist
	queriesAbsent int64 // and for those that do not
	keys          int   // cache keys in Redis afterwards
	wrong         int64 // wrong answers
	firstWrong    string
	trips         int64 // round trips to Redis
	stats         bloom.GuardStats
	took          time.Duration
}

func (o *outcome) queries() int64 { return o.queriesFound + o.queriesAbsent }

// play sends the whole attack through one way, to a database with fresh
// counters, and counts what came of it.
func play(ctx context.Context, st *store, items *catalog, a *attack, w way, workers int) (outcome, error) {
	o := outcome{name: w.name}
	db := &database{items: items}
	guarded, err := w.open(w.prefix, db)
	if err != nil {
		return o, err
	}
	began, trips := time.Now(), st.trips.Load()
	judge := &judge{items: items}
	attackErr := inParallel(ctx, a.ids, workers, func(ctx context.Context, id string) error {
		got, err := guarded.get(ctx, id)
		return judge.check(id, got, err)
	})
	o.stats, err = finish(ctx, guarded)
	o.took, o.trips = time.Since(began), st.trips.Load()-trips
	if err := errors.Join(attackErr, err); err != nil {
		return o, err
	}
	o.queriesFound, o.queriesAbsent = db.found.Load(), db.absent.Load()
	o.wrong, o.firstWrong = judge.wrong.Load(), judge.first

	keys, err := st.keys(ctx, w.prefix)
	o.keys = len(keys)
	return o, err
}

// finish waits also where ctx has ended: what still runs may write keys, and
// the cleanup comes next.
func finish(ctx context.Context, guarded opened) (bloom.GuardStats, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	return guarded.finish(ctx)
}

// inParallel calls do for every id and ends at the first error.
func inParallel(ctx context.Context, ids []string, workers int, do func(context.Context, string) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var running sync.WaitGroup
	for range workers {
		running.Add(1)
		go func() {
			defer running.Done()
			for i := next.Add(1) - 1; int(i) < len(ids) && ctx.Err() == nil; i = next.Add(1) - 1 {
				if err := do(ctx, ids[i]); err != nil {
					cancel(fmt.Errorf("request %d: %w", i+1, err))
				}
			}
		}()
	}
	running.Wait()
	return context.Cause(ctx)
}

// judge knows every right answer.
type judge struct {
	items *catalog
	wrong atomic.Int64
	once  sync.Once
	first string
}

// check counts a wrong answer; a request that failed is no answer, and its
// error is handed back.
func (j *judge) check(id string, got item, err error) error {
	if err != nil && !errors.Is(err, bloom.ErrNotFound) {
		return err
	}
	row, exists := j.items.rows[id]
	switch {
	case exists && err != nil:
		j.blame(id, "exists, the answer was not found")
	case !exists && err == nil:
		j.blame(id, fmt.Sprintf("does not exist, the answer was %+v", got))
	case exists && got != item{Row: row, Name: id}:
		j.blame(id, fmt.Sprintf("is row %d, the answer was %+v", row, got))
	}
	return nil
}

func (j *judge) blame(id, what string) {
	j.wrong.Add(1)
	j.once.Do(func() { j.first = fmt.Sprintf("%q %s", id, what) })
}
