package bloom

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// patience is how long a call waits for a pipeline under way. One that takes
	// longer waits for the network or a busy server, and another costs nothing; on
	// a connection that hangs it holds up nobody but its own calls.
	patience = 500 * time.Microsecond

	// maxPipelines bounds how many are under way, each on a connection of the
	// client's pool.
	maxPipelines = 8
)

// A coalescer sends what many goroutines ask at the same time in few pipelines.
// Nobody waits for others to come: a call that finds none under way goes at once,
// and what arrives meanwhile goes together in the next.
//
// It runs on the client behind an AutoPipeliner, which coalesces too, but each
// command for itself: a call of several costs it several times as much, and one
// slow pipeline holds up everybody.
type coalescer struct {
	mu      sync.Mutex
	waiting []*share
	running int         // pipelines under way
	timer   *time.Timer // ends the patience of the first that waits
}

// A share is one call's part of a pipeline.
type share struct {
	cmds []redis.Cmder
	done chan struct{} // gets one value
}

var shares = sync.Pool{New: func() any { return &share{done: make(chan struct{}, 1)} }}

// do runs cmds in one pipeline, see conn.do. When ctx ends it returns, and they may
// be executed yet.
func (c *coalescer) do(ctx context.Context, ap *redis.AutoPipeliner, cmds []redis.Cmder) error {
	if ap.IsClosed() {
		return settle(ctx, cmds, redis.ErrClosed)
	}
	s := shares.Get().(*share)
	s.cmds = cmds
	c.join(s, ap)
	if ctx.Done() == nil {
		<-s.done
	} else {
		select {
		case <-s.done:
		case <-ctx.Done():
			return ctx.Err() // s is left to the pipeline
		}
	}
	s.cmds = nil
	shares.Put(s)
	return nil
}

// join queues s for the next pipeline.
func (c *coalescer) join(s *share, ap *redis.AutoPipeliner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, s)
	switch {
	case c.running == 0:
		c.running++
		go c.run(ap)
	case len(c.waiting) > 1: // the first has seen to it
	case c.timer == nil:
		c.timer = time.AfterFunc(patience, func() { c.overtake(ap) })
	default:
		c.timer.Reset(patience)
	}
}

// overtake sends what still waits past the pipelines under way.
func (c *coalescer) overtake(ap *redis.AutoPipeliner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) > 0 && c.running < maxPipelines {
		c.running++
		go c.run(ap)
	}
}

// run sends what waits until nothing does. A hook of the client's that ends the
// goroutine ends it for its own pipeline only.
func (c *coalescer) run(ap *redis.AutoPipeliner) {
	ctx := context.Background() // callers leave by their own
	var taken []*share
	var cmds []redis.Cmder
	defer func() {
		if len(taken) > 0 {
			answer(taken)
			go c.run(ap)
		}
	}()
	for {
		taken = c.take(taken)
		if len(taken) == 0 {
			return
		}
		cmds = cmds[:0]
		for _, s := range taken {
			cmds = append(cmds, s.cmds...)
		}
		sendAll(ctx, ap, cmds)
		answer(taken)
	}
}

// answer lets the callers look at their commands.
func answer(taken []*share) {
	for _, s := range taken {
		s.done <- struct{}{}
	}
}

// take returns all that waits, and makes its argument the next queue. Nothing ends
// the run.
func (c *coalescer) take(done []*share) []*share {
	clear(done)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		c.running--
		return nil
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	taken := c.waiting
	c.waiting = done[:0]
	return taken
}

var errHookEnded = errors.New("a hook of the client ended its goroutine")

// sendAll gives each of cmds its outcome. A hook of the client's that panics or
// ends the goroutine is an error for all of them: their callers are elsewhere, and
// cannot recover.
func sendAll(ctx context.Context, ap *redis.AutoPipeliner, cmds []redis.Cmder) {
	err := errHookEnded // unless it returns
	defer func() {
		if p := recover(); p != nil {
			err = panicError(p)
		}
		if err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
	}()
	_ = settle(ctx, cmds, pipelined(ctx, ap, false, cmds))
	err = nil
}
