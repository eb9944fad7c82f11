package redistest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Trips is a go-redis hook that counts network round trips: a command counts
// one, and so does a pipeline or transaction of any size. What go-redis does
// within a command does not count: setting up a connection, and repeating the
// command after a network error (a [Proxy] sees those).
//
// The zero value is ready to be handed to AddHook:
//
//	trips := &redistest.Trips{Record: true}
//	client.AddHook(trips)
type Trips struct {
	// Record keeps every command for Commands. Set it before AddHook.
	Record bool

	n        atomic.Int64
	mu       sync.Mutex
	commands [][]string
}

// N returns the number of round trips since the last Reset, failed ones
// included.
func (t *Trips) N() int64 { return t.n.Load() }

// Reset sets the count to zero and forgets the recorded commands.
func (t *Trips) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n.Store(0)
	t.commands = nil
}

// Commands returns the commands sent since the last Reset if Record is set,
// each as its name, spelled as go-redis does (lower case for its own
// commands), and its arguments. Pipelined commands follow one another;
// transactions show their multi and exec.
func (t *Trips) Commands() [][]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.commands)
}

// DialHook implements [redis.Hook].
func (t *Trips) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (t *Trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return next(t.count(ctx, cmd), cmd)
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (t *Trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return next(t.count(ctx, cmds...), cmds)
	}
}

// insideTrip marks the context of a command that was counted by the Trips in
// its value. go-redis runs the handshake of a new connection through the hooks
// as well, in the context of the command that wanted the connection.
type insideTrip struct{ trips *Trips }

func (t *Trips) count(ctx context.Context, cmds ...redis.Cmder) context.Context {
	mark := insideTrip{t}
	if ctx.Value(mark) != nil {
		return ctx
	}
	t.n.Add(1)
	if t.Record {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, cmd := range cmds {
			t.commands = append(t.commands, words(cmd.Args()))
		}
	}
	return context.WithValue(ctx, mark, true)
}

func words(args []any) []string {
	s := make([]string, len(args))
	for i, arg := range args {
		if b, ok := arg.([]byte); ok {
			arg = string(b)
		}
		s[i] = fmt.Sprint(arg)
	}
	return s
}
