package bloom

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// guardStore is a filter and a cache for a Guard, and a way around it: raw sees
// and sets entries behind the Guard's back.
type guardStore struct {
	filter *Filter
	cache  Cache
	raw    rawEntries
	client *redis.Client // nil without Redis
	prefix string
}

type rawEntries interface {
	get(id string) (entry []byte, ttl time.Duration) // nil: nothing there
	set(id string, entry []byte, ttl time.Duration)
	del(id string)
}

// eachGuardStore runs f over the backends that make a difference to a Guard.
func eachGuardStore(t *testing.T, f func(t *testing.T, s guardStore)) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		for _, layout := range []Layout{Classic, Blocked} {
			t.Run(fmt.Sprintf("bitmap %v", layout), func(t *testing.T) {
				f(t, redisStore(t, target, layout))
			})
		}
	})
	t.Run("redis, filter in memory", func(t *testing.T) {
		s := redisStore(t, sharedTarget(t), Classic)
		s.filter = testFilter(t, NewMemory(), Classic)
		f(t, s)
	})
	t.Run("memory", func(t *testing.T) { f(t, memoryStore(t)) })
}

// sharedTarget is the real server that all tests have in common.
func sharedTarget(t *testing.T) redistest.Target {
	return redistest.Target{Name: "redis", Addr: redistest.Shared(t).Addr(), Real: true}
}

// redisStore keeps filter and cache on one server, through one client. Once the
// test has ended, whatever it did, no key of the cache may be without a lifetime.
func redisStore(t *testing.T, target redistest.Target, layout Layout) guardStore {
	t.Helper()
	client, prefix := target.Client(t), redistest.Key(t)+":"
	t.Cleanup(func() { requireLifetimes(t, client, prefix) })
	return guardStore{
		filter: testFilter(t, NewBitmap(client, "filter of "+prefix), layout),
		cache:  NewRedisCache(client, prefix),
		raw:    rawRedis{t, client, prefix},
		client: client,
		prefix: prefix,
	}
}

func memoryStore(t *testing.T) guardStore {
	t.Helper()
	c := NewMemoryCache()
	return guardStore{filter: testFilter(t, NewMemory(), Blocked), cache: c, raw: rawMemory{c}}
}

// testFilter makes an empty filter that is small enough for miniredis.
func testFilter(t *testing.T, b Backend, layout Layout) *Filter {
	t.Helper()
	f, err := New(b, Config{Capacity: 1000, Layout: layout})
	require.NoError(t, err)
	require.NoError(t, f.CreateEmpty(t.Context()))
	return f
}

// known adds ids to the filter without a Guard.
func (s guardStore) known(t *testing.T, ids ...string) {
	t.Helper()
	_, err := s.filter.AddMulti(t.Context(), ids)
	require.NoError(t, err)
}

// requireTag checks what is cached under id, by its tag, and its lifetime.
func (s guardStore) requireTag(t *testing.T, id string, tag byte, most time.Duration) {
	t.Helper()
	entry, ttl := s.raw.get(id)
	require.Equal(t, string(rune(tag)), string(rune(entryTag(entry))), "tag of %q, which holds %q", id, entry)
	if tag != tagNone {
		require.Positive(t, ttl)
		require.LessOrEqual(t, ttl, most)
	}
}

type rawRedis struct {
	t      *testing.T
	client *redis.Client
	prefix string
}

// Contexts are the background one, since cleanups use this as well.
func (r rawRedis) get(id string) ([]byte, time.Duration) {
	entry, err := r.client.Get(context.Background(), r.prefix+id).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, 0
	}
	require.NoError(r.t, err)
	ttl, err := r.client.PTTL(context.Background(), r.prefix+id).Result()
	require.NoError(r.t, err)
	return entry, ttl
}

func (r rawRedis) set(id string, entry []byte, ttl time.Duration) {
	require.NoError(r.t, r.client.Set(context.Background(), r.prefix+id, entry, ttl).Err())
}

func (r rawRedis) del(id string) {
	require.NoError(r.t, r.client.Del(context.Background(), r.prefix+id).Err())
}

type rawMemory struct{ c *MemoryCache }

func (r rawMemory) get(id string) ([]byte, time.Duration) {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	return r.c.get(id), time.Until(r.c.entries[id].expires)
}

func (r rawMemory) set(id string, entry []byte, ttl time.Duration) {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	r.c.set(id, bytes.Clone(entry), ttl)
}

func (r rawMemory) del(id string) { _ = r.c.Drop(context.Background(), []string{id}) }

