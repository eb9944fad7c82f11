package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
)

// Rows "row:…" exist. Ids "ghost:…" are in the filters and have no row, as false
// positives and deleted rows are. All other ids exist nowhere.
const (
	rowsPrefix   = "row:"
	ghostsPrefix = "ghost:"
	strangers    = "stranger:"
	warm         = 20 // rows and ghosts that are asked for again and again
)

// What a caller of a guard meets.
const (
	caseHit      = "hit"
	caseNull     = "null hit"
	caseRejected = "unknown id"
	caseLoad     = "load"
)

var guardCases = []string{caseHit, caseNull, caseRejected, caseLoad}

// A guarded is a way to look up rows without asking the database more than needed.
type guarded struct {
	name string
	// get reports whether there is a row.
	get   func(ctx context.Context, id string) (bool, error)
	loads *atomic.Int64 // of the database
	next  int           // ids that were not asked for yet begin here
}

// network delays in all, half of them each way.
var delays = []time.Duration{0, 500 * time.Microsecond, 2 * time.Millisecond}

// measureGuard times look-ups of rows, one caller, over networks of several delays.
func measureGuard(ctx context.Context, b *bench, s *section) error {
	s.Setting["filter"] = fmt.Sprintf("%d ids at 1 %%", b.sc.items)
	fresh := 20 * (1 + b.sc.rounds) * b.sc.ops // more rows than are loaded
	d := dataset{prefix: b.prefix + "guard:", capacity: uint64(max(b.sc.items, 2*fresh)), rate: 0.01}
	defer func() { _ = b.drop(context.WithoutCancel(ctx), d) }()
	if err := b.storeGuarded(ctx, d, fresh); err != nil {
		return err
	}
	for _, delay := range delays {
		if err := b.measureDelay(ctx, s, d, delay); err != nil {
			return err
		}
	}
	return nil
}

func delayName(d time.Duration) string {
	if d == 0 {
		return "no delay"
	}
	return "+" + strings.Replace(d.String(), "µs", " µs", 1)
}

func (b *bench) measureDelay(ctx context.Context, s *section, d dataset, delay time.Duration) error {
	net, err := b.network(delay)
	if err != nil {
		return err
	}
	via, ops := net.rig, b.sc.ops/4
	if delay > 0 {
		ops = max(10, int(float64(ops)*float64(100*time.Microsecond)/float64(delay)))
	}
	all, closeAll, err := b.guards(via, d, delayName(delay))
	defer closeAll()
	if err != nil {
		return err
	}
	for _, g := range all {
		for i := range warm {
			for _, id := range []string{rowsPrefix + fmt.Sprint(i), ghostsPrefix + fmt.Sprint(i)} {
				if _, err := g.get(ctx, id); err != nil {
					return fmt.Errorf("%s: %w", g.name, err)
				}
			}
		}
		g.next = warm
	}
	floor := &guarded{name: nameGet, loads: new(atomic.Int64), get: func(ctx context.Context, _ string) (bool, error) {
		return true, via.rdb.Get(ctx, b.prefix+"row").Err()
	}}
	if err := b.local.rdb.Set(ctx, b.prefix+"row", `{"ID":"row:1","Name":"Towel"}`, time.Hour).Err(); err != nil {
		return err
	}
	for _, what := range guardCases {
		circumstance := what + ", " + delayName(delay)
		subjects := append([]*guarded{floor}, all...)
		if err := timeInTurn(ctx, b.sc.rounds, ops, subjects, func(g *guarded) string { return g.name },
			func(g *guarded, i int) error { return g.ask(ctx, what, i) },
			func(g *guarded, took []time.Duration) {
				s.record(g.name, circumstance, float64(delay.Microseconds()), "p50", "µs", micros(quantile(took, 0.5)))
				s.record(g.name, circumstance, float64(delay.Microseconds()), "p99", "µs", micros(quantile(took, 0.99)))
			}); err != nil {
			return err
		}
		for _, g := range all {
			if err := g.countTrips(ctx, s, net, what, circumstance, delay); err != nil {
				return err
			}
		}
	}
	return nil
}

