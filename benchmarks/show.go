package main

import (
	"fmt"
	"strings"
)

func latencyTables(s *section) []table {
	t := table{name: "latency", header: []string{"", "p50, µs", "p99, µs", "p50 over PING"},
		note: fmt.Sprintf("One caller, single look-ups, median of the rounds; in brackets the rounds' range. %s items stored, half of the look-ups of others.", s.Setting["items"])}
	ping := s.find(namePing, "", "p50")
	for _, subject := range s.subjects() {
		p50, p99 := s.find(subject, "", "p50"), s.find(subject, "", "p99")
		t.rows = append(t.rows, []string{subject, withSpread(p50), withSpread(p99), times(p50, ping)})
	}
	return []table{t}
}

func throughputTables(s *section) []table {
	var all []table
	for _, via := range []string{"plain", "AutoPipeliner"} {
		var cases, heads []string
		for _, c := range s.cases("look-ups") {
			if n, ok := strings.CutPrefix(c, via+", "); ok {
				cases = append(cases, c)
				heads = append(heads, n+" callers")
			}
		}
		title := map[string]string{"plain": "Look-ups a second, ordinary client", "AutoPipeliner": "Look-ups a second through `AutoPipeliner`"}[via]
		all = append(all, s.pivot("throughput-"+strings.ToLower(via), title, "look-ups", cases, heads, plain))
	}
	t := table{name: "throughput-ratios", title: "128 callers", header: []string{"", "AutoPipeliner over plain client", "plain over go-zero", "AutoPipeliner over go-zero"}}
	zero := s.find(nameZero, "plain, 128", "look-ups")
	for _, subject := range s.subjects() {
		p, a := s.find(subject, "plain, 128", "look-ups"), s.find(subject, "AutoPipeliner, 128", "look-ups")
		t.rows = append(t.rows, []string{subject, times(a, p), times(p, zero), times(a, zero)})
	}
	return append(all, t)
}

func batchTables(s *section) []table {
	var all []table
	for _, x := range []struct{ name, title, metric string }{
		{"batch-server", "Server CPU, µs per item", "server CPU"},
		{"batch-time", "Time, µs per item", "time"},
		{"batch-client", "Client CPU, µs per item", "client CPU"},
		{"batch-allocations", "Allocations of the client per item", "allocations"},
	} {
		cases := s.cases(x.metric)
		var heads []string
		for _, c := range cases {
			heads = append(heads, strings.TrimPrefix(c, "batch "))
		}
		format := plain
		if x.metric == "server CPU" {
			format = withSpread
		}
		all = append(all, s.pivot(x.name, x.title, x.metric, cases, heads, format))
	}
	gets := s.find(nameGet, batchOf(1000), "server CPU")
	t := table{name: "batch-items", title: "One item", header: []string{"", "bytes in Redis", "with the allocator's rounding", "sent + received, bytes, single", "in a batch of 1000", "round trips, single", "for 1000", "server CPU in a batch of 1000, over GET"}}
	for _, subject := range s.subjects() {
		cell := func(c, metric string) string { return plain(s.find(subject, c, metric)) }
		both := func(c string) string {
			return strings.ReplaceAll(cell(c, "bytes sent")+" + "+cell(c, "bytes received"), "- + -", "-")
		}
		t.rows = append(t.rows, []string{subject, cell("", "size"), cell("", "memory"), both(batchOf(1)), both(batchOf(1000)),
			cell(batchOf(1), "round trips"), cell(batchOf(1000), "round trips"), times(s.find(subject, batchOf(1000), "server CPU"), gets)})
	}
	return append(all, t)
}

func growthTables(s *section) []table {
	var all []table
	for _, axis := range []struct{ name, prefix string }{{"size", "n = "}, {"rate", "p = "}} {
		for _, x := range []struct{ name, title, metric string }{
			{"memory", "Bytes in Redis per item", "size"},
			{"one", "One look-up, µs", "one look-up"},
			{"server", "Server CPU, µs per item of a batch of 1000", "server CPU, batch of 1000"},
		} {
			var cases []string
			for _, c := range s.cases(x.metric) {
				if strings.HasPrefix(c, axis.prefix) {
					cases = append(cases, c)
				}
			}
			if axis.name == "size" && x.metric == "size" {
				continue // does not change with the size
			}
			all = append(all, s.pivot("growth-"+axis.name+"-"+x.name, x.title, x.metric, cases, growthHeads(cases), plain))
		}
	}
	return all
}

func growthHeads(cases []string) []string {
	powers := strings.NewReplacer("10000000000", "10¹⁰", "100000000", "10⁸", "10000000", "10⁷", "1000000", "10⁶", "100000", "10⁵", "10000", "10⁴",
		"p = 0.1", "10 %", "p = 0.01", "1 %", "p = 0.001", "0.1 %", "p = 0.0001", "0.01 %", "1e-05", "10⁻⁵", "1e-06", "10⁻⁶")
	exact := map[string]string{"p = 0.1": "10 %", "p = 0.01": "1 %", "p = 0.001": "0.1 %", "p = 0.0001": "0.01 %"}
	heads := make([]string, len(cases))
	for i, c := range cases {
		if heads[i] = exact[c]; heads[i] == "" {
			heads[i] = powers.Replace(c)
		}
	}
	return heads
}

