package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

const intro = `A cache-penetration attack, three ways.
A request for an id that does not exist always misses the cache, so it reaches the database. The
same requests go through a plain cache, through a cache that also stores "not there", and through
bloom's Guard, which asks a Bloom filter first.

`

// report is all that the run found out. The Guard is the last outcome.
type report struct {
	items    *catalog
	filter   *builtFilter
	set      setSize
	attack   *attack
	outcomes []outcome
}

func (r *report) guard() *outcome { return &r.outcomes[len(r.outcomes)-1] }

// measured is the share of absent ids that the filter let through.
func (r *report) measured() float64 {
	return float64(r.guard().queriesAbsent) / float64(r.attack.absent())
}

func (r *report) writeSetup(out io.Writer, st *store, o options) {
	where := "embedded (miniredis)"
	if st.embedded == nil {
		where = st.rdb.Options().Addr + ", keys " + st.prefix + "*, removed at the end"
	}
	duplicates := ""
	if r.items.duplicates > 0 {
		duplicates = fmt.Sprintf(", duplicates skipped: %s", grouped(r.items.duplicates))
	}
	a := r.attack
	fmt.Fprintf(out, "items     %s (%s%s)\n", grouped(len(r.items.names)), r.items.source, duplicates)
	fmt.Fprintf(out, "redis     %s\n", where)
	fmt.Fprintf(out, "filter    sized for %s, loaded by Rebuild in %v\n",
		percent(o.fpRate), r.filter.took.Round(time.Millisecond))
	fmt.Fprintf(out, "requests  %s, %d at a time: %s random ids, %s real ids with one character\n"+
		"          changed, %s real ids\n\n",
		grouped(len(a.ids)), o.workers, grouped(a.random), grouped(a.nearMisses), grouped(a.real))
}

func (r *report) writeTable(out io.Writer) {
	absent := grouped(r.attack.absent())
	r.row(out, "", func(o *outcome) string { return o.name })
	r.row(out, "requests", func(*outcome) string { return grouped(len(r.attack.ids)) })
	r.row(out, "  for ids that do not exist", func(*outcome) string { return absent })
	r.row(out, "database queries", func(o *outcome) string { return grouped(o.queries()) })
	r.row(out, "  for ids that do not exist", func(o *outcome) string { return grouped(o.queriesAbsent) })
	r.row(out, "cache keys created", func(o *outcome) string { return grouped(o.keys) })
	r.row(out, "wrong answers", func(o *outcome) string { return grouped(o.wrong) })
	r.guardRow(out, "false-positive rate, measured", percent(r.measured()))
	r.guardRow(out, "false-positive rate, predicted", percent(r.filter.predicted))
	r.guardRow(out, "bytes of the filter", grouped(r.filter.info.Bytes))
	r.guardRow(out, "bytes of a Redis set of the items *", grouped(r.set.bytes))
	r.row(out, "round trips to Redis per request", func(o *outcome) string {
		return fmt.Sprintf("%.2f", float64(o.trips)/float64(len(r.attack.ids)))
	})
	fmt.Fprintf(out, "* %s\n", r.set.how)
}

// row writes one line of the table.
func (r *report) row(out io.Writer, label string, cell func(*outcome) string) {
	fmt.Fprintf(out, "%-36s", label)
	for i := range r.outcomes {
		fmt.Fprintf(out, "%17s", cell(&r.outcomes[i]))
	}
	fmt.Fprintln(out)
}

// guardRow writes a line about the filter, which only the Guard has.
func (r *report) guardRow(out io.Writer, label, value string) {
	r.row(out, label, func(o *outcome) string {
		if o == r.guard() {
			return value
		}
		return "-"
	})
}

func (r *report) writeConclusion(out io.Writer) {
	plain, nulls, guard := &r.outcomes[0], &r.outcomes[1], r.guard()
	fmt.Fprintf(out, `
The Guard let %s of %s absent ids through to the database (%s, predicted %s).
No protection let %s through, null caching %s.
Null caching left %s keys in Redis, the Guard %s.
The filter takes %s, a Redis set of the same items %s (%.1f times as much).
`,
		grouped(guard.queriesAbsent), grouped(r.attack.absent()), percent(r.measured()), percent(r.filter.predicted),
		grouped(plain.queriesAbsent), grouped(nulls.queriesAbsent), grouped(nulls.keys), grouped(guard.keys),
		size(r.filter.info.Bytes), size(r.set.bytes), float64(r.set.bytes)/float64(r.filter.info.Bytes))
	if r.anyOutlived(nullTTL * 9 / 10) { // the Guard lets some expire that much earlier
		fmt.Fprintf(out, "A way took about as long as a null lives (%v): some had expired before the keys were counted.\n", nullTTL)
	}
}

func (r *report) anyOutlived(d time.Duration) bool {
	return slices.ContainsFunc(r.outcomes, func(o outcome) bool { return o.took > d })
}

func (r *report) writeFooter(out io.Writer, o options, took time.Duration) {
	fmt.Fprintln(out)
	if r.verdict() == nil {
		fmt.Fprintf(out, "Checked: no wrong answer, and at most %.0f absent ids let through (else the exit status is 1).\n", r.limit())
	}
	fmt.Fprintf(out, "Took %.1f s. The same attack again: add -seed %d\n", took.Seconds(), o.seed)
	fmt.Fprintln(out, "Your own server and ids: go run ./examples/quickstart -redis host:6379 -items ids.txt.gz")
}

// grouped writes 1234567 as 1,234,567.
func grouped[N int | int64 | uint64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// percent keeps three significant digits of small rates.
func percent(rate float64) string {
	if rate > 0 && rate < 0.001 {
		return fmt.Sprintf("%.3g %%", 100*rate)
	}
	return fmt.Sprintf("%.2f %%", 100*rate)
}

func size(bytes uint64) string {
	switch {
	case bytes < 1<<10:
		return fmt.Sprintf("%d bytes", bytes)
	case bytes < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}
