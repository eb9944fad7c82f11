package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/bloomguard/bloom/examples/shop/internal/shop"
)

// result is everything that was measured.
type result struct {
	Rows     int     `json:"rows"`
	Database string  `json:"database"`
	Redis    string  `json:"redis"`
	Conns    int     `json:"database_connections"`
	RTT      float64 `json:"added_database_round_trip_ms"`
	Rate     int     `json:"requests_per_second"`
	StepSecs float64 `json:"seconds_per_step"`
	Zipf     float64 `json:"zipf_exponent"`
	Timeout  float64 `json:"client_timeout_ms"`
	CPUs     int     `json:"cpus"`
	Seed     uint64  `json:"seed"`
	Ways     []curve `json:"ways"`
}

// curve is one way, share by share.
type curve struct {
	Name   string  `json:"name"`
	About  string  `json:"about"`
	Filter bool    `json:"filter"`
	Points []point `json:"points"`
}

// point is one step.
type point struct {
	Share     int     `json:"attack_percent"`
	Requests  int     `json:"requests"`
	Attack    int     `json:"attack_requests"`
	Lookups   float64 `json:"database_lookups_per_second"`
	Absent    uint64  `json:"database_lookups_of_absent"`
	Predicted float64 `json:"predicted_lookups_of_absent"`
	P50       float64 `json:"real_p50_ms"`
	P99       float64 `json:"real_p99_ms"`
	Failed    float64 `json:"real_failed_percent"`
	FailedAll float64 `json:"failed_percent"`
	Wrong     int     `json:"wrong_answers"`
	Lag       float64 `json:"generator_lag_p99_ms"`
}

// measure runs all ways, each on a shop of its own.
func measure(ctx context.Context, o options, out io.Writer) (*result, error) {
	r := &result{Rows: o.rows, Conns: o.conns, RTT: ms(o.rtt), Rate: o.rate, StepSecs: o.step.Seconds(), Zipf: o.zipf,
		Timeout: ms(2 * o.timeout), CPUs: runtime.NumCPU(), Seed: o.seed}
	fmt.Fprintf(out, "%d requests/s, %v per attack share, seed %d\n", o.rate, o.step, o.seed)
	keepSQLite, err := o.prepare(ctx, out, r)
	if err != nil {
		return nil, err
	}
	for i := range ways {
		c, err := o.measureWay(ctx, &ways[i], out, r)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", ways[i].name, err), keepSQLite())
		}
		r.Ways = append(r.Ways, c)
	}
	return r, keepSQLite()
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// prepare makes the rows, once for all ways. done ends what was made for them.
func (o *options) prepare(ctx context.Context, out io.Writer, r *result) (done func() error, err error) {
	db, err := shop.OpenDatabase(ctx, o.dsn, o.conns, o.rtt)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	if err := db.DeleteNamed(ctx, soonGone, shop.SeededID(o.rows)); err != nil {
		return nil, err
	}
	rows, err := db.Count(ctx)
	if err != nil {
		return nil, err
	}
	r.Database = db.Where
	if rows == 0 {
		fmt.Fprintf(out, "seeding %d products in %s\n", o.rows, db.Where)
		said := time.Now()
		err = db.Seed(ctx, o.rows, func(done int) {
			if time.Since(said) > 5*time.Second {
				said = time.Now()
				fmt.Fprintf(out, "  %d\n", done)
			}
		})
		if err != nil {
			return nil, err
		}
	} else if rows != uint64(o.rows) {
		return nil, fmt.Errorf("there are %d products in %s: want none or -rows %d, of an earlier attack", rows, db.Where, o.rows)
	}
	o.dsn = db.DSN // of the embedded one
	return db.Close, nil
}

const (
	readyTimeout = 2 * time.Minute
	closeTimeout = 10 * time.Second
)

