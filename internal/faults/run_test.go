package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/stretchr/testify/require"
)

const (
	// slack is by how much a call may outlast its context, apart from what the
	// machine stalled: far less than go-redis' own time-outs, which end calls
	// that nothing else ends.
	slack = 500 * time.Millisecond

	// lease of staging; the shortest that there is.
	lease = time.Second

	// A rebuild may outlast its context while it finds out whether it was
	// published, and removes what it built.
	rebuildSlack = 2*lease + 10*time.Second + slack

	// mayGrow is by how much the heap may grow between the first and the last look.
	mayGrow = 16 << 20
)

// run is one bed under load and faults.
type run struct {
	*tally
	t     *testing.T
	bed   *bed
	table *table
	seed  uint64
	pulse pulse
	done  atomic.Bool

	// gate is held for reading by rebuilds: whoever holds it for writing knows that
	// none runs.
	gate sync.RWMutex

	// away is odd while a filter is renamed away that will be renamed back, without
	// what was added meanwhile.
	away atomic.Int64

	rolls   atomic.Uint64
	closing []func() // called when all work has ended
}

// going reports whether the run goes on.
func (r *run) going() bool { return !r.done.Load() && !r.t.Failed() }

// wrongAnswer ends the run.
func (r *run) wrongAnswer(format string, args ...any) {
	r.mu.Lock()
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
	r.mu.Unlock()
	r.t.Errorf("WRONG ANSWER: "+format, args...)
}

// call makes a call under a deadline of its own, checks that it returned in time,
// and counts its error.
func (r *run) call(name string, limit, slack time.Duration, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	err := f(ctx)
	if over := time.Since(began) - limit - r.pulse.stalls(began); over > 0 {
		if name != "rebuild" {
			r.outlasted(over)
		}
		if over > slack {
			r.t.Errorf("%s returned %v after its context: %v", name, over, err)
		}
	}
	r.add("calls", name, 1)
	if err != nil {
		kind := kindOf(err)
		if kind == "" {
			r.t.Errorf("%s: an error that nothing here may cause: %v", name, err)
		}
		r.add("errors", kind, 1)
	}
	return err
}

// limit is how long a call may take: often too short while something is wrong.
func limit(rnd *rand.Rand) time.Duration {
	return time.Duration(20+rnd.IntN(500)) * time.Millisecond
}

// rest waits a little, at times for so long that a server may hang up.
func (r *run) rest(rnd *rand.Rand) {
	if rnd.IntN(2000) == 0 {
		time.Sleep(1300 * time.Millisecond)
		return
	}
	time.Sleep(r.bed.pause/2 + time.Duration(rnd.Int64N(int64(r.bed.pause))))
}

// reader looks members and absent ids up.
func (r *run) reader(f *bloom.Filter, rnd *rand.Rand) {
	for r.going() {
		r.lookUp(f, rnd, r.table.some(rnd, 1+rnd.IntN(2)*rnd.IntN(r.bed.batch)))
		r.rest(rnd)
	}
}

// lookUp asks for members, and for about as many absent ids.
func (r *run) lookUp(f *bloom.Filter, rnd *rand.Rand, members []*row) {
	if len(members) == 1 || rnd.IntN(20) == 0 {
		var who *row
		item := fmt.Sprintf("absent %d", rnd.Uint64())
		if len(members) > 0 && rnd.IntN(3) > 0 {
			who, item = members[0], members[0].id
		}
		var exists bool
		err := r.call("Exists", limit(rnd), slack, func(ctx context.Context) (err error) {
			exists, err = f.Exists(ctx, item)
			return err
		})
		if err != nil && !exists {
			r.wrongAnswer("Exists(%q) is false beside the error %v", item, err)
		}
		r.answered(item, who, exists, err)
		return
	}
	items, who := idsOf(members), append([]*row(nil), members...)
	for range members {
		items, who = append(items, fmt.Sprintf("absent %d", rnd.Uint64())), append(who, nil)
	}
	rnd.Shuffle(len(items), func(i, j int) { items[i], items[j], who[i], who[j] = items[j], items[i], who[j], who[i] })
	var exists []bool
	err := r.call("ExistsMulti", limit(rnd), slack, func(ctx context.Context) (err error) {
		exists, err = f.ExistsMulti(ctx, items)
		return err
	})
	if len(exists) != len(items) {
		r.wrongAnswer("ExistsMulti answers %d of %d items", len(exists), len(items))
		return
	}
	for i, item := range items {
		if err != nil && !exists[i] && len(r.bed.nodes) == 1 { // with shards, others may have answered
			r.wrongAnswer("ExistsMulti: %q is false beside the error %v", item, err)
		}
		r.answered(item, who[i], exists[i], err)
	}
}

