package redistest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy is a TCP proxy in front of a Redis that can lose, delay and repeat
// single requests. It passes everything until told otherwise; all methods may
// be called at any time from any goroutine.
//
// It pairs replies with requests by their order, so CLIENT REPLY, MONITOR and,
// in RESP2, subscriptions are not for it.
type Proxy struct {
	listener net.Listener
	upstream string
	ctx      context.Context // ends with the proxy
	cancel   context.CancelFunc
	running  sync.WaitGroup // all goroutines

	intercept atomic.Pointer[func([]string) Action]
	latency   atomic.Int64 // time.Duration
	refuse    atomic.Bool

	releasing sync.Mutex // one ReleaseLate at a time

	mu    sync.Mutex // guards what follows
	links map[*link]struct{}
	late  []*lateCopy // in the order they were kept
}

// NewProxy starts a proxy to the server at upstream (host:port). It is closed
// when the test ends; make it before the clients that use it, so that they are
// closed first.
func NewProxy(t testing.TB, upstream string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		listener: listener,
		upstream: upstream,
		links:    map[*link]struct{}{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.running.Add(1)
	go p.accept()
	t.Cleanup(p.Close)
	return p
}

// Addr returns the host:port clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Intercept sets the function that decides about each request, the handshake
// of go-redis included; nil passes everything. It is called in order for the
// requests of a connection, but at the same time for those of different ones,
// and may block, but not for ever; what was pipelined in front of the request
// may wait with it. The args are the command, spelled as the client does (lower
// case for the commands of go-redis), and its arguments; there is at least the
// command.
func (p *Proxy) Intercept(f func(args []string) Action) {
	if f == nil {
		p.intercept.Store(nil)
		return
	}
	p.intercept.Store(&f)
}

// SetLatency delivers each reply d after the server gave it, as a network with
// a round-trip time of d would. It adds up over commands, not over the replies
// of a pipeline.
func (p *Proxy) SetLatency(d time.Duration) { p.latency.Store(int64(d)) }

// Sever closes all connections of clients at once. Requests that were held for
// later stay held.
func (p *Proxy) Sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Refuse closes (true) new connections as soon as they are made, so that they
// fail in the handshake, or accepts them again (false). The connections there
// are go on; Sever ends them. For a refusal by TCP itself, stop the server.
func (p *Proxy) Refuse(refuse bool) { p.refuse.Store(refuse) }

// Close ends the proxy with all connections and drops the copies it still
// holds. The end of the test does so too; closing twice is harmless.
func (p *Proxy) Close() {
	p.cancel()
	p.listener.Close()
	p.running.Wait()
}

func (p *Proxy) accept() {
	defer p.running.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			if p.ctx.Err() != nil {
				return
			}
			time.Sleep(time.Millisecond) // out of file descriptors, say
			continue
		}
		if p.refuse.Load() {
			client.Close()
			continue
		}
		p.running.Add(1)
		go func() {
			defer p.running.Done()
			p.serve(client.(*net.TCPConn))
		}()
	}
}

// serve runs the connection of one client to its end.
func (p *Proxy) serve(client *net.TCPConn) {
	server, err := p.dial()
	if err != nil {
		client.Close()
		return
	}
	l := newLink(p, client, server)
	defer context.AfterFunc(p.ctx, l.close)()
	p.mu.Lock()
	p.links[l] = struct{}{}
	p.mu.Unlock()
	l.run()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

func (p *Proxy) dial() (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(p.ctx, "tcp", p.upstream)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// decide asks the function of Intercept about a request.
func (p *Proxy) decide(args []string) Action {
	if f := p.intercept.Load(); f != nil && len(args) > 0 {
		return (*f)(args)
	}
	return Pass
}
