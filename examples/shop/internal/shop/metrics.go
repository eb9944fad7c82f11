package shop

import (
	"net/http"

	"github.com/bloomguard/bloom/bloomprom"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

type metrics struct {
	registry *prometheus.Registry
	duration *prometheus.HistogramVec
}

func newMetrics(s *Shop) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "shop_request_duration_seconds",
			Help:    "Time to answer a request for products.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 14), // to 2 s
		}, []string{"method", "code"}),
	}
	m.registry.MustRegister(
		m.duration,
		bloomprom.NewCollector(
			map[string]bloomprom.Guard{"products": s.Guard},
			map[string]bloomprom.Filter{"products": s.Filter}, nil),
		collectors.NewDBStatsCollector(s.DB.DB, "products"),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	for result, value := range map[string]func(Lookups) uint64{
		"found":  func(l Lookups) uint64 { return l.Found },
		"absent": func(l Lookups) uint64 { return l.Absent },
		"failed": func(l Lookups) uint64 { return l.Failed },
	} {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name:        "shop_database_lookups_total",
			Help:        "Products that the database was asked for.",
			ConstLabels: prometheus.Labels{"result": result},
		}, func() float64 { return float64(value(s.DB.Lookups())) }))
	}
	return m
}

func (m *metrics) observe(next http.Handler) http.Handler {
	return promhttp.InstrumentHandlerDuration(m.duration, next)
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}
