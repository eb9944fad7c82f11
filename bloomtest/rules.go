package bloomtest

import (
	"fmt"
	"math"
)

// rules are the differences between versions of the module.
type rules struct {
	rateError     string // RESERVE: error rate out of range
	capacityError string
	expandError   string
	insertBad     string // INSERT: any value out of range; "" names the option

	maxCapacity  int64
	minExpansion int64 // 0 stands for NONSCALING
	maxExpansion int64
	maxRate      float64 // higher ones are taken as this

	settings        bool // bf-* in CONFIG
	arityWhenQueued bool // a wrong number of arguments spoils the MULTI
}

// newest is commit b28c294 of June 2026; 8.0.1 differs in what COMMAND INFO says.
var newest = &rules{
	rateError:       "ERR error rate must be in the range (0.000000, 1.000000)",
	capacityError:   fmt.Sprintf("ERR capacity must be in the range [1, %d]", 1<<30),
	expandError:     fmt.Sprintf("ERR expansion must be in the range [0, %d]", 1<<15),
	maxCapacity:     1 << 30,
	minExpansion:    0,
	maxExpansion:    1 << 15,
	maxRate:         0.25,
	settings:        true,
	arityWhenQueued: true,
}

// v2 is 2.8.20.
var v2 = &rules{
	rateError:     "ERR (0 < error rate range < 1) ",
	capacityError: "ERR (capacity should be larger than 0)",
	expandError:   "ERR expansion should be greater or equal to 1",
	insertBad:     "Bad argument received",
	maxCapacity:   math.MaxInt64,
	minExpansion:  1,
	maxExpansion:  1<<32 - 1,
	maxRate:       1,
}

func (r *rules) validRate(rate float64) bool { return rate > 0 && rate < 1 }
func (r *rules) validCapacity(n int64) bool  { return n >= 1 && n <= r.maxCapacity }
func (r *rules) validExpansion(n int64) bool { return n >= r.minExpansion && n <= r.maxExpansion }
func (r *rules) orBad(text string) string {
	if r.insertBad != "" {
		return r.insertBad
	}
	return text
}

// defaults are what a filter made by an add is like.
type defaults struct {
	rate      float64
	capacity  int64
	expansion int64 // 0 stands for NONSCALING
}

var factoryDefaults = defaults{rate: 0.01, capacity: 100, expansion: 2}
