package redistest

import (
	"bufio"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// link is one client's connection through a proxy. Three goroutines work on
// it: requests go from the client to the server, replies come back from the
// server, and deliver hands those to the client when they are due.
//
// The requests that the client sent together are also sent on together, after
// all of them were entered in waiting. So if the reply to one of them is cut,
// the others are known of, and the client hears of the cut only after the last
// of them was executed: its repetition cannot overtake the first try.
type link struct {
	proxy  *Proxy
	client *net.TCPConn
	server *net.TCPConn
	once   sync.Once
	closed chan struct{}

	session [][]byte // requests that set the state of the connection

	mu      sync.Mutex
	waiting []kind     // the requests sent on and not answered yet, in order
	settled *sync.Cond // signalled when waiting has become empty, or the server is gone
	gone    bool       // no more replies will come

	replies chan delivery // never closed, since both directions send on it
}

// delivery is something due to the client.
type delivery struct {
	due   time.Time
	raw   []byte // a reply or push
	cut   bool   // end the stream instead
	reset bool   // reset the connection after raw
	end   bool   // nothing will follow
}

func newLink(p *Proxy, client, server *net.TCPConn) *link {
	l := &link{
		proxy:   p,
		client:  client,
		server:  server,
		closed:  make(chan struct{}),
		replies: make(chan delivery, 128),
	}
	l.settled = sync.NewCond(&l.mu)
	return l
}

// close ends the link from any goroutine; run returns soon after.
func (l *link) close() {
	l.once.Do(func() {
		close(l.closed)
		l.client.Close()
		l.server.Close()
	})
}

func (l *link) run() {
	defer l.close()
	var wg sync.WaitGroup
	wg.Add(2)
	go func() { defer wg.Done(); l.forwardRequests() }()
	go func() { defer wg.Done(); l.forwardReplies() }()
	l.deliver()
	l.close() // no more replies will come, so there is no point in requests
	wg.Wait()
}

// forwardRequests sends on what the client sends. When the client has no more
// to say it says so to the server, which then answers the rest and hangs up.
func (l *link) forwardRequests() {
	defer l.server.CloseWrite()
	in := newSplitter(l.client)
	var batch []byte // entered in waiting but not sent on yet
	flush := func() {
		_, _ = l.server.Write(batch) // an error shows where replies are read
		batch = nil
	}
	defer flush()
	for {
		raw, args, err := in.request()
		if err != nil {
			return
		}
		action := l.proxy.decide(args)
		switch action.kind {
		case delay:
			flush()
			l.sleep(action.after)
		case repeatLate:
			l.proxy.keep(l.session, raw, action.after)
		case cutRequest, holdFirst:
			flush()
			l.settle()
			if action.kind == holdFirst {
				l.proxy.keep(l.session, raw, action.after)
			}
			l.hand(delivery{cut: true})
			_, _ = io.Copy(io.Discard, l.client)
			return
		}
		if setsSession(args) {
			l.session = append(slices.Clip(l.session), raw)
		}
		if hasReply(args) {
			l.mu.Lock()
			l.waiting = append(l.waiting, action.kind)
			l.mu.Unlock()
		}
		batch = append(batch, raw...)
		if in.idle() {
			flush()
		}
	}
}

// forwardReplies hands on what the server answers until it hangs up.
func (l *link) forwardReplies() {
	defer l.hangUp()
	in := newSplitter(l.server)
	cut := false    // one reply was, so no more must reach the client
	var half []byte // what does, before the connection is reset
	for {
		raw, push, err := in.reply()
		if err != nil {
			return
		}
		if !push && !cut {
			switch l.answers() {
			case cutReply:
				cut = true
			case resetReply:
				cut, half = true, raw[:len(raw)/2]
			}
		}
		due := time.Now().Add(time.Duration(l.proxy.latency.Load()))
		if !cut {
			l.hand(delivery{due: due, raw: raw})
		}
		if !push && l.answered() && cut {
			l.hand(delivery{due: due, raw: half, cut: half == nil, reset: half != nil})
		}
	}
}

// answers returns what was decided about the request a reply belongs to.
func (l *link) answers() kind {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return pass
	}
	return l.waiting[0]
}

// answered takes that request off and reports whether it was the last.
func (l *link) answered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) > 0 {
		l.waiting = l.waiting[1:]
	}
	if len(l.waiting) > 0 {
		return false
	}
	l.settled.Broadcast()
	return true
}

// deliver writes to the client what is due, in order. A cut sends the client
// the end of the stream and leaves it to the client to close the connection:
// closing it here could make requests that are still arriving reset it.
func (l *link) deliver() {
	out := bufio.NewWriter(l.client)
	for {
		var d delivery
		select {
		case d = <-l.replies:
		case <-l.closed:
			return
		}
		if wait := time.Until(d.due); wait > 0 {
			_ = out.Flush()
			l.sleep(wait)
		}
		_, _ = out.Write(d.raw) // a client that went away misses its replies
		if len(l.replies) == 0 || d.cut || d.reset || d.end {
			_ = out.Flush()
		}
		if d.cut {
			_ = l.client.CloseWrite()
		}
		if d.reset {
			_ = l.client.SetLinger(0)
		}
		if d.end || d.reset {
			return
		}
	}
}

// hand queues a delivery.
func (l *link) hand(d delivery) {
	select {
	case l.replies <- d:
	case <-l.closed:
	}
}

// settle waits until all requests sent on so far are answered.
func (l *link) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) > 0 && !l.gone {
		l.settled.Wait()
	}
}

// hangUp records that no more replies will come.
func (l *link) hangUp() {
	l.mu.Lock()
	l.gone = true
	l.settled.Broadcast()
	l.mu.Unlock()
	l.hand(delivery{end: true})
}

func (l *link) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.closed:
	}
}

// setsSession reports whether a request sets what later requests of the
// connection depend on: protocol, user or database.
func setsSession(args []string) bool {
	return len(args) > 0 && slices.Contains([]string{"HELLO", "AUTH", "SELECT"}, strings.ToUpper(args[0]))
}

// hasReply reports whether the server answers a request with a reply. Empty
// requests get none, and the commands of subscriptions get pushes.
func hasReply(args []string) bool {
	return len(args) > 0 && !strings.HasSuffix(strings.ToUpper(args[0]), "SUBSCRIBE")
}
