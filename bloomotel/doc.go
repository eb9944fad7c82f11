// Package bloomotel exports the statistics of guards and filters as OpenTelemetry
// metrics.
//
// [Register] observes one set of counters, bloom.guard.*, for each [Guard], and one
// set of gauges, bloom.filter.*, for each [Filter]. They are told apart by the
// attributes guard and filter. Names and units are such that the standard
// translation to Prometheus makes of them the names that the package bloomprom has,
// so its Grafana dashboard shows these too.
//
// A guard's counters are of this process, so sum them over instances. A filter is
// shared: every instance reports the same, so take their max, not their sum.
//
// Describing a filter reads all of it, so that is done at most once per
// [Options].Interval, and no collection waits for it longer than [Options].Timeout.
// bloom.filter.up is 0 while the latest read failed, and then the filter's other
// gauges are left out; bloom.filter.info_errors says why.
package bloomotel
