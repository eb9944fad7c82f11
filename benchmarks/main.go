// Benchmarks compares this module with its peers, on one machine, in one run, on a
// redis-server that it starts itself, and makes the tables and charts of the
// documentation from what it measured.
//
//	go run .                      # everything, some 15 minutes on a quiet machine
//	go run . -quick               # everything small, a minute; prints and keeps nothing
//	go run . -only latency,guard  # these sections again
//	go run . -render              # tables and charts from results/*.json, nothing measured
//
// The RedisBloom lines need a server with that module: Redis 8 named by
// -redis-server, -module redisbloom.so loaded into ours, or BLOOM_REDISBLOOM=host:port.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	quick, render bool
	only          string
	rounds        int
	results, docs string
	server        string
	module        string
	moduleAddr    string
}

func parseOptions(args []string, out io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.BoolVar(&o.quick, "quick", false, "small sizes, to see it run: nothing is kept unless -results is given")
	flags.BoolVar(&o.render, "render", false, "make tables and charts from the results there are, and measure nothing")
	flags.StringVar(&o.only, "only", "", "measure these `sections`, separated by commas: "+strings.Join(partNames(), ","))
	flags.IntVar(&o.rounds, "rounds", 0, "interleaved rounds (0: 5, or 2 with -quick)")
	flags.StringVar(&o.results, "results", "", "`folder` of the JSON (default results)")
	flags.StringVar(&o.docs, "docs", "..", "`folder` whose README.md and docs/ get the tables and charts")
	flags.StringVar(&o.server, "redis-server", envOr("BLOOM_REDIS_SERVER", "redis-server"), "the `executable` to start")
	flags.StringVar(&o.module, "module", "", "a `redisbloom.so` to load into it")
	flags.StringVar(&o.moduleAddr, "redisbloom", os.Getenv("BLOOM_REDISBLOOM"), "`host:port` of a server with RedisBloom, where ours has none")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: want flags only, see -h", flags.Arg(0))
	}
	if o.rounds < 0 {
		return o, fmt.Errorf("-rounds %d: want at least 1, or 0 for the default", o.rounds)
	}
	for _, name := range o.chosen() {
		if !slices.Contains(partNames(), name) {
			return o, fmt.Errorf("-only %q: want some of %s", name, strings.Join(partNames(), ", "))
		}
	}
	return o, nil
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// chosen are the sections to measure.
func (o options) chosen() []string {
	if o.only == "" {
		return partNames()
	}
	return strings.Split(o.only, ",")
}

func (o options) folder() string {
	if o.results == "" {
		return "results"
	}
	return o.results
}

// run is the whole program.
func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parseOptions(args, out)
	if err != nil {
		return err
	}
	if o.render {
		return render(o.folder(), o.docs, out)
	}
	sc := full()
	if o.quick {
		sc = quick()
	}
	if o.rounds > 0 {
		sc.rounds = o.rounds
	}
	keep := !o.quick || o.results != ""
	return measure(ctx, o, sc, keep, out)
}

// measure runs the chosen sections, each of which is kept as soon as it is done.
func measure(ctx context.Context, o options, sc scale, keep bool, out io.Writer) error {
	b, err := newBench(ctx, o, sc, out)
	if err != nil {
		return err
	}
	defer b.close()
	for _, p := range parts {
		if !slices.Contains(o.chosen(), p.name) {
			continue
		}
		began := time.Now()
		fmt.Fprintf(out, "\n## %s (%s)\n\n", p.title, p.name)
		s := &section{Name: p.name, Machine: b.describe(), Setting: map[string]string{"rounds": fmt.Sprint(sc.rounds)}}
		if err := p.measure(ctx, b, s); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		s.Setting["took"] = time.Since(began).Round(100 * time.Millisecond).String()
		writeTables(out, p, results{p.name: s})
		if keep {
			if err := s.save(o.folder()); err != nil {
				return err
			}
		}
	}
	if keep {
		fmt.Fprintf(out, "\nKept in %s; `go run . -render` puts it into the documentation.\n", o.folder())
	}
	return nil
}
