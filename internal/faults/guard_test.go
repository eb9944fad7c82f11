package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/stretchr/testify/require"
)

const (
	// entries begin the keys that guards cache at.
	entries = "entry:"

	loadTimeout = 300 * time.Millisecond

	// sharedLoad is for how long a guard that can't reach its cache may go on with a
	// load that began before another guard's Invalidate.
	sharedLoad = 2*loadTimeout + time.Second

	guards = 3 // one for each way to the servers
)

// tell notes that guard by has been told of a version.
func (w *row) tell(version int64, by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told[max(0, len(w.told)-7):], told{version, by, time.Now()})
}

// least is the oldest version that guard by may still return, 0 for none at all.
func (w *row) least(by int, stalls time.Duration) (version int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.told {
		if t.by == by || time.Since(t.at) > sharedLoad+stalls {
			version = max(version, t.version)
		}
	}
	return version
}

// guards starts what reads and writes through guards. Every guard stands for a
// process of its own.
func (r *run) guards(start func(work func(rnd *rand.Rand))) {
	for by := range guards {
		n := r.bed.nodes[0]
		rdb := n.client(r.t, way(by))
		f, err := bloom.New(r.bed.backend(rdb, n.key), bloom.Config{})
		require.NoError(r.t, err)
		loads := &dice{rnd: rand.New(rand.NewPCG(r.seed, r.roll()))}
		guard, err := bloom.NewGuard(f, bloom.NewRedisCache(rdb, entries), r.loader(loads), &bloom.GuardOptions[int64]{
			TTL:         2 * time.Second,
			NullTTL:     time.Second,
			LoadTimeout: loadTimeout,
			AuditRate:   0.05,
			OnAnomaly:   r.anomaly,
		})
		require.NoError(r.t, err)
		r.t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			require.NoError(r.t, guard.Close(ctx))
		})
		r.closing = append(r.closing, func() { r.addStats(guard.Stats()) })
		for range 3 {
			start(func(rnd *rand.Rand) { r.getter(guard, by, rnd) })
		}
		start(func(rnd *rand.Rand) { r.updater(guard, by, rnd) })
		start(func(rnd *rand.Rand) { r.inserter(guard, by, rnd) })
	}
}

func (r *run) addStats(s bloom.GuardStats) {
	for name, n := range map[string]uint64{
		"gets": s.Gets, "rejected": s.Rejected, "hits": s.Hits, "null hits": s.NullHits, "loads": s.Loads,
		"shared loads": s.SharedLoads, "let through": s.FailOpens, "fills": s.Fills, "audits": s.Audits,
		"anomalies": s.Anomalies, "overloads": s.Overloads,
	} {
		r.add("guards", name, int(n))
	}
}

