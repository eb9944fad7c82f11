// Attack measures what a cache-penetration attack does to the shop: the same
// requests at a fixed rate, a growing share of them for products that do not
// exist, against the shop protected in four ways. It writes a table and a chart.
//
// With no flags everything is embedded and the rate is modest:
//
//	cd examples/shop && go run ./attack
//	go run ./attack -h
//
// Real servers are what it is for, see the README. Read traffic.go for who asks
// for what, fire.go for how it is timed, ways.go for the four ways.
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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

// run is the whole program.
func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parseOptions(args, out)
	if err != nil {
		return err
	}
	r, err := measure(ctx, o, out)
	if err != nil {
		return err
	}
	r.writeText(out)
	return r.writeFiles(o.out, out)
}
