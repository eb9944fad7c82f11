package redistest

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// lateCopy is a copy of a request that reaches the server later, over a
// connection of its own.
type lateCopy struct {
	requests [][]byte      // what set up the client's session, and then the request
	release  chan struct{} // closed by ReleaseLate
	answered chan struct{} // closed when reply is set or will not be
	reply    string
}

// keep keeps a copy of the request raw to be delivered after d, or when
// released; if d is 0, only then.
func (p *Proxy) keep(session [][]byte, raw []byte, d time.Duration) {
	c := &lateCopy{
		requests: append(slices.Clip(session), raw),
		release:  make(chan struct{}),
		answered: make(chan struct{}),
	}
	p.mu.Lock()
	p.late = append(p.late, c)
	p.mu.Unlock()

	p.running.Add(1)
	go func() {
		defer p.running.Done()
		defer close(c.answered)
		var due <-chan time.Time
		if d > 0 {
			timer := time.NewTimer(d)
			defer timer.Stop()
			due = timer.C
		}
		select {
		case <-due:
		case <-c.release:
		case <-p.ctx.Done():
			return
		}
		reply, err := p.send(c.requests)
		if err != nil {
			reply = fmt.Sprintf("redistest: late copy not delivered: %v", err)
		}
		c.reply = reply
	}()
}

// ReleaseLate delivers the copies held by [RepeatLate] and [HoldFirst] now, one
// after the other in the order they were kept, and returns once the server has
// answered all of them, as well as those whose time had come before. It
// returns their replies in RESP, so that a test can tell whether they did
// what it wanted them to; each is returned once.
func (p *Proxy) ReleaseLate() []string {
	p.releasing.Lock()
	defer p.releasing.Unlock()
	p.mu.Lock()
	copies := p.late
	p.late = nil
	p.mu.Unlock()

	var replies []string
	for _, c := range copies {
		close(c.release)
		<-c.answered
		replies = append(replies, c.reply)
	}
	return replies
}

// send sends requests over a new connection and returns the last reply.
func (p *Proxy) send(requests [][]byte) (string, error) {
	conn, err := p.dial()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(p.ctx, func() { conn.Close() })()

	in := newSplitter(conn)
	var reply []byte
	for _, request := range requests {
		if _, err := conn.Write(request); err != nil {
			return "", err
		}
		for push := true; push; {
			if reply, push, err = in.reply(); err != nil {
				return "", err
			}
		}
	}
	return string(reply), nil
}