func loadTables(s *section) []table {
	t := table{name: "load", header: []string{"", "items a second", "seconds", "server CPU per item, µs", "GET p50 meanwhile, µs", "p99", "p99 over idle", "worst"},
		note: fmt.Sprintf("A `Rebuild` reads %s items into a new filter for a ninth more, at 1 %%, and publishes it; the others add for %s to a filter of that size. The GETs are another client's, on its own connection; what they cost is in the server CPU too.", s.Setting["items of a Rebuild"], strings.TrimPrefix(s.Setting["items by adds"], "as many as come in "))}
	idle := s.find(nameIdle, "", "GET p99 meanwhile")
	for _, subject := range s.subjects() {
		cell := func(metric string) string { return plain(s.find(subject, "", metric)) }
		p99 := s.find(subject, "", "GET p99 meanwhile")
		t.rows = append(t.rows, []string{subject, cell("items"), cell("took"), cell("server CPU"), cell("GET p50 meanwhile"), plain(p99), times(p99, idle), cell("GET worst meanwhile")})
	}
	return []table{t}
}

func guardTables(s *section) []table {
	var all []table
	titles := map[string]string{
		caseHit:      "A row that is cached",
		caseNull:     "An id without a row that the filter lets through, asked for again",
		caseRejected: "An id that never was, each time another one",
		caseLoad:     "A row that is loaded and cached",
	}
	for _, what := range guardCases {
		t := table{name: "guard-" + strings.ReplaceAll(what, " ", "-"), title: titles[what] + ", p50 in µs", header: []string{""}}
		for _, d := range delays {
			t.header = append(t.header, delayName(d))
		}
		t.header = append(t.header, "no delay, over GET", "round trips", "loads")
		last := what + ", " + delayName(delays[len(delays)-1])
		base := s.find(nameGet, what+", "+delayName(0), "p50")
		for _, subject := range s.subjects() {
			cells := []string{subject}
			for _, d := range delays {
				cells = append(cells, plain(s.find(subject, what+", "+delayName(d), "p50")))
			}
			cells = append(cells, times(s.find(subject, what+", "+delayName(0), "p50"), base))
			cells = append(cells, plain(s.find(subject, last, "round trips")), plain(s.find(subject, last, "loads")))
			t.rows = append(t.rows, cells)
		}
		all = append(all, t)
	}
	return all
}

func localTables(s *section) []table {
	t := table{name: "local", header: []string{"", "look-up, ns", "over " + namePeer, "allocations", "add, ns", "over " + namePeer},
		note: fmt.Sprintf("%s items at 1 %% in this process, look-ups of items that are there, so all k bits are read.", s.Setting["items"])}
	base, baseAdd := s.find(namePeer, "", "look-up"), s.find(namePeer, "", "add")
	for _, subject := range s.subjects() {
		r, add := s.find(subject, "", "look-up"), s.find(subject, "", "add")
		t.rows = append(t.rows, []string{subject, withSpread(r), times(r, base),
			plain(s.find(subject, "", "allocations")), plain(add), times(add, baseAdd)})
	}
	return []table{t}
}

func accuracyTables(s *section) []table {
	what := table{name: "accuracy-fill", title: "What a filter for 1 % really does", header: []string{"filled to", "Classic, predicted", "Classic", "Blocked, predicted", "Blocked", nameModule, nameScaling}}
	for _, fill := range []string{"0.5", "0.8", "1", "1.5", "2"} {
		c := "p = 0.01, filled to " + fill
		cells := []string{fill + " × capacity"}
		for _, subject := range []string{"Classic", "Blocked", nameModule, nameScaling} {
			if r := s.find(subject, c, "predicted rate"); r != nil && (subject == "Classic" || subject == "Blocked") {
				cells = append(cells, percent(r.Values[0]))
			}
			r := s.find(subject, c, "measured rate")
			switch {
			case r != nil:
				cells = append(cells, percent(r.Values[0]))
			case subject == nameModule && (fill == "1.5" || fill == "2"):
				cells = append(cells, "full: refuses")
			default:
				cells = append(cells, "-")
			}
		}
		what.rows = append(what.rows, cells)
	}
	at := table{name: "accuracy-rates", title: "At capacity: measured over predicted, and by how many standard deviations of counting they differ",
		header: []string{"rate asked for", "Classic", "Blocked", nameModule}}
	for _, p := range full().rates {
		c := fmt.Sprintf("p = %g, filled to 1", p)
		cells, any := []string{percent(p)}, false
		for _, subject := range []string{"Classic", "Blocked", nameModule} {
			m, q, n := s.find(subject, c, "measured rate"), s.find(subject, c, "predicted rate"), s.find(subject, c, "look-ups")
			if m == nil {
				cells = append(cells, "-")
				continue
			}
			any = true
			cells = append(cells, fmt.Sprintf("%.3f (%+.1f σ)", m.Values[0]/q.Values[0], sigmas(m.Values[0], q.Values[0], n.Values[0])))
		}
		if any {
			at.rows = append(at.rows, cells)
		}
	}
	return []table{what, at}
}
