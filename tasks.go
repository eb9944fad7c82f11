package bloom

import (
	"context"
	"sync"
)

// tasks counts the goroutines of a Guard, so that Close can wait for them.
type tasks struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{} // closed once closed and n is 0
}

func (t *tasks) init() { t.idle = make(chan struct{}) }

// start runs f in a goroutine, or returns false once closed.
func (t *tasks) start(f func()) bool { return t.run(f, true) }

// follow is start for what tells of others' ends: once closed it still works while
// any of them is under way.
func (t *tasks) follow(f func()) bool { return t.run(f, false) }

func (t *tasks) run(f func(), untilClosed bool) bool {
	t.mu.Lock()
	if t.closed && (untilClosed || t.n == 0) {
		t.mu.Unlock()
		return false
	}
	t.n++
	t.mu.Unlock()
	go func() {
		defer t.end()
		f()
	}()
	return true
}

// add counts a goroutine that a counted one starts.
func (t *tasks) add() {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
}

func (t *tasks) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
	if t.closed && t.n == 0 {
		close(t.idle)
	}
}

func (t *tasks) close(ctx context.Context) error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		if t.n == 0 {
			close(t.idle)
		}
	}
	t.mu.Unlock()
	select {
	case <-t.idle:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-t.idle: // also where both have ended
		return nil
	default:
		return ctx.Err()
	}
}
