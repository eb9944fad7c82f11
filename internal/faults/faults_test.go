package faults

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/bloomtest"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis tells of every connection that it cannot make
	os.Exit(redistest.Main(m))
}

// duration is how long one of so many runs takes: short takes long, unless
// BLOOM_FAULTS says how long all together shall.
func duration(t *testing.T, short time.Duration, runs int) time.Duration {
	text := os.Getenv("BLOOM_FAULTS")
	if text == "" {
		return short
	}
	all, err := time.ParseDuration(text)
	require.NoError(t, err, "BLOOM_FAULTS")
	require.Positive(t, all, "BLOOM_FAULTS")
	return all / time.Duration(runs)
}

func newSeed(t *testing.T) uint64 {
	seed := rand.Uint64()
	if text := os.Getenv("BLOOM_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("BLOOM_SEED=%d", seed)
	return seed
}

func bitmap(rdb redis.Cmdable, key string) bloom.Backend { return bloom.NewBitmap(rdb, key) }

// shapes are what rebuilds make: mostly of one layout, of several sizes and rates.
func shapes(layout bloom.Layout, rows uint64) []bloom.Config {
	return []bloom.Config{
		{Capacity: 2 * rows, Layout: layout},
		{Capacity: 2 * rows, Layout: layout},
		{Capacity: 12 * rows, Layout: layout},
		{Capacity: 2 * rows, FPRate: 0.001, Layout: layout},
		{Capacity: rows, FPRate: 0.05, Layout: bloom.Classic + bloom.Blocked - layout},
	}
}

func faultsOf(all ...[]fault) (f []fault) {
	for _, some := range all {
		f = append(f, some...)
	}
	return f
}

func single(t *testing.T, layout bloom.Layout, keeps bool) *bed {
	const rows = 10_000
	return &bed{
		nodes:   []*node{startNode(t, "filter", keeps)},
		backend: bitmap,
		faults:  faultsOf(keyFaults, bitmapFaults, serverFaults),
		shapes:  shapes(layout, rows),
		rows:    rows,
		batch:   200,
		pause:   2 * time.Millisecond,
	}
}

func sharded(t *testing.T) *bed {
	b := single(t, bloom.Blocked, false)
	b.nodes = append(b.nodes, startNode(t, "filter", true), startNode(t, "filter", false))
	return b
}

func cluster(t *testing.T, waits bool) *bed {
	const rows = 4_000
	failovers := []fault{quietFailover}
	if waits {
		failovers = []fault{laggingFailover, suddenFailover}
	}
	return &bed{
		waits:   waits,
		nodes:   []*node{startCluster(t, "of{orders}")},
		backend: bitmap,
		first:   failovers,
		faults:  faultsOf(failovers, failovers, clusterFaults, clusterFaults, keyFaults, bitmapFaults),
		shapes:  shapes(bloom.Blocked, rows),
		rows:    rows,
		batch:   100,
		pause:   5 * time.Millisecond,
	}
}

func guarded(t *testing.T) *bed {
	b := single(t, bloom.Blocked, false)
	b.rows, b.batch, b.guarded = 2000, 30, true
	b.shapes = shapes(bloom.Blocked, 2000)
	return b
}

// double is RedisBloom on a miniredis with bloomtest's double of the module.
func double(t *testing.T) *bed {
	m := redistest.Mini(t)
	bloomtest.RedisBloom(m)
	tick(t, m)
	n := &node{key: "filter", addr: m.Addr(), mini: m, admin: redistest.MiniClient(t, m)}
	for range 3 {
		n.proxies = append(n.proxies, redistest.NewProxy(t, n.addr))
	}
	b := module(n, 500)
	b.batch, b.pause = 20, 10*time.Millisecond
	return b
}

// realModule is RedisBloom on a server with the module.
func realModule(t *testing.T, path string, keeps bool) *bed {
	b := module(startNode(t, "filter", keeps, "--loadmodule", path), 5000)
	b.faults = faultsOf(keyFaults, serverFaults)
	b.batch, b.pause = 200, 2*time.Millisecond
	return b
}

// module is RedisBloom on n. It refuses what is over its capacity, and keeps deleted
// rows until the next rebuild.
func module(n *node, rows int) *bed {
	n.module = true
	capacity := 20 * uint64(rows)
	return &bed{
		nodes:   []*node{n},
		backend: func(rdb redis.Cmdable, key string) bloom.Backend { return bloom.NewRedisBloom(rdb, key, nil) },
		faults:  keyFaults,
		shapes:  []bloom.Config{{Capacity: capacity}, {Capacity: 2 * capacity}, {Capacity: capacity, FPRate: 0.001}},
		rows:    rows,
	}
}

// tick lets the time of keys pass on a miniredis.
func tick(t *testing.T, m *miniredis.Miniredis) {
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for last := time.Now(); ; {
			select {
			case <-done:
				return
			case now := <-time.After(10 * time.Millisecond):
				m.FastForward(now.Sub(last))
				last = now
			}
		}
	}()
	t.Cleanup(func() { close(done); <-stopped })
}

func TestFaults(t *testing.T) {
	seed, all := newSeed(t), &tally{}
	type bedRun struct {
		name  string
		short time.Duration
		bed   func(t *testing.T) *bed
	}
	runs := []bedRun{
		{"single Classic AOF", 2 * time.Second, func(t *testing.T) *bed { return single(t, bloom.Classic, true) }},
		{"single Blocked", 2 * time.Second, func(t *testing.T) *bed { return single(t, bloom.Blocked, false) }},
		{"sharded", 2 * time.Second, sharded},
		{"RedisBloom double", 1500 * time.Millisecond, double},
		{"guard", 2 * time.Second, guarded},
		{"cluster", 2 * time.Second, func(t *testing.T) *bed { return cluster(t, false) }},
		{"cluster that waits", 2 * time.Second, func(t *testing.T) *bed { return cluster(t, true) }},
	}
	if path := os.Getenv("BLOOM_REDISBLOOM_MODULE"); path != "" {
		runs = append(runs,
			bedRun{"RedisBloom", 2 * time.Second, func(t *testing.T) *bed { return realModule(t, path, false) }},
			bedRun{"RedisBloom AOF", 2 * time.Second, func(t *testing.T) *bed { return realModule(t, path, true) }})
	} else {
		t.Log("no real RedisBloom: BLOOM_REDISBLOOM_MODULE does not name the file of one")
	}
	for _, run := range runs {
		t.Run(run.name, func(t *testing.T) {
			within := duration(t, run.short, len(runs))
			counts := run.bed(t).drive(t, seed, within)
			t.Logf("BLOOM_SEED=%d, %v of faults\n%v", seed, within, counts)
			all.merge(counts)
		})
	}
	t.Logf("BLOOM_SEED=%d: all runs\n%v", seed, all)
}
