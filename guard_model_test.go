package bloom

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// dice are random numbers for many goroutines.
type dice struct {
	seed uint64
	n    atomic.Uint64
}

func (d *dice) roll() *rand.Rand { return rand.New(rand.NewPCG(d.seed, d.n.Add(1))) }

// pause lets others run: mostly not at all, at times for longer than they need.
func (d *dice) pause() {
	r := d.roll()
	switch n := r.IntN(100); {
	case n < 60:
	case n < 85:
		runtime.Gosched()
	case n < 98:
		time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
	default:
		time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond)
	}
}

// pausingCache pauses before and after everything.
type pausingCache struct {
	Cache
	dice *dice
}

func (c pausingCache) Read(ctx context.Context, ids []string) ([][]byte, error) {
	c.dice.pause()
	defer c.dice.pause()
	return c.Cache.Read(ctx, ids)
}

func (c pausingCache) Lease(ctx context.Context, id string, lease, over []byte, ttl time.Duration) ([]byte, error) {
	c.dice.pause()
	defer c.dice.pause()
	return c.Cache.Lease(ctx, id, lease, over, ttl)
}

func (c pausingCache) Fill(ctx context.Context, id string, lease, entry []byte, ttl time.Duration) (bool, error) {
	c.dice.pause()
	defer c.dice.pause()
	return c.Cache.Fill(ctx, id, lease, entry, ttl)
}

func (c pausingCache) Drop(ctx context.Context, ids []string) error {
	c.dice.pause()
	defer c.dice.pause()
	return c.Cache.Drop(ctx, ids)
}

// model is a run: some processes in front of one database.
type model struct {
	t      *testing.T
	s      guardStore
	db     *modelDB
	dice   *dice
	guards []*Guard[string]
	ids    [10]atomic.Pointer[string] // the rows in use; now and then one is left for a new one
	fresh  atomic.Int64
}

var errInjected = errors.New("injected")

func (m *model) load(_ context.Context, id string) (string, error) {
	m.dice.pause()
	v := m.db.row(id).now()
	m.dice.pause()
	switch {
	case m.dice.roll().IntN(200) == 0:
		return "", errInjected
	case v == "":
		return "", ErrNotFound
	}
	return v, nil
}

// loadMulti reads its rows one after the other.
func (m *model) loadMulti(_ context.Context, ids []string) (map[string]string, error) {
	m.dice.pause()
	found := map[string]string{}
	for _, id := range ids {
		if v := m.db.row(id).now(); v != "" {
			found[id] = v
		}
		if m.dice.roll().IntN(500) == 0 {
			return found, errInjected
		}
	}
	m.dice.pause()
	return found, nil
}

// hear hears of anomalies. A row is registered before its commit, so there are none.
func (m *model) hear(a Anomaly) { m.t.Errorf("%+v", a) }

func (m *model) newID() *string {
	id := fmt.Sprint("row ", m.fresh.Add(1))
	return &id
}

// step does one random thing.
func (m *model) step() {
	r := m.dice.roll()
	slot := &m.ids[r.IntN(len(m.ids))]
	id := *slot.Load()
	guard := func() *Guard[string] { return m.guards[r.IntN(len(m.guards))] }
	row := m.db.row(id)
	switch n := r.IntN(1000); {
	case n < 500:
		m.get(guard(), id, r.IntN(50) == 0)
	case n < 750:
		ids := []string{id}
		for range r.IntN(6) {
			ids = append(ids, *m.ids[r.IntN(len(m.ids))].Load())
		}
		m.getMulti(guard(), ids, r.IntN(50) == 0)
	case n < 930:
		register := func() error { return guard().Register(m.t.Context(), id) }
		invalidate := func() error { return guard().Invalidate(m.t.Context(), id) }
		if row.now() == "" {
			row.tell(m.t, m.db, register)
			m.dice.pause()
			row.commit(m.db, id, true)
			m.dice.pause()
			row.tell(m.t, m.db, register)
			return
		}
		row.commit(m.db, id, r.IntN(3) > 0)
		m.dice.pause()
		row.tell(m.t, m.db, invalidate)
	case n < 950:
		m.s.raw.del(id)
	case n < 965:
		m.s.raw.set(id, []byte("V{"), time.Second)
	case n < 970:
		m.s.raw.set(id, []byte("foreign"), 2*time.Millisecond)
	case n < 990:
		if m.s.client != nil {
			_ = m.s.client.PExpire(m.t.Context(), m.s.prefix+id, time.Millisecond).Err()
		}
	default:
		slot.Store(m.newID())
	}
}

// get checks a Get against what the row was from the latest news of it on.
func (m *model) get(g *Guard[string], id string, hurry bool) {
	ctx := m.t.Context()
	if hurry {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 500*time.Microsecond)
		defer cancel()
	}
	since := m.db.row(id).toldAt()
	v, err := g.Get(ctx, id)
	m.check(id, since, m.db.clock.Add(1), v, err)
}

