package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/zeromicro/go-zero/core/logx"
	zeroredis "github.com/zeromicro/go-zero/core/stores/redis"
)

// A part is one section of the benchmark: how it is measured, and how it is shown.
type part struct {
	name, title string
	measure     func(ctx context.Context, b *bench, s *section) error
	tables      func(s *section) []table
	charts      func(s *section) ([]chart, error)
}

var parts []part // set by init: what a part shows refers to the parts

func init() {
	parts = []part{
		{"latency", "One caller", measureLatency, latencyTables, latencyCharts},
		{"throughput", "Many callers", measureThroughput, throughputTables, throughputCharts},
		{"batch", "Batches, and what an item costs", measureBatch, batchTables, batchCharts},
		{"commands", "Commands that could do it", measureCommands, commandTables, nil},
		{"growth", "Growth with size and rate", measureGrowth, growthTables, growthCharts},
		{"load", "Loading a filter", measureLoad, loadTables, loadCharts},
		{"guard", "Guards and caches", measureGuard, guardTables, guardCharts},
		{"local", "In this process", measureLocal, localTables, nil},
		{"accuracy", "How often a \"maybe\" is wrong", measureAccuracy, accuracyTables, accuracyCharts},
	}
}

func partNames() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// A scale says how much is measured.
type scale struct {
	rounds   int
	items    int           // stored in the sets that most sections ask about, which are sized for them
	ops      int           // of one subject in one round, where single calls are timed
	window   time.Duration // of one subject in one round, where calls are counted
	callers  []int
	batches  []int
	sizes    []uint64 // capacities, for growth
	rates    []float64
	loaded   int // items of a rebuild
	local    int // items of the filters in this process
	capacity int // of the filters whose accuracy is measured
	looks    int // absent items asked for at most, for one rate
}

func full() scale {
	return scale{
		rounds: 5, items: 1_000_000, ops: 2000, window: 300 * time.Millisecond,
		callers: []int{1, 16, 128, 1024}, batches: []int{1, 10, 100, 1000, 10_000},
		sizes: []uint64{1e4, 1e5, 1e6, 1e7, 1e8}, rates: []float64{1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6},
		loaded: 4_500_000, local: 10_000_000, capacity: 200_000, looks: 10_000_000,
	}
}

func quick() scale {
	return scale{
		rounds: 2, items: 100_000, ops: 400, window: 80 * time.Millisecond,
		callers: []int{1, 128}, batches: []int{1, 100, 1000},
		sizes: []uint64{1e4, 1e6}, rates: []float64{1e-1, 1e-2, 1e-4},
		loaded: 300_000, local: 1_000_000, capacity: 50_000, looks: 1_000_000,
	}
}

// A bench is one run.
type bench struct {
	sc     scale
	out    io.Writer
	prefix string
	local  *host // the server that was started
	module *host // the server with RedisBloom, often the same; nil: none
	zero   *zeroredis.Redis
	closes []func()
}

func newBench(ctx context.Context, o options, sc scale, out io.Writer) (*bench, error) {
	logx.Disable() // of go-zero, which would log every command above 100 ms
	b := &bench{sc: sc, out: out, prefix: fmt.Sprintf("benchmarks:%d:", os.Getpid())}
	local, stop, err := startServer(ctx, o.server, o.module)
	if err != nil {
		return nil, err
	}
	b.local = local
	b.closes = append(b.closes, stop)
	switch {
	case local.hasModule(ctx):
		b.module = local
	case o.moduleAddr != "":
		other, err := dial(ctx, o.moduleAddr)
		if err != nil {
			b.close()
			return nil, fmt.Errorf("the server with RedisBloom: %w", err)
		}
		b.closes = append(b.closes, func() {
			other.sweep(b.prefix)
			_ = other.rdb.Close()
		})
		if !other.hasModule(ctx) {
			b.close()
			return nil, fmt.Errorf("the server at %s does not know BF.EXISTS: want one with RedisBloom", o.moduleAddr)
		}
		b.module = other
	}
	if b.zero, err = goZeroClient(local.addr); err != nil {
		b.close()
		return nil, err
	}
	m := b.describe()
	fmt.Fprintf(out, "%s, %d CPUs, %s, load %s\n%s, Redis %s, RedisBloom %s\n", m.CPU, m.CPUs, m.System, m.Load, m.Go, m.Redis, m.Module)
	for _, path := range compared {
		fmt.Fprintf(out, "%s %s\n", path, m.Versions[path])
	}
	return b, nil
}

