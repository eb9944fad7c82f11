package bloom

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A GetMulti shares the loads of Gets and of other GetMultis, whoever came first,
// and loads the rest: one load per id.
func TestGuardMultiSharesLoads(t *testing.T) {
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a", "b", "c", "d")
		l, one := newStepMulti(t), newStepLoader(t)
		g := newTestGuard(t, s, one.load, &GuardOptions[string]{LoadMulti: l.load})
		get := goGet(t.Context(), g, "a")
		loadA := one.next()
		first := goMulti(t.Context(), g, "a", "b", "c")
		loadBC := l.next()
		require.Equal(t, []string{"b", "c"}, loadBC.ids)
		joined(t, g, 1)
		second := goMulti(t.Context(), g, "d", "c", "b", "a")
		loadD := l.next()
		require.Equal(t, []string{"d"}, loadD.ids)
		joined(t, g, 4)
		late := goGet(t.Context(), g, "c")
		joined(t, g, 5)

		loadD.row("v")
		loadBC.row("w")
		require.Equal(t, got[string]{"w", nil}, receive(t, late), "which needs no other id")
		loadA.found("u")
		require.Equal(t, got[string]{"u", nil}, receive(t, get))
		requireFound(t, map[string]string{"a": "u", "b": "w", "c": "w"}, first)
		requireFound(t, map[string]string{"a": "u", "b": "w", "c": "w", "d": "v"}, second)
		require.Equal(t, GuardStats{Gets: 9, Loads: 4, SharedLoads: 5, Fills: 4}, g.Stats())
	})
}

// Two processes that load the same ids each adopt the leases of the other.
func TestGuardMultiAdoptsLeases(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a", "b", "c")
		here, there := newStepMulti(t), newStepMulti(t)
		g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: here.load})
		elsewhere := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: there.load})
		first := goMulti(t.Context(), g, "a", "b")
		loadHere := here.next()
		second := goMulti(t.Context(), elsewhere, "b", "c")
		loadThere := there.next()
		third := goMulti(t.Context(), g, "c", "b", "a") // c's lease is of elsewhere
		loadC := here.next()
		require.Equal(t, []string{"c"}, loadC.ids)
		joined(t, g, 2)
		loadThere.row("there")
		requireFound(t, map[string]string{"b": "there", "c": "there"}, second)
		loadHere.row("here")
		requireFound(t, map[string]string{"a": "here", "b": "here"}, first)
		loadC.row("here")
		requireFound(t, map[string]string{"a": "here", "b": "here", "c": "here"}, third)
		require.EqualValues(t, 1, g.Stats().Fills, "of a: the leases of b and c were used up")
		require.EqualValues(t, 2, elsewhere.Stats().Fills)
		requireFound(t, map[string]string{"a": "here", "b": "there", "c": "there"}, goMulti(t.Context(), g, "a", "b", "c"))
	})
}

// LoadMulti has read the old row of a. Step by step the row is changed at every
// moment until after the fill, by this process and by another: nothing old stays,
// and no later Get has it, alone or among others. The other ids are not touched.
func TestGuardMultiChangeDuringLoad(t *testing.T) {
	for _, change := range rowChanges() {
		for _, moment := range []string{"before the loader returns", "before the fill", "after the fill"} {
			for _, by := range []string{"here", "elsewhere"} {
				t.Run(fmt.Sprintf("%s %s %s", change.name, moment, by), func(t *testing.T) {
					eachSharedStore(t, func(t *testing.T, s guardStore) {
						s.known(t, "a", "b")
						l := newStepMulti(t)
						opts := &GuardOptions[string]{LoadMulti: l.load}
						elsewhere := newTestGuard(t, s, notByLoader, opts)
						filling := newGate()
						if moment == "before the fill" {
							s.cache = gateFill(s.cache, filling)
						}
						here := newTestGuard(t, s, notByLoader, opts)
						writer := here
						if by == "elsewhere" {
							writer = elsewhere
						}
						commit := func() {
							if change.before != nil {
								change.before(t, writer)
							}
							change.tell(t, writer)
						}
						first := goMulti(t.Context(), here, "a", "b")
						load := l.next()
						switch moment {
						case "before the loader returns":
							commit()
							load.answers(change.old)
						case "before the fill":
							load.answers(change.old)
							receive(t, filling.reached)
							commit()
							close(filling.open)
						case "after the fill":
							load.answers(change.old)
						}
						require.Equal(t, asMulti(change.old, "a"), receive(t, first).without("b"))
						if moment == "after the fill" {
							requireState(t, s, change.old, here, elsewhere)
							commit()
						}
						s.requireTag(t, "a", tagNone, 0)

						later := goMulti(t.Context(), here, "a", "b")
						call := l.next()
						require.Equal(t, []string{"a"}, call.ids, "b is cached")
						call.answers(change.new)
						require.Equal(t, asMulti(change.new, "a"), receive(t, later).without("b"))
						requireState(t, s, change.new, here, elsewhere)
						l.none()
					})
				})
			}
		}
	}
}

// answers says what a is; every other id is the row "other".
func (c *stepMultiCall) answers(a got[string]) {
	found := map[string]string{}
	for _, id := range c.ids {
		if id != "a" {
			found[id] = "other"
		} else if a.err == nil {
			found[id] = a.v
		}
	}
	c.returns(found, nil)
}

func asMulti(a got[string], id string) gotMulti {
	if a.err != nil {
		return gotMulti{map[string]string{}, nil}
	}
	return gotMulti{map[string]string{id: a.v}, nil}
}