// getMulti checks a GetMulti, each id like a Get.
func (m *model) getMulti(g *Guard[string], ids []string, hurry bool) {
	ctx := m.t.Context()
	if hurry {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 500*time.Microsecond)
		defer cancel()
	}
	since := map[string]int64{}
	for _, id := range ids {
		since[id] = m.db.row(id).toldAt()
	}
	found, err := g.GetMulti(ctx, ids)
	until := m.db.clock.Add(1)
	failed := failures(m.t, errors.Unwrap(err))
	for id := range since {
		v, ok := found[id]
		err := failed[id]
		if !ok && err == nil {
			err = ErrNotFound
		}
		m.check(id, since[id], until, v, err)
	}
}

// check checks an answer against what the row was at some moment since then.
func (m *model) check(id string, since, until int64, v string, err error) {
	row := m.db.row(id)
	switch {
	case errors.Is(err, errInjected), errors.Is(err, context.DeadlineExceeded):
		return
	case err != nil && !errors.Is(err, ErrNotFound):
		m.t.Error(err)
		return
	}
	if !row.was(v, since, until) {
		m.t.Errorf("Get(%q) at %d returned %q, %v, which it was not since %d: %v", id, until, v, err, since, row.states)
	}
}

// run does n things in some goroutines.
func (m *model) run(n int) {
	var left atomic.Int64
	left.Store(int64(n))
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for left.Add(-1) >= 0 && !m.t.Failed() {
				m.step()
			}
		}()
	}
	all.Wait()
}

// settled checks, with nothing under way, that whatever is cached is how things
// are, and that this is what a Get returns.
func (m *model) settled() {
	m.t.Helper()
	for _, g := range m.guards {
		eventually(m.t, "no load is under way", func() bool { return len(g.flights.slots) == 0 && queueLength(g) == 0 })
	}
	for i := int64(1); i <= m.fresh.Load(); i++ {
		id := fmt.Sprint("row ", i)
		want := m.db.row(id).now()
		entry, _ := m.s.raw.get(id)
		switch entryTag(entry) {
		case tagValue:
			require.Contains(m.t, []string{fmt.Sprintf("V%q", want), "V{"}, string(entry), "cached under %q", id)
		case tagNull:
			require.Empty(m.t, want, "%q is cached as absent", id)
		}
	}
	for i := range m.ids {
		id := *m.ids[i].Load()
		for _, g := range m.guards {
			for {
				v, err := g.Get(m.t.Context(), id)
				if errors.Is(err, errInjected) || errors.Is(err, context.DeadlineExceeded) {
					continue
				}
				require.Equal(m.t, m.db.row(id).now(), v)
				require.Equal(m.t, v == "", errors.Is(err, ErrNotFound))
				break
			}
		}
	}
}

// modelOps is how much a run does, unless BLOOM_MODEL_OPS says so.
func modelOps(t *testing.T, def int) int {
	if s := os.Getenv("BLOOM_MODEL_OPS"); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		return n
	}
	if raceEnabled || testing.Short() {
		def /= 8
	}
	return def
}

// Random Gets, GetMultis, inserts, updates and deletes by three processes, with loads and cache
// calls that dawdle at random and a cache that loses entries: no Get returns what
// the row was before news of its change had gone out, and nothing stale stays.
func TestGuardModel(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, s guardStore, other Cache, ops int) {
		const rounds = 10
		m := &model{t: t, s: s, db: &modelDB{rows: map[string]*modelRow{}}, dice: &dice{seed: testSeed(t).Uint64()}}
		for i := range m.ids {
			m.ids[i].Store(m.newID())
		}
		add := func(cache Cache, opts GuardOptions[string]) {
			opts.AuditRate, opts.OnAnomaly = 0.3, m.hear
			s := s
			s.cache = cache
			m.guards = append(m.guards, newTestGuard(t, s, m.load, &opts))
		}
		add(s.cache, GuardOptions[string]{LoadMulti: m.loadMulti})
		add(pausingCache{other, m.dice}, GuardOptions[string]{LoadTimeout: 50 * time.Millisecond, LoadMulti: m.loadMulti})
		add(s.cache, GuardOptions[string]{LoadTimeout: 50 * time.Millisecond})
		// On a slow machine a few rounds may pass without two calls that share a load.
		seen := func() bool {
			for _, g := range m.guards {
				if s := g.Stats(); s.SharedLoads == 0 || s.Rejected == 0 || s.Audits == 0 {
					return false
				}
			}
			return true
		}
		for round := 0; round < rounds || round < 10*rounds && !seen(); round++ {
			m.run(ops / rounds)
			m.settled()
			if s.client != nil {
				requireLifetimes(t, s.client, s.prefix)
			}
			if t.Failed() {
				return
			}
		}
		for i, g := range m.guards {
			stats := g.Stats()
			t.Logf("guard %d: %+v", i, stats)
			require.Positive(t, stats.Hits)
			require.Positive(t, stats.Loads)
			require.Positive(t, stats.SharedLoads)
			require.Positive(t, stats.Rejected)
			require.Positive(t, stats.Audits)
			require.Zero(t, stats.Anomalies)
			require.Less(t, stats.Fills, stats.Loads, "some leases were lost in time")
		}
	}
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		ops := 60_000
		if !target.Real {
			ops = 3000
		}
		s := redisStore(t, target, Classic)
		run(t, s, NewRedisCache(target.Client(t), s.prefix), modelOps(t, ops))
	})
	t.Run("memory", func(t *testing.T) {
		s := memoryStore(t)
		run(t, s, s.cache, modelOps(t, 60_000))
	})
}
