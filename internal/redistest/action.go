package redistest

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Action is what a [Proxy] does with a request. The zero Action is [Pass].
type Action struct {
	kind  kind
	after time.Duration
}

type kind int

const (
	pass kind = iota
	cutReply
	cutRequest
	delay
	repeatLate
	holdFirst
	resetReply
)

var (
	// Pass delivers the request and its reply.
	Pass = Action{}

	// CutReply lets the server execute the request but closes the client's
	// connection instead of delivering the reply, so that the client cannot
	// know and go-redis sends the command again. The requests pipelined behind
	// it are executed as well, without replies.
	CutReply = Action{kind: cutReply}

	// CutRequest closes the client's connection without executing the request
	// or any behind it. Replies to the requests before it are delivered.
	CutRequest = Action{kind: cutRequest}

	// ResetReply is CutReply in the middle: half of the reply is delivered, and
	// then the connection is reset (RST).
	ResetReply = Action{kind: resetReply}
)

// Delay delivers the request d later, even if the client has gone away by
// then. The requests behind it on the connection wait with it.
func Delay(d time.Duration) Action { return Action{delay, d} }

// RepeatLate passes the request and has a second copy of it executed d later
// over a connection of its own, or when ReleaseLate is called; with d = 0 only
// then. It is the packet that a network delivers twice.
func RepeatLate(d time.Duration) Action { return Action{repeatLate, d} }

// HoldFirst closes the client's connection like [CutRequest], so that go-redis
// sends the command again, but keeps the request and has it executed d later,
// or when ReleaseLate is called; with d = 0 only then. It is the packet that
// arrives after its own repetition. The repetition must be let through, for
// instance by means of [First].
//
// It holds the one request, not a pipeline or transaction it is part of.
func HoldFirst(d time.Duration) Action { return Action{holdFirst, d} }

// First returns a function for Intercept that applies a to the first request
// whose command is one of names, whatever their case, and passes all others.
func First(a Action, names ...string) func(args []string) Action {
	var done atomic.Bool
	return func(args []string) Action {
		is := func(name string) bool { return strings.EqualFold(name, args[0]) }
		if slices.ContainsFunc(names, is) && done.CompareAndSwap(false, true) {
			return a
		}
		return Pass
	}
}
