package bloomprom

import (
	"math"

	"github.com/bloomguard/bloom"
)

// guardCounters are the metrics bloom_guard_<name>_total, one for each field of
// bloom.GuardStats.
var guardCounters = []struct {
	name, help string
	value      func(*bloom.GuardStats) uint64
}{
	{"gets", "Ids asked for, by Get and GetMulti.",
		func(s *bloom.GuardStats) uint64 { return s.Gets }},
	{"invalid", "Gets whose id Validate refused.",
		func(s *bloom.GuardStats) uint64 { return s.Invalid }},
	{"rejected", "Gets that the filter answered: certainly no such row.",
		func(s *bloom.GuardStats) uint64 { return s.Rejected }},
	{"hits", "Gets answered by a cached value.",
		func(s *bloom.GuardStats) uint64 { return s.Hits }},
	{"null_hits", "Gets answered by a cached \"no such row\".",
		func(s *bloom.GuardStats) uint64 { return s.NullHits }},
	{"loads", "Ids that were loaded.",
		func(s *bloom.GuardStats) uint64 { return s.Loads }},
	{"loads_not_found", "Loads that found no such row, audits left out. Divided by them and rejected: the measured false-positive rate.",
		func(s *bloom.GuardStats) uint64 { return s.LoadsNotFound }},
	{"load_errors", "Loads that failed, panicked or took too long.",
		func(s *bloom.GuardStats) uint64 { return s.LoadErrors }},
	{"shared_loads", "Gets that waited for the load of another.",
		func(s *bloom.GuardStats) uint64 { return s.SharedLoads }},
	{"fail_opens", "Gets let through because filter or cache could not answer, or the filter is not trusted.",
		func(s *bloom.GuardStats) uint64 { return s.FailOpens }},
	{"fills", "Values and nulls stored in the cache.",
		func(s *bloom.GuardStats) uint64 { return s.Fills }},
	{"fill_errors", "Values and nulls that could not be encoded or stored.",
		func(s *bloom.GuardStats) uint64 { return s.FillErrors }},
	{"audits", "Gets of ids that the filter denied and that were loaded all the same.",
		func(s *bloom.GuardStats) uint64 { return s.Audits }},
	{"anomalies", "Rows found behind a certain \"no\", cached or loaded: a Register was left out, or the filter is damaged.",
		func(s *bloom.GuardStats) uint64 { return s.Anomalies }},
	{"heals", "Ids added to the filter because of an anomaly.",
		func(s *bloom.GuardStats) uint64 { return s.Heals }},
	{"overloads", "Gets refused because too many loads ran and waited.",
		func(s *bloom.GuardStats) uint64 { return s.Overloads }},
}

// filterGauges are the metrics bloom_filter_<name>. NaN is unknown, and left out.
var filterGauges = []struct {
	name, help string
	value      func(*bloom.Info) float64
}{
	{"fill_ratio", "Bits that are set, as a share of all (0 to 1).",
		func(i *bloom.Info) float64 { return i.Fill }},
	{"items", "Distinct items in the filter, estimated unless the server counts them.",
		func(i *bloom.Info) float64 { return float64(i.Items) }},
	{"capacity_items", "Items that the filter is sized for.",
		func(i *bloom.Info) float64 { return float64(i.Params.Capacity) }},
	{"false_positive_rate", "Share of absent items that the filter calls present now, as predicted from its items (0 to 1).",
		func(i *bloom.Info) float64 { return i.FPRate }},
	{"false_positive_rate_target", "Share of absent items that the filter calls present once it is at capacity (0 to 1).",
		func(i *bloom.Info) float64 { return i.Params.FPRate }},
	{"bytes", "Bytes that the filter takes on the server.",
		func(i *bloom.Info) float64 { return float64(i.Bytes) }},
	{"shards", "Keys that the filter is spread over.",
		func(i *bloom.Info) float64 { return float64(i.Shards) }},
	{"sub_filters", "Filters that the server has stacked up; above 1 the filter has outgrown its capacity.",
		func(i *bloom.Info) float64 { return float64(i.SubFilters) }},
	{"generation", "Number of the filter's generation, which grows by one with every rebuild or reset.",
		func(i *bloom.Info) float64 {
			if i.Generation == 0 {
				return math.NaN()
			}
			return float64(i.Generation)
		}},
	{"created_timestamp_seconds", "Unix time when this generation was made, by the server's clock.",
		func(i *bloom.Info) float64 {
			if i.Created.IsZero() {
				return math.NaN()
			}
			return float64(i.Created.UnixMicro()) / 1e6
		}},
}
