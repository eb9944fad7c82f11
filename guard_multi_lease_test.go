package bloom

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hookedMany is a RedisCache that calls functions around its leases for many ids,
// each only once.
type hookedMany struct {
	*RedisCache
	beforeLease, afterLease func()
}

func (c *hookedMany) leaseMany(
	ctx context.Context, ids []string, leases, overs [][]byte, ttl time.Duration,
) ([][]byte, []error) {
	once(&c.beforeLease)
	defer once(&c.afterLease)
	return c.RedisCache.leaseMany(ctx, ids, leases, overs, ttl)
}

// hookLeases hooks a cache, of many ids where it is that.
func hookLeases(c Cache, before, after func()) Cache {
	if redis, ok := c.(*RedisCache); ok {
		return &hookedMany{redis, before, after}
	}
	return &hookedCache{Cache: c, beforeLease: before, afterLease: after}
}

// Flights of a GetMulti were told by the cache what was there meanwhile. Then the row
// changes and another process invalidates it. A Get that starts now must not get
// what they were told.
func TestGuardMultiStaleAnswerOfALease(t *testing.T) {
	for name, entry := range map[string]string{"value": `V"old"`, "null": "N"} {
		t.Run(name, func(t *testing.T) {
			eachSharedStore(t, func(t *testing.T, s guardStore) {
				s.known(t, "a")
				elsewhere := newTestGuard(t, s, notByLoader, nil)
				var changed atomic.Bool
				load := func(context.Context, string) (string, error) {
					if !changed.Load() {
						return "", errors.New("the entry comes before the first load")
					}
					return "new", nil
				}
				answered := newGate()
				s.cache = hookLeases(s.cache, func() { s.raw.set("a", []byte(entry), time.Minute) }, answered.pass)
				g := newTestGuard(t, s, load, &GuardOptions[string]{LoadMulti: multiRows(load)})
				first := goMulti(t.Context(), g, "a")
				receive(t, answered.reached)
				changed.Store(true)
				require.NoError(t, elsewhere.Invalidate(t.Context(), "a"))
				get := goGet(t.Context(), g, "a")
				multi := goMulti(t.Context(), g, "a")
				joined(t, g, 2)
				close(answered.open)
				require.Equal(t, got[string]{"new", nil}, receive(t, get))
				requireFound(t, map[string]string{"a": "new"}, multi)
				require.NoError(t, receive(t, first).err)
				requireState(t, s, got[string]{"new", nil}, g)
			})
		})
	}
}

// Without a change such an answer is good for all, and needs no load.
func TestGuardMultiAnswerOfALease(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a", "b", "c")
		s.cache = hookLeases(s.cache, func() {
			s.raw.set("a", []byte(`V"v"`), time.Minute)
			s.raw.set("b", []byte("N"), time.Minute)
			s.raw.set("c", []byte("V{"), time.Minute) // does not decode: replaced
		}, nil)
		g := newTestGuard(t, s, rowOf, &GuardOptions[string]{LoadMulti: multiRows(rowOf)})
		requireFound(t, map[string]string{"a": "v", "c": "row of c"}, goMulti(t.Context(), g, "a", "b", "c"))
		require.Equal(t, GuardStats{Gets: 3, Hits: 1, NullHits: 1, Loads: 1, Fills: 1}, g.Stats())
		s.requireTag(t, "c", tagValue, defaultTTL)
	})
}

