package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

type options struct {
	dsn, redis string
	rows       int
	conns      int
	rtt        time.Duration
	rate       int // requests per second
	shares     []int
	step, warm time.Duration
	zipf       float64
	timeout    time.Duration
	seed       uint64
	out        string
}

const (
	maxRate    = 100_000
	maxDeleted = 200 // products that are made and deleted again before the attack
	minStep    = 100 * time.Millisecond
	maxShares  = 20
)

func parseOptions(args []string, out io.Writer) (options, error) {
	var o options
	shares := ""
	flags := flag.NewFlagSet("attack", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&o.dsn, "dsn", os.Getenv("SHOP_DSN"), "`database` of its own, is seeded: mysql://…, postgres://… or sqlite:path; also $SHOP_DSN. Empty: an embedded one")
	flags.StringVar(&o.redis, "redis", os.Getenv("SHOP_REDIS"), "`host:port` or redis:// URL; also $SHOP_REDIS. Keys begin with \"attack:\", and go at the end. Empty: embedded (miniredis)")
	flags.IntVar(&o.rows, "rows", 20_000, "products in the database")
	flags.IntVar(&o.conns, "conns", 8, "database connections of the shop")
	flags.DurationVar(&o.rtt, "db-rtt", 0, "added to each round trip to the database, as if it were on another machine")
	flags.IntVar(&o.rate, "rate", 400, "requests per second in all, real and attack")
	flags.StringVar(&shares, "shares", "0,25,50,75,90,95", "attack shares to measure, percent, ascending")
	flags.DurationVar(&o.step, "step", 1500*time.Millisecond, "how long each share is measured")
	flags.DurationVar(&o.warm, "warm", time.Second, "real traffic before that, to fill the caches")
	flags.Float64Var(&o.zipf, "zipf", 1.3, "exponent of the popularity of real products")
	flags.DurationVar(&o.timeout, "timeout", time.Second, "of a request, in the shop; the client waits twice as long")
	flags.Uint64Var(&o.seed, "seed", 1, "of all random choices")
	flags.StringVar(&o.out, "out", ".", "`folder` for attack.svg, attack.md and attack.json")
	for _, secret := range []string{"dsn", "redis"} {
		flags.Lookup(secret).DefValue = "" // what came from the environment may have a password
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: every setting is a flag, see -h", flags.Arg(0))
	}
	if err := o.parseShares(shares); err != nil {
		return o, err
	}
	return o, o.check()
}

func (o *options) parseShares(text string) error {
	for _, word := range strings.Split(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 0 || n > 99 {
			return fmt.Errorf("-shares %q: want percentages from 0 to 99, such as 0,50,95", text)
		}
		if len(o.shares) > 0 && n <= o.shares[len(o.shares)-1] {
			return fmt.Errorf("-shares %q: want them ascending", text)
		}
		o.shares = append(o.shares, n)
	}
	if len(o.shares) > maxShares {
		return fmt.Errorf("-shares %q: want at most %d", text, maxShares)
	}
	return nil
}

func (o *options) check() error {
	switch {
	case o.rows < 100 || o.rows > 100_000_000:
		return fmt.Errorf("-rows %d: want 100 to 100000000", o.rows)
	case o.conns < 1:
		return fmt.Errorf("-conns %d: want at least 1", o.conns)
	case o.rate < 1 || o.rate > maxRate:
		return fmt.Errorf("-rate %d: want 1 to %d", o.rate, maxRate)
	case o.step < minStep:
		return fmt.Errorf("-step %v: want at least %v", o.step, minStep)
	case o.warm < 0:
		return fmt.Errorf("-warm %v: want 0 (none) or more", o.warm)
	case !(o.zipf > 1 && o.zipf <= 10):
		return fmt.Errorf("-zipf %v: want above 1, at most 10", o.zipf)
	case o.timeout < 10*time.Millisecond || o.timeout > maxTimeout:
		return fmt.Errorf("-timeout %v: want 10ms to %v", o.timeout, maxTimeout)
	}
	info, err := os.Stat(o.out)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("not a folder")
	}
	if err != nil {
		return fmt.Errorf("-out %q: want a folder that exists: %w", o.out, err)
	}
	return nil
}
