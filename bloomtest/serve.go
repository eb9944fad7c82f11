package bloomtest

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/alicebob/miniredis/v2/server"
)

// work is what a command does while the miniredis is locked.
type work func(*call)

// call is one run of a command.
type call struct {
	*module
	reply
	ctx any // a nested context with the right database selected
}

// do sends a command to the server from within the locked section. The reply is
// overwritten by the next do.
func (c *call) do(args ...string) []byte { return c.inner.send(c.ctx, false, args...) }

// pass answers with the server's own reply to the command.
func (c *call) pass(cmd string, args ...string) {
	c.raw(c.inner.send(c.ctx, c.resp3, append([]string{cmd}, args...)...))
}

// job is work that waits for a script of ours to run it.
type job struct {
	token  string
	work   work
	resp3  bool
	result []byte // nil until run
	queued bool   // in a MULTI
	late   bool   // the hook will put result in the place of the token
}

// A key that is never used, for probing a connection.
const nowhere = "bloomtest:nowhere"

// serve runs a registered command, sent by a client or by redis.call in a script
// that isn't wrapped.
func (d *module) serve(p *server.Peer, c *command, args []string) {
	if d.rules.arityWhenQueued && !c.declared(args) {
		d.refuse(p, wrongArity(c.name))
		return
	}
	if !c.readOnly && len(args) > 0 {
		d.remember(args[0]) // now: what comes behind it in a MULTI must know
	}
	d.run(p, func(x *call) {
		if x.plain && x.ctx == d.wrapped {
			// The script around it decodes a string that is the raw reply.
			inner := &call{module: d, ctx: x.ctx, reply: reply{resp3: d.wrappedResp3}}
			c.run(inner, args)
			x.bulk(inner.buf)
			return
		}
		c.run(x, args)
	})
}

// refuse answers with an error that makes an open MULTI fail at EXEC.
func (d *module) refuse(p *server.Peer, text string) {
	l := newLoopback(d.srv)
	if d.state(l, p) == inMulti {
		l.send(p.Ctx, false, "GET") // too few arguments
	}
	p.WriteError(text)
}

// run runs w atomically, for whoever p is, or queues it in p's MULTI.
func (d *module) run(p *server.Peer, w work) {
	l := newLoopback(d.srv)
	switch state := d.state(l, p); state {
	case ready:
		if db, ok := d.selected(l, p); ok {
			p.WriteRaw(string(d.locked(db, p.Resp3, w)))
			return
		}
		d.runByScript(l, p, w)
	case inMulti:
		d.runByScript(l, p, w)
	case inScript:
		x := &call{module: d, ctx: p.Ctx, reply: reply{plain: true}}
		w(x)
		p.WriteRaw(string(x.buf))
	case refused:
		p.WriteRaw(l.buf.String())
	}
}

// What a connection is at.
const (
	ready    = iota
	inMulti  // its commands are queued
	inScript // it is a script's, so the miniredis is locked
	refused  // it has not authenticated, or is subscribed; the reply says so
)

// state finds out by WATCH, the one command that tells all four apart and, for a
// key that never changes, does nothing.
func (d *module) state(l *loopback, p *server.Peer) int {
	got := l.send(p.Ctx, p.Resp3, "WATCH", nowhere)
	p.Ctx = l.peer.Ctx // a connection's first command makes it
	switch {
	case bytes.HasPrefix(got, []byte("+OK")):
		return ready
	case bytes.HasPrefix(got, []byte("-ERR WATCH in")):
		return inMulti
	case bytes.HasPrefix(got, []byte("-This Redis command is not allowed from script")):
		return inScript
	}
	return refused
}

// Databases that a real server has unless configured otherwise.
const databases = 16

// selected finds out which database a connection has selected: MOVE refuses to
// move to the same one.
func (d *module) selected(l *loopback, p *server.Peer) (db int, ok bool) {
	for db := range databases {
		if bytes.HasPrefix(l.send(p.Ctx, false, "MOVE", nowhere, strconv.Itoa(db)), []byte("-ERR source")) {
			return db, true
		}
	}
	return 0, false
}

// locked runs w with the miniredis locked.
func (d *module) locked(db int, resp3 bool, w work) []byte {
	d.m.Lock()
	defer d.m.Unlock()
	x := &call{module: d, ctx: d.nested, reply: reply{resp3: resp3}}
	x.do("SELECT", strconv.Itoa(db))
	w(x)
	return x.buf
}

// runByScript runs w from a script: miniredis puts a script in the MULTI's queue,
// or runs it at once, locked and in the selected database, whichever that is. It
// costs some 0.3 ms.
func (d *module) runByScript(l *loopback, p *server.Peer, w work) {
	j := d.newJob(w, p.Resp3)
	got := l.send(p.Ctx, false, "EVAL", "return redis.call('"+cmdJob+"', ARGV[1])", "0", j.token)
	switch {
	case j.result != nil:
		p.WriteRaw(string(j.result))
	case bytes.HasPrefix(got, []byte("+QUEUED")):
		d.enqueue(p, j)
		p.WriteInline("QUEUED")
		return
	default:
		p.WriteRaw(string(got))
	}
	d.forget(j)
}

// serveJob runs a job, from the script above.
func (d *module) serveJob(p *server.Peer, _ string, args []string) {
	d.mu.Lock()
	j := d.jobs[append(args, "")[0]]
	d.mu.Unlock()
	switch {
	case j == nil:
		p.WriteError("ERR bloomtest: no such job")
	case j.queued && !j.late:
		p.WriteError("ERR bloomtest: the hook was replaced (SetError, SetPreHook): call RedisBloom again")
	default:
		x := &call{module: d, ctx: p.Ctx, reply: reply{resp3: j.resp3}}
		j.work(x)
		j.result = x.buf
		p.WriteBulk(j.token)
	}
}

func (d *module) newJob(w work, resp3 bool) *job {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastUsed++
	j := &job{token: fmt.Sprintf("bloomtest:%s:%d", d.tokens, d.lastUsed), work: w, resp3: resp3}
	d.jobs[j.token] = j
	return j
}

func (d *module) forget(jobs ...*job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, j := range jobs {
		delete(d.jobs, j.token)
	}
}
