package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
)

// maxRequests take a fast server about as long as a null lives: with more, the
// first would expire before the last is stored and the keys could not be counted.
const (
	maxRequests = 1_000_000
	maxWorkers  = 256
)

type options struct {
	redis    string
	items    string
	requests int
	workers  int
	seed     uint64
	fpRate   float64
}

// parseOptions reads the command line; -h writes the usage to out and returns
// [flag.ErrHelp].
func parseOptions(args []string, out io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // main prints the error, once
	flags.StringVar(&o.redis, "redis", "", "`host:port` or redis:// URL of a real server; empty: embedded (miniredis)")
	flags.StringVar(&o.items, "items", "", "`file` of ids that exist, one a line, plain or gzip; empty: the names shipped with it")
	flags.IntVar(&o.requests, "requests", 30_000, "requests per way")
	flags.IntVar(&o.workers, "workers", 8, "requests at a time")
	flags.Float64Var(&o.fpRate, "fprate", 0.01, "false-positive rate of the filter; 0.01 is 1 %")
	flags.Uint64Var(&o.seed, "seed", 0, "attack to play; 0: a random one")

	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(out, "usage: go run ./examples/quickstart [flags]")
		flags.SetOutput(out)
		flags.PrintDefaults()
	}
	if err != nil {
		return o, err
	}
	if o.seed == 0 {
		o.seed = 1 + rand.Uint64N(999_999_999) // short enough to type again
	}
	return o, o.check(flags.Args())
}

func (o options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q: every setting is a flag, see -h", rest[0])
	case o.requests < 1 || o.requests > maxRequests:
		return fmt.Errorf("-requests %d: want 1 to %d", o.requests, maxRequests)
	case o.workers < 1 || o.workers > maxWorkers:
		return fmt.Errorf("-workers %d: want 1 to %d", o.workers, maxWorkers)
	case !(o.fpRate > 0 && o.fpRate < 1): // also refuses NaN
		return fmt.Errorf("-fprate %v: want above 0 and below 1 (1 %% is 0.01)", o.fpRate)
	}
	return nil
}
