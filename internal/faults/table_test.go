package faults

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// settle is the rebuilds' wait, and longestTx what it has to be above: a
	// transaction that took longer is rolled back.
	settle    = 60 * time.Millisecond
	longestTx = settle - 5*time.Millisecond
)

// table is the table behind a filter: what a rebuild reads, and the model of what
// the filter must never deny. Beyond most rows some are deleted, so that a run of
// any length needs the same memory.
type table struct {
	most int
	ids  atomic.Int64

	mu      sync.RWMutex
	rows    []*row // what source yields; members among them
	members []*row // what must not be denied
	byID    map[string]*row
}

// row is one row.
type row struct {
	id      string
	at      int // in rows
	member  int // in members, or -1
	deleted atomic.Bool
	born    time.Time

	// What a Guard may say of it.
	version atomic.Int64 // as committed
	writer  sync.Mutex   // one at a time
	mu      sync.Mutex
	told    []told // in order, the last few
}

// told says that an Invalidate or Register that followed a version has returned nil.
type told struct {
	version int64
	by      int // which guard's
	at      time.Time
}

// newIDs returns ids that nothing had before.
func (t *table) newIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("row %d", t.ids.Add(1))
	}
	return ids
}

// insert makes rows visible to source.
func (t *table) insert(ids []string) []*row {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.insertLocked(ids)
}

func (t *table) insertLocked(ids []string) []*row {
	rows := make([]*row, len(ids))
	for i, id := range ids {
		rows[i] = &row{id: id, at: len(t.rows), member: -1, born: time.Now()}
		rows[i].version.Store(1)
		t.rows = append(t.rows, rows[i])
		if t.byID == nil {
			t.byID = map[string]*row{}
		}
		t.byID[id] = rows[i]
	}
	return rows
}

// commit ends a transaction that began at began: rows become visible to source,
// unless it took too long.
func (t *table) commit(ids []string, began time.Time) ([]*row, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(began) > longestTx {
		return nil, false
	}
	return t.insertLocked(ids), true
}

// promise makes rows members, and deletes as many others if there are too many.
func (t *table) promise(rows []*row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := 0; len(t.members) > 0 && len(t.members)+len(rows) > t.most; i++ {
		t.deleteLocked(t.members[i%len(t.members)])
	}
	for _, r := range rows {
		r.member = len(t.members)
		t.members = append(t.members, r)
	}
}

// remove deletes rows: first they are no members, then source has them no more.
func (t *table) remove(rows []*row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range rows {
		if !r.deleted.Load() {
			t.deleteLocked(r)
		}
	}
}

func (t *table) deleteLocked(r *row) {
	r.deleted.Store(true)
	if last := len(t.members) - 1; r.member >= 0 {
		t.members[r.member] = t.members[last]
		t.members[r.member].member = r.member
		t.members[last] = nil
		t.members = t.members[:last]
	}
	delete(t.byID, r.id)
	last := len(t.rows) - 1
	t.rows[r.at] = t.rows[last]
	t.rows[r.at].at = r.at
	t.rows[last] = nil
	t.rows = t.rows[:last]
}

// some returns up to n members, the newest among them.
func (t *table) some(rnd *rand.Rand, n int) []*row {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(t.members) == 0 {
		return nil
	}
	rows := make([]*row, n)
	for i := range rows {
		rows[i] = t.members[rnd.IntN(len(t.members))]
	}
	if rnd.IntN(2) == 0 {
		rows[0] = t.members[len(t.members)-1]
	}
	return rows
}

func (t *table) all() []*row {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return append([]*row(nil), t.members...)
}

// get reads one row, nil if there is none.
func (t *table) get(id string) *row {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byID[id]
}

// scan returns the ids that a query sees which begins now.
func (t *table) scan() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	ids := make([]string, len(t.rows))
	for i, r := range t.rows {
		ids[i] = r.id
	}
	return ids
}

// source yields the rows as they are when it is opened. At the item numbered failAt
// it ends with an error, and at slowAt it stops for a while, if those are positive.
func (t *table) source(failAt, slowAt int) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for i, id := range t.scan() {
			if i > 0 && i == failAt {
				yield("", errSource)
				return
			}
			if i > 0 && i == slowAt {
				time.Sleep(settle)
			}
			if !yield(id, nil) {
				return
			}
		}
	}
}

func idsOf(rows []*row) []string {
	ids := make([]string, len(rows))
	for i, r := range rows {
		ids[i] = r.id
	}
	return ids
}
