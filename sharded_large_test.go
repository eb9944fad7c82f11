package bloom

import (
	"iter"
	"math"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// As many items as BLOOM_SHARDED_ITEMS says, at 1 %, in 8 shards on one server.
// 1000000000 of them take 1.2 GB of Redis and as much of this process, twice for a
// moment, and some minutes: run it with -timeout 2h.
func TestShardedLarge(t *testing.T) {
	text := os.Getenv("BLOOM_SHARDED_ITEMS")
	if text == "" {
		t.Skip("BLOOM_SHARDED_ITEMS does not say how many")
	}
	n, err := strconv.ParseUint(text, 10, 40)
	require.NoError(t, err)
	layout := Classic
	if os.Getenv("BLOOM_SHARDED_LAYOUT") == Blocked.String() {
		layout = Blocked
	}
	rdb := redistest.Start(t).Client(t, func(o *redis.Options) { o.ReadTimeout = time.Minute })
	var shards []Backend
	for _, key := range ShardKeys("large", 8) {
		shards = append(shards, NewBitmap(rdb, key))
	}
	f := shardedFilter(t, Config{Capacity: n, Layout: layout}, shards...)
	numbers := func(from, to, step uint64) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for i := from; i < to; i += step {
				if !yield("item:"+strconv.FormatUint(i, 10), nil) {
					return
				}
			}
		}
	}
	phase, began := "", time.Now()
	report, err := f.Rebuild(t.Context(), numbers(0, n, 1), &RebuildOptions{Settle: -1, Progress: func(p Progress) {
		if p.Phase != phase {
			t.Logf("%8.1f s: %s", time.Since(began).Seconds(), p.Phase)
			phase = p.Phase
		}
	}})
	require.NoError(t, err)
	require.Equal(t, n, report.Items)
	info, err := f.Info(t.Context())
	require.NoError(t, err)
	t.Logf("rebuilt in %v: %+v", report.Elapsed.Round(time.Millisecond), info)

	verified, err := f.Verify(t.Context(), numbers(0, n, 101), nil)
	require.NoError(t, err)
	t.Logf("verified %d items in %v: %d are missing", verified.Checked, verified.Elapsed.Round(time.Millisecond), verified.Missing)
	require.Zero(t, verified.Missing)

	const probes = 1_000_000
	found := 0
	for from := n; from < n+probes; from += 10_000 {
		var absent []string
		for item := range numbers(from, from+10_000, 1) {
			absent = append(absent, item)
		}
		got, err := f.ExistsMulti(t.Context(), absent)
		require.NoError(t, err)
		for _, exists := range got {
			if exists {
				found++
			}
		}
	}
	measured := float64(found) / probes
	t.Logf("rate: predicted %.5f, measured %.5f over %d absent items", info.FPRate, measured, probes)
	require.LessOrEqual(t, measured, 1.1*info.FPRate+4*math.Sqrt(info.FPRate/probes))
	require.LessOrEqual(t, info.FPRate, 0.0102)
}
