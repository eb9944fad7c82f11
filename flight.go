package bloom

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
)

// A flight is one load of one id, shared by the Gets that may have its result.
// Those are the ones that came before its load began, and the ones whose own read
// of the cache saw the very lease that it holds: nobody joins a load that began
// before an Invalidate which returned before he came.
type flight[V any] struct {
	id    string
	over  []byte // undecodable entry that the lease replaces
	blind bool   // launched by a miss whose own read of the cache failed

	// Guarded by flights.mu.
	asked     bool   // the cache is being asked for a lease, or was
	late      bool   // a Get joined since then: what the cache answers may be older than it
	overtaken bool   // another flight of the id landed since then: its lease may be in the answer
	begun     bool   // the load has begun, or is about to
	token     []byte // the lease that it holds; nil: none
	forgotten bool   // an Invalidate came: not joined, never filled
	audit     bool   // the filter denied the id to all who joined

	done  chan struct{} // closed when value and err are set
	value V
	err   error

	judged *atomic.Bool // audits know of what was loaded, see audited; of all flights that have it
}

// flights are the loads of this process.
type flights[V any] struct {
	slots chan struct{} // one per load that runs
	mu    sync.Mutex
	byID  map[string][]*flight[V] // not landed yet; the last is the newest
	queue int                     // flights that wait for a slot
}

func (fs *flights[V]) init(maxLoads int) {
	fs.slots = make(chan struct{}, maxLoads)
	fs.byID = map[string][]*flight[V]{}
}

// miss is an id whose row has to be loaded, and what its Get read.
type miss struct {
	id    string
	seen  []byte // the cache's entry
	blind bool   // the cache's read failed
	audit bool   // the filter denied the id
}

// join returns for each miss the flight that it may have the result of. Those that
// are launched are new: the caller must fly them, with one slot for all; queued
// says that it has to be waited for. Where the slots are taken and as many wait,
// there is [ErrOverloaded] and nothing is launched, and the joined are nil that
// would have been.
func (fs *flights[V]) join(ms ...miss) (joined, launched []*flight[V], queued bool, err error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	joined = make([]*flight[V], len(ms))
	for i, m := range ms {
		if joined[i] = fs.open(m); joined[i] == nil {
			launched = append(launched, newFlight[V](m))
		}
	}
	if len(launched) == 0 {
		return joined, nil, false, nil
	}
	select {
	case fs.slots <- struct{}{}:
	default:
		if fs.queue >= cap(fs.slots) {
			return joined, nil, false, ErrOverloaded
		}
		fs.queue++
		queued = true
	}
	next := 0
	for i, f := range joined {
		if f == nil {
			f = launched[next]
			next++
			joined[i] = f
			fs.byID[f.id] = append(fs.byID[f.id], f)
		}
	}
	return joined, launched, queued, nil
}

func newFlight[V any](m miss) *flight[V] {
	f := &flight[V]{id: m.id, blind: m.blind, audit: m.audit, done: make(chan struct{}), judged: new(atomic.Bool)}
	if entryTag(m.seen) == tagValue {
		f.over = m.seen
	}
	return f
}

// open returns the flight that a miss may join, or nil. It wants fs.mu held.
func (fs *flights[V]) open(m miss) *flight[V] {
	var waiting *flight[V]
	for _, f := range fs.byID[m.id] {
		switch {
		case !f.begun:
			waiting = f
		case f.token == nil && m.blind, f.token != nil && bytes.Equal(m.seen, f.token):
			// Without a lease a reader of a cache that answers may know of a later
			// Invalidate; one that saw nothing knows of none.
			f.audit = f.audit && m.audit
			return f
		}
	}
	if waiting != nil {
		waiting.late = waiting.asked
		waiting.audit = waiting.audit && m.audit
	}
	return waiting
}

// ask marks that the cache is about to be asked for f's lease.
func (fs *flights[V]) ask(f *flight[V]) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.asked, f.late, f.overtaken = true, false, false
}

// shut keeps further Gets from joining f, so that it can answer those it has by
// what the cache said. If one has joined since the cache was asked, who may have
// come after an Invalidate that is not in the answer, it returns false: f must
// ask again.
func (fs *flights[V]) shut(f *flight[V]) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.late {
		return false
	}
	fs.remove(f)
	return true
}

// begin marks the load as begun under token, unless another flight is loading
// under the same one: then it returns that. again says that one may have done so
// and landed since f asked the cache, which must be asked once more.
func (fs *flights[V]) begin(f *flight[V], token []byte) (other *flight[V], again bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if token != nil {
		if f.overtaken {
			return nil, true
		}
		if o := fs.loading(f, token); o != nil {
			return o, false
		}
	}
	f.begun, f.token = true, token
	return nil, false
}

// beginAlone marks the load as begun under token, or without a lease, unless that
// takes asking again or waiting for another flight.
func (fs *flights[V]) beginAlone(f *flight[V], token []byte) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if token != nil && f.overtaken || fs.loading(f, token) != nil {
		return false
	}
	f.begun, f.token = true, token
	return true
}

// unleased returns an earlier flight of the id that loads without a lease.
func (fs *flights[V]) unleased(f *flight[V]) *flight[V] {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.loading(f, nil)
}

// loading returns another flight of the id that loads under token, or without a
// lease if that is nil. It wants fs.mu held.
func (fs *flights[V]) loading(f *flight[V], token []byte) *flight[V] {
	for _, o := range fs.byID[f.id] {
		if o != f && o.begun && bytes.Equal(o.token, token) {
			return o
		}
	}
	return nil
}

// land ends a flight for all who wait.
func (fs *flights[V]) land(f *flight[V], v V, err error) {
	f.value, f.err = v, err
	fs.mu.Lock()
	fs.remove(f)
	for _, o := range fs.byID[f.id] {
		o.overtaken = true
	}
	fs.mu.Unlock()
	close(f.done)
}

// remove wants fs.mu held.
func (fs *flights[V]) remove(f *flight[V]) {
	rest := slices.DeleteFunc(fs.byID[f.id], func(o *flight[V]) bool { return o == f })
	if len(rest) == 0 {
		delete(fs.byID, f.id)
	} else {
		fs.byID[f.id] = rest
	}
}

// forget lets nobody join the flights of ids any more that have begun, or asked
// the cache, nor them fill it. Those that wait for a slot will see the change.
func (fs *flights[V]) forget(ids []string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, id := range ids {
		for _, f := range slices.Clone(fs.byID[id]) {
			if f.asked || f.begun {
				f.forgotten = true
				fs.remove(f)
			}
		}
	}
}

func (fs *flights[V]) isForgotten(f *flight[V]) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.forgotten
}

func (fs *flights[V]) isAudit(f *flight[V]) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.audit
}

// requeue counts a flight that waits for a slot after all.
func (fs *flights[V]) requeue() {
	fs.mu.Lock()
	fs.queue++
	fs.mu.Unlock()
}

// awaitSlot takes a slot for flights that are queued.
func (fs *flights[V]) awaitSlot() {
	fs.slots <- struct{}{}
	fs.unqueue()
}

// unqueue counts flights that wait no longer.
func (fs *flights[V]) unqueue() {
	fs.mu.Lock()
	fs.queue--
	fs.mu.Unlock()
}
