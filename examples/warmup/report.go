package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/bloomguard/bloom"
)

const intro = `Load the ids of a table into a Bloom filter: built beside the live one, checked, swapped in whole.

`

const yourOwn = `
Your own, first into an embedded Redis, then into yours (-h: all flags and exit codes):
  go run . -dsn mysql://user:password@host/db -table users -verify
  go run . -dsn postgres://user:password@host/db -table users -redis host:6379 -key users -verify
`

// fact writes one line of what is, or was, done.
func (j *job) fact(name, format string, args ...any) {
	fmt.Fprintf(j.out, "%-10s%s\n", name, fmt.Sprintf(format, args...))
}

func (j *job) writeSetup(capacity uint64) {
	rows := ""
	if j.table.rows > 0 {
		rows = grouped(j.table.rows) + " rows, "
	}
	j.fact("table", "%s.%s: %s%s", j.table.name, j.table.column, rows, j.table.db.where)
	j.fact("redis", "%s", j.store.where())
	j.fact("filter", "%q, %v, for %s ids at %s", j.o.key, j.o.layout, grouped(capacity), percent(j.o.fpRate))
}

func (j *job) writeReport(r bloom.RebuildReport) {
	if r.Skipped {
		j.fact("skipped", "generation %d of %q is younger than %v", r.Generation, j.o.key, j.o.maxAge)
		return
	}
	j.fact("loaded", "generation %d of %q", r.Generation, j.o.key)
	j.fact("rows", "%s", grouped(r.Items))
	j.fact("distinct", "%s, estimated from the bits", grouped(r.Distinct))
	j.fact("bytes", "%s (%s)", grouped(r.Bytes), size(r.Bytes))
	j.fact("rate", "%s of absent ids are let through; %s with %s ids",
		percent(r.Params.FPRateAt(r.Distinct)), percent(r.Params.FPRate), grouped(r.Params.Capacity))
	j.fact("seconds", "%.1f in all", r.Elapsed.Seconds())
	if r.Distinct > r.Params.Capacity {
		j.fact("WARNING", "the table has outgrown the filter: load it again with a larger -capacity")
	}
}

func (j *job) writeVerified(r bloom.VerifyReport) {
	missing := "none is missing"
	if r.Missing > 0 {
		missing = grouped(r.Missing) + " are MISSING"
	}
	j.fact("verified", "%s rows, %s, in %v", grouped(r.Checked), missing, r.Elapsed.Round(10*time.Millisecond))
}

// grouped writes 1234567 as 1,234,567.
func grouped(n uint64) string {
	digits := strconv.FormatUint(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
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
