package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A row is one thing that was measured: a subject, under circumstances, in a
// metric, once in each round. Rounds are interleaved: value i of all rows of a
// section comes from the same few seconds, so that quotients of rows mean something
// on a noisy machine, where the values themselves do not.
type row struct {
	Subject string    `json:"subject"`
	Case    string    `json:"case,omitempty"`
	X       float64   `json:"x,omitempty"` // the number in Case, for charts
	Metric  string    `json:"metric"`
	Unit    string    `json:"unit"`
	Values  []float64 `json:"values"`
}

// A section is what one part of the benchmark has measured.
type section struct {
	Name    string            `json:"section"`
	Machine machine           `json:"machine"`
	Setting map[string]string `json:"setting"` // sizes, counts, durations
	Rows    []*row            `json:"rows"`
}

// record adds the value of one more round.
func (s *section) record(subject, circumstance string, x float64, metric, unit string, value float64) {
	r := s.find(subject, circumstance, metric)
	if r == nil {
		r = &row{Subject: subject, Case: circumstance, X: x, Metric: metric, Unit: unit}
		s.Rows = append(s.Rows, r)
	}
	r.Values = append(r.Values, round4(value))
}

func (s *section) find(subject, circumstance, metric string) *row {
	if s == nil {
		return nil
	}
	for _, r := range s.Rows {
		if r.Subject == subject && r.Case == circumstance && r.Metric == metric {
			return r
		}
	}
	return nil
}

// subjects returns the subjects in the order of their first appearance.
func (s *section) subjects() (names []string) {
	for _, r := range s.Rows {
		if !slices.Contains(names, r.Subject) {
			names = append(names, r.Subject)
		}
	}
	return names
}

// round4 keeps four significant digits: more would be noise.
func round4(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// A spread is a median with the least and the greatest round.
type spread struct{ median, low, high float64 }

func (r *row) spread() spread { return spreadOf(r.Values) }

func spreadOf(values []float64) spread {
	v := slices.Clone(values)
	slices.Sort(v)
	return spread{median(v), v[0], v[len(v)-1]}
}

func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// over is the quotient of two rows, round by round.
func (r *row) over(base *row) (spread, bool) {
	if r == nil || base == nil || len(r.Values) != len(base.Values) || len(r.Values) == 0 {
		return spread{}, false
	}
	q := make([]float64, len(r.Values))
	for i := range q {
		q[i] = r.Values[i] / base.Values[i]
	}
	return spreadOf(q), true
}

func (s *section) save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var b strings.Builder
	// One row a line: small, and a change of one value is a change of one line.
	head, err := json.MarshalIndent(struct {
		Name    string            `json:"section"`
		Machine machine           `json:"machine"`
		Setting map[string]string `json:"setting"`
	}{s.Name, s.Machine, s.Setting}, "", "  ")
	if err != nil {
		return err
	}
	b.WriteString(strings.TrimSuffix(string(head), "\n}") + ",\n  \"rows\": [\n")
	for i, r := range s.Rows {
		line, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("%s, %s, %s: %w", r.Subject, r.Case, r.Metric, err)
		}
		comma := ","
		if i == len(s.Rows)-1 {
			comma = ""
		}
		fmt.Fprintf(&b, "    %s%s\n", line, comma)
	}
	b.WriteString("  ]\n}\n")
	return os.WriteFile(filepath.Join(dir, s.Name+".json"), []byte(b.String()), 0o644)
}

// results are the sections that have been measured.
type results map[string]*section

func loadResults(dir string) (results, error) {
	all := results{}
	for _, p := range parts {
		text, err := os.ReadFile(filepath.Join(dir, p.name+".json"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var s section
		if err := json.Unmarshal(text, &s); err != nil {
			return nil, fmt.Errorf("%s.json: %w", p.name, err)
		}
		all[p.name] = &s
	}
	return all, nil
}
