// Shop is an HTTP service for products behind a bloom.Guard: on MariaDB,
// PostgreSQL or SQLite, and Redis.
//
// With no flags everything is embedded:
//
//	cd examples/shop && go run . -seed 10000
//	curl -i localhost:8080/products/8      # a product
//	curl -i localhost:8080/products/9      # none, and the database is not asked
//	curl -i localhost:8080/products -d '{"name":"Towel","cents":1999,"stock":[3,4]}'
//
// Read internal/shop/write.go for the order of writes, warm.go for how the filter
// is built while the shop serves already, and shop.go for how it is put together.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/bloomguard/bloom/examples/shop/internal/shop"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	err := run(ctx, os.Args[1:], os.Stderr, nil)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(1)
	}
}

const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 2 * time.Minute
	closeTimeout  = 10 * time.Second // for requests, and then for loads that still run
)

// run serves until ctx ends. It tells ready its address once it listens.
func run(ctx context.Context, args []string, out io.Writer, ready func(addr string)) (err error) {
	cfg, listen, err := parse(args, out)
	if err != nil {
		return err
	}
	s, err := shop.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, s.Close(ctx))
	}()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           s.Handler(s.Guard),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout + cfg.Timeout,
		WriteTimeout:      headerTimeout + 2*cfg.Timeout, // a write may take Timeout again after its commit
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
	}
	cfg.Log.Info("serving", "addr", listener.Addr().String(), "database", s.DB.Where, "redis", s.Redis.Options().Addr)

	warming, stopWarming := context.WithCancel(ctx)
	var warm sync.WaitGroup
	warm.Add(1)
	go func() {
		defer warm.Done()
		s.KeepWarm(warming)
	}()
	defer warm.Wait()
	defer stopWarming()

	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	if ready != nil {
		ready(listener.Addr().String())
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	cfg.Log.Info("shutting down, requests that run are answered")
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return server.Shutdown(ending)
}

func parse(args []string, out io.Writer) (cfg shop.Config, listen string, err error) {
	flags := flag.NewFlagSet("shop", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&listen, "listen", "localhost:8080", "`address` to serve at")
	flags.StringVar(&cfg.DSN, "dsn", os.Getenv("SHOP_DSN"), "`database`: mysql://user:password@host/db, postgres://user:password@host/db\n"+
		"or sqlite:path; also $SHOP_DSN. Empty: an embedded one")
	flags.StringVar(&cfg.Redis, "redis", os.Getenv("SHOP_REDIS"), "`host:port` or redis:// URL; also $SHOP_REDIS. Empty: embedded (miniredis)")
	flags.StringVar(&cfg.Prefix, "prefix", "shop:", "of all `keys` in Redis")
	flags.IntVar(&cfg.Seed, "seed", 0, "products to make if there are none")
	flags.IntVar(&cfg.Conns, "conns", 8, "database connections at once")
	flags.Uint64Var(&cfg.Capacity, "capacity", 0, "ids that the filter is sized for; 0: those in the table and half as many")
	flags.DurationVar(&cfg.MaxAge, "max-age", 24*time.Hour, "age of the filter at which it is built anew")
	flags.DurationVar(&cfg.Timeout, "timeout", 2*time.Second, "of a request")
	for _, secret := range []string{"dsn", "redis"} {
		flags.Lookup(secret).DefValue = "" // what came from the environment may have a password
	}
	if err := flags.Parse(args); err != nil {
		return cfg, "", err
	}
	switch {
	case flags.NArg() > 0:
		return cfg, "", fmt.Errorf("unexpected argument %q: every setting is a flag, see -h", flags.Arg(0))
	case cfg.Seed < 0:
		return cfg, "", fmt.Errorf("-seed %d: want 0 or more", cfg.Seed)
	case cfg.Conns < 1:
		return cfg, "", fmt.Errorf("-conns %d: want at least 1", cfg.Conns)
	case cfg.Timeout < 10*time.Millisecond:
		return cfg, "", fmt.Errorf("-timeout %v: want at least 10ms", cfg.Timeout)
	case cfg.MaxAge < time.Second:
		return cfg, "", fmt.Errorf("-max-age %v: want at least 1s", cfg.MaxAge)
	}
	cfg.Log = slog.New(slog.NewTextHandler(out, nil))
	return cfg, listen, nil
}
