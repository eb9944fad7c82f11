package bloomotel_test

import (
	"context"
	"fmt"
	"log"
	"slices"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/bloomotel"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
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

	reader := metric.NewManualReader() // a service has a PeriodicReader with an exporter
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	defer provider.Shutdown(ctx)
	registration, err := bloomotel.Register(
		provider.Meter("products"),
		map[string]bloomotel.Guard{"products": guard},
		map[string]bloomotel.Filter{"products": filter},
		nil,
	)
	if err != nil {
		log.Fatal(err)
	}
	defer registration.Unregister()

	if err := guard.Register(ctx, "42"); err != nil {
		log.Fatal(err)
	}
	for _, id := range []string{"42", "42", "43"} { // loaded, cached, rejected
		if _, err := guard.Get(ctx, id); err != nil {
			fmt.Println(err)
		}
	}
	show(reader, "bloom.filter.items", "bloom.filter.up",
		"bloom.guard.gets", "bloom.guard.loads", "bloom.guard.rejected")

	// Output:
	// bloom: not found
	// bloom.guard.gets 3
	// bloom.guard.rejected 1
	// bloom.guard.loads 1
	// bloom.filter.up 1
	// bloom.filter.items 1
}

// show prints what a collection has of the named metrics.
func show(reader metric.Reader, names ...string) {
	var collected metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &collected); err != nil {
		log.Fatal(err)
	}
	for _, m := range collected.ScopeMetrics[0].Metrics {
		if !slices.Contains(names, m.Name) {
			continue
		}
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			fmt.Println(m.Name, data.DataPoints[0].Value)
		case metricdata.Gauge[int64]:
			fmt.Println(m.Name, data.DataPoints[0].Value)
		case metricdata.Gauge[float64]:
			fmt.Println(m.Name, data.DataPoints[0].Value)
		}
	}
}
