package bloom

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// script is a Lua script and the digest that EVALSHA names it by.
type script struct{ src, sha string }

func newScript(src string) *script {
	sum := sha1.Sum([]byte(src))
	return &script{src: src, sha: hex.EncodeToString(sum[:])}
}

// conn sends commands through any go-redis client in as few round trips as it
// allows, and ends a wait of its own with the caller's context.
type conn struct {
	rdb       redis.Cmdable
	coalescer coalescer   // of calls through an AutoPipeliner
	replicas  bool        // rdb sends reads to replicas
	wait      replicaWait // of changes
}

// processor is what every go-redis client has beside redis.Cmdable.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// do runs cmds in one round trip. Each command carries its own outcome, unless
// do itself returns an error: then ctx ended, and no command may be looked at,
// since they may be executed yet.
func (c *conn) do(ctx context.Context, cmds ...redis.Cmder) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if ap, ok := c.rdb.(*redis.AutoPipeliner); ok {
		return c.coalescer.do(ctx, ap, cmds)
	}
	if p, ok := c.rdb.(processor); ok && len(cmds) == 1 {
		return settle(ctx, cmds, p.Process(ctx, cmds[0]))
	}
	return settle(ctx, cmds, pipelined(ctx, c.rdb, false, cmds))
}

// settle makes good for what go-redis leaves open when a call fails with err. Of
// a wait that ctx ended it may tell only the time-out of the socket. And a hook
// that refuses a pipeline leaves its commands without an outcome, as if Redis had
// answered with empty strings.
func settle(ctx context.Context, cmds []redis.Cmder, err error) error {
	if err == nil {
		return nil
	}
	var reply redis.Error
	if ended := contextError(ctx); ended != nil && !errors.As(err, &reply) {
		if errors.Is(err, ended) {
			return err
		}
		return fmt.Errorf("%w: %w", ended, err)
	}
	for _, cmd := range cmds {
		if cmd.Err() != nil {
			return nil
		}
	}
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return nil
}

