package main

import (
	"fmt"
	"math"
	"strings"
)

// A target is a figure of the design that a run must reach.
type target struct {
	what   string
	limit  float64
	atMost bool
	unit   string
	get    func(all results) (spread, bool)
}

// quotient is of two rows of a section.
func quotient(part, subject, base, circumstance, metric string) func(results) (spread, bool) {
	return func(all results) (spread, bool) {
		s := all[part]
		return s.find(subject, circumstance, metric).over(s.find(base, circumstance, metric))
	}
}

func faster(subject, base, over, under string) func(results) (spread, bool) {
	return func(all results) (spread, bool) {
		s := all["throughput"]
		return s.find(subject, over, "look-ups").over(s.find(base, under, "look-ups"))
	}
}

func just(part, subject, circumstance, metric string) func(results) (spread, bool) {
	return func(all results) (spread, bool) {
		r := all[part].find(subject, circumstance, metric)
		if r == nil {
			return spread{}, false
		}
		return r.spread(), true
	}
}

var hitNow = caseHit + ", " + delayName(0)

var targets = []target{
	{"Exists, Blocked, one caller: p50 over PING", 1.2, true, "×", quotient("latency", nameBlocked, namePing, "", "p50")},
	{"Exists, Classic, one caller: p50 over PING", 1.4, true, "×", quotient("latency", nameClassic, namePing, "", "p50")},
	{"Guard.Get of a cached row, Blocked: p50 over GET", 1.35, true, "×", quotient("guard", nameGuardBlocked, nameGet, hitNow, "p50")},
	{"Guard.Get of a cached row, Classic: p50 over GET", 1.5, true, "×", quotient("guard", nameGuardClassic, nameGet, hitNow, "p50")},
	{"ExistsMulti of 1000, Blocked: server CPU per item over a pipelined GET", 3.5, true, "×", quotient("batch", nameBlocked, nameGet, batchOf(1000), "server CPU")},
	{"ExistsMulti of 1000, Classic: server CPU per item over a pipelined GET", 11, true, "×", quotient("batch", nameClassic, nameGet, batchOf(1000), "server CPU")},
	{"Exists, Blocked, 128 callers: AutoPipeliner over plain client", 4, false, "×", faster(nameBlocked, nameBlocked, "AutoPipeliner, 128", "plain, 128")},
	{"Guard.Get of a cached row, 128 callers: AutoPipeliner over plain client", 3, false, "×", faster(nameGuard, nameGuard, "AutoPipeliner, 128", "plain, 128")},
	{"Exists, Blocked, 128 callers: plain client over go-zero", 1.3, false, "×", faster(nameBlocked, nameZero, "plain, 128", "plain, 128")},
	{"Exists, Blocked, 128 callers: AutoPipeliner over go-zero", 5, false, "×", faster(nameBlocked, nameZero, "AutoPipeliner, 128", "plain, 128")},
	{"Memory, Classic: look-up over " + namePeer, 1, true, "×", quotient("local", "Memory, Classic", namePeer, "", "look-up")},
	{"Memory, Blocked: look-up over " + namePeer, 0.4, true, "×", quotient("local", "Memory, Blocked", namePeer, "", "look-up")},
	{"Memory, Classic: allocations of a look-up", 0, true, "", just("local", "Memory, Classic", "", "allocations")},
	{"Memory, Blocked: allocations of a look-up", 0, true, "", just("local", "Memory, Blocked", "", "allocations")},
	{"Exists, Blocked: allocations beyond those of the same GETRANGE by go-redis", 3, true, "", func(all results) (spread, bool) {
		s := all["batch"]
		r, base := s.find(nameBlocked, batchOf(1), "allocations"), s.find(nameRange, batchOf(1), "allocations")
		if r == nil || base == nil {
			return spread{}, false
		}
		d := r.spread().median - base.spread().median
		return spread{d, d, d}, true
	}},
	{"Rebuild, Classic, in all", 5, true, "s", just("load", nameRebuilds+nameClassic, "", "took")},
	{"Rebuild, Blocked, in all", 5, true, "s", just("load", nameRebuilds+nameBlocked, "", "took")},
	{"Verify, Classic, items a second", 500_000, false, "", just("load", nameVerifies+nameClassic, "", "items")},
	{"Verify, Blocked, items a second", 500_000, false, "", just("load", nameVerifies+nameBlocked, "", "items")},
	{"Measured rate at capacity over 1.1 × predicted + 4 σ, the worst of all layouts and rates", 1, true, "×", worstRate},
}

// worstRate is the greatest quotient of a measured rate and what it may be.
func worstRate(all results) (spread, bool) {
	s, worst := all["accuracy"], math.Inf(-1)
	if s == nil {
		return spread{}, false
	}
	for _, r := range s.Rows {
		if r.Metric != "measured rate" || !strings.HasSuffix(r.Case, "filled to 1") {
			continue
		}
		p, n := s.value(r.Subject, r.Case, "predicted rate"), s.value(r.Subject, r.Case, "look-ups")
		worst = max(worst, r.Values[0]/(1.1*p+4*math.Sqrt(p*(1-p)/n)))
	}
	return spread{worst, worst, worst}, !math.IsInf(worst, 0)
}

