package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

func (r *result) setup() string {
	far := ""
	if r.RTT > 0 {
		far = fmt.Sprintf(" (made to look far away: %g ms are added to each round trip)", r.RTT)
	}
	return fmt.Sprintf("%s products in %s%s, a pool of %d connections; Redis: %s; generator, shop and servers on %d CPUs.\n"+
		"%s requests/s for %g s at each attack share; real products by a Zipf distribution (exponent %g); seed %d.\n",
		grouped(r.Rows), r.Database, far, r.Conns, r.Redis, r.CPUs, grouped(r.Rate), r.StepSecs, r.Zipf, r.Seed)
}

// legend explains the columns of the table.
const legend = `A lookup is one read-only transaction: product and price, then stock. Predicted: lookups of absent products that must
happen, from the requests, the filter's rate and what is cached. Latencies are of real products, from when a request was
due; one that failed counts as the client's whole timeout (%g ms).
`

var columns = []string{"attack %", "lookups/s", "of absent", "predicted", "p50 ms", "p99 ms", "failed %", "wrong"}

func (p *point) cells() []string {
	return []string{
		fmt.Sprint(p.Share), fmt.Sprintf("%.0f", p.Lookups), fmt.Sprint(p.Absent), fmt.Sprintf("%.0f", p.Predicted),
		fmt.Sprintf("%.2f", p.P50), fmt.Sprintf("%.2f", p.P99), fmt.Sprintf("%.1f", p.FailedAll), fmt.Sprint(p.Wrong),
	}
}

func (r *result) writeText(out io.Writer) {
	fmt.Fprintf(out, "\n%s\n", r.setup())
	for _, c := range r.Ways {
		fmt.Fprintf(out, "%s: %s\n", c.Name, c.About)
		line(out, columns)
		for _, p := range c.Points {
			line(out, p.cells())
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, legend+"\n", r.Timeout)
	for _, finding := range r.findings() {
		fmt.Fprintln(out, finding)
	}
}

// grouped writes thousands apart: 1,000,000.
func grouped(n int) string {
	s := fmt.Sprint(n)
	for at := len(s) - 3; at > 0; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

func line(out io.Writer, cells []string) {
	for _, cell := range cells {
		fmt.Fprintf(out, "%11s", cell)
	}
	fmt.Fprintln(out)
}

// findings compare the first share of each way with its last.
func (r *result) findings() []string {
	var found []string
	for _, c := range r.Ways {
		first, last := c.Points[0], c.Points[len(c.Points)-1]
		text := fmt.Sprintf("%s: real p99 %.2f ms at %d %% attack, %.2f ms at %d %% (%.1f times)",
			c.Name, first.P99, first.Share, last.P99, last.Share, last.P99/first.P99)
		if c.Filter && last.Predicted > 0 {
			text += fmt.Sprintf("; lookups of absent products: %d, %.2f times the predicted", last.Absent, float64(last.Absent)/last.Predicted)
			absent, predicted := c.absent()
			text += fmt.Sprintf(" (in all steps %d, %.2f times)", absent, float64(absent)/predicted)
		}
		found = append(found, text+fmt.Sprintf("; the generator itself was late by %.2f ms (p99 of the worst step)", c.lag()))
	}
	return found
}

// absent sums up the lookups of absent products.
func (c *curve) absent() (lookups uint64, predicted float64) {
	for _, p := range c.Points {
		lookups += p.Absent
		predicted += p.Predicted
	}
	return lookups, predicted
}

// lag is how late the generator was in the worst step.
func (c *curve) lag() float64 {
	lag := 0.0
	for _, p := range c.Points {
		lag = max(lag, p.Lag)
	}
	return lag
}

func (r *result) writeMarkdown(out io.Writer) {
	fmt.Fprintf(out, "%s\n| | %s |\n|---|%s\n", r.setup(), strings.Join(columns, " | "), strings.Repeat("---:|", len(columns)))
	for _, c := range r.Ways {
		name := c.Name
		for _, p := range c.Points {
			fmt.Fprintf(out, "| %s | %s |\n", name, strings.Join(p.cells(), " | "))
			name = ""
		}
	}
	fmt.Fprintf(out, "\n"+legend, r.Timeout)
	for _, finding := range r.findings() {
		fmt.Fprintf(out, "- %s\n", finding)
	}
}

// writeFiles writes the chart, and the table in two forms, into a folder.
func (r *result) writeFiles(folder string, out io.Writer) error {
	for name, write := range map[string]func(io.Writer) error{
		"attack.svg": r.writeChart,
		"attack.md":  func(w io.Writer) error { r.writeMarkdown(w); return nil },
		"attack.json": func(w io.Writer) error {
			e := json.NewEncoder(w)
			e.SetIndent("", "\t")
			return e.Encode(r)
		},
	} {
		if err := writeFile(filepath.Join(folder, name), write); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "\nwritten: attack.svg, attack.md, attack.json in %s\n", folder)
	return nil
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
