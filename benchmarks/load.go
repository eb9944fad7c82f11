package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
)

const (
	nameIdle     = "nobody loads"
	nameRebuilds = "Rebuild, "
	nameVerifies = "Verify, "
	nameAdds     = "AddMulti, "
	nameCallers  = ", 128 callers"
)

// A loader puts items into a filter that is new, and returns how many.
type loader struct {
	name    string
	prepare func(ctx context.Context) error // untimed
	load    func(ctx context.Context) (int, error)
}

// measureLoad measures how fast filters are filled, and what another client that
// reads short keys meanwhile notices of it.
func measureLoad(ctx context.Context, b *bench, s *section) error {
	s.Setting["items of a Rebuild"] = fmt.Sprint(b.sc.loaded)
	s.Setting["items by adds"] = fmt.Sprintf("as many as come in %v", 3*b.sc.window)
	d := dataset{prefix: b.prefix + "load:", capacity: uint64(b.sc.loaded) + uint64(b.sc.loaded)/9, rate: 0.01}
	adding := d
	adding.prefix = b.prefix + "add:"
	defer func() {
		_ = b.drop(context.WithoutCancel(ctx), d)
		_ = b.drop(context.WithoutCancel(ctx), adding)
	}()
	for _, h := range b.hosts() {
		if err := h.rdb.Set(ctx, b.prefix+"floor", "12345", 0).Err(); err != nil {
			return err
		}
		defer h.rdb.Unlink(context.WithoutCancel(ctx), b.prefix+"floor")
	}
	loaders, err := b.loaders(d, adding)
	if err != nil {
		return err
	}
	loaders = append(loaders, loader{nameIdle, nothing, func(ctx context.Context) (int, error) {
		time.Sleep(3 * b.sc.window)
		return 0, nil
	}})
	return inTurn(ctx, b.sc.rounds, loaders, func(l loader) error {
		if err := l.prepare(ctx); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		settle()
		server := b.local
		if strings.HasSuffix(l.name, nameModule) || l.name == addName(nameBare) {
			server = b.module
		}
		probe := startProbe(ctx, server.addr, b.prefix+"floor")
		cpu, cpuErr := server.cpu(ctx)
		began := time.Now()
		n, err := l.load(ctx)
		took := time.Since(began)
		cpuAfter, cpuAfterErr := server.cpu(ctx)
		gets, probeErr := probe()
		if err := errors.Join(err, probeErr, cpuErr, cpuAfterErr); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		if n > 0 {
			s.record(l.name, "", 0, "items", "1/s", float64(n)/took.Seconds())
			s.record(l.name, "", 0, "server CPU", "µs", micros(cpuAfter-cpu)/float64(n))
		}
		if strings.HasPrefix(l.name, nameRebuilds) || strings.HasPrefix(l.name, nameVerifies) {
			s.record(l.name, "", 0, "took", "s", took.Seconds())
		}
		s.record(l.name, "", 0, "GET p50 meanwhile", "µs", micros(quantile(gets, 0.5)))
		s.record(l.name, "", 0, "GET p99 meanwhile", "µs", micros(quantile(gets, 0.99)))
		s.record(l.name, "", 0, "GET worst meanwhile", "µs", micros(quantile(gets, 1)))
		return nil
	})
}

// startProbe is another program's client: it reads a short key, again and again, with
// a pause so that it is no load itself.
func startProbe(ctx context.Context, addr, key string) (stop func() ([]time.Duration, error)) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	ended := make(chan struct{})
	var took []time.Duration
	var failed error
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		failed = rdb.Ping(ctx).Err()
		for failed == nil {
			began := time.Now()
			failed = rdb.Get(ctx, key).Err()
			took = append(took, time.Since(began))
			select {
			case <-ended:
				return
			case <-time.After(time.Millisecond / 2):
			}
		}
	}()
	return func() ([]time.Duration, error) {
		close(ended)
		wg.Wait()
		_ = rdb.Close()
		return took, failed
	}
}

func nothing(context.Context) error { return nil }

