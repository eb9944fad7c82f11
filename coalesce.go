package bloom

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// patience is how long a call waits for a pipeline under way. One that takes
	// longer waits for the network or a busy server, and another costs nothing.
	patience = 500 * time.Microsecond

	// maxPipelines bounds how many are under way, each on a connection of the
	// client's pool. One that hangs holds up nobody but its own calls; where so many
	// do, the others wait, until the deadline of a call in one of them.
	maxPipelines = 8

	// maxCommands is about how many commands go in one.
	maxCommands = 10_000
)

// A coalescer sends what many goroutines ask at the same time in few pipelines.
// Nobody waits for others to come: a call that finds none under way goes at once,
// and what arrives meanwhile goes together in the next.
//
// It runs on the client behind an AutoPipeliner, which coalesces too, but each
// command for itself: a call of several costs it several times as much, and one
// slow pipeline holds up everybody. On a cluster a pipeline takes as long as the
// slowest of its nodes, with either.
type coalescer struct {
	mu      sync.Mutex
	waiting []*share
	running int         // pipelines under way
	timer   *time.Timer // ends the patience of the first that waits
}

// A share is one call's part of a pipeline.
type share struct {
	cmds     []redis.Cmder
	deadline time.Time     // of its caller; zero: none
	done     chan struct{} // gets one value
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
	s.deadline, _ = ctx.Deadline()
	c.join(s, ap)
	if ctx.Done() == nil {
		<-s.done
	} else {
		select {
		case <-s.done:
		case <-ctx.Done():
			c.leave(s) // or it is left to the pipeline
			return ctx.Err()
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
	default:
		c.beginPatience(ap)
	}
}

// beginPatience wants c.mu held.
func (c *coalescer) beginPatience(ap *redis.AutoPipeliner) {
	if c.timer == nil {
		c.timer = time.AfterFunc(patience, func() { c.overtake(ap) })
		return
	}
	c.timer.Reset(patience)
}

// leave takes s out of the queue, if it still is in it.
func (c *coalescer) leave(s *share) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.waiting, s); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
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
	var taken []*share
	var cmds []redis.Cmder
	defer func() {
		if len(taken) > 0 {
			answer(taken)
			go c.run(ap)
		}
	}()
	for {
		taken = c.take(ap, taken)
		if len(taken) == 0 {
			return
		}
		cmds = cmds[:0]
		for _, s := range taken {
			cmds = append(cmds, s.cmds...)
		}
		ctx, cancel := together(taken)
		sendAll(ctx, ap, cmds)
		cancel()
		answer(taken)
	}
}

// together returns a context for a pipeline, whose callers leave by their own: it
// ends when nobody can be there any more.
func together(taken []*share) (context.Context, context.CancelFunc) {
	last := taken[0].deadline
	for _, s := range taken {
		if s.deadline.IsZero() {
			return context.Background(), func() {}
		}
		if s.deadline.After(last) {
			last = s.deadline
		}
	}
	return context.WithDeadline(context.Background(), last)
}

// answer lets the callers look at their commands.
func answer(taken []*share) {
	for _, s := range taken {
		s.done <- struct{}{}
	}
}

// take returns what waits, as far as it goes into one pipeline, and makes its argument
// the next queue. Nothing ends the run.
func (c *coalescer) take(ap *redis.AutoPipeliner, done []*share) []*share {
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
	n, cmds := 1, len(taken[0].cmds)
	for n < len(taken) && cmds < maxCommands {
		cmds += len(taken[n].cmds)
		n++
	}
	if c.waiting = append(done[:0], taken[n:]...); len(c.waiting) > 0 {
		c.beginPatience(ap)
	}
	clear(taken[n:])
	return taken[:n]
}

var errHookEnded = errors.New("a hook of the client ended its goroutine")

// sendAll gives each of cmds its outcome. The end of ctx, and a hook of the client's
// that panics or ends the goroutine, are errors for all of them: their callers are
// elsewhere, and cannot recover.
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
	err = settle(ctx, cmds, pipelined(ctx, ap, false, cmds))
}