func (m gotMulti) without(id string) gotMulti {
	delete(m.found, id)
	return m
}

// gateFill stops the first fill of a cache, of one id or of many.
func gateFill(c Cache, g gate) Cache {
	stop := sync.OnceFunc(g.pass)
	if redis, ok := c.(*RedisCache); ok {
		return gatedRedis{redis, stop}
	}
	return gatedCache{c, stop}
}

type gatedCache struct {
	Cache
	stop func()
}

func (c gatedCache) Fill(ctx context.Context, id string, lease, entry []byte, ttl time.Duration) (bool, error) {
	c.stop()
	return c.Cache.Fill(ctx, id, lease, entry, ttl)
}

type gatedRedis struct {
	*RedisCache
	stop func()
}

func (c gatedRedis) fillMany(
	ctx context.Context, ids []string, leases, entries [][]byte, ttls []time.Duration,
) ([]bool, []error) {
	c.stop()
	return c.RedisCache.fillMany(ctx, ids, leases, entries, ttls)
}

// While LoadMulti has the old row, a Get that comes after the change loads anew,
// and whichever ends first, the new row stays.
func TestGuardMultiOldAndNewLoad(t *testing.T) {
	for _, change := range rowChanges() {
		for _, newFirst := range []bool{true, false} {
			t.Run(fmt.Sprint(change.name, ", new first: ", newFirst), func(t *testing.T) {
				eachSharedStore(t, func(t *testing.T, s guardStore) {
					s.known(t, "a", "b")
					l, one := newStepMulti(t), newStepLoader(t)
					g := newTestGuard(t, s, one.load, &GuardOptions[string]{LoadMulti: l.load})
					elsewhere := newTestGuard(t, s, one.load, nil)
					old := goMulti(t.Context(), g, "a", "b")
					oldLoad := l.next()
					change.tell(t, elsewhere)
					get := goGet(t.Context(), g, "a")
					newLoad := one.next()
					multi := goMulti(t.Context(), g, "b", "a")
					joined(t, g, 2)
					if newFirst {
						newLoad.answers(change.new)
						requireAnswer(t, change.new, get)
						requireState(t, s, change.new, g, elsewhere)
					}
					oldLoad.answers(change.old)
					require.Equal(t, asMulti(change.old, "a"), receive(t, old).without("b"))
					if !newFirst {
						s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)
						newLoad.answers(change.new)
						requireAnswer(t, change.new, get)
					}
					require.Equal(t, asMulti(change.new, "a"), receive(t, multi).without("b"))
					requireState(t, s, change.new, g, elsewhere)
					l.none()
					one.none()
				})
			})
		}
	}
}

// GetMultis of the same ids in opposite orders, with Gets of them, and few slots:
// nobody waits for ever, and each id is loaded once.
func TestGuardMultiOppositeOrders(t *testing.T) {
	t.Parallel()
	const n = 60
	eachMulti(t, rowOf, func(t *testing.T, opts GuardOptions[string]) {
		for _, maxLoads := range []int{1, 2, 7} {
			eachSharedStore(t, func(t *testing.T, s guardStore) {
				ids := numberedIDs(n)
				s.known(t, ids...)
				back := slices.Clone(ids)
				slices.Reverse(back)
				opts.MaxLoads = maxLoads
				g := newTestGuard(t, s, rowOf, &opts)
				var all sync.WaitGroup
				for _, ids := range [][]string{ids, back} {
					all.Add(1)
					go func() {
						defer all.Done()
						found, err := g.GetMulti(t.Context(), ids)
						if err != nil && !errors.Is(err, ErrOverloaded) || len(found)+len(failures(t, errors.Unwrap(err))) != n {
							t.Error(len(found), err)
						}
					}()
				}
				all.Wait()
				require.NoError(t, g.Close(t.Context()))
				stats := g.Stats()
				require.Equal(t, stats.Gets, stats.Hits+stats.Loads+stats.SharedLoads+stats.Overloads, "%+v", stats)
				require.LessOrEqual(t, stats.Loads, uint64(n))
			})
		}
	})
}

// One GetMulti alone never finds the guard overloaded, also where its loads time
// out and keep their slots.
func TestGuardMultiAloneIsNeverOverloaded(t *testing.T) {
	ids := numberedIDs(600)
	for _, maxLoads := range []int{1, 2, 5} {
		for _, hangs := range []bool{false, true} {
			s := memoryStore(t)
			s.known(t, ids...)
			var calls atomic.Int64
			load := func(ctx context.Context, id string) (string, error) {
				if n := calls.Add(1); hangs && n%200 == 0 {
					time.Sleep(30 * time.Millisecond)
				}
				return "row of " + id, nil
			}
			for _, opts := range []GuardOptions[string]{{}, {LoadMulti: multiRows(load)}} {
				opts.MaxLoads = maxLoads
				if hangs {
					opts.LoadTimeout = 20 * time.Millisecond
				}
				g := newTestGuard(t, s, load, &opts)
				found, err := g.GetMulti(t.Context(), ids)
				require.NotErrorIs(t, err, ErrOverloaded)
				if !hangs {
					require.NoError(t, err)
					require.Len(t, found, len(ids))
				}
				require.NoError(t, g.Close(t.Context()))
				require.Zero(t, g.Stats().Overloads)
				require.NoError(t, g.Invalidate(t.Context(), ids...))
			}
		}
	}
}