// loader reads the table, slowly at times, and not always with success.
func (r *run) loader(dice *dice) bloom.Loader[int64] {
	wait := func(ctx context.Context) error {
		if dice.intN(3) > 0 {
			return ctx.Err()
		}
		select {
		case <-time.After(time.Duration(dice.intN(15)) * time.Millisecond):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return func(ctx context.Context, id string) (int64, error) {
		if err := wait(ctx); err != nil {
			return 0, err
		}
		if dice.intN(50) == 0 {
			return 0, errSource
		}
		version := int64(0)
		if w := r.table.get(id); w != nil {
			version = w.version.Load()
		}
		if err := wait(ctx); err != nil {
			return 0, err
		}
		if version == 0 {
			return 0, fmt.Errorf("row %q: %w", id, bloom.ErrNotFound)
		}
		return version, nil
	}
}

// anomaly hears of rows behind a certain "no". Those that were deleted may be cached
// still. And an id that was asked for, and denied, before there was such a row may
// have one when the audit looks: the guard finds out by adding it to the filter, and
// where that fails, it cannot tell.
func (r *run) anomaly(a bloom.Anomaly) {
	w := r.table.get(a.ID)
	if w != nil && (a.Err == nil || time.Since(w.born) > sharedLoad+r.pulse.stalls(w.born)) {
		r.wrongAnswer("the filter denied %q: %+v", a.ID, a)
	}
}

// getter reads rows, ids that have none, and ids that will soon have one.
func (r *run) getter(g *bloom.Guard[int64], by int, rnd *rand.Rand) {
	for r.going() {
		known := r.table.some(rnd, 1+rnd.IntN(2)*rnd.IntN(r.bed.batch))
		if len(known) > 1 {
			r.getMulti(g, by, rnd, known)
			r.rest(rnd)
			continue
		}
		id, who := known[0].id, known[0]
		switch rnd.IntN(4) {
		case 0:
			id, who = fmt.Sprintf("absent %d", rnd.Uint64()), nil
		case 1:
			id, who = fmt.Sprintf("row %d", r.table.ids.Load()+1), nil
		}
		least := int64(0)
		if who != nil {
			least = who.least(by, r.pulse.stalls(time.Now().Add(-2*sharedLoad)))
		}
		var version int64
		found := true
		err := r.call("Get", limit(rnd), slack, func(ctx context.Context) (err error) {
			if version, err = g.Get(ctx, id); errors.Is(err, bloom.ErrNotFound) {
				found, err = false, nil
			}
			return err
		})
		if err == nil {
			r.got(id, who, version, found, least)
		}
		r.rest(rnd)
	}
}

func (r *run) getMulti(g *bloom.Guard[int64], by int, rnd *rand.Rand, known []*row) {
	ids, least := idsOf(known), make([]int64, len(known))
	for i, who := range known {
		least[i] = who.least(by, r.pulse.stalls(time.Now().Add(-2*sharedLoad)))
	}
	for range known {
		ids = append(ids, fmt.Sprintf("absent %d", rnd.Uint64()))
	}
	var versions map[string]int64
	err := r.call("GetMulti", limit(rnd), slack, func(ctx context.Context) (err error) {
		versions, err = g.GetMulti(ctx, ids)
		return err
	})
	for i, id := range ids {
		version, found := versions[id]
		switch {
		case !found && err != nil: // it may be among those that failed
		case i < len(known):
			r.got(id, known[i], version, found, least[i])
		default:
			r.got(id, nil, version, found, 0)
		}
	}
}

// got judges what a guard says of an id that had at least a version when it was
// asked; who is nil where nothing is known of it.
func (r *run) got(id string, who *row, version int64, found bool, least int64) {
	switch {
	case who == nil && found:
		r.add("items", "absent", 1) // or the next row, which came meanwhile
	case who == nil:
		r.add("items", "absent", 1)
		r.add("items", "absent denied", 1)
	case who.deleted.Load():
	case !found && least > 0:
		r.wrongAnswer("Get(%q) says that there is no such row", id)
	case found && version < least:
		r.wrongAnswer("Get(%q) is version %d after an Invalidate of %d", id, version, least)
	case found && version > who.version.Load():
		r.wrongAnswer("Get(%q) is version %d of %d", id, version, who.version.Load())
	default:
		r.add("items", "known", 1)
	}
}

// updater changes rows.
func (r *run) updater(g *bloom.Guard[int64], by int, rnd *rand.Rand) {
	for r.going() {
		for _, w := range r.table.some(rnd, 1+rnd.IntN(3)) {
			w.writer.Lock()
			version := w.version.Add(1)
			err := r.call("Invalidate", limit(rnd), slack, func(ctx context.Context) error { return g.Invalidate(ctx, w.id) })
			if err == nil {
				w.tell(version, by)
			}
			w.writer.Unlock()
		}
		r.rest(rnd)
	}
}

// inserter adds rows in the order that the README asks for.
func (r *run) inserter(g *bloom.Guard[int64], by int, rnd *rand.Rand) {
	register := func(ids []string) error {
		return r.call("Register", limit(rnd), slack, func(ctx context.Context) error { return g.Register(ctx, ids...) })
	}
	for r.going() {
		ids := r.table.newIDs(1 + rnd.IntN(3))
		began, away := time.Now(), r.away.Load()
		err := register(ids)
		var rows []*row
		ok := err == nil && away%2 == 0 && r.away.Load() == away // nil may mean that the filter is away
		if ok {
			rows, ok = r.table.commit(ids, began)
		}
		if !ok {
			r.add("items", "rolled back", len(ids))
			r.rest(rnd)
			continue
		}
		for err = register(ids); err != nil && r.going(); err = register(ids) {
			r.rest(rnd)
		}
		if err != nil {
			r.table.remove(rows)
			return
		}
		for _, w := range rows {
			w.tell(1, by)
		}
		r.table.promise(rows)
		r.add("items", "added", len(rows))
		r.rest(rnd)
	}
}
