package main

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A proxy is the network between a client and a server: it delivers every byte a
// fixed time later, each way, without a limit on how many are under way. It counts
// bytes and round trips.
type proxy struct {
	ln     net.Listener
	target string
	delay  time.Duration // each way

	up, down atomic.Int64 // bytes to and from the server
	trips    atomic.Int64 // times that a client sent after it had received; of one caller: round trips

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
}

func newProxy(target string, delay time.Duration) (*proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{ln: ln, target: target, delay: delay, conns: map[net.Conn]struct{}{}}
	p.wg.Add(1)
	go p.accept()
	return p, nil
}

func (p *proxy) addr() string { return p.ln.Addr().String() }

// close ends all connections and waits for what served them.
func (p *proxy) close() {
	_ = p.ln.Close()
	p.mu.Lock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *proxy) accept() {
	defer p.wg.Done()
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.keep(client, server) {
			return
		}
		var asked atomic.Bool // the last bytes went to the server
		p.wg.Add(2)
		go p.carry(server, client, func(n int) {
			p.up.Add(int64(n))
			if !asked.Swap(true) {
				p.trips.Add(1)
			}
		})
		go p.carry(client, server, func(n int) {
			p.down.Add(int64(n))
			asked.Store(false)
		})
	}
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.conns == nil {
			_ = c.Close()
			continue
		}
		p.conns[c] = struct{}{}
	}
	return p.conns != nil
}

// parcel is some bytes and when they are due.
type parcel struct {
	due  time.Time
	data []byte
}

// carry copies from one connection to the other, late by the delay, until either ends.
func (p *proxy) carry(to, from net.Conn, count func(n int)) {
	defer p.wg.Done()
	defer to.Close()
	defer from.Close()
	if p.delay == 0 {
		_, _ = io.Copy(countingWriter{to, count}, onlyReader{from})
		return
	}
	under := make(chan parcel, 4096)
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		for x := range under {
			sleepUntil(x.due)
			if _, err := to.Write(x.data); err != nil {
				_ = from.Close()
			}
		}
		_ = to.Close()
	}()
	defer close(under)
	for {
		buf := make([]byte, 64<<10)
		n, err := from.Read(buf)
		if n > 0 {
			count(n)
			under <- parcel{time.Now().Add(p.delay), buf[:n]}
		}
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				sleepUntil(time.Now().Add(p.delay)) // what is under way arrives before the end does
			}
			return
		}
	}
}

type countingWriter struct {
	w     io.Writer
	count func(n int)
}

func (c countingWriter) Write(b []byte) (int, error) {
	c.count(len(b))
	return c.w.Write(b)
}

// onlyReader hides the file behind a connection, which io.Copy would copy in the
// kernel, uncounted.
type onlyReader struct{ io.Reader }
