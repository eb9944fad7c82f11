package bloom_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// benchItems are as many items as there are names in the tests of real input.
const benchItems = 4_500_000

func benchSource(yield func(string, error) bool) {
	for i := range benchItems {
		if !yield("item "+strconv.Itoa(i), nil) {
			return
		}
	}
}

// What a rebuild of 4.5 million items takes, and what other clients feel of it: the
// command that allocates staging against a SETBIT of that size, the longest command
// that reads, and the p99 of GETs at 1000 a second, against that of an idle
// server. As many of the slowest GETs are left out as the allocation can have met.
func BenchmarkRebuildNeighbours(b *testing.B) {
	ctx := context.Background()
	for _, layout := range layouts() {
		b.Run(layout.String(), func(b *testing.B) {
			rdb := redistest.Start(b, "--slowlog-log-slower-than", "0", "--slowlog-max-len", "10000").Client(b)
			f, err := bloom.New(bloom.NewBitmap(rdb, "items"), bloom.Config{Capacity: 5_000_000, Layout: layout})
			if err != nil {
				b.Fatal(err)
			}
			idle := probe(ctx, rdb, func() { time.Sleep(2 * time.Second) })
			var report bloom.RebuildReport
			for range b.N {
				setbit := allocate(ctx, b, rdb, layout)
				rdb.Do(ctx, "slowlog", "reset")
				gets := probe(ctx, rdb, func() {
					report, err = f.Rebuild(ctx, benchSource, &bloom.RebuildOptions{Settle: -1})
				})
				if err != nil {
					b.Fatal(err)
				}
				allocation := longest(ctx, b, rdb, func(command string) bool { return command == "SETRANGE" })
				other := longest(ctx, b, rdb, func(command string) bool { return command == "bitfield_ro" || command == "bitcount" })
				met := int(allocation/time.Millisecond) + 2
				b.ReportMetric(report.Elapsed.Seconds(), "s/rebuild")
				b.ReportMetric(float64(allocation)/float64(setbit), "xSETBIT")
				b.ReportMetric(float64(other.Microseconds())/1000, "ms/read")
				b.ReportMetric(float64(p99(gets[:max(1, len(gets)-met)]))/float64(p99(idle)), "xGETp99")
				b.ReportMetric(float64(p99(gets[:max(1, len(gets)-met)]).Microseconds())/1000, "ms/GETp99")
			}
		})
	}
}

// allocate is how long a SETBIT takes that makes a string as long as a filter. What
// it frees again is what the rebuild gets.
func allocate(ctx context.Context, b *testing.B, rdb *redis.Client, layout bloom.Layout) time.Duration {
	p, err := bloom.NewParams(5_000_000, 0.01, layout)
	if err != nil {
		b.Fatal(err)
	}
	rdb.Do(ctx, "slowlog", "reset")
	rdb.SetBit(ctx, "setbit", int64(p.Bytes())*8-1, 1)
	defer rdb.Del(ctx, "setbit")
	return longest(ctx, b, rdb, func(command string) bool { return command == "setbit" })
}

// probe sends a GET each millisecond while f runs, whether or not the last one was
// answered, and returns how long each took from when it was due, sorted.
func probe(ctx context.Context, rdb *redis.Client, f func()) []time.Duration {
	var (
		mu    sync.Mutex
		took  []time.Duration
		wg    sync.WaitGroup
		done  = make(chan struct{})
		began = time.Now()
	)
	go func() { defer close(done); f() }()
	for i := 0; ; i++ {
		due := began.Add(time.Duration(i) * time.Millisecond)
		time.Sleep(time.Until(due))
		select {
		case <-done:
			wg.Wait()
			slices.Sort(took)
			return took
		default:
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			rdb.Get(ctx, "probe")
			d := time.Since(due)
			mu.Lock()
			took = append(took, d)
			mu.Unlock()
		}()
	}
}

func p99(sorted []time.Duration) time.Duration { return sorted[(len(sorted)-1)*99/100] }

// longest is how long the longest command took since the slow log was reset, of those
// that are wanted. It has the commands of scripts by themselves.
func longest(ctx context.Context, b *testing.B, rdb *redis.Client, wanted func(command string) bool) (d time.Duration) {
	entries, err := rdb.SlowLogGet(ctx, -1).Result()
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range entries {
		if wanted(e.Args[0]) {
			d = max(d, e.Duration)
		}
	}
	return d
}
