package bloom

import "sync/atomic"

// GuardStats counts what a [Guard] has done since it was made, in this process.
type GuardStats struct {
	Gets          uint64 // ids asked for: calls of Get, and distinct ids of GetMulti
	Invalid       uint64 // Gets that Validate refused
	Rejected      uint64 // Gets that the filter answered: certainly no such row
	Hits          uint64 // Gets answered by a cached value
	NullHits      uint64 // Gets answered by a cached "no such row"
	Loads         uint64 // ids that were loaded: calls of Loader, and ids given to LoadMulti
	LoadsNotFound uint64 // of Loads: no such row, audits left out. LoadsNotFound / (LoadsNotFound + Rejected) is the measured false-positive rate while FailOpens stands still
	LoadErrors    uint64 // of Loads: failed, panicked or took too long
	SharedLoads   uint64 // Gets that waited for the load of another
	FailOpens     uint64 // Gets let through because filter or cache could not answer, or the filter is not trusted
	Fills         uint64 // values and nulls stored
	FillErrors    uint64 // values and nulls that could not be stored, or not be encoded
	Audits        uint64 // Gets of ids that the filter denied and that AuditRate chose to load all the same
	Anomalies     uint64 // rows found behind a certain "no", cached or loaded; not those that were registered a moment later
	Heals         uint64 // ids added to the filter because of that
	Overloads     uint64 // Gets refused because too many loads ran and waited
}

type guardCounters struct {
	gets, invalid, rejected, hits, nullHits, loads, loadsNotFound, loadErrors, sharedLoads,
	failOpens, fills, fillErrors, audits, anomalies, heals, overloads atomic.Uint64
}

// Stats returns the counts so far.
func (g *Guard[V]) Stats() GuardStats {
	c := &g.stats
	return GuardStats{
		Gets:          c.gets.Load(),
		Invalid:       c.invalid.Load(),
		Rejected:      c.rejected.Load(),
		Hits:          c.hits.Load(),
		NullHits:      c.nullHits.Load(),
		Loads:         c.loads.Load(),
		LoadsNotFound: c.loadsNotFound.Load(),
		LoadErrors:    c.loadErrors.Load(),
		SharedLoads:   c.sharedLoads.Load(),
		FailOpens:     c.failOpens.Load(),
		Fills:         c.fills.Load(),
		FillErrors:    c.fillErrors.Load(),
		Audits:        c.audits.Load(),
		Anomalies:     c.anomalies.Load(),
		Heals:         c.heals.Load(),
		Overloads:     c.overloads.Load(),
	}
}