func targetTable(all results) table {
	t := table{name: "targets", header: []string{"", "shall be", "is", ""}}
	for _, x := range targets {
		limit := "at least "
		if x.atMost {
			limit = "at most "
		}
		cells := []string{x.what, strings.TrimSpace(limit + number(x.limit) + " " + x.unit), "not measured", ""}
		if v, ok := x.get(all); ok {
			cells[2] = strings.TrimSpace(number(v.median) + " " + x.unit)
			if v.low != v.high {
				cells[2] += fmt.Sprintf(" (%s–%s)", number(v.low), number(v.high))
			}
			cells[3] = "**missed**"
			if x.atMost && v.median <= x.limit || !x.atMost && v.median >= x.limit {
				cells[3] = "reached"
			}
		}
		t.rows = append(t.rows, cells)
	}
	return t
}

// overview are the tables that take from more than one section.
func overview(all results) []table {
	summary := table{name: "summary", header: []string{"", "bytes of Redis per item", "one look-up, p50", "128 callers, look-ups a second",
		"through `AutoPipeliner`", "server CPU per item of a batch of 1000", "\"no\" is certain"}}
	latency, throughput, batch := all["latency"], all["throughput"], all["batch"]
	if latency == nil || throughput == nil || batch == nil {
		return []table{targetTable(all), backends(all)}
	}
	for _, subject := range latency.subjects() {
		if subject == namePing || subject == nameRange {
			continue
		}
		certain := "no"
		switch subject {
		case nameClassic, nameBlocked, nameModule:
			certain = "**yes**"
		case nameGet:
			certain = ""
		}
		cell := func(s *section, circumstance, metric, unit string) string {
			if v := s.value(subject, circumstance, metric); !math.IsNaN(v) {
				return strings.TrimSpace(number(v) + " " + unit)
			}
			return "-"
		}
		single := cell(batch, batchOf(1000), "server CPU", "µs")
		if subject == nameZero {
			single += " (no batches)"
		}
		summary.rows = append(summary.rows, []string{subject, cell(batch, "", "size", ""), cell(latency, "", "p50", "µs"),
			cell(throughput, "plain, 128", "look-ups", ""), cell(throughput, "AutoPipeliner, 128", "look-ups", ""), single, certain})
	}
	return []table{targetTable(all), backends(all), summary}
}

// backends is what there is to choose from.
func backends(all results) table {
	t := table{name: "backends", header: []string{""}}
	names := []string{nameClassic, nameBlocked, nameModule}
	t.header = append(t.header, names...)
	for _, x := range []struct{ what, part, prefix, circumstance, metric string }{
		{"Bytes in Redis per item", "batch", "", "", "size"},
		{"Server CPU per item, `ExistsMulti` of 1000, µs", "batch", "", batchOf(1000), "server CPU"},
		{"Server CPU, one `Exists`, µs", "batch", "", batchOf(1), "server CPU"},
		{"Server CPU per item, `AddMulti`, µs", "load", nameAdds, "", "server CPU"},
		{"Server CPU per item, `Rebuild`, µs", "load", nameRebuilds, "", "server CPU"},
		{"`Rebuild`, items a second", "load", nameRebuilds, "", "items"},
	} {
		cells := []string{x.what}
		for _, subject := range names {
			cells = append(cells, number(all[x.part].value(x.prefix+subject, x.circumstance, x.metric)))
		}
		t.rows = append(t.rows, cells)
	}
	return t
}

// sentences are figures in running text.
func sentences(all results) map[string]string {
	out := map[string]string{}
	batch := all["batch"]
	if r, ok := batch.find(nameBlocked, batchOf(1000), "server CPU").over(batch.find(nameModule, batchOf(1000), "server CPU")); ok {
		text := fmt.Sprintf("A batch of 1000 costs the server %.1f times as much with Blocked as with RedisBloom", r.median)
		if c, ok := batch.find(nameClassic, batchOf(1000), "server CPU").over(batch.find(nameModule, batchOf(1000), "server CPU")); ok {
			text += fmt.Sprintf(", with Classic %.0f times", c.median)
		}
		if one, ok := batch.find(nameBlocked, batchOf(1), "server CPU").over(batch.find(nameModule, batchOf(1), "server CPU")); ok {
			text += fmt.Sprintf("; a single look-up with Blocked costs %.2f of one with RedisBloom", one.median)
		}
		out["module-batches"] = text + ". Take RedisBloom where the module is there and most look-ups come in large batches."
	}
	load := all["load"]
	if r := load.find(nameRebuilds+nameBlocked, "", "items"); r != nil {
		text := fmt.Sprintf("A `Rebuild` reads %s items a second", number(r.spread().median))
		if m := load.find(nameAdds+nameBlocked, "", "items"); m != nil {
			text += fmt.Sprintf(", `AddMulti` adds %s", number(m.spread().median))
		}
		if m := load.find("BF.MADD, bare", "", "items"); m != nil {
			text += fmt.Sprintf(", `BF.MADD` %s", number(m.spread().median))
		}
		out["load-sentence"] = text + "."
	}
	return out
}
