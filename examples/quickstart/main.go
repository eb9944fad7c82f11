// Quickstart plays one cache-penetration attack three ways (a plain cache, a
// cache that also stores "not there", and a [bloom.Guard]) and prints one table.
//
// It needs nothing installed: Redis is embedded unless -redis names a real
// one, and the items are real names shipped with it unless -items names a file.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -redis localhost:6379 -items ids.txt.gz
//
// Read filter.go to see a filter loaded, and ways.go to
// see the Guard put in front of a cache and a database. The other files are the
// attack, the bookkeeping and the report.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once, without its cleanup

	err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run is the whole program. It returns an error when an answer was wrong or
// the filter let more through than it promises, and leaves no key in Redis
// whichever way it ends.
func run(ctx context.Context, args []string, out io.Writer) (err error) {
	began := time.Now()
	opts, err := parseOptions(args, out)
	if err != nil {
		return err
	}
	fmt.Fprint(out, intro)

	st, err := openStore(ctx, opts.redis, opts.workers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.close()) }()

	rep, err := experiment(ctx, st, opts, out)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return err
	}
	rep.writeTable(out)
	rep.writeConclusion(out)
	rep.writeFooter(out, opts, time.Since(began))
	return rep.verdict()
}

// experiment loads the items, builds the filter and plays the attack three ways.
func experiment(ctx context.Context, st *store, opts options, out io.Writer) (*report, error) {
	items, err := openCatalog(opts.items)
	if err != nil {
		return nil, err
	}
	built, err := buildFilter(ctx, st, items, opts.fpRate)
	if err != nil {
		return nil, err
	}
	set, err := measureSet(ctx, st, items.names)
	if err != nil {
		return nil, err
	}
	attack := newAttack(items, opts.requests, opts.seed)
	rep := &report{items: items, filter: built, set: set, attack: attack}
	rep.writeSetup(out, st, opts)

	for _, w := range threeWays(st, built.filter) {
		o, err := play(ctx, st, items, attack, w, opts.workers)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		rep.outcomes = append(rep.outcomes, o)
	}
	return rep, nil
}
