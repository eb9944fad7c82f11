package bloom_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// forgetful is a hook that makes the server forget its scripts in front of every
// command that names one by its digest (case F15).
type forgetful struct {
	t      *testing.T
	server *redis.Client
	forgot atomic.Int64
}

func (h *forgetful) before(ctx context.Context, cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "evalsha") {
			require.NoError(h.t, h.server.ScriptFlush(ctx).Err())
			h.forgot.Add(1)
		}
	}
}

func (h *forgetful) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *forgetful) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { h.before(ctx, cmd); return next(ctx, cmd) }
}

func (h *forgetful) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { h.before(ctx, cmds...); return next(ctx, cmds) }
}

// Nobody sees that the server forgot a script, whatever client sends it.
func TestScriptsForgotten(t *testing.T) {
	s := redistest.Start(t) // since SCRIPT FLUSH would cost the others a round trip
	run := func(t *testing.T, addr string, wrap func(*redis.Client) redis.Cmdable) {
		bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
			plain := redis.NewClient(&redis.Options{Addr: addr})
			hooked := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
			t.Cleanup(func() { require.NoError(t, plain.Close()); require.NoError(t, hooked.Close()) })
			h := &forgetful{t: t, server: plain}
			hooked.AddHook(refusing("bitfield_ro")) // so that reads need a script, too
			hooked.AddHook(h)
			members := numbered("member", 100)
			f := filled(t, wrap(hooked), redistest.Key(t), 100, layout, members)
			requireMembers(t, f, members)
			_, err := f.Add(t.Context(), "new")
			require.NoError(t, err)
			require.NoError(t, f.Reset(t.Context()))
			exists, err := f.Exists(t.Context(), "new")
			require.NoError(t, err)
			require.False(t, exists)
			require.NoError(t, f.Drop(t.Context()))
			require.Greater(t, h.forgot.Load(), int64(4), "claim, create, add, reset, drop")
		})
	}
	plain := func(c *redis.Client) redis.Cmdable { return c }
	t.Run("client", func(t *testing.T) { run(t, s.Addr(), plain) })
	t.Run("miniredis", func(t *testing.T) { run(t, redistest.Mini(t).Addr(), plain) })
	t.Run("pipeline only", func(t *testing.T) {
		run(t, s.Addr(), func(c *redis.Client) redis.Cmdable { return struct{ redis.Cmdable }{c} })
	})
	t.Run("autopipeliner", func(t *testing.T) {
		run(t, s.Addr(), func(c *redis.Client) redis.Cmdable {
			ap, err := c.AutoPipeline()
			require.NoError(t, err)
			return ap
		})
	})
}

// A server that denies knowing even the script it was just sent ends a call, not
// hangs it.
func TestScriptsAlwaysForgotten(t *testing.T) {
	rdb := redistest.MiniClient(t, redistest.Mini(t))
	f := filled(t, rdb, "k", 100, bloom.Classic, []string{"a"})
	rdb.AddHook(answering{"NOSCRIPT No matching script.", "eval", "evalsha", "eval_ro", "evalsha_ro"})
	trips := &redistest.Trips{}
	rdb.AddHook(trips)
	require.ErrorContains(t, neverDenies(t, f, []string{"a"}), "NOSCRIPT")
	require.LessOrEqual(t, trips.N(), int64(12))
	_, err := f.Add(t.Context(), "b")
	require.ErrorContains(t, err, "NOSCRIPT")
}

// answering is a hook that answers commands with an error: the text, then their
// names.
type answering []string

func (h answering) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h answering) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		for _, name := range h[1:] {
			if cmd.Name() == name {
				return refusal(h[0])
			}
		}
		return next(ctx, cmd)
	}
}

func (h answering) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			for _, name := range h[1:] {
				if cmd.Name() == name {
					return refusal(h[0])
				}
			}
		}
		return next(ctx, cmds)
	}
}

// A hook that refuses a pipeline, a circuit breaker say, leaves its commands
// without an outcome. That must not pass for an empty reply.
func TestRefusedByHook(t *testing.T) {
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		rdb := redistest.Shared(t).Client(t)
		members := numbered("member", 10)
		f := filled(t, rdb, redistest.Key(t), 100, layout, members)
		h := answering{"circuit open", "getrange", "bitfield_ro", "evalsha", "bitcount"}
		rdb.AddHook(h)
		for _, f := range []*bloom.Filter{f, attached(t, struct{ redis.Cmdable }{rdb}, redistest.Key(t))} {
			err := neverDenies(t, f, members)
			require.ErrorContains(t, err, h[0])
			require.NotErrorIs(t, err, bloom.ErrNotReady, "nobody said so")
			_, err = f.Add(t.Context(), "new")
			require.ErrorContains(t, err, h[0])
			require.ErrorContains(t, f.Drop(t.Context()), h[0], "it dropped nothing")
			require.ErrorContains(t, f.Reset(t.Context()), h[0])
			require.ErrorContains(t, f.Ready(t.Context()), h[0])
			_, err = f.Info(t.Context())
			require.ErrorContains(t, err, h[0])
		}
	})
}
