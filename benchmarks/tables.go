package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A table is shown on the terminal and between the markers of its name in the
// documentation.
type table struct {
	name   string // of the markers
	title  string
	header []string
	rows   [][]string
	note   string
}

// markdown aligns the columns, so that it reads well unrendered too.
func (t table) markdown() string {
	width := make([]int, len(t.header))
	for _, r := range append([][]string{t.header}, t.rows...) {
		for i, cell := range r {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	if t.title != "" {
		fmt.Fprintf(&b, "%s:\n\n", t.title)
	}
	line := func(cells []string) {
		for i, w := range width {
			cell := ""
			if i < len(cells) {
				cell = cells[i]
			}
			pad := strings.Repeat(" ", w-utf8.RuneCountInString(cell))
			if i == 0 {
				fmt.Fprintf(&b, "| %s%s |", cell, pad)
			} else {
				fmt.Fprintf(&b, " %s%s |", pad, cell)
			}
		}
		b.WriteString("\n")
	}
	line(t.header)
	for i, w := range width {
		if i == 0 {
			fmt.Fprintf(&b, "|%s|", strings.Repeat("-", w+2))
		} else {
			fmt.Fprintf(&b, "%s:|", strings.Repeat("-", w+1))
		}
	}
	b.WriteString("\n")
	for _, r := range t.rows {
		line(r)
	}
	if t.note != "" {
		fmt.Fprintf(&b, "\n%s\n", t.note)
	}
	return b.String()
}

// writeTables shows what a part has measured.
func writeTables(out io.Writer, p part, all results) {
	if s := all[p.name]; s != nil {
		for _, t := range p.tables(s) {
			fmt.Fprintln(out, t.markdown())
		}
	}
}

// pivot is a table of one metric: a line for each subject, a column for each case.
func (s *section) pivot(name, title, metric string, cases, heads []string, format func(*row) string) table {
	t := table{name: name, title: title, header: append([]string{""}, heads...)}
	for _, subject := range s.subjects() {
		cells, any := []string{subject}, false
		for _, c := range cases {
			r := s.find(subject, c, metric)
			if r == nil {
				cells = append(cells, "-")
				continue
			}
			cells, any = append(cells, format(r)), true
		}
		if any {
			t.rows = append(t.rows, cells)
		}
	}
	return t
}

// cases returns the circumstances of a metric, in the order of their first appearance.
func (s *section) cases(metric string) (names []string) {
	seen := map[string]bool{}
	for _, r := range s.Rows {
		if r.Metric == metric && !seen[r.Case] {
			seen[r.Case] = true
			names = append(names, r.Case)
		}
	}
	return names
}

// plain shows a median.
func plain(r *row) string {
	if r == nil {
		return "-"
	}
	return number(r.spread().median)
}

// withSpread shows a median with the least and greatest round.
func withSpread(r *row) string {
	if r == nil {
		return "-"
	}
	x := r.spread()
	if len(r.Values) == 1 {
		return number(x.median)
	}
	return fmt.Sprintf("%s (%s–%s)", number(x.median), number(x.low), number(x.high))
}

// times shows a quotient of two rows with its spread.
func times(r, base *row) string {
	x, ok := r.over(base)
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%.2f × (%.2f–%.2f)", x.median, x.low, x.high)
}

// number shows three digits, large ones in groups.
func number(v float64) string {
	a := math.Abs(v)
	switch {
	case math.IsNaN(v):
		return "-"
	case a == 0:
		return "0"
	case a >= 1000:
		digits := int(math.Log10(a)) - 2
		unit := math.Pow(10, float64(digits))
		return grouped(int64(math.Round(v/unit) * unit))
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.01:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// percent shows a share.
func percent(v float64) string {
	v *= 100
	switch {
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64) + " %"
	case v >= 0.01:
		return strconv.FormatFloat(v, 'f', 2, 64) + " %"
	case v == 0:
		return "0"
	}
	return strconv.FormatFloat(v, 'g', 2, 64) + " %"
}
