package bloomtest

import (
	"slices"
	"strings"
)

// BF.RESERVE key rate capacity [EXPANSION n] [NONSCALING]
func (c *call) reserve(args []string) {
	d, problem := c.parseReserve(args)
	if problem != "" {
		c.err(problem)
		return
	}
	switch _, kind := c.load(args[0]); kind {
	case isFilter:
		c.err(errExists)
		return
	case other:
		c.err(errWrongType)
		return
	}
	f, ok := newFilter(d)
	if !ok {
		c.err(errMemory)
		return
	}
	c.store(args[0], f)
	c.ok()
}

func (c *call) parseReserve(args []string) (d defaults, problem string) {
	rate, ok := parseFloat(args[1])
	if !ok {
		return d, "ERR bad error rate"
	}
	if !c.rules.validRate(rate) {
		return d, c.rules.rateError
	}
	capacity, ok := parseInt(args[2])
	if !ok {
		return d, "ERR bad capacity"
	}
	if !c.rules.validCapacity(capacity) {
		return d, c.rules.capacityError
	}
	d = defaults{min(rate, c.rules.maxRate), capacity, factoryDefaults.expansion}
	// The module looks for the words in every argument, the key included, and
	// ignores what it doesn't know.
	word := func(w string) int {
		return slices.IndexFunc(args, func(a string) bool { return strings.EqualFold(a, w) })
	}
	nonScaling := word("NONSCALING") >= 0
	if nonScaling {
		d.expansion = 0
	}
	if at := word("EXPANSION"); at >= 0 {
		switch {
		case at == len(args)-1:
			return d, "ERR no expansion"
		case nonScaling:
			return d, "Nonscaling filters cannot expand"
		}
		if d.expansion, ok = parseInt(args[at+1]); !ok {
			return d, "ERR bad expansion"
		}
		if !c.rules.validExpansion(d.expansion) {
			return d, c.rules.expandError
		}
	}
	return d, ""
}
