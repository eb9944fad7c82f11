package bloom

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

// modelDB is a serial database that remembers what each row was at which time. Its
// clock ticks with everything that happens.
type modelDB struct {
	clock atomic.Int64
	mu    sync.Mutex
	rows  map[string]*modelRow
}

type modelRow struct {
	mu     sync.Mutex
	states []modelState // in order; the first is "not there" since ever
	told   int64        // when the latest Register or Invalidate was called that has returned
}

// modelState is what a row was from a time on: its value, or "" for no row.
type modelState struct {
	value string
	from  int64
}

func (db *modelDB) row(id string) *modelRow {
	db.mu.Lock()
	defer db.mu.Unlock()
	r, ok := db.rows[id]
	if !ok {
		r = &modelRow{states: []modelState{{}}}
		db.rows[id] = r
	}
	return r
}

func (r *modelRow) now() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.states[len(r.states)-1].value
}

// commit makes the row another one, or none.
func (r *modelRow) commit(db *modelDB, id string, exists bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := modelState{from: db.clock.Add(1)}
	if exists {
		s.value = fmt.Sprint(id, "#", len(r.states))
	}
	r.states = append(r.states, s)
}

// tell makes a call that tells guards of changes, and notes when it has returned.
func (r *modelRow) tell(t *testing.T, db *modelDB, call func() error) {
	start := db.clock.Add(1)
	if err := call(); err != nil {
		t.Error(err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = max(r.told, start)
}

func (r *modelRow) toldAt() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told
}

// was reports whether the row was value at some moment of the time given.
func (r *modelRow) was(value string, since, until int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := until + 1 // of the state that is looked at
	for i := len(r.states) - 1; i >= 0 && end > since; i-- {
		s := r.states[i]
		if s.value == value && s.from <= until {
			return true
		}
		end = s.from
	}
	return false
}
