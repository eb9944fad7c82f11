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
	ways := map[time.Duration][]way{}
	for _, size := range b.sc.batches {
		for _, x := range all {
			if size > 1 && x.name == namePing {
				continue // a pipeline of GETs is the floor of a batch
			}
			ways[turnOf(size)] = append(ways[turnOf(size)], way{x, size})
		}
	}
	items := probes(1<<15, d.items)
	measure := func(w way, window time.Duration, sum *cost) error {
		if err := w.cost(ctx, w.size, window, sum, items); err != nil {
			return fmt.Errorf("%s, batches of %d: %w", w.name, w.size, err)
		}
		return nil
	}
	record := func(w way, sum cost) {
		what, x := batchOf(w.size), float64(w.size)
		s.record(w.name, what, x, "time", "µs", sum.perItem(sum.took))
		s.record(w.name, what, x, "server CPU", "µs", sum.perItem(sum.server))
		s.record(w.name, what, x, "client CPU", "µs", sum.perItem(sum.client))
		s.record(w.name, what, x, "allocations", "", float64(sum.allocs)/float64(sum.items))
	}
	for _, turn := range []time.Duration{shortTurn, longTurn} {
		if err := inShortTurns(ctx, b.sc.rounds, b.sc.window, turn, ways[turn], measure, record); err != nil {
			return err
		}
	}
	return b.measureWire(ctx, s, d, items)
}

// turnOf is how long a turn of batches is: of large ones, long enough for several.
func turnOf(size int) time.Duration {
	if size > 10 {
		return longTurn
	}
	return shortTurn
}

func batchOf(size int) string { return fmt.Sprintf("batch of %d", size) }

// A cost is what some items cost: time, processor time of server and client, allocations.
type cost struct {
	items                int
	took, server, client time.Duration
	allocs               uint64
}

// perItem returns what of d falls to one item, in µs.
func (c cost) perItem(d time.Duration) float64 { return micros(d) / float64(c.items) }

// cost asks for batches until the window is over, and adds what they cost to sum.
func (x *subject) cost(ctx context.Context, size int, window time.Duration, sum *cost, items []string) error {
	batch := func(i int) []string {
		from := i * size % (len(items) - size)
		return items[from : from+size]
	}
	if sum.items == 0 { // connections and scripts are there then
		if err := x.ask(ctx, batch(0)); err != nil {
			return err
		}
	}
	var before, after runtime.MemStats
	server, err := x.server.cpu(ctx)
	if err != nil {
		return err
	}
	runtime.ReadMemStats(&before)
	client, began := ownCPU(), time.Now()
	for ; time.Since(began) < window; sum.items += size {
		if err := x.ask(ctx, batch(sum.items/size)); err != nil {
			return err
		}
	}
	sum.took += time.Since(began)
	sum.client += ownCPU() - client
	runtime.ReadMemStats(&after)
	end, err := x.server.cpu(ctx)
	if err != nil {
		return err
	}
	sum.server += end - server
	sum.allocs += after.Mallocs - before.Mallocs
	return nil
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
