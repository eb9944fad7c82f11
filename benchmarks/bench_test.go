package main

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
)

// The same operations as ordinary Go benchmarks, for pprof and benchstat. The command
// is what compares them: these run one after the other.

func benchBed(b *testing.B) (*bench, dataset) {
	b.Helper()
	sc := tiny()
	sc.items = 100_000
	x, err := newBench(b.Context(), testOptions(b), sc, new(bytes.Buffer))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(x.close)
	d := x.main()
	if err := x.store(b.Context(), d); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = x.drop(context.Background(), d) })
	return x, d
}

func eachSubject(b *testing.B, do func(b *testing.B, x *subject, items []string)) {
	bed, d := benchBed(b)
	all, err := bed.subjects(bed.plain(), d)
	if err != nil {
		b.Fatal(err)
	}
	items := probes(1<<14, d.items)
	for _, x := range append(bed.floors(bed.plain(), d), all...) {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			do(b, x, items)
		})
	}
}

func BenchmarkExists(b *testing.B) {
	eachSubject(b, func(b *testing.B, x *subject, items []string) {
		for i := 0; b.Loop(); i++ {
			if _, err := x.exists(b.Context(), items[i&(1<<14-1)]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkExistsOf1000(b *testing.B) {
	eachSubject(b, func(b *testing.B, x *subject, items []string) {
		for i := 0; b.Loop(); i++ {
			from := i * 1000 % (1<<14 - 1000)
			if err := x.ask(b.Context(), items[from:from+1000]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAutoPipelined(b *testing.B) {
	bed, d := benchBed(b)
	r, closeAll, err := bed.coalescing()
	defer closeAll()
	if err != nil {
		b.Fatal(err)
	}
	all, err := bed.subjects(r, d)
	if err != nil {
		b.Fatal(err)
	}
	items := probes(1<<14, d.items)
	for _, x := range append(bed.floors(r, d), all...) {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(64)
			var next atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := x.exists(b.Context(), items[next.Add(1)&(1<<14-1)]); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

func BenchmarkGuards(b *testing.B) {
	bed, _ := benchBed(b)
	d := dataset{prefix: bed.prefix + "guard:", capacity: 200_000, rate: 0.01}
	if err := bed.storeGuarded(b.Context(), d, 100_000); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = bed.drop(context.Background(), d) })
	all, closeAll, err := bed.guards(bed.plain(), d, "go")
	defer closeAll()
	if err != nil {
		b.Fatal(err)
	}
	for _, g := range all {
		for _, what := range guardCases[:3] { // a load needs a new row each time
			b.Run(g.name+"/"+what, func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if err := g.ask(b.Context(), what, i); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
