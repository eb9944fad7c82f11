package bloomprom_test

import (
	"context"
	"fmt"
	"log"
	"slices"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/bloomprom"
	"github.com/prometheus/client_golang/prometheus"
)

// A service that exports the filter and the guard of its products.
func Example() {
	ctx := context.Background()
	filter, err := bloom.New(bloom.NewMemory(), bloom.Config{Capacity: 1_000})
	if err != nil {
		log.Fatal(err)
	}
	if err := filter.CreateEmpty(ctx); err != nil {
		log.Fatal(err)
	}
	load := func(_ context.Context, id string) (string, error) { return "Product " + id, nil }
	guard, err := bloom.NewGuard(filter, bloom.NewMemoryCache(), load, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer guard.Close(ctx)

	reg := prometheus.NewRegistry()
	reg.MustRegister(bloomprom.NewCollector(
		map[string]bloomprom.Guard{"products": guard},
		map[string]bloomprom.Filter{"products": filter},
		nil,
	))

	if err := guard.Register(ctx, "42"); err != nil {
		log.Fatal(err)
	}
	for _, id := range []string{"42", "42", "43"} { // loaded, cached, rejected
		if _, err := guard.Get(ctx, id); err != nil {
			fmt.Println(err)
		}
	}
	show(reg, "bloom_filter_items", "bloom_filter_up",
		"bloom_guard_gets_total", "bloom_guard_loads_total", "bloom_guard_rejected_total")

	// Output:
	// bloom: not found
	// bloom_filter_items 1
	// bloom_filter_up 1
	// bloom_guard_gets_total 3
	// bloom_guard_loads_total 1
	// bloom_guard_rejected_total 1
}

// show prints what a scrape sees of the named metrics.
func show(reg prometheus.Gatherer, names ...string) {
	families, err := reg.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if slices.Contains(names, f.GetName()) {
				fmt.Println(f.GetName(), m.GetCounter().GetValue()+m.GetGauge().GetValue())
			}
		}
	}
}
