package bloom_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// Each benchmark times its operation and a baseline in turn, in one run on one
// server, and reports the ratio of their medians: on a noisy machine that is what
// can be compared.

func layouts() []bloom.Layout { return []bloom.Layout{bloom.Classic, bloom.Blocked} }

func BenchmarkExists(b *testing.B) {
	rdb, ctx := redistest.Shared(b).Client(b), context.Background()
	for _, layout := range layouts() {
		b.Run(layout.String(), func(b *testing.B) {
			f := benchFilter(b, bloom.NewBitmap(rdb, redistest.Key(b)), layout, 100_000)
			ratio(b, "xPING",
				func(i int) { must(b, f.Exists, ctx, "m"+strconv.Itoa(i)) },
				func(int) { rdb.Ping(ctx) })
		})
	}
}

func BenchmarkGuardHit(b *testing.B) {
	rdb, ctx := redistest.Shared(b).Client(b), context.Background()
	load := func(_ context.Context, id string) (Product, error) { return Product{ID: id, Name: "n"}, nil }
	for _, layout := range layouts() {
		b.Run(layout.String(), func(b *testing.B) {
			f := benchFilter(b, bloom.NewBitmap(rdb, redistest.Key(b)), layout, 100_000)
			g, err := bloom.NewGuard(f, bloom.NewRedisCache(rdb, redistest.Key(b)+":"), load, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer g.Close(ctx)
			for i := range 100 {
				must(b, g.Get, ctx, "m"+strconv.Itoa(i))
			}
			key := redistest.Key(b)
			rdb.Set(ctx, key, `{"ID":"m1","Name":"n"}`, time.Hour)
			ratio(b, "xGET",
				func(i int) { must(b, g.Get, ctx, "m"+strconv.Itoa(i%100)) },
				func(int) { rdb.Get(ctx, key) })
		})
	}
}

func BenchmarkExistsMulti(b *testing.B) {
	batchRatio(b, func(f *bloom.Filter) func(context.Context, []string) ([]bool, error) { return f.ExistsMulti })
}

// What AddMulti costs is its script: 1000 items, against as many GETs.
func BenchmarkAddMulti(b *testing.B) {
	batchRatio(b, func(f *bloom.Filter) func(context.Context, []string) ([]bool, error) { return f.AddMulti })
}

// batchRatio compares a batch of 1000 items with as many GETs in one pipeline.
func batchRatio(b *testing.B, op func(*bloom.Filter) func(context.Context, []string) ([]bool, error)) {
	rdb, ctx := redistest.Shared(b).Client(b), context.Background()
	items := make([]string, 1000)
	for i := range items {
		items[i] = "m" + strconv.Itoa(i)
	}
	key := redistest.Key(b)
	rdb.Set(ctx, key, "12345", time.Hour)
	gets := func(int) {
		_, _ = rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for range items {
				p.Get(ctx, key)
			}
			return nil
		})
	}
	for _, layout := range layouts() {
		b.Run(layout.String(), func(b *testing.B) {
			f := benchFilter(b, bloom.NewBitmap(rdb, redistest.Key(b)), layout, 100_000)
			ratio(b, "xGETs", func(int) { must(b, op(f), ctx, items) }, gets)
		})
	}
}

func BenchmarkMemory(b *testing.B) {
	ctx := context.Background()
	for _, layout := range layouts() {
		b.Run(layout.String(), func(b *testing.B) {
			f := benchFilter(b, bloom.NewMemory(), layout, 10_000_000)
			items := make([]string, 1<<16)
			for i := range items {
				items[i] = "m" + strconv.Itoa(i*7919)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				must(b, f.Exists, ctx, items[i&0xffff])
			}
		})
	}
}

func BenchmarkMemoryAdd(b *testing.B) {
	ctx := context.Background()
	for _, layout := range layouts() {
		b.Run(layout.String(), func(b *testing.B) {
			f := benchFilter(b, bloom.NewMemory(), layout, 10_000_000)
			items := make([]string, 1<<16)
			for i := range items {
				items[i] = "m" + strconv.Itoa(i*7919)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				must(b, f.Add, ctx, items[i&0xffff])
			}
		})
	}
}

func BenchmarkHashing(b *testing.B) {
	for _, layout := range layouts() {
		b.Run(layout.String(), func(b *testing.B) {
			f := benchFilter(b, bloom.NewMemory(), layout, 1000) // in the cache: hashing is what is left
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				must(b, f.Exists, ctx, "order:1234567")
			}
		})
	}
}

// benchFilter is a filter for so many items with the first thousand in.
func benchFilter(b *testing.B, backend bloom.Backend, layout bloom.Layout, capacity uint64) *bloom.Filter {
	b.Helper()
	f, err := bloom.New(backend, bloom.Config{Capacity: capacity, Layout: layout})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	if err := f.CreateEmpty(ctx); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = f.Drop(context.Background()) })
	for i := range 1000 {
		must(b, f.Add, ctx, "m"+strconv.Itoa(i))
	}
	return f
}

// ratio runs op and base in turn, b.N times each.
func ratio(b *testing.B, unit string, op, base func(i int)) {
	b.Helper()
	ops, bases := make([]time.Duration, b.N), make([]time.Duration, b.N)
	b.ResetTimer()
	for i := range b.N {
		began := time.Now()
		op(i)
		ops[i] = time.Since(began)
		began = time.Now()
		base(i)
		bases[i] = time.Since(began)
	}
	b.StopTimer()
	slices.Sort(ops)
	slices.Sort(bases)
	b.ReportMetric(float64(ops[b.N/2])/float64(bases[b.N/2]), unit)
	b.ReportMetric(float64(ops[b.N/2].Nanoseconds()), "ns/op")
}

// must calls an operation that takes one argument and does not fail.
func must[A, R any](b *testing.B, op func(context.Context, A) (R, error), ctx context.Context, arg A) {
	if _, err := op(ctx, arg); err != nil {
		b.Fatal(err)
	}
}

// What a hash key costs.
func BenchmarkHashKey(b *testing.B) {
	ctx := context.Background()
	for _, layout := range layouts() {
		b.Run(layout.String(), func(b *testing.B) {
			filter := func(key []byte) *bloom.Filter {
				f, err := bloom.New(bloom.NewMemory(), bloom.Config{Capacity: 1000, Layout: layout, HashKey: key})
				if err != nil {
					b.Fatal(err)
				}
				must(b, func(ctx context.Context, _ int) (int, error) { return 0, f.CreateEmpty(ctx) }, ctx, 0)
				must(b, f.Add, ctx, "order:1234567")
				return f
			}
			keyed, plain := filter(make([]byte, 16)), filter(nil)
			const times = 100 // a call by itself is too short to be timed
			ratio(b, "xMurmurHash3",
				func(int) {
					for range times {
						must(b, keyed.Exists, ctx, "order:1234567")
					}
				},
				func(int) {
					for range times {
						must(b, plain.Exists, ctx, "order:1234567")
					}
				})
		})
	}
}