// measureWay measures one way.
func (o *options) measureWay(ctx context.Context, w *way, out io.Writer, r *result) (c curve, err error) {
	c = curve{Name: w.name, About: w.about, Filter: w.filter}
	prefix := fmt.Sprintf("attack:%08x:", rand.Uint32())
	s, err := shop.Open(ctx, shop.Config{
		DSN: o.dsn, Redis: o.redis, Conns: o.conns, RTT: o.rtt, Prefix: prefix,
		Capacity: uint64(o.rows), Timeout: o.timeout, NullTTL: nullTTL,
		Settle: -1, // nobody writes meanwhile; and the filter is full, so as wrong as it may be
		Log:    slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return c, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, removeKeys(ctx, s.Redis, prefix), s.Close(ctx))
	}()
	r.Redis = "embedded (miniredis)"
	if o.redis != "" {
		r.Redis = s.Redis.Options().Addr
	}
	t, stop, err := serve(s, w.reader(s, prefix+"aside:"), 2*o.timeout)
	if err != nil {
		return c, err
	}
	defer stop()
	c.Points, err = o.steps(ctx, w, s, t, out)
	return c, err
}

// steps builds the filter, makes deleted products, fills the caches, and measures
// each share.
func (o *options) steps(ctx context.Context, w *way, s *shop.Shop, t *target, out io.Writer) ([]point, error) {
	warming, stop := context.WithCancel(ctx)
	warmed := make(chan struct{})
	go func() {
		defer close(warmed)
		s.KeepWarm(warming)
	}()
	defer func() { stop(); <-warmed }()
	if err := waitReady(ctx, s); err != nil {
		return nil, err
	}
	deleted, err := t.makeDeleted(ctx, min(maxDeleted, o.rows/10))
	if err != nil {
		return nil, err
	}
	info, err := s.Filter.Info(ctx)
	if err != nil {
		return nil, err
	}
	load := newTraffic(o.rows, deleted, deleted[len(deleted)-1], o.zipf, o.seed)
	predict := newPrediction(w, info.FPRate, deleted)
	interval := time.Second / time.Duration(o.rate)
	if n := int(o.warm / interval); n > 0 {
		if _, err := t.fire(ctx, load.plan(n, 0), interval); err != nil {
			return nil, err
		}
	}
	var points []point
	for _, share := range o.shares {
		shots := load.plan(int(o.step/interval), share)
		before, began := s.DB.Lookups(), time.Now()
		y, err := t.fire(ctx, shots, interval)
		if err != nil {
			return nil, err
		}
		after := s.DB.Lookups()
		p := point{
			Share: share, Requests: y.requests, Attack: y.attack,
			Lookups:   float64(after.All()-before.All()) / y.took.Seconds(),
			Absent:    after.Absent - before.Absent,
			Predicted: predict.lookups(shots, began, interval),
			P50:       quantile(y.real, 50), P99: quantile(y.real, 99),
			Failed:    100 * float64(y.failedReal) / float64(max(1, y.requests-y.attack)),
			FailedAll: 100 * float64(y.failedAll) / float64(y.requests),
			Wrong:     y.wrongs, Lag: quantile(y.lag, 99),
		}
		points = append(points, p)
		fmt.Fprintf(out, "%-14s %2d %%: %7.0f lookups/s, real p99 %9.2f ms\n", w.name, share, p.Lookups, p.P99)
	}
	return points, nil
}

// waitReady waits for the shop's filter, without which a way that has one would be
// measured without.
func waitReady(ctx context.Context, s *shop.Shop) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := s.Filter.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the filter is not there: %w", err)
		}
	}
}

// serve starts the shop on a free port.
func serve(s *shop.Shop, read shop.Reader, timeout time.Duration) (t *target, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	server := &http.Server{Handler: s.Handler(read), ReadHeaderTimeout: maxTimeout}
	go server.Serve(listener)
	t = newTarget("http://"+listener.Addr().String(), timeout)
	return t, func() {
		server.Close()
		t.client.CloseIdleConnections()
	}, nil
}
