package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"
)

// measureBatch measures what an item costs in batches of several sizes, one caller:
// time, processor time of server and client, allocations; and once, since they do
// not vary, bytes on the wire and of Redis memory.
func measureBatch(ctx context.Context, b *bench, s *section) error {
	d := b.main()
	drop, err := b.stored(ctx, d)
	defer drop()
	if err != nil {
		return err
	}
	all, err := b.subjects(b.plain(), d)
	if err != nil {
		return err
	}
	s.Setting["items"] = fmt.Sprint(d.items)
	for _, x := range all {
		memory, size, err := x.server.memory(ctx, x.key)
		if err != nil {
			return err
		}
		s.record(x.name, "", 0, "size", "bytes", size/float64(d.items))
		s.record(x.name, "", 0, "memory", "bytes", memory/float64(d.items))
	}
	all = append(b.floors(b.plain(), d), all...)
	type way struct {
		*subject
		size int
	}
	var ways []way
	for _, size := range b.sc.batches {
		for _, x := range all {
			if size > 1 && x.name == namePing {
				continue // a pipeline of GETs is the floor of a batch
			}
			ways = append(ways, way{x, size})
		}
	}
	items := probes(1<<15, d.items)
	if err := inTurn(ctx, b.sc.rounds, ways, func(w way) error {
		c, err := w.cost(ctx, w.size, b.sc.window, items)
		if err != nil {
			return fmt.Errorf("%s, batches of %d: %w", w.name, w.size, err)
		}
		what, x := batchOf(w.size), float64(w.size)
		s.record(w.name, what, x, "time", "µs", c.time)
		s.record(w.name, what, x, "server CPU", "µs", c.server)
		s.record(w.name, what, x, "client CPU", "µs", c.client)
		s.record(w.name, what, x, "allocations", "", c.allocs)
		return nil
	}); err != nil {
		return err
	}
	return b.measureWire(ctx, s, d, items)
}

func batchOf(size int) string { return fmt.Sprintf("batch of %d", size) }

// cost is what one item costs: µs, and allocations.
type cost struct{ time, server, client, allocs float64 }

// cost asks for batches until the window is over.
func (x *subject) cost(ctx context.Context, size int, window time.Duration, items []string) (c cost, err error) {
	batch := func(i int) []string {
		from := i * size % (len(items) - size)
		return items[from : from+size]
	}
	if err := x.ask(ctx, batch(0)); err != nil { // connections and scripts are there then
		return c, err
	}
	settle()
	var before, after runtime.MemStats
	server, err := x.server.cpu(ctx)
	if err != nil {
		return c, err
	}
	runtime.ReadMemStats(&before)
	client, began, asked := ownCPU(), time.Now(), 0
	for i := 0; time.Since(began) < window; i++ {
		if err := x.ask(ctx, batch(i)); err != nil {
			return c, err
		}
		asked += size
	}
	took := time.Since(began)
	c.client = ownCPU() - client
	runtime.ReadMemStats(&after)
	end, err := x.server.cpu(ctx)
	if err != nil {
		return c, err
	}
	n := float64(asked)
	return cost{
		time:   took.Seconds() / n * 1e6,
		server: (end - server) / n * 1e6,
		client: c.client / n * 1e6,
		allocs: float64(after.Mallocs-before.Mallocs) / n,
	}, nil
}

// measureWire counts bytes and round trips through a proxy.
func (b *bench) measureWire(ctx context.Context, s *section, d dataset, items []string) error {
	px, err := newProxy(b.local.addr, 0)
	if err != nil {
		return err
	}
	b.closes = append(b.closes, px.close) // go-zero keeps its connections for ever
	proxied := redis.NewClient(&redis.Options{Addr: px.addr(), ContextTimeoutEnabled: true})
	defer proxied.Close()
	r := rig{rdb: proxied}
	if r.zero, err = goZeroClient(px.addr()); err != nil {
		return err
	}
	if b.module == b.local {
		r.module = proxied
	}
	all, err := b.subjects(r, d)
	if err != nil {
		return err
	}
	for _, x := range append(b.floors(r, d), all...) {
		for _, size := range []int{1, 1000} {
			if size > 1 && x.name == namePing {
				continue
			}
			n := 200
			if size > 1 {
				n = 2
			}
			ask := func() error {
				for i := range n {
					if err := x.ask(ctx, items[i*size:(i+1)*size]); err != nil {
						return err
					}
				}
				return nil
			}
			if err := ask(); err != nil {
				return err
			}
			up, down, trips := px.up.Load(), px.down.Load(), px.trips.Load()
			if err := ask(); err != nil {
				return err
			}
			per := float64(n * size)
			s.record(x.name, batchOf(size), float64(size), "bytes sent", "bytes", float64(px.up.Load()-up)/per)
			s.record(x.name, batchOf(size), float64(size), "bytes received", "bytes", float64(px.down.Load()-down)/per)
			s.record(x.name, batchOf(size), float64(size), "round trips", "", float64(px.trips.Load()-trips)/float64(n))
		}
	}
	return nil
}
