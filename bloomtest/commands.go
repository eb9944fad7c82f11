package bloomtest

import (
	"math"
	"strconv"
)

// command is one BF command. Numbers of arguments leave its name out.
type command struct {
	name     string // in lower case, for errors
	readOnly bool   // read-only scripts may call it
	min, max int    // numbers of arguments
	exec     func(c *call, args []string)
}

const many = math.MaxInt

var commands = map[string]*command{
	"BF.RESERVE":   {"bf.reserve", false, 3, 6, (*call).reserve},
	"BF.ADD":       {"bf.add", false, 2, 2, (*call).add},
	"BF.MADD":      {"bf.madd", false, 2, many, (*call).madd},
	"BF.INSERT":    {"bf.insert", false, 3, many, (*call).insert},
	"BF.EXISTS":    {"bf.exists", true, 2, 2, (*call).exists},
	"BF.MEXISTS":   {"bf.mexists", true, 2, many, (*call).mexists},
	"BF.INFO":      {"bf.info", true, 1, 2, (*call).info},
	"BF.CARD":      {"bf.card", true, 1, 1, (*call).card},
	"BF.SCANDUMP":  {"bf.scandump", true, 2, 2, (*call).scanDump},
	"BF.LOADCHUNK": {"bf.loadchunk", false, 3, 3, (*call).loadChunk},
	"BF.DEBUG":     {"bf.debug", true, 1, 1, (*call).debug},
}

// Errors of more than one command. Several of the module's lack the usual first
// word, ERR.
const (
	errExists    = "ERR item exists"
	errNotFound  = "ERR not found"
	errWrongType = "WRONGTYPE Operation against a key holding the wrong kind of value"
	errMemory    = "ERR Insufficient memory to create filter"
)

func wrongArity(name string) string {
	return "ERR wrong number of arguments for '" + name + "' command"
}

// declared tells whether the number of arguments is one that the server knows to be
// wrong; the module itself notices too many where more than one number is right.
func (c *command) declared(args []string) bool {
	return len(args) >= c.min && (c.min != c.max || len(args) == c.max)
}

func (c *command) run(x *call, args []string) {
	if len(args) < c.min || len(args) > c.max {
		x.err(wrongArity(c.name))
		return
	}
	c.exec(x, args)
}

// open returns the filter at a key, or answers why there is none.
func (c *call) open(key string) *filter {
	f, kind := c.load(key)
	switch kind {
	case missing:
		c.err(errNotFound)
	case other:
		c.err(errWrongType)
	}
	return f
}

// parseInt takes only what the server's own parser takes: no sign +, no zeros in front.
func parseInt(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == s
}

func parseFloat(s string) (float64, bool) {
	x, err := strconv.ParseFloat(s, 64)
	return x, err == nil && !math.IsNaN(x)
}
