package bloom

import (
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// rebuildTable is the table behind a filter. Writers insert and then Add, so a
// source that is opened after staging misses nothing that no Add brings.
type rebuildTable struct {
	mu    sync.RWMutex
	rows  []string
	acked []string // rows whose Add has returned
}

func (t *rebuildTable) insert(row string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, row)
}

func (t *rebuildTable) ack(row string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.acked = append(t.acked, row)
}

// source yields the rows as they are when it is opened.
func (t *rebuildTable) source() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		t.mu.RLock()
		rows := t.rows
		t.mu.RUnlock()
		rebuildSource(rows)(yield)
	}
}

// members returns n rows that must be found from now on, the newest among them.
func (t *rebuildTable) members(rnd *rand.Rand, n int) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	members := make([]string, n)
	for i := range members {
		members[i] = t.acked[rnd.IntN(len(t.acked))]
	}
	members[0] = t.acked[len(t.acked)-1]
	return members
}

// rebuildLoad is one run of the load test.
type rebuildLoad struct {
	bed      rebuildBed
	rebuilds int
	known    int           // rows from the beginning
	perWrite int           // rows that one writer adds in all
	pause    time.Duration // of readers
	configs  []Config      // the rebuilds' in turn
}

// run reads known members, adds new ones and rebuilds, all at once. Nothing may
// fail, and nothing may be denied.
func (l rebuildLoad) run(t *testing.T) {
	seed := rebuildSeed(t)
	table := &rebuildTable{}
	for _, row := range rebuildItems("known ", l.known) {
		table.insert(row)
		table.ack(row)
	}
	_, err := l.bed.open(t, l.configs[0]).Rebuild(t.Context(), table.source(), rebuildQuick())
	require.NoError(t, err)

	var (
		wg            sync.WaitGroup
		done          atomic.Bool
		lookups, adds atomic.Int64
	)
	defer wg.Wait()
	defer done.Store(true)
	crew := func(i int, pause time.Duration, turn func(f *Filter, rnd *rand.Rand, n int) error) {
		f, rnd := l.bed.open(t, Config{}), rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := 0; !done.Load(); n++ {
				if err := turn(f, rnd, n); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(pause)
			}
		}()
	}
	for i := range 8 {
		crew(i, l.pause, func(f *Filter, rnd *rand.Rand, n int) error {
			members := table.members(rnd, 1+n%2*(rnd.IntN(30)))
			lookups.Add(int64(len(members)))
			return rebuildLookUp(t, f, members)
		})
	}
	for i := 8; i < 12; i++ {
		crew(i, l.pause+time.Millisecond, func(f *Filter, rnd *rand.Rand, n int) error {
			if n >= l.perWrite {
				return nil
			}
			batch := rebuildItems(fmt.Sprintf("new %d %d ", i, n), 1+n%2*rnd.IntN(3))
			for _, row := range batch {
				table.insert(row)
			}
			if _, err := f.AddMulti(t.Context(), batch); err != nil {
				return err
			}
			adds.Add(int64(len(batch)))
			for _, row := range batch {
				table.ack(row)
			}
			return rebuildLookUp(t, f, batch)
		})
	}

	rivals := 0
	for i := range l.rebuilds {
		if t.Failed() {
			break
		}
		// Every other one changes something.
		f, rival := l.bed.open(t, l.configs[i/2%len(l.configs)]), make(chan error, 1)
		if i%10 == 0 {
			go func() {
				_, err := f.Rebuild(t.Context(), table.source(), rebuildQuick())
				rival <- err
			}()
		} else {
			rival <- nil
		}
		opts := &RebuildOptions{Settle: -1, Capacity: f.cfg.Capacity, MinItems: 1}
		_, err := f.Rebuild(t.Context(), table.source(), opts)
		if err := errors.Join(err, <-rival); err != nil {
			require.ErrorIs(t, err, ErrRebuilding)
			require.Zero(t, i%10, "nobody else rebuilds now")
			rivals++
		}
	}
	done.Store(true)
	wg.Wait()
	rebuildRequireAll(t, l.bed.open(t, Config{}), table.acked)
	l.bed.requireClean(t)
	t.Logf("%d lookups, %d adds, %d rivals turned away", lookups.Load(), adds.Load(), rivals)
	require.Positive(t, adds.Load())
}

// rebuildLookUp returns an error if one of the members is denied or not answered.
func rebuildLookUp(t *testing.T, f *Filter, members []string) error {
	if len(members) == 1 {
		exists, err := f.Exists(t.Context(), members[0])
		if err == nil && !exists {
			err = fmt.Errorf("false negative: %q", members[0])
		}
		return err
	}
	got, err := f.ExistsMulti(t.Context(), members)
	for i, exists := range got {
		if !exists {
			err = errors.Join(err, fmt.Errorf("false negative: %q of %d", members[i], len(members)))
		}
	}
	return err
}

// rebuildShapes are configurations that differ in capacity, rate and layout.
func rebuildShapes(first, other Layout, n uint64) []Config {
	return []Config{
		{Capacity: n, Layout: first},
		{Capacity: 2 * n, Layout: first},
		{Capacity: 2 * n, FPRate: 0.001, Layout: first},
		{Capacity: 2 * n, FPRate: 0.001, Layout: other},
		{Capacity: n / 2, FPRate: 0.05, Layout: other},
		{Capacity: n / 2, FPRate: 0.05, Layout: first},
	}
}

// A hundred rebuilds under readers and writers, half of which change capacity, rate
// or layout: no errors and no false negatives, before, during and after.
func TestRebuildUnderLoad(t *testing.T) {
	t.Parallel()
	rebuilds, others := 100, 50 // on a real server, and elsewhere
	if testing.Short() {
		rebuilds, others = 20, 10
	}
	if raceEnabled {
		others /= 2
	}
	for _, layout := range []Layout{Classic, Blocked} {
		shapes := rebuildShapes(layout, Classic+Blocked-layout, 8000)
		t.Run("memory "+layout.String(), func(t *testing.T) {
			rebuildLoad{rebuildMemory(layout), others, 200, 1000, 20 * time.Microsecond, shapes}.run(t)
		})
		t.Run("redis "+layout.String(), func(t *testing.T) {
			s := redistest.Target{Addr: redistest.Shared(t).Addr(), Real: true}
			rebuildLoad{rebuildBitmap(t, s, layout), rebuilds, 200, 1000, 300 * time.Microsecond, shapes}.run(t)
		})
	}
	t.Run("miniredis", func(t *testing.T) {
		s := redistest.Target{Addr: redistest.Mini(t).Addr()}
		rebuildLoad{rebuildBitmap(t, s, Blocked), 12, 50, 40, 5 * time.Millisecond, rebuildShapes(Blocked, Classic, 200)}.run(t)
	})
	t.Run("sharded", func(t *testing.T) {
		s := redistest.Shared(t)
		bed := rebuildShards(rebuildOwn(t, s, Blocked), rebuildMemory(Blocked), rebuildOwn(t, s, Blocked))
		rebuildLoad{bed, others, 200, 1000, 300 * time.Microsecond, rebuildShapes(Blocked, Classic, 8000)}.run(t)
	})
	t.Run("redisbloom", func(t *testing.T) {
		// It refuses what is over its capacity, so that is large.
		rebuildLoad{rebuildModule(t), others, 200, 1000, 300 * time.Microsecond, rebuildShapes(Classic, Classic, 40_000)}.run(t)
	})
}