func goZeroClient(addr string) (*zeroredis.Redis, error) {
	return zeroredis.NewRedis(zeroredis.RedisConf{Host: addr, Type: zeroredis.NodeType})
}

func (b *bench) close() {
	for i := len(b.closes) - 1; i >= 0; i-- {
		b.closes[i]()
	}
}

func (b *bench) describe() machine {
	m := describeMachine()
	m.Redis = b.local.info["redis_version"]
	m.Module = "none"
	if b.module != nil {
		m.Module = moduleVersion(b.module)
		if b.module != b.local {
			m.Module += ", on a second server, Redis " + b.module.info["redis_version"]
		}
	}
	return m
}

// hosts are the servers that are measured.
func (b *bench) hosts() []*host {
	if b.module == nil || b.module == b.local {
		return []*host{b.local}
	}
	return []*host{b.local, b.module}
}

// plain is a rig of ordinary clients.
func (b *bench) plain() rig {
	r := rig{rdb: b.local.rdb, zero: b.zero}
	if b.module != nil {
		r.module = b.module.rdb
	}
	return r
}

// coalescing is a rig of AutoPipeliners over clients of their own. go-zero has none.
func (b *bench) coalescing() (r rig, closeAll func(), err error) {
	var clients []*redis.Client
	closeAll = func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}
	over := func(h *host) *redis.AutoPipeliner {
		c := redis.NewClient(&redis.Options{Addr: h.addr, ContextTimeoutEnabled: true})
		clients = append(clients, c)
		ap, failed := c.AutoPipeline()
		if failed != nil {
			err = failed
		}
		return ap
	}
	r.rdb = over(b.local)
	if b.module == b.local {
		r.module = r.rdb
	} else if b.module != nil {
		r.module = over(b.module)
	}
	return r, closeAll, err
}

// main is the dataset of most sections, full to its capacity.
func (b *bench) main() dataset {
	return dataset{prefix: b.prefix + "main:", capacity: uint64(b.sc.items), rate: 0.01, items: b.sc.items}
}

// stored makes d and returns a function that removes it.
func (b *bench) stored(ctx context.Context, d dataset) (func(), error) {
	return func() { _ = b.drop(context.WithoutCancel(ctx), d) }, b.store(ctx, d)
}

// How long one subject is measured before it is another's turn: short where one caller
// waits for one reply after another, long where many callers have to begin and to end.
const (
	shortTurn = 2 * time.Millisecond
	longTurn  = 50 * time.Millisecond
)

// inShortTurns measures each subject for a window in each round, in many turns: whether
// a processor sleeps until it is woken just then counts for more than what is measured,
// and so it has to meet all alike. The order is another one each time, since what was
// measured just before counts as well. measure adds to what the subject's earlier turns
// of the round found; one whose turns took a window altogether waits for the next round.
func inShortTurns[S any](ctx context.Context, rounds int, window, turn time.Duration, subjects []S,
	measure func(x S, window time.Duration, sum *cost) error, record func(S, cost)) error {
	order := rand.New(rand.NewPCG(1, 2))
	for range rounds {
		settle()
		sums := make([]cost, len(subjects))
		for range max(1, window/turn) {
			for _, i := range order.Perm(len(subjects)) {
				if err := ctx.Err(); err != nil {
					return err
				}
				if sums[i].took >= window {
					continue
				}
				if err := measure(subjects[i], min(turn, window), &sums[i]); err != nil {
					return err
				}
			}
		}
		for i, x := range subjects {
			record(x, sums[i])
		}
	}
	return nil
}

// inTurn calls measure for each subject, rounds times, in an order that rotates, so
// that nothing is always measured after the same other thing.
func inTurn[S any](ctx context.Context, rounds int, subjects []S, measure func(S) error) error {
	for round := range rounds {
		for i := range subjects {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := measure(subjects[(i+round)%len(subjects)]); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle lets garbage of what was measured before not be collected now.
func settle() { runtime.GC() }

// moduleVersion is the version of RedisBloom, as 2.8.20.
func moduleVersion(h *host) string {
	list, err := h.rdb.Do(context.Background(), "module", "list").Slice()
	if err != nil {
		return "of unknown version"
	}
	for _, m := range list {
		fields := map[string]any{}
		switch m := m.(type) {
		case map[any]any:
			for k, v := range m {
				fields[fmt.Sprint(k)] = v
			}
		case []any:
			for i := 0; i+1 < len(m); i += 2 {
				fields[fmt.Sprint(m[i])] = m[i+1]
			}
		}
		if v, ok := fields["ver"].(int64); ok && fields["name"] == "bf" {
			return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
		}
	}
	return "of unknown version"
}
