package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// tally counts what was done and what came of it.
type tally struct {
	mu    sync.Mutex
	n     map[string]map[string]int64 // by section and name
	worst time.Duration               // the longest that a call outlasted its context, beyond stalls of the machine
	wrong []string
	heap  []uint64 // bytes, after collections
}

// The sections of a tally, in the order in which they are printed.
var sections = []string{"faults", "network faults", "losses", "calls", "items", "errors", "rebuilds", "guards"}

func (c *tally) add(section, name string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(section, name, int64(n))
}

func (c *tally) addLocked(section, name string, n int64) {
	if c.n == nil {
		c.n = map[string]map[string]int64{}
	}
	if c.n[section] == nil {
		c.n[section] = map[string]int64{}
	}
	c.n[section][name] += n
}

func (c *tally) get(section, name string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[section][name]
}

func (c *tally) outlasted(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.worst = max(c.worst, d)
}

// merge adds the counts of another tally.
func (c *tally) merge(o *tally) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for section, names := range o.n {
		for name, n := range names {
			c.addLocked(section, name, n)
		}
	}
	c.worst = max(c.worst, o.worst)
	c.wrong = append(c.wrong, o.wrong...)
}

// String is the page that the suite prints.
func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, section := range sections {
		names, sum := c.n[section], int64(0)
		for _, n := range names {
			sum += n
		}
		if len(names) == 0 {
			continue
		}
		line := fmt.Sprintf("%-15s %d:", section, sum)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			next := fmt.Sprintf(" %s %d,", name, names[name])
			if len(line)+len(next) > 110 {
				fmt.Fprintln(&b, line)
				line = strings.Repeat(" ", 17)
			}
			line += next
		}
		fmt.Fprintln(&b, strings.TrimSuffix(line, ","))
	}
	fmt.Fprintf(&b, "%-15s %v at worst\n", "after deadlines", c.worst.Round(time.Millisecond))
	if len(c.heap) > 0 {
		fmt.Fprintf(&b, "%-15s %.1f MiB at first, %.1f MiB in the end\n", "heap",
			float64(c.heap[0])/(1<<20), float64(c.heap[len(c.heap)-1])/(1<<20))
	}
	fmt.Fprintf(&b, "%-15s %d", "wrong answers", len(c.wrong))
	return b.String()
}
