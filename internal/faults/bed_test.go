package faults

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// way is how a handle reaches its servers.
type way int

const (
	direct    way = iota
	proxied       // through a proxy that misbehaves at times
	coalesced     // through an AutoPipeliner
	ways
)

// node is one place of a filter: a key on a server.
type node struct {
	key     string
	addr    string
	server  *redistest.Server    // nil on miniredis and on a cluster
	mini    *miniredis.Miniredis // or nil
	module  bool                 // the filter is RedisBloom's
	keeps   bool                 // a restart loses nothing
	admin   redis.UniversalClient
	proxies []*redistest.Proxy
	next    int // proxy to be used

	cluster *redistest.Cluster // or nil
	clients map[*redistest.Server]*redis.Client
	elected map[*redistest.Server]time.Time // the last time
	slow    bool                            // CONFIG SET timeout is on
}

// bed is the servers of one run, and how filters on them are made.
type bed struct {
	nodes   []*node
	backend func(rdb redis.Cmdable, key string) bloom.Backend
	first   []fault // that come first in any run
	faults  []fault
	shapes  []bloom.Config // what rebuilds make
	rows    int            // of the table
	batch   int            // items in a batch
	guarded bool           // readers and adders go through Guards
	waits   bool           // what returned nil is on a replica, and primaries die at any time
	pause   time.Duration  // between two calls of one goroutine, about
}

// filter returns a handle that makes filters as cfg says, on clients of its own,
// which the end of the test closes.
func (b *bed) filter(t *testing.T, w way, cfg bloom.Config, hooks ...redis.Hook) *bloom.Filter {
	if b.waits && w != coalesced {
		cfg.WaitReplicas, cfg.WaitTimeout = 1, 200*time.Millisecond
	}
	f, err := bloom.New(b.open(t, w, hooks), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (b *bed) open(t *testing.T, w way, hooks []redis.Hook) bloom.Backend {
	backends := make([]bloom.Backend, len(b.nodes))
	for i, n := range b.nodes {
		rdb := n.client(t, w)
		for _, hook := range hooks {
			rdb.(interface{ AddHook(redis.Hook) }).AddHook(hook)
		}
		backends[i] = b.backend(rdb, n.key)
	}
	if len(backends) == 1 {
		return backends[0]
	}
	return bloom.NewSharded(backends...)
}

func (n *node) client(t *testing.T, w way) redis.Cmdable {
	if n.cluster != nil {
		rdb := n.cluster.Client(t)
		if w != coalesced {
			return rdb
		}
		return pipeliner(t, rdb.AutoPipeline)
	}
	opt := &redis.Options{Addr: n.addr, ContextTimeoutEnabled: true, DialTimeout: time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second}
	if w == proxied {
		opt.Addr = n.proxies[n.next%len(n.proxies)].Addr()
		n.next++
	}
	rdb := redis.NewClient(opt)
	t.Cleanup(func() { _ = rdb.Close() })
	if w != coalesced {
		return rdb
	}
	return pipeliner(t, rdb.AutoPipeline)
}

func pipeliner(t *testing.T, make func() (*redis.AutoPipeliner, error)) redis.Cmdable {
	ap, err := make()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ap.Close() })
	return ap
}

// process is a hook that lets a client's process die: from then on nothing that it
// does has any effect.
type process struct{ dead atomic.Bool }

var errDead = errors.New("faults: this process is dead")

func (p *process) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *process) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if p.dead.Load() {
			cmd.SetErr(errDead)
			return errDead
		}
		return next(ctx, cmd)
	}
}

func (p *process) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if p.dead.Load() {
			return errDead
		}
		return next(ctx, cmds)
	}
}
