package bloom

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// replicaWait is what Config asks of a change: so many replicas have it before the
// call returns. The zero value waits for none.
type replicaWait struct {
	replicas int
	timeout  time.Duration
}

const (
	defaultWaitTimeout = time.Second
	minWaitTimeout     = time.Millisecond // WAIT takes milliseconds, and 0 for ever
)

// replicasError says that a change is done, but that too few replicas are known to
// have it.
type replicasError struct {
	reached, wanted int
	within          time.Duration
	err             error // instead of an answer how many
}

func (e *replicasError) Error() string {
	if e.err != nil {
		return fmt.Sprintf("not known to have reached %d replicas: the primary has it, a failover may lose it: %v", e.wanted, e.err)
	}
	return fmt.Sprintf("reached %d of %d replicas within %v: the primary has it, a failover may lose it", e.reached, e.wanted, e.within)
}

func (e *replicasError) Unwrap() error { return e.err }

// setReplicas makes a new conn work as cfg says.
func (c *conn) setReplicas(cfg Config) {
	c.replicas = cfg.ReplicaReads && readsFromReplicas(c.rdb)
	if cfg.WaitReplicas > 0 {
		c.wait = replicaWait{cfg.WaitReplicas, cfg.waitTimeout()}
	}
}

func isShort(err error) bool {
	var short *replicasError
	return errors.As(err, &short)
}

// change is evalStrings for a script whose effect a failover shall not lose. A
// replicasError comes beside the script's answer.
//
// WAIT waits for what its own connection has written, and newer servers leave out
// scripts that have written nothing. So a script that finds its work done, maybe by
// another client and a moment ago, writes something all the same; except a drop of a
// Bitmap, which finds nothing left to write to.
func (c *conn) change(ctx context.Context, s *script, keys []string, args ...any) ([]string, error) {
	reply, err := c.run(ctx, c.wait, s, keys, args)
	if !isShort(err) {
		return stringsOf(reply, err)
	}
	status, strange := stringsOf(reply, nil)
	if strange != nil {
		return nil, strange
	}
	return status, err
}

const (
	firstPause   = 5 * time.Millisecond
	longestPause = 250 * time.Millisecond

	// maxMoved bounds how often a script follows a slot of which the nodes still
	// send each other's clients back and forth, more often than the client does: for
	// about a second. A client of one node of a cluster is sent away for ever.
	maxMoved = 10
)

// run sends a script until a server has executed it: its source where the server
// does not know it yet; again, until ctx ends, while the cluster slot of its keys
// moves, and some of them have gone already. A filter whose companion does not
// exist is such a case too, so adds wait as long as the slot moves.
func (c *conn) run(ctx context.Context, w replicaWait, s *script, keys []string, args []any) (any, error) {
	name, text := "evalsha", s.sha
	pause, moved := firstPause, 0
	for {
		cmd := evalCmd(ctx, name, text, keys, args)
		short, err := c.send(ctx, w, keys[0], cmd)
		switch {
		case err != nil:
			return nil, err
		case isNoScript(cmd.Err()) && name == "evalsha":
			name, text = "eval", s.src
		case isTryAgain(cmd.Err()) || isMoved(cmd.Err()) && moved < maxMoved:
			if isMoved(cmd.Err()) {
				moved++
			}
			if err := sleep(ctx, pause/2+rand.N(pause/2)); err != nil {
				return nil, fmt.Errorf("%w: %w", err, cmd.Err())
			}
			pause = min(2*pause, longestPause)
		case cmd.Err() != nil:
			return nil, cmd.Err()
		default:
			return cmd.Val(), short
		}
	}
}

// send executes a script and waits for replicas, in one round trip. short tells
// how the wait ended.
func (c *conn) send(ctx context.Context, w replicaWait, key string, cmd *redis.Cmd) (short, err error) {
	if w.replicas == 0 {
		return nil, c.do(ctx, cmd)
	}
	wait := redis.NewIntCmd(ctx, "wait", w.replicas, w.timeout.Milliseconds())
	if err := c.onPrimary(ctx, key, cmd, wait); err != nil {
		return nil, err
	}
	reached, err := wait.Result()
	if err != nil || reached < int64(w.replicas) {
		return &replicasError{int(reached), w.replicas, w.timeout, err}, nil
	}
	return nil, nil
}