// requireLifetimes looks at every key that begins with prefix.
func requireLifetimes(t *testing.T, client *redis.Client, prefix string) {
	t.Helper()
	ctx := context.Background()
	glob := strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, `\`, `\\`).Replace(prefix)
	keys := client.Scan(ctx, 0, glob+"*", 1000).Iterator()
	for keys.Next(ctx) {
		ttl, err := client.PTTL(ctx, keys.Val()).Result()
		if err != nil || ttl == -1 { // -2: expired since the scan
			t.Errorf("key without a lifetime: %q (%v, %v)", keys.Val(), ttl, err)
		}
	}
	if err := keys.Err(); err != nil && !isConnError(err) {
		t.Errorf("scan: %v", err)
	}
}

// isConnError reports whether no server answered, as tests end that stopped one.
func isConnError(err error) bool {
	var reply redis.Error
	return err != nil && !errors.As(err, &reply)
}

// newTestGuard returns a guard that is closed with the test. It makes no audits
// unless told to, since those come by the clock.
func newTestGuard[V any](t *testing.T, s guardStore, load Loader[V], opts *GuardOptions[V]) *Guard[V] {
	t.Helper()
	var o GuardOptions[V]
	if opts != nil {
		o = *opts
	}
	setDefault(&o.AuditRate, -1)
	g, err := NewGuard(s.filter, s.cache, load, &o)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			t.Error(err)
		}
		requireIdle(t, g)
	})
	return g
}

// requireIdle checks that a closed guard's accounts are balanced: a slot, a place
// in the queue or a flight that is left would be lost for ever.
func requireIdle[V any](t *testing.T, g *Guard[V]) {
	t.Helper()
	g.flights.mu.Lock()
	defer g.flights.mu.Unlock()
	if n := len(g.flights.slots); n != 0 {
		t.Errorf("%d slots are taken", n)
	}
	if g.flights.queue != 0 {
		t.Errorf("%d flights are queued", g.flights.queue)
	}
	if n := len(g.flights.byID); n != 0 {
		t.Errorf("flights of %d ids are left", n)
	}
	g.heals.mu.Lock()
	defer g.heals.mu.Unlock()
	if n := len(g.heals.ids); n != 0 {
		t.Errorf("%d heals are under way", n)
	}
}

// rows is a loader of a fixed table.
func rows(table map[string]string) Loader[string] {
	return func(_ context.Context, id string) (string, error) {
		v, ok := table[id]
		if !ok {
			return "", fmt.Errorf("no row %q: %w", id, ErrNotFound)
		}
		return v, nil
	}
}

// stepLoader hands each call to the test, which answers it.
type stepLoader struct {
	t     *testing.T
	calls chan *stepCall
}

type stepCall struct {
	id     string
	ctx    context.Context
	answer chan func() (string, error)
}

func newStepLoader(t *testing.T) *stepLoader {
	return &stepLoader{t, make(chan *stepCall, 100)}
}

// load ignores its own context; it ends with the test at the latest.
func (l *stepLoader) load(ctx context.Context, id string) (string, error) {
	c := &stepCall{id, ctx, make(chan func() (string, error), 1)}
	l.calls <- c
	select {
	case f := <-c.answer:
		return f()
	case <-l.t.Context().Done():
		return "", l.t.Context().Err()
	}
}

// next returns the next call of the loader.
func (l *stepLoader) next() *stepCall {
	l.t.Helper()
	return receive(l.t, l.calls)
}

// none checks that no call waits for the test.
func (l *stepLoader) none() {
	l.t.Helper()
	select {
	case c := <-l.calls:
		l.t.Fatalf("unexpected load of %q", c.id)
	default:
	}
}

func (c *stepCall) found(v string) { c.answer <- func() (string, error) { return v, nil } }
func (c *stepCall) missing()       { c.fails(ErrNotFound) }
func (c *stepCall) fails(err error) {
	c.answer <- func() (string, error) { return "", err }
}

// receive waits for a channel, but not for ever.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came")
	}
	panic("unreachable")
}

type got[V any] struct {
	v   V
	err error
}

// goGet starts a Get.
func goGet[V any](ctx context.Context, g *Guard[V], id string) <-chan got[V] {
	c := make(chan got[V], 1)
	go func() {
		v, err := g.Get(ctx, id)
		c <- got[V]{v, err}
	}()
	return c
}

// eventually waits for what another goroutine is about to do.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("did not happen: %s", what)
		}
	}
}

// joined waits until n Gets in all have joined the load of another.
func joined[V any](t *testing.T, g *Guard[V], n uint64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d Gets join", n), func() bool { return g.Stats().SharedLoads == n })
}

// testSeed is random unless BLOOM_SEED is set, and printed if the test fails.
func testSeed(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("BLOOM_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("run it again with BLOOM_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}