// contextError is ctx.Err() that does not lag behind the clock: a socket whose
// deadline is the context's may be told first.
func contextError(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// eval runs s, see run.
func (c *conn) eval(ctx context.Context, s *script, keys []string, args ...any) (any, error) {
	return c.run(ctx, replicaWait{}, s, keys, args)
}

// evalEach runs s for each key, with its arguments, in one round trip, and one more
// where the server does not know s. Each command carries its own outcome, unless
// there is an error.
func (c *conn) evalEach(ctx context.Context, s *script, keys []string, args [][]any) ([]*redis.Cmd, error) {
	cmds := make([]*redis.Cmd, len(keys))
	all := make([]redis.Cmder, len(keys))
	for i, key := range keys {
		cmds[i] = evalCmd(ctx, "evalsha", s.sha, []string{key}, args[i])
		all[i] = cmds[i]
	}
	if err := c.do(ctx, all...); err != nil {
		return nil, err
	}
	all = all[:0]
	for i, key := range keys {
		if isNoScript(cmds[i].Err()) {
			cmds[i] = evalCmd(ctx, "eval", s.src, []string{key}, args[i])
			all = append(all, cmds[i])
		}
	}
	if len(all) == 0 {
		return cmds, nil
	}
	return cmds, c.do(ctx, all...)
}

// scriptRunner is conn.evalStrings or conn.change.
type scriptRunner func(ctx context.Context, s *script, keys []string, args ...any) ([]string, error)

func evalCmd(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, name, script, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	return redis.NewCmd(ctx, append(all, args...)...)
}

// evalStrings runs a script that answers one or more strings.
func (c *conn) evalStrings(ctx context.Context, s *script, keys []string, args ...any) ([]string, error) {
	return stringsOf(c.eval(ctx, s, keys, args...))
}

// stringsOf reads the reply of a script that answers one or more strings.
func stringsOf(reply any, err error) ([]string, error) {
	if err != nil {
		return nil, err
	}
	list, ok := reply.([]any)
	if !ok {
		list = []any{reply}
	}
	out := make([]string, 0, len(list))
	for _, x := range list {
		s, ok := x.(string)
		if !ok {
			return nil, fmt.Errorf("script answered %T instead of a string", x)
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, errors.New("script answered nothing")
	}
	return out, nil
}

// sameServer reports whether both send through the same client, so that their
// commands can share a round trip.
func (c *conn) sameServer(other *conn) bool {
	return c.rdb == other.rdb
}

// checkClient refuses the clients that break the promise of a certain "no" or
// that answer nothing, as far as they can be told, and those that cannot do what
// cfg asks of replicas.
func checkClient(rdb redis.Cmdable, cfg Config) error {
	if rdb == nil {
		return fmt.Errorf("bloom: nil Redis client: %w", ErrInvalidParams)
	}
	v := reflect.ValueOf(rdb)
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("bloom: nil %T: %w", rdb, ErrInvalidParams)
	}
	if !v.Comparable() {
		return fmt.Errorf("bloom: client %T: want a pointer: %w", rdb, ErrInvalidParams)
	}
	switch c := rdb.(type) {
	case *redis.Client:
		if o := c.Options(); o.ClientSideCacheConfig != nil || o.ClientSideCache != nil {
			return fmt.Errorf("bloom: client with client-side caching answers from replies of before an acknowledged add: "+
				"want one without: %w", ErrInvalidParams)
		}
	case *redis.Ring:
		return fmt.Errorf("bloom: *redis.Ring moves keys between servers when one fails, and a filter with them: "+
			"want a client of one server or a cluster: %w", ErrInvalidParams)
	case *redis.ClusterClient:
		if readsFromReplicas(c) && !cfg.ReplicaReads {
			return fmt.Errorf("bloom: cluster client with ReadOnly, RouteByLatency or RouteRandomly reads from replicas, "+
				"which lag behind acknowledged adds: want one that reads from primaries, "+
				"or Config.ReplicaReads for a filter: %w", ErrInvalidParams)
		}
	case redis.Pipeliner:
		return fmt.Errorf("bloom: %T answers only at Exec: want a client: %w", rdb, ErrInvalidParams)
	}
	return checkWait(rdb, cfg)
}

func readsFromReplicas(rdb redis.Cmdable) bool {
	c, ok := rdb.(*redis.ClusterClient)
	if !ok {
		return false
	}
	o := c.Options()
	return o.ReadOnly || o.RouteByLatency || o.RouteRandomly
}

// checkWait refuses a client that hides the connections that it uses, where those
// matter.
func checkWait(rdb redis.Cmdable, cfg Config) error {
	if _, ok := rdb.(*redis.AutoPipeliner); ok && cfg.ReplicaReads {
		return fmt.Errorf("bloom: ReplicaReads with %T, which does not let its client be asked for a primary: "+
			"want the client itself: %w", rdb, ErrInvalidParams)
	}
	if cfg.WaitReplicas == 0 {
		return nil
	}
	var readTimeout time.Duration
	switch c := rdb.(type) {
	case *redis.Client:
		readTimeout = c.Options().ReadTimeout
	case *redis.ClusterClient:
		readTimeout = c.Options().ReadTimeout
	default:
		return fmt.Errorf("bloom: WaitReplicas %d with %T, which does not say on whose connection a WAIT would be sent: "+
			"want a *redis.Client or *redis.ClusterClient: %w", cfg.WaitReplicas, rdb, ErrInvalidParams)
	}
	if wait := cfg.waitTimeout(); readTimeout > 0 && wait >= readTimeout {
		return fmt.Errorf("bloom: WaitTimeout %v: the client's ReadTimeout of %v ends the wait before: "+
			"want less than that: %w", wait, readTimeout, ErrInvalidParams)
	}
	return nil
}

func isNoScript(err error) bool { return redisErrorHas(err, "NOSCRIPT") }

// isWrongType also knows the error of Redis before 7, which puts the script's
// name in front.
func isWrongType(err error) bool { return redisErrorHas(err, "WRONGTYPE") }

// isRefused reports whether the server, a proxy or an ACL does not let the
// command itself through. What else begins with ERR is told from it by trying
// the other command.
func isRefused(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) || errors.Is(err, redis.Nil) {
		return false
	}
	return strings.HasPrefix(reply.Error(), "ERR ") || strings.HasPrefix(reply.Error(), "NOPERM")
}

// isDenied reports whether an ACL does not let a command through, or one that a
// script runs.
func isDenied(err error) bool {
	return redisErrorHas(err, "NOPERM") || redisErrorHas(err, "can't run this command") || redisErrorHas(err, "can't access")
}

func redisErrorHas(err error, word string) bool {
	var reply redis.Error
	return errors.As(err, &reply) && strings.Contains(reply.Error(), word)
}