// answered judges one answer about a member, or about an absent id where who is nil.
func (r *run) answered(item string, who *row, exists bool, err error) {
	switch {
	case exists:
	case who == nil:
		r.add("items", "absent denied", 1)
	case !who.deleted.Load():
		r.wrongAnswer("%q was added and is denied (error %v)", item, err)
	}
	if who == nil {
		r.add("items", "absent", 1)
	} else {
		r.add("items", "known", 1)
	}
}

// adder registers new rows as an application does, and reads its own writes.
func (r *run) adder(f, other *bloom.Filter, rnd *rand.Rand) {
	for r.going() {
		ids := r.table.newIDs(1 + rnd.IntN(2)*rnd.IntN(r.bed.batch))
		// Either the row is there before the Add, or it is committed after it, in a
		// transaction that settle is longer than.
		commits := rnd.IntN(2) == 0
		var rows []*row
		began, away := time.Now(), r.away.Load()
		if !commits {
			rows = r.table.insert(ids)
		}
		err := r.register(f, rnd, ids)
		ok := err == nil
		if errors.Is(err, bloom.ErrNotReady) {
			// Nobody has promised to keep it, but a filter comes back by a rebuild,
			// which reads the row; unless the old one is merely put back, by name or by
			// a failover that lost how it was lost.
			ok = away%2 == 0 && r.away.Load() == away && !r.bed.waits
		}
		if ok && commits {
			rows, ok = r.table.commit(ids, began)
		}
		switch {
		case ok:
			r.table.promise(rows)
			r.add("items", "added", len(rows))
			r.lookUp(other, rnd, rows)
		default:
			r.table.remove(rows)
			r.add("items", "rolled back", len(ids))
		}
		r.rest(rnd)
	}
}

// register adds ids by Add or AddMulti.
func (r *run) register(f *bloom.Filter, rnd *rand.Rand, ids []string) error {
	if len(ids) == 1 {
		return r.call("Add", limit(rnd), slack, func(ctx context.Context) error {
			added, err := f.Add(ctx, ids[0])
			if err != nil && !added {
				r.wrongAnswer("Add(%q) is false beside the error %v", ids[0], err)
			}
			return err
		})
	}
	return r.call("AddMulti", limit(rnd), slack, func(ctx context.Context) error {
		added, err := f.AddMulti(ctx, ids)
		if len(added) != len(ids) {
			r.wrongAnswer("AddMulti answers %d of %d items", len(added), len(ids))
		}
		return err
	})
}

// builder rebuilds all the time, in all sizes. Some of its sources fail, some of its
// contexts end too early, and some of its processes die, and leave what they built to
// the lease.
func (r *run) builder(filters []*bloom.Filter, p *process, rnd *rand.Rand) {
	for r.going() {
		p.dead.Store(false)
		opts := &bloom.RebuildOptions{Settle: settle, Lease: lease, MinItems: uint64(rnd.IntN(2))}
		limit, failAt, slowAt := 3*time.Second, -1, -1
		switch rnd.IntN(10) {
		case 0:
			failAt = rnd.IntN(r.table.most)
		case 1:
			slowAt = rnd.IntN(r.table.most)
		case 2:
			limit = time.Duration(rnd.IntN(200)) * time.Millisecond
		case 3:
			opts.MaxAge = 200 * time.Millisecond
		case 4:
			time.AfterFunc(time.Duration(rnd.IntN(300))*time.Millisecond, func() { p.dead.Store(true) })
		}
		r.rebuild(filters[rnd.IntN(len(filters))], limit, failAt, slowAt, opts)
		time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
	}
}