// loaders rebuild and verify the filters of d, and add to those of adding.
func (b *bench) loaders(d, adding dataset) ([]loader, error) {
	var all []loader
	backends := []struct {
		name    string
		backend bloom.Backend
		layout  bloom.Layout
	}{
		{nameClassic, bloom.NewBitmap(b.local.rdb, d.key("classic")), bloom.Classic},
		{nameBlocked, bloom.NewBitmap(b.local.rdb, d.key("blocked")), bloom.Blocked},
	}
	if b.module != nil {
		backends = append(backends, struct {
			name    string
			backend bloom.Backend
			layout  bloom.Layout
		}{nameModule, bloom.NewRedisBloom(b.module.rdb, d.key("module"), nil), bloom.Classic})
	}
	for _, x := range backends {
		f, err := bloom.New(x.backend, bloom.Config{Capacity: d.capacity, FPRate: d.rate, Layout: x.layout})
		if err != nil {
			return nil, err
		}
		rebuild := func(ctx context.Context) (int, error) {
			report, err := f.Rebuild(ctx, source(b.sc.loaded), &bloom.RebuildOptions{Settle: -1})
			return int(report.Items), err
		}
		all = append(all,
			loader{nameRebuilds + x.name, f.Drop, rebuild},
			loader{nameVerifies + x.name, func(ctx context.Context) error {
				if !errors.Is(f.Ready(ctx), bloom.ErrNotReady) {
					return nil
				}
				_, err := rebuild(ctx) // the order rotates
				return err
			}, func(ctx context.Context) (int, error) {
				report, err := f.Verify(ctx, source(b.sc.loaded), nil)
				if err == nil && report.Missing > 0 {
					err = fmt.Errorf("%d items are missing, as %q", report.Missing, report.Examples)
				}
				return int(report.Checked), err
			}})
	}
	r := b.plain()
	adders, err := b.subjects(r, adding)
	if err != nil {
		return nil, err
	}
	for _, x := range adders {
		empty := func(ctx context.Context) error { return b.empty(ctx, x, adding) }
		all = append(all, loader{addName(x.name), empty, func(ctx context.Context) (int, error) {
			size := 10_000
			if x.many == nil {
				size = 100
			}
			return b.addUntil(ctx, x, size, 0, 1)
		}})
		if x.name == nameZero {
			all = append(all, loader{addName(x.name) + nameCallers, empty, func(ctx context.Context) (int, error) {
				var wg sync.WaitGroup
				done, failed := make([]int, 128), make([]error, 128)
				for c := range done {
					wg.Add(1)
					go func() {
						defer wg.Done()
						done[c], failed[c] = b.addUntil(ctx, x, 10, c, len(done))
					}()
				}
				wg.Wait()
				n := 0
				for _, v := range done {
					n += v
				}
				return n, errors.Join(failed...)
			}})
		}
	}
	return all, nil
}

// addName names the adds of a subject.
func addName(subject string) string {
	switch subject {
	case nameBare:
		return "BF.MADD, bare"
	case nameTextbook:
		return "k × SETBIT, pipelined"
	case nameLua:
		return "Lua SETBIT loop"
	case nameSet:
		return "SADD to a set"
	case nameZero:
		return "Add one by one, " + nameZero
	}
	return nameAdds + subject
}

// addUntil adds batches for a while: every caller's own.
func (b *bench) addUntil(ctx context.Context, x *subject, size, caller, callers int) (int, error) {
	n := 0
	batch := make([]string, size)
	for began, at := time.Now(), caller; time.Since(began) < 3*b.sc.window; at += callers {
		if (at+1)*size > b.sc.loaded {
			break // full to capacity
		}
		for i := range batch {
			batch[i] = itemName(at*size + i)
		}
		if err := x.add(ctx, batch); err != nil {
			return n, err
		}
		n += size
	}
	return n, nil
}

// empty makes what x adds to anew, in full size where it has one.
func (b *bench) empty(ctx context.Context, x *subject, d dataset) error {
	p, err := bloom.NewParams(d.capacity, d.rate, bloom.Classic)
	if err != nil {
		return err
	}
	var backend bloom.Backend
	layout := bloom.Classic
	switch x.name {
	case nameClassic:
		backend = bloom.NewBitmap(b.local.rdb, x.key)
	case nameBlocked:
		backend, layout = bloom.NewBitmap(b.local.rdb, x.key), bloom.Blocked
	case nameModule, nameBare:
		backend = bloom.NewRedisBloom(b.module.rdb, x.key, nil)
	case nameSet:
		return x.server.rdb.Unlink(ctx, x.key).Err()
	default:
		if err := x.server.rdb.Unlink(ctx, x.key).Err(); err != nil {
			return err
		}
		return x.server.rdb.SetBit(ctx, x.key, int64(p.Bits), 0).Err()
	}
	f, err := bloom.New(backend, bloom.Config{Capacity: d.capacity, FPRate: d.rate, Layout: layout})
	if err != nil {
		return err
	}
	if err := f.Drop(ctx); err != nil {
		return err
	}
	return f.CreateEmpty(ctx)
}
