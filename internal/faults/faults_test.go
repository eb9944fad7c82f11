package faults

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// duration is how long one of so many runs takes: short takes long, unless
// BLOOM_FAULTS says how long all together shall.
func duration(t *testing.T, short time.Duration, runs int) time.Duration {
	text := os.Getenv("BLOOM_FAULTS")
	if text == "" {
		return short
	}
	all, err := time.ParseDuration(text)
	require.NoError(t, err, "BLOOM_FAULTS")
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

func single(t *testing.T, layout bloom.Layout, keeps bool) *bed {
	const rows = 10_000
	return &bed{
		nodes:   []*node{startNode(t, "filter", keeps)},
		backend: bitmap,
		faults:  append(append(append([]fault(nil), keyFaults...), bitmapFaults...), serverFaults...),
		shapes:  shapes(layout, rows),
		rows:    rows,
		batch:   200,
		pause:   2 * time.Millisecond,
	}
}

func TestFaults(t *testing.T) {
	seed, all := newSeed(t), &tally{}
	runs := []struct {
		name  string
		short time.Duration
		bed   func(t *testing.T) *bed
	}{
		{"single Classic AOF", 4 * time.Second, func(t *testing.T) *bed { return single(t, bloom.Classic, true) }},
		{"single Blocked", 4 * time.Second, func(t *testing.T) *bed { return single(t, bloom.Blocked, false) }},
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
