package bloomtest

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"

	"github.com/alicebob/miniredis/v2/server"
)

// loopback is a client of the server without a connection: it dispatches commands
// in the caller's goroutine, as miniredis does for redis.call.
type loopback struct {
	srv  *server.Server
	peer *server.Peer
	buf  bytes.Buffer
}

func newLoopback(srv *server.Server) *loopback {
	l := &loopback{srv: srv}
	l.peer = server.NewPeer(bufio.NewWriter(&l.buf))
	return l
}

// send runs one command in the context of a connection (its database, transaction,
// authentication) and returns the raw reply, which the next send overwrites.
func (l *loopback) send(ctx any, resp3 bool, args ...string) []byte {
	l.buf.Reset()
	l.peer.Ctx, l.peer.Resp3 = ctx, resp3
	l.srv.Dispatch(l.peer, args)
	l.peer.Flush()
	return l.buf.Bytes()
}

// grabNested gets hold of a context as redis.call's commands have it: they run
// under the lock that EVAL took, so they take none. With it a BF command, having
// locked the miniredis (its Lock is promoted from an embedded mutex, and so
// exported), can use the server's own GET and SET in one atomic section.
func (d *module) grabNested() {
	script := []string{"EVAL", "return redis.call('" + cmdGrab + "')", "0"}
	l := newLoopback(d.srv)
	l.send(nil, false, script...)
	if d.nested == nil {
		// Passwords are required. One more user changes nothing for the others.
		user, password := "bloomtest", randomHex()
		d.m.RequireUserAuth(user, password)
		defer d.m.RequireUserAuth(user, "")
		l.send(l.peer.Ctx, false, "AUTH", user, password)
		l.send(l.peer.Ctx, false, script...)
	}
	if d.nested == nil {
		panic("bloomtest: this version of miniredis runs no script: " + l.buf.String())
	}
}

// randomHex returns 24 characters.
func randomHex() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return hex.EncodeToString(b[:])
}
