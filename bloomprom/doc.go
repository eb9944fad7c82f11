// Package bloomprom exports the statistics of guards and filters to Prometheus.
//
// A [Collector] has one set of counters, bloom_guard_*, for each [Guard], and one
// set of gauges, bloom_filter_*, for each [Filter]. They are told apart by the
// labels guard and filter. Two Collectors with different names can be registered
// side by side; a name that is taken makes Register fail.
//
// A guard's counters are of this process, so sum them over instances. A filter is
// shared: every instance reports the same, so take their max, not their sum.
//
// Describing a filter reads all of it, so a Collector does that at most once per
// [Options].Interval, and no scrape waits for it longer than [Options].Timeout.
// bloom_filter_up is 0 while the latest read failed, and then the filter's other
// gauges are left out; bloom_filter_info_errors_total says why.
//
// The Grafana dashboard in dashboard.json shows it all.
package bloomprom
