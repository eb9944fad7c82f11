package bloom

import (
	"fmt"
	"iter"
	"runtime"
	"strings"
	"testing"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What a rebuild and a verification cost.

// A rebuild sends one command for each 64 KiB of the filter and a few more, however
// many items there are.
func TestRebuildCountsCommands(t *testing.T) {
	const few = 16 // commands, the sample aside
	for _, layout := range []Layout{Classic, Blocked} {
		for _, n := range []int{500, 5000} {
			t.Run(fmt.Sprint(layout, " ", n), func(t *testing.T) {
				s := redistest.Start(t, "--slowlog-log-slower-than", "5000", "--slowlog-max-len", "1000")
				b := rebuildOwn(t, s, layout)
				items := rebuildItems("row ", n)
				b.built(t, 900_000, items) // 1.1 MB
				trips := &redistest.Trips{Record: true}
				rdb := s.Client(t)
				rdb.AddHook(trips)
				f, err := New(NewBitmap(rdb, b.key), Config{})
				require.NoError(t, err)
				require.NoError(t, s.Client(t).Do(t.Context(), "slowlog", "reset").Err())

				const sample = 100
				report, err := f.Rebuild(t.Context(), rebuildSource(items), &RebuildOptions{Settle: -1, VerifySample: sample})
				require.NoError(t, err)
				chunks := int(report.Bytes+mergeChunk-1) / mergeChunk
				require.Greater(t, chunks, 16)
				require.LessOrEqual(t, trips.N(), int64(chunks+few))
				require.LessOrEqual(t, len(trips.Commands()), chunks+few+sample)
				merges := 0
				for _, cmd := range trips.Commands() {
					if rebuildScriptOf(cmd) == "merge" {
						merges++
					}
				}
				require.LessOrEqual(t, merges, chunks)
				require.GreaterOrEqual(t, merges, chunks-1, "the whole filter, header aside")
				slow, err := rdb.SlowLogGet(t.Context(), 1000).Result()
				require.NoError(t, err)
				for _, entry := range slow {
					t.Logf("above 5 ms: %v, %.60s", entry.Duration, strings.Join(entry.Args, " "))
				}
				rebuildRequireAll(t, f, items)
			})
		}
	}
}

// Chunks that no item has touched are not sent over the network.
func TestRebuildSendsNoEmptyChunks(t *testing.T) {
	s := redistest.Shared(t)
	b := rebuildOwn(t, s, Classic)
	b.built(t, 100, []string{"row"}) // the server knows the scripts then
	trips := &redistest.Trips{Record: true}
	rdb := s.Client(t)
	rdb.AddHook(trips)
	f, err := New(NewBitmap(rdb, b.key), Config{Capacity: 900_000})
	require.NoError(t, err)
	_, err = f.Rebuild(t.Context(), rebuildSource([]string{"row"}), rebuildQuick())
	require.NoError(t, err)
	full, empty := 0, 0
	for _, cmd := range trips.Commands() {
		if rebuildScriptOf(cmd) != "merge" {
			continue
		}
		if data := cmd[len(cmd)-1]; data == "" {
			empty++
		} else {
			full++
		}
	}
	require.LessOrEqual(t, full, 7, "one item has seven bits")
	require.Greater(t, empty, full)
	rebuildRequireAll(t, f, []string{"row"})
}

// The builder keeps one filter in memory, and not the items.
func TestRebuildKeepsNoItems(t *testing.T) {
	const n = 300_000 // some 10 MB of strings
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	b := rebuildOwn(t, redistest.Shared(t), Blocked)
	before, most := heap(), uint64(0)
	report, err := b.open(t, b.config(n)).Rebuild(t.Context(), func(yield func(string, error) bool) {
		rebuildNumbered(n)(func(item string, err error) bool {
			if strings.HasSuffix(item, "99999") {
				most = max(most, heap())
			}
			return yield(item, err)
		})
	}, rebuildQuick())
	require.NoError(t, err)
	require.EqualValues(t, n, report.Items)
	require.Positive(t, most)
	require.Less(t, int64(most)-int64(before), int64(2*report.Bytes+(1<<20)))
}

// rebuildNumbered yields n items.
func rebuildNumbered(n int) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for i := range n {
			if !yield(fmt.Sprint("row ", i), nil) {
				return
			}
		}
	}
}

// rebuildBenchmarks runs f on a real server, for each layout.
func rebuildBenchmarks(b *testing.B, n int, f func(b *testing.B, filter *Filter)) {
	for _, layout := range []Layout{Classic, Blocked} {
		b.Run(layout.String(), func(b *testing.B) {
			var rdb redis.Cmdable = redistest.Shared(b).Client(b)
			filter, err := New(NewBitmap(rdb, redistest.Key(b)), Config{Capacity: uint64(n), Layout: layout})
			require.NoError(b, err)
			f(b, filter)
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "items/s")
			require.NoError(b, filter.Drop(b.Context()))
		})
	}
}

func BenchmarkRebuild(b *testing.B) {
	const n = 300_000
	rebuildBenchmarks(b, n, func(b *testing.B, f *Filter) {
		for b.Loop() {
			_, err := f.Rebuild(b.Context(), rebuildNumbered(n), rebuildQuick())
			require.NoError(b, err)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	const n = 300_000
	rebuildBenchmarks(b, n, func(b *testing.B, f *Filter) {
		_, err := f.Rebuild(b.Context(), rebuildNumbered(n), rebuildQuick())
		require.NoError(b, err)
		for b.Loop() {
			report, err := f.Verify(b.Context(), rebuildNumbered(n), nil)
			require.NoError(b, err)
			require.Zero(b, report.Missing)
		}
	})
}
