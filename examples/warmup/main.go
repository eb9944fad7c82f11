// Warmup loads the ids of a database table into a Bloom filter: before a service
// takes traffic, every night, and when the table has outgrown the filter. The
// filter that is there goes on answering until the new one is swapped in whole.
//
// With no flags it shows itself on an embedded SQLite and an embedded Redis:
//
//	cd examples/warmup && go run .
//	go run . -h
//
// Read source.go to see how a table is read for [bloom.Filter.Rebuild], and
// job.go to see the rebuild and the verification. The other files are flags,
// connections and what is printed.
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
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once: what it was building then goes with its lease

	err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "warmup:", err)
	}
	os.Exit(exitCode(err))
}

// run is the whole program.
func run(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parseOptions(args, out)
	if err != nil {
		return err
	}
	fmt.Fprint(out, intro)

	st, err := openStore(ctx, o.redis)
	if err != nil {
		return err
	}
	defer st.close()
	j := &job{o: o, out: out, store: st}
	if _, err := j.filter(o.capacity); err != nil {
		return err // a size, rate or key that cannot be, before a database has any work of it
	}
	db, err := openDatabase(ctx, o.dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	j.table = newTable(db, o.table, o.column, o.page)
	return j.run(ctx)
}
