package bloomtest

import "strings"

// BF.INSERT key [CAPACITY n] [ERROR rate] [EXPANSION n] [NOCREATE] [NONSCALING] ITEMS item …
func (c *call) insert(args []string) {
	opts, problem := c.parseInsert(args[1:])
	if problem != "" {
		c.err(problem)
		return
	}
	c.addAll(args[0], opts.items, opts.like, !opts.noCreate, true)
}

type insertOptions struct {
	like     defaults // without effect on a filter that exists
	noCreate bool
	items    []string
}

func (c *call) parseInsert(args []string) (o insertOptions, problem string) {
	o.like = c.defaults
	nonScaling := false
	next := func() (value string, ok bool) { // the next argument
		if len(args) == 0 {
			return "", false
		}
		value, args = args[0], args[1:]
		return value, true
	}
	for o.items == nil {
		word, ok := next()
		if !ok {
			return o, wrongArity("bf.insert")
		}
		option := insertOption(word)
		value := ""
		if option.hasValue {
			if value, ok = next(); !ok {
				return o, wrongArity("bf.insert")
			}
		}
		switch option.name {
		case "items":
			if len(args) == 0 {
				return o, wrongArity("bf.insert")
			}
			o.items = args
		case "nocreate":
			o.noCreate = true
		case "nonscaling":
			nonScaling = true
		case "capacity":
			problem = c.parseCapacity(value, &o.like)
		case "error":
			problem = c.parseRate(value, &o.like)
		case "expansion":
			problem = c.parseExpansion(value, &o.like)
		default:
			problem = "Unknown argument received"
		}
		if problem != "" {
			return o, problem
		}
	}
	if nonScaling {
		o.like.expansion = 0
	}
	return o, ""
}

type option struct {
	name     string
	hasValue bool
}

// insertOption knows options by the letters that tell them apart, as the module does.
func insertOption(word string) option {
	word = strings.ToLower(word)
	switch {
	case strings.HasPrefix(word, "i"):
		return option{"items", false}
	case strings.HasPrefix(word, "c"):
		return option{"capacity", true}
	case strings.HasPrefix(word, "er"):
		return option{"error", true}
	case strings.HasPrefix(word, "ex"):
		return option{"expansion", true}
	case strings.HasPrefix(word, "noc"):
		return option{"nocreate", false}
	case strings.HasPrefix(word, "non"):
		return option{"nonscaling", false}
	}
	return option{}
}

func (c *call) parseCapacity(s string, d *defaults) (problem string) {
	n, ok := parseInt(s)
	if !ok {
		return "Bad capacity"
	}
	if d.capacity = n; !c.rules.validCapacity(n) {
		return c.rules.orBad("Bad capacity")
	}
	return ""
}

func (c *call) parseRate(s string, d *defaults) (problem string) {
	rate, ok := parseFloat(s)
	if !ok {
		return "Bad error rate"
	}
	if !c.rules.validRate(rate) {
		return c.rules.orBad("Bad error rate")
	}
	d.rate = min(rate, c.rules.maxRate)
	return ""
}

func (c *call) parseExpansion(s string, d *defaults) (problem string) {
	n, ok := parseInt(s)
	if !ok {
		return "Bad expansion"
	}
	if d.expansion = n; !c.rules.validExpansion(n) {
		return c.rules.orBad("Bad expansion")
	}
	return ""
}
