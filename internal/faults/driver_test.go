package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// fault is something that may happen to a node.
type fault struct {
	name string
	do   func(d *driver, n *node)
}

// driver deals faults, each once before any comes again. It runs on the goroutine
// of the test.
type driver struct {
	*run
	rnd     *rand.Rand
	deck    []fault
	handles []*bloom.Filter // of the driver's own
	began   time.Time
	log     []string // the last faults
}

// drive runs a bed under load for a while.
func (b *bed) drive(t *testing.T, seed uint64, within time.Duration) *tally {
	r := &run{tally: &tally{}, t: t, bed: b, table: &table{most: b.rows}, seed: seed}
	d := &driver{run: r, rnd: rand.New(rand.NewPCG(seed, r.roll())), began: time.Now(), deck: slices.Clone(b.first)}
	defer func() {
		if t.Failed() {
			t.Logf("the last faults:\n%s", strings.Join(d.log, "\n"))
		}
	}()
	for w := range ways {
		d.handles = append(d.handles, b.filter(t, w%coalesced, bloom.Config{}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	background.Add(1)
	go func() { defer background.Done(); r.pulse.run(ctx) }()
	r.start()

	var crew, network sync.WaitGroup
	defer crew.Wait()
	defer network.Wait()
	defer r.done.Store(true)
	r.crew(func(work func(rnd *rand.Rand)) {
		rnd := rand.New(rand.NewPCG(seed, r.roll()))
		crew.Add(1)
		go func() { defer crew.Done(); work(rnd) }()
	})
	for _, n := range b.nodes {
		if len(n.proxies) > 0 {
			rnd := rand.New(rand.NewPCG(seed, r.roll()))
			network.Add(1)
			go func() { defer network.Done(); r.network(n, rnd) }()
		}
	}
	end := time.Now().Add(within)
	for weigh := time.Now().Add(within / 4); time.Now().Before(end) && r.going(); {
		d.recovered(min(2*time.Second, within/8))
		d.pause(int(min(300, within.Milliseconds()/20)))
		d.deal()
		if time.Now().After(weigh) {
			r.weigh()
			weigh = time.Now().Add(max(within/8, time.Second))
		}
	}
	d.pause(100)
	r.done.Store(true)
	network.Wait() // it leaves the proxies as they should be
	crew.Wait()
	for _, f := range r.closing {
		f()
	}
	if t.Failed() {
		return r.tally
	}
	d.undo()
	r.finish()
	r.weigh()
	return r.tally
}

// pause lets time pass, up to so many milliseconds.
func (d *driver) pause(most int) { time.Sleep(time.Duration(d.rnd.IntN(most)+1) * time.Millisecond) }

// deal makes the next fault happen to some node.
func (d *driver) deal() {
	if len(d.deck) == 0 {
		d.deck = append(d.deck, d.bed.faults...)
		d.rnd.Shuffle(len(d.deck), func(i, j int) { d.deck[i], d.deck[j] = d.deck[j], d.deck[i] })
	}
	f := d.deck[0]
	d.deck = d.deck[1:]
	i := d.rnd.IntN(len(d.bed.nodes))
	n := d.bed.nodes[i]
	began := time.Now()
	f.do(d, n)
	d.add("faults", f.name, 1)
	d.log = append(d.log[max(0, len(d.log)-20):], fmt.Sprintf("%v: %s of shard %d, for %v",
		began.Sub(d.began).Round(time.Millisecond), f.name, i, time.Since(began).Round(time.Millisecond)))
}

// lose makes the filter of n go away by do, as one of the named losses. Half of the
// times no rebuild runs meanwhile: then every call must be an error from then on.
func (d *driver) lose(n *node, name string, do func(ctx context.Context) error) {
	watch := d.rnd.IntN(2) == 0
	if watch {
		d.gate.Lock()
		defer d.gate.Unlock()
	}
	d.damage(n, name, do)
	if watch {
		d.requireLost(n)
	}
}

// damage does something to the filter of n that is counted if there is one.
func (d *driver) damage(n *node, name string, do func(ctx context.Context) error) {
	if n.there(d) {
		d.add("losses", name, 1)
	}
	d.admin(do)
}

// recovered waits until the filter is whole again, but not always, and not for long.
func (d *driver) recovered(most time.Duration) {
	if d.rnd.IntN(6) == 0 {
		return
	}
	for end := time.Now().Add(most); time.Now().Before(end) && d.going(); {
		ctx, cancel := context.WithTimeout(d.t.Context(), 50*time.Millisecond)
		err := d.handles[0].Ready(ctx)
		cancel()
		if err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// admin does something to a server, again where another fault keeps it from it.
func (d *driver) admin(do func(ctx context.Context) error) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 20*time.Second)
	defer cancel()
	for {
		err := do(ctx)
		if err == nil || err == redis.Nil {
			return
		}
		if ctx.Err() != nil {
			require.NoError(d.t, err, "the driver cannot do what it wants")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// requireLost asks a filter that is gone, while no rebuild runs.
func (d *driver) requireLost(n *node) {
	for _, f := range d.handles {
		items := idsOf(d.table.some(d.rnd, 20))
		for range 40 {
			items = append(items, fmt.Sprintf("absent %d", d.rnd.Uint64()))
		}
		ask := func(name string, got []bool, err error) {
			if err == nil {
				d.wrongAnswer("%s is answered by a filter that is gone: %v", name, got)
			}
			if len(d.bed.nodes) == 1 && slices.Contains(got, false) {
				d.wrongAnswer("%s is false after the filter was lost (error %v)", name, err)
			}
		}
		limit := 200 * time.Millisecond
		if len(d.bed.nodes) == 1 { // or else a single item may be of a shard that is there
			_ = d.call("Exists", limit, slack, func(ctx context.Context) error {
				exists, err := f.Exists(ctx, items[0])
				ask("Exists", []bool{exists}, err)
				return err
			})
		}
		_ = d.call("ExistsMulti", limit, slack, func(ctx context.Context) error {
			exists, err := f.ExistsMulti(ctx, items)
			ask("ExistsMulti", exists, err)
			return err
		})
		_ = d.call("AddMulti", limit, slack, func(ctx context.Context) error {
			added, err := f.AddMulti(ctx, d.table.newIDs(64))
			ask("AddMulti", added, err)
			return err
		})
		_ = d.call("Ready", limit, slack, func(ctx context.Context) error {
			err := f.Ready(ctx)
			ask("Ready", nil, err)
			return err
		})
	}
	d.add("losses", "(each call seen to fail)", 1)
}

// undo leaves the servers as they should be.
func (d *driver) undo() {
	for _, n := range d.bed.nodes {
		for _, p := range n.proxies {
			p.ReleaseLate()
		}
		if n.slow {
			n.setTimeout(d, 0)
		}
	}
}

// leftovers are the keys that are there beside the filter and what goes by itself.
func (n *node) leftovers(t *testing.T) (left []string) {
	rdb := redis.Cmdable(n.admin)
	if n.cluster != nil {
		rdb = n.primary(t)
	}
	keys, err := rdb.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		switch {
		case key == n.key:
		case n.module && key == n.companion("build"): // says what was published
		case n.module && key == n.companion("build-ticket"):
			ttl := rdb.PTTL(t.Context(), key).Val()
			require.LessOrEqual(t, ttl, 10*time.Second)
			require.NotEqual(t, time.Duration(-1), ttl, "tickets have a TTL")
		case strings.HasPrefix(key, entries): // cached by a Guard
			require.NotEqual(t, time.Duration(-1), rdb.PTTL(t.Context(), key).Val(), "no TTL on %q", key)
		default:
			left = append(left, key)
		}
	}
	return left
}

// primary returns a client of the server that has the key now.
func (n *node) primary(t *testing.T) *redis.Client { return n.at(t, n.place(t)) }

func (n *node) place(t *testing.T) *redistest.Server {
	if n.cluster != nil {
		return n.cluster.Primary(t, n.key)
	}
	return n.server
}

func (n *node) at(t *testing.T, s *redistest.Server) *redis.Client {
	if n.clients[s] == nil {
		if n.clients == nil {
			n.clients = map[*redistest.Server]*redis.Client{}
		}
		n.clients[s] = s.Client(t)
	}
	return n.clients[s]
}
