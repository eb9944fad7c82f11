package bloomtest

import (
	"fmt"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// RedisBloom adds the BF commands to m, which must have been started, with the
// replies of the newest version of the module (8.x). A second call on the same
// server only puts the hook back that Miniredis.SetError replaces. It panics if m
// isn't started, or has a BF command of somebody else.
func RedisBloom(m *miniredis.Miniredis) { install(m, newest) }

// RedisBloomV2 is [RedisBloom] with the replies of version 2.8.20: other texts for
// arguments out of range, capacities without an upper limit, no EXPANSION 0, no
// cap on the error rate at 0.25, no bf-* settings, and a wrong number of arguments
// that is noticed at EXEC only.
func RedisBloomV2(m *miniredis.Miniredis) { install(m, v2) }

// module is the double's state on one server. What mu doesn't guard is fixed, or
// touched only while the miniredis is locked.
type module struct {
	m     *miniredis.Miniredis
	srv   *server.Server
	rules *rules

	inner    *loopback          // sends commands to the server from within a locked section
	nested   any                // a context of miniredis whose commands don't lock, see grabNested
	defaults defaults           // for filters that an add makes
	parsed   map[string]*filter // some of the filters, by stamp
	stores   uint64             // makes stamps unique

	wrapped      any // the context of the wrapped script that ran last
	wrappedResp3 bool

	mu       sync.Mutex
	names    map[string]bool         // keys that hold or held a filter, in whatever database
	jobs     map[string]*job         // by token, what a script of ours is to run
	queued   map[*server.Peer][]*job // those of them that wait in a connection's MULTI
	scripts  map[string]string       // SHA-1 of a script to SHA-1 of its wrapped form
	tokens   string                  // random, makes tokens unguessable and stamps unique
	lastUsed uint64                  // makes them unique
}

// Commands for the double's own use. They are registered, not answered by the
// hook: miniredis looks there whether a read-only script may call them.
const (
	cmdJob     = "BLOOMTEST.JOB"     // runs the job with the token given
	cmdHook    = "BLOOMTEST.HOOK"    // puts the hook back
	cmdGrab    = "BLOOMTEST.GRAB"    // keeps the context of the script that sends it
	cmdWrapped = "BLOOMTEST.WRAPPED" // makes the script that sends it get raw replies
)

func install(m *miniredis.Miniredis, r *rules) {
	srv := m.Server()
	if srv == nil {
		panic("bloomtest: the miniredis is not started")
	}
	srv.SetPreHook(nil) // or SetError's hook answers what is sent below
	if srv.IsRegisteredCommand(cmdHook) {
		newLoopback(srv).send(nil, false, cmdHook)
		return
	}
	d := &module{
		m: m, srv: srv, rules: r, defaults: factoryDefaults,
		inner:   newLoopback(srv),
		parsed:  map[string]*filter{},
		names:   map[string]bool{},
		jobs:    map[string]*job{},
		queued:  map[*server.Peer][]*job{},
		scripts: map[string]string{},
		tokens:  randomHex(),
	}
	for name, c := range commands {
		d.register(name, c.readOnly, func(p *server.Peer, _ string, args []string) { d.serve(p, c, args) })
	}
	d.register(cmdJob, false, d.serveJob)
	d.register(cmdWrapped, true, d.serveWrapped)
	d.register(cmdHook, false, func(*server.Peer, string, []string) { srv.SetPreHook(d.hook) })
	d.register(cmdGrab, false, func(p *server.Peer, _ string, _ []string) {
		if d.nested == nil { // later ones are some client's
			d.nested = p.Ctx
		}
		p.WriteOK()
	})
	d.grabNested()
	d.findNames()
	srv.SetPreHook(d.hook)
}

func (d *module) register(name string, readOnly bool, f server.Cmd) {
	var opts []server.CmdOption
	if readOnly {
		opts = append(opts, server.ReadOnlyOption())
	}
	if err := d.srv.Register(name, f, opts...); err != nil {
		panic(fmt.Sprintf("bloomtest: %v", err))
	}
}
