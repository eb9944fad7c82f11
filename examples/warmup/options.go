package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/bloomguard/bloom"
)

const (
	maxPage  = 100_000 // rows that are held in memory at a time
	minLease = time.Second
)

type options struct {
	dsn, table, column string
	page               int
	redis, key         string

	capacity uint64
	fpRate   float64
	layout   bloom.Layout
	ttl      time.Duration

	settle, maxAge, lease time.Duration
	minItems              uint64
	verify                bool
}

// parseOptions reads the command line; -h writes the usage to out and returns
// [flag.ErrHelp].
func parseOptions(args []string, out io.Writer) (options, error) {
	o := options{layout: bloom.Blocked}
	flags := flag.NewFlagSet("warmup", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // main prints the error, once
	o.sourceFlags(flags)
	o.filterFlags(flags)
	o.rebuildFlags(flags)

	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		writeHelp(out, flags)
		return o, err
	}
	if err != nil {
		return o, usageError{err}
	}
	if len(flags.Args()) > 0 {
		return o, usage("unexpected argument %q: every setting is a flag, see -h", flags.Arg(0))
	}
	if err := o.check(); err != nil {
		return o, err
	}
	o.fillDemo(flags)
	return o, nil
}

// sourceFlags take what has a password in it from the environment too: a command
// line is visible to every user of a machine, and kept in logs of pipelines.
func (o *options) sourceFlags(flags *flag.FlagSet) {
	flags.StringVar(&o.dsn, "dsn", os.Getenv("WARMUP_DSN"), "`database`, always the primary: mysql://user:password@host/db, postgres://user:password@host/db\n"+
		"or sqlite:path; also $WARMUP_DSN. Empty: an embedded one with a generated table")
	flags.StringVar(&o.table, "table", "", "`name` of the table, or schema.table, spelled as the database spells it")
	flags.StringVar(&o.column, "column", "id", "`name` of the column with the ids, integer or text: the primary key, or another unique one that has an index")
	flags.IntVar(&o.page, "page", 10_000, "rows per query")
	flags.StringVar(&o.redis, "redis", os.Getenv("WARMUP_REDIS"), "`host:port` or redis:// URL; also $WARMUP_REDIS. Empty: embedded (miniredis), so a rehearsal")
	flags.StringVar(&o.key, "key", "", "`key` of the filter in Redis")
	hideDefault(flags, "dsn", "redis")
}

// hideDefault keeps passwords that came from the environment out of -h.
func hideDefault(flags *flag.FlagSet, names ...string) {
	for _, name := range names {
		flags.Lookup(name).DefValue = ""
	}
}

func (o *options) filterFlags(flags *flag.FlagSet) {
	flags.Uint64Var(&o.capacity, "capacity", 0, "ids that the filter is sized for; 0: as the live filter while the table fits into it,\n"+
		"else the rows of the table and half as many again")
	flags.Float64Var(&o.fpRate, "fprate", 0.01, "false-positive rate at that capacity; 0.01 is 1 %")
	flags.Var((*layoutFlag)(&o.layout), "layout", "`layout`: blocked (cheapest reads) or classic (least memory)")
	flags.DurationVar(&o.ttl, "ttl", 0, "how long the filter lives once published, longer than until the next load; 0: for ever")
}

func (o *options) rebuildFlags(flags *flag.FlagSet) {
	flags.DurationVar(&o.settle, "settle", time.Second, "wait before the table is read; longer than the longest transaction that inserts into it")
	flags.DurationVar(&o.maxAge, "max-age", 0, "skip if the filter was rebuilt more recently than that, waiting for a rebuild that runs; 0: never skip")
	flags.Uint64Var(&o.minItems, "min-items", 0, "refuse to publish fewer distinct ids; 0: half of what the live filter holds")
	flags.DurationVar(&o.lease, "lease", time.Minute, "what is being built frees itself that long after this program was killed")
	flags.BoolVar(&o.verify, "verify", false, "afterwards look every row of the table up in the filter (the demonstration does)")
}

func (o *options) check() error {
	switch {
	case o.dsn != "" && o.table == "":
		return usage("-dsn needs a -table")
	case o.dsn == "" && o.table != "":
		return usage("-table needs a -dsn: the embedded database has a table of its own")
	case o.redis != "" && o.key == "":
		return usage("-redis needs the -key of the filter")
	case o.page < 1 || o.page > maxPage:
		return usage("-page %d: want 1 to %d", o.page, maxPage)
	case !(o.fpRate > 0 && o.fpRate < 1): // also refuses NaN
		return usage("-fprate %v: want above 0 and below 1 (1 %% is 0.01)", o.fpRate)
	case o.settle < 0:
		return usage("-settle %v: want 0 (none) or more", o.settle)
	case o.maxAge < 0:
		return usage("-max-age %v: want 0 (never skip) or more", o.maxAge)
	case o.lease < minLease:
		return usage("-lease %v: want at least %v", o.lease, minLease)
	}
	return checkNames(o.table, o.column)
}

// fillDemo fills in what only the demonstration leaves open.
func (o *options) fillDemo(flags *flag.FlagSet) {
	if o.key == "" {
		o.key = "users"
	}
	if o.dsn != "" {
		return
	}
	o.table = demoTable
	chosen := false
	flags.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "verify" })
	o.verify = o.verify || !chosen
}

// layoutFlag makes a layout a flag.
type layoutFlag bloom.Layout

func (l *layoutFlag) String() string { return bloom.Layout(*l).String() }

func (l *layoutFlag) Set(text string) error {
	for _, known := range []bloom.Layout{bloom.Classic, bloom.Blocked} {
		if known.String() == text {
			*l = layoutFlag(known)
			return nil
		}
	}
	return fmt.Errorf("want %v or %v", bloom.Classic, bloom.Blocked)
}