// A GetMulti read that nothing is cached, and meets the lease of a load here that
// runs, or has landed since: it waits for that one, or asks again, and LoadMulti is
// left alone. The other ids are loaded.
func TestGuardMultiMeetsALease(t *testing.T) {
	for _, lands := range []bool{false, true} {
		eachSharedStore(t, func(t *testing.T, s guardStore) {
			s.known(t, "a", "b")
			l, one := newStepMulti(t), newStepLoader(t)
			read, leased := newGate(), newGate()
			gated := &leaseGate{Cache: s.cache, id: "a", gate: leased}
			s.cache = &hookedCache{Cache: gated, afterRead: read.pass}
			g := newTestGuard(t, s, one.load, &GuardOptions[string]{LoadMulti: l.load})
			multi := goMulti(t.Context(), g, "a", "b")
			receive(t, read.reached)
			get := goGet(t.Context(), g, "a")
			load := one.next()
			gated.armed.Store(lands)
			close(read.open)
			if lands {
				receive(t, leased.reached)
				load.found("v")
				require.Equal(t, got[string]{"v", nil}, receive(t, get))
				close(leased.open)
			}
			call := l.next()
			require.Equal(t, []string{"b"}, call.ids)
			call.row("w")
			if !lands {
				joined(t, g, 1)
				load.found("v")
			}
			requireFound(t, map[string]string{"a": "v", "b": "w"}, multi)
			one.none()
			require.EqualValues(t, 2, g.Stats().Loads)
			require.EqualValues(t, 2, g.Stats().Fills)
		})
	}
}

// leaseGate holds the answer of one id's lease, once.
type leaseGate struct {
	Cache
	id    string
	gate  gate
	armed atomic.Bool
}

func (c *leaseGate) Lease(ctx context.Context, id string, lease, over []byte, ttl time.Duration) ([]byte, error) {
	found, err := c.Cache.Lease(ctx, id, lease, over, ttl)
	if id == c.id && c.armed.CompareAndSwap(true, false) {
		c.gate.pass()
	}
	return found, err
}

// An Invalidate that fails still keeps this process's loads from filling, and its
// Gets from joining them. The other ids are filled.
func TestGuardMultiFailedInvalidateForgets(t *testing.T) {
	s := memoryStore(t)
	s.known(t, "a", "b")
	s.cache = undroppable{s.cache}
	l := newStepMulti(t)
	g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: l.load})
	first := goMulti(t.Context(), g, "a", "b")
	load := l.next()
	require.ErrorIs(t, g.Invalidate(t.Context(), "a"), errInjected)
	later := goMulti(t.Context(), g, "a", "b")
	next := l.next()
	require.Equal(t, []string{"a"}, next.ids)
	joined(t, g, 1)
	load.row("old")
	requireFound(t, map[string]string{"a": "old", "b": "old"}, first)
	s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)
	next.row("new")
	requireFound(t, map[string]string{"a": "new", "b": "old"}, later)
	requireState(t, s, got[string]{"new", nil}, g)
}

// undroppable is a cache that does not answer to a Drop.
type undroppable struct{ Cache }

func (undroppable) Drop(context.Context, []string) error { return errInjected }

// A codec that crashes on one row's value fails that id alone, with no value beside
// the error, for all who wait for it.
func TestGuardMultiCodecCrashes(t *testing.T) {
	s := memoryStore(t)
	s.known(t, "a", "b")
	l := newStepMulti(t)
	g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: l.load, Codec: panickyCodec{}})
	multi := goMulti(t.Context(), g, "a", "b")
	load := l.next()
	get := goGet(t.Context(), g, "a")
	joined(t, g, 1)
	load.returns(map[string]string{"a": "boom", "b": "v"}, nil)
	answer := receive(t, multi)
	require.Equal(t, map[string]string{"b": "v"}, answer.found)
	require.ErrorContains(t, failures(t, errors.Unwrap(answer.err))["a"], "panic: boom")
	alone := receive(t, get)
	require.ErrorContains(t, alone.err, "panic: boom")
	require.Empty(t, alone.v)
	require.Equal(t, GuardStats{Gets: 3, Loads: 2, SharedLoads: 1, Fills: 1, FillErrors: 1}, g.Stats())
}

type panickyCodec struct{ pickyCodec }

func (panickyCodec) Marshal(v string) ([]byte, error) {
	if v == "boom" {
		panic(v)
	}
	return []byte(v), nil
}