// countTrips counts round trips and loads, where the proxy sees them.
func (g *guarded) countTrips(ctx context.Context, s *section, net *network, what, circumstance string, delay time.Duration) error {
	const calls = 20
	trips, loads := net.trips(), g.loads.Load()
	for i := range calls {
		if err := g.ask(ctx, what, i); err != nil {
			return err
		}
	}
	if delay > 0 {
		s.record(g.name, circumstance, 0, "round trips", "", float64(net.trips()-trips)/calls)
	}
	s.record(g.name, circumstance, 0, "loads", "", float64(g.loads.Load()-loads)/calls)
	return nil
}

// ask makes the i-th call of a case and checks its answer.
func (g *guarded) ask(ctx context.Context, what string, i int) error {
	id, want := "", true
	switch what {
	case caseHit:
		id = rowsPrefix + fmt.Sprint(i%warm)
	case caseNull:
		id, want = ghostsPrefix+fmt.Sprint(i%warm), false
	case caseRejected:
		id, want = strangers+fmt.Sprint(g.next), false
		g.next++
	case caseLoad:
		id = rowsPrefix + fmt.Sprint(g.next)
		g.next++
	}
	found, err := g.get(ctx, id)
	if err == nil && found != want && g.name != nameGet {
		err = fmt.Errorf("%s of %q: found is %v", what, id, found)
	}
	return err
}

// A network is a rig whose every byte comes late; of no delay, one without proxies.
type network struct {
	rig     rig
	proxies []*proxy
}

func (b *bench) network(delay time.Duration) (*network, error) {
	if delay == 0 {
		return &network{rig: b.plain()}, nil
	}
	n := new(network)
	for _, h := range b.hosts() {
		px, err := newProxy(h.addr, delay/2)
		if err != nil {
			return nil, err
		}
		rdb := redis.NewClient(&redis.Options{Addr: px.addr(), ContextTimeoutEnabled: true})
		// At the end of all, since go-zero keeps its connections for ever.
		b.closes = append(b.closes, px.close, func() { _ = rdb.Close() })
		n.proxies = append(n.proxies, px)
		if h == b.module {
			n.rig.module = rdb
		}
		if h == b.local {
			n.rig.rdb = rdb
			if n.rig.zero, err = goZeroClient(px.addr()); err != nil {
				return nil, err
			}
		}
	}
	return n, nil
}

func (n *network) trips() (total int64) {
	for _, px := range n.proxies {
		total += px.trips.Load()
	}
	return total
}

// storeGuarded puts rows and ghosts into the filters, for once and all guards.
func (b *bench) storeGuarded(ctx context.Context, d dataset, fresh int) error {
	ids := func(yield func(string, error) bool) {
		for i := range fresh {
			if !yield(rowsPrefix+fmt.Sprint(i), nil) {
				return
			}
		}
		for i := range warm {
			if !yield(ghostsPrefix+fmt.Sprint(i), nil) {
				return
			}
		}
	}
	for _, x := range b.guardBackends(b.plain(), d) {
		f, err := bloom.New(x.backend, bloom.Config{Capacity: d.capacity, FPRate: d.rate, Layout: x.layout})
		if err != nil {
			return err
		}
		if _, err := f.Rebuild(ctx, ids, &bloom.RebuildOptions{Settle: -1}); err != nil {
			return err
		}
	}
	p, err := bloom.NewParams(d.capacity, d.rate, bloom.Classic)
	if err != nil {
		return err
	}
	positions, bits := goZeroBits(p), make([]byte, (p.Bits+7)/8)
	for id := range ids {
		for _, bit := range positions(nil, id) {
			bits[bit>>3] |= 0x80 >> (bit & 7)
		}
	}
	return b.local.rdb.Set(ctx, d.key("zero"), bits, 0).Err()
}

var errNoRow = errors.New("no such row")

// database answers for the rows, in no time: what is measured is the way to it.
func database(id string, loads *atomic.Int64) (product, error) {
	loads.Add(1)
	if !strings.HasPrefix(id, rowsPrefix) {
		return product{}, errNoRow
	}
	return product{ID: id, Name: "Towel"}, nil
}