// read runs commands that must not be answered by a replica. All their keys are in
// the slot of key.
func (c *conn) read(ctx context.Context, key string, cmds ...redis.Cmder) error {
	if !c.replicas {
		return c.do(ctx, cmds...)
	}
	// The client's connections are for replica reads, so that a primary which has
	// become a replica would answer. Without that it says who took over.
	all := make([]redis.Cmder, 0, len(cmds)+2)
	all = append(all, redis.NewStatusCmd(ctx, "readwrite"))
	all = append(append(all, cmds...), redis.NewStatusCmd(ctx, "readonly"))
	return c.onPrimary(ctx, key, all...)
}

const maxRedirects = 3 // as go-redis has it by default

// onPrimary runs cmds in one pipeline, on one connection to the primary of key:
// what go-redis' cluster client promises of commands that name a key, but not of
// WAIT. It is do for other clients.
func (c *conn) onPrimary(ctx context.Context, key string, cmds ...redis.Cmder) error {
	cluster, ok := c.rdb.(*redis.ClusterClient)
	if !ok {
		return c.do(ctx, cmds...)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	node, err := cluster.MasterForKey(ctx, key)
	pause, asking := firstPause, false
	for redirect := 0; ; redirect++ {
		if err == nil {
			err = pipelined(ctx, node, asking, cmds)
		}
		if err := settle(ctx, cmds, err); err != nil {
			return err
		}
		failed := firstFault(cmds)
		if failed == nil || redirect == maxRedirects {
			return nil
		}
		if addr, ok := redis.IsAskError(failed); ok {
			if node, err = masterAt(ctx, cluster, addr); node == nil || err != nil {
				return nil // a node that has no slot yet: the caller sees ASK
			}
			asking = true
			continue
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		pause *= 2
		// Who serves what is asked again: the client itself does so only when it is
		// sent elsewhere, and then in its own time.
		if _, err = masterAt(ctx, cluster, ""); err == nil {
			node, err = cluster.MasterForKey(ctx, key)
		}
		asking = false
	}
}

// pipelined runs cmds in one pipeline of rdb's, each after an ASKING if so told.
func pipelined(ctx context.Context, rdb redis.Cmdable, asking bool, cmds []redis.Cmder) error {
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		if !asking {
			return p.BatchProcess(ctx, cmds...)
		}
		for _, cmd := range cmds {
			_ = p.BatchProcess(ctx, redis.NewStatusCmd(ctx, "asking"), cmd) // it holds for one command
		}
		return nil
	})
	return err
}

// firstFault returns the first error that another node, or the same one on another
// connection, may not give.
func firstFault(cmds []redis.Cmder) error {
	for _, cmd := range cmds {
		err := cmd.Err()
		var reply redis.Error
		if err == nil {
			continue
		}
		_, ask := redis.IsAskError(err)
		if isMoved(err) || ask || redis.IsReadOnlyError(err) || !errors.As(err, &reply) {
			return err
		}
	}
	return nil
}

// masterAt asks the cluster anew who serves what, and returns the primary at addr,
// nil if none is there.
func masterAt(ctx context.Context, cluster *redis.ClusterClient, addr string) (*redis.Client, error) {
	var mu sync.Mutex
	var found *redis.Client
	err := cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		if node.Options().Addr == addr {
			found = node
		}
		return nil
	})
	return found, err
}

// isTryAgain reports whether a cluster node has only some of the keys, since their
// slot moves; or whether it names a node for them that onPrimary could not find.
func isTryAgain(err error) bool {
	_, ask := redis.IsAskError(err)
	return ask || redis.IsTryAgainError(err)
}

func isMoved(err error) bool {
	_, moved := redis.IsMovedError(err)
	return moved
}
