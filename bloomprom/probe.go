package bloomprom

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bloomguard/bloom"
)

// probe reads the Info of one filter when asked to, at most once per interval
// whatever comes of it. bloomotel has a copy.
type probe struct {
	source   Filter
	interval time.Duration
	timeout  time.Duration
	failed   [len(reasons)]atomic.Uint64 // reads, by reason

	mu      sync.Mutex
	last    *reading
	running bool // the call that last stands for has not returned yet
}

// reading is what one read of a filter came to.
type reading struct {
	began time.Time
	done  chan struct{} // closed within timeout, once info and err are set
	info  bloom.Info
	err   error
}

// latest returns the reading to report, which is a new one if that is due.
func (p *probe) latest() *reading {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil || !p.running && time.Since(p.last.began) >= p.interval {
		p.running = true
		p.last = p.begin()
	}
	return p.last
}

// begin reads in a goroutine of its own: go-redis ends a call with its context
// only where the client has ContextTimeoutEnabled. What comes after the timeout is
// dropped, and while it may still come no other read is begun.
func (p *probe) begin() *reading {
	r := &reading{began: time.Now(), done: make(chan struct{})}
	var once sync.Once
	settle := func(info bloom.Info, err error) {
		once.Do(func() {
			if err != nil {
				p.failed[reasonOf(err)].Add(1)
			}
			r.info, r.err = info, err
			close(r.done)
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
	late := time.AfterFunc(p.timeout, func() { settle(bloom.Info{}, context.DeadlineExceeded) })
	go func() {
		defer cancel()
		defer late.Stop()
		settle(p.source.Info(ctx))

		p.mu.Lock()
		p.running = false
		p.mu.Unlock()
	}()
	return r
}

// reasons say why a read failed. What to do about it differs: a filter that is not
// ready has to be rebuilt, a corrupt one looked at.
var reasons = [...]string{"not_ready", "corrupt", "timeout", "other"}

func reasonOf(err error) int {
	var timeout interface{ Timeout() bool } // the context's error has it, the network's too
	switch {
	case errors.Is(err, bloom.ErrNotReady):
		return 0
	case errors.Is(err, bloom.ErrCorrupt):
		return 1
	case errors.As(err, &timeout) && timeout.Timeout():
		return 2
	}
	return 3
}