func (r *run) rebuild(f *bloom.Filter, limit time.Duration, failAt, slowAt int, opts *bloom.RebuildOptions) error {
	r.gate.RLock()
	defer r.gate.RUnlock()
	return r.call("rebuild", limit, rebuildSlack, func(ctx context.Context) error {
		report, err := f.Rebuild(ctx, r.table.source(failAt, slowAt), opts)
		switch {
		case err != nil:
			r.add("rebuilds", "failed: "+kindOf(err), 1)
		case report.Skipped:
			r.add("rebuilds", "skipped", 1)
		default:
			r.add("rebuilds", "published", 1)
		}
		return err
	})
}

// crew starts what works on the filter while the driver is at it.
func (r *run) crew(start func(work func(rnd *rand.Rand))) {
	open := func(w way) *bloom.Filter { return r.bed.filter(r.t, w, bloom.Config{}) }
	if r.bed.guarded {
		r.guards(start)
	} else {
		for i := range 6 {
			f := open(way(i) % ways)
			start(func(rnd *rand.Rand) { r.reader(f, rnd) })
		}
		for i := range 3 {
			w := way(i)
			if r.bed.waits {
				w = direct // nobody waits for replicas on a shared connection
			}
			f, other := open(w), open(direct)
			start(func(rnd *rand.Rand) { r.adder(f, other, rnd) })
		}
	}
	for i := range 2 {
		var filters []*bloom.Filter
		p := new(process)
		for _, shape := range r.bed.shapes {
			filters = append(filters, r.bed.filter(r.t, way(i), shape, p))
		}
		start(func(rnd *rand.Rand) { r.builder(filters, p, rnd) })
	}
}

// roll numbers the goroutines of a run: each has random numbers of its own.
func (r *run) roll() uint64 { return r.rolls.Add(1) }

// start fills the table and builds the first filter.
func (r *run) start() {
	rows := r.table.insert(r.table.newIDs(r.bed.rows / 2))
	for _, row := range rows {
		row.tell(1, 0)
	}
	r.table.promise(rows)
	require.NoError(r.t, r.mend(lease))
}

// mend rebuilds until it succeeds.
func (r *run) mend(within time.Duration) error {
	f := r.bed.filter(r.t, direct, r.bed.shapes[0])
	for end := time.Now().Add(within); ; {
		err := r.rebuild(f, 5*time.Second, -1, -1, &bloom.RebuildOptions{Settle: settle, Lease: lease, MinItems: 1})
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// finish checks what the run has left behind, once every fault has been undone.
func (r *run) finish() {
	t := r.t
	for _, n := range r.bed.nodes {
		for _, key := range n.leftovers(t) {
			require.Eventually(t, func() bool { return n.admin.Exists(t.Context(), key).Val() == 0 },
				lease+2*time.Second, 20*time.Millisecond, "%q outlives its lease", key)
		}
	}
	require.NoError(t, r.mend(5*time.Second))
	f, rnd := r.bed.filter(t, direct, bloom.Config{}), rand.New(rand.NewPCG(r.seed, 0))
	denied := r.get("items", "absent denied")
	for rows := r.table.all(); len(rows) > 0 && !t.Failed(); {
		n := min(len(rows), 200)
		r.lookUp(f, rnd, rows[:n])
		rows = rows[n:]
	}
	require.Greater(t, r.get("items", "absent denied"), denied, "it says no again")
	for _, n := range r.bed.nodes {
		require.Empty(t, n.leftovers(t))
	}
	for _, must := range []string{"known", "absent denied", "added"} {
		require.Positive(t, r.get("items", must), must)
	}
	require.Positive(t, r.get("rebuilds", "published"))
}

// weigh looks at the heap.
func (r *run) weigh() {
	runtime.GC()
	runtime.GC() // pools go with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heap = append(r.heap, m.HeapAlloc)
	if first := r.heap[0]; m.HeapAlloc > first+first/2+mayGrow {
		r.t.Errorf("the heap grows: %v bytes", r.heap)
	}
}
