package bloom

import (
	"fmt"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// A change of a row, and what its writer does for the guards: what a load saw
// before it, and what every later one must see (G1, G2).
type rowChange struct {
	name     string
	old, new got[string]
	tell     func(t *testing.T, g *Guard[string]) // after the commit
	before   func(t *testing.T, g *Guard[string]) // before it, if set
}

func rowChanges() []rowChange {
	absent := got[string]{"", ErrNotFound}
	register := func(t *testing.T, g *Guard[string]) { require.NoError(t, g.Register(t.Context(), "a")) }
	invalidate := func(t *testing.T, g *Guard[string]) { require.NoError(t, g.Invalidate(t.Context(), "a")) }
	return []rowChange{
		{"insert", absent, got[string]{"new", nil}, register, register},
		{"update", got[string]{"old", nil}, got[string]{"new", nil}, invalidate, nil},
		{"delete", got[string]{"old", nil}, absent, invalidate, nil},
	}
}

func (c *stepCall) answers(a got[string]) { c.answer <- func() (string, error) { return a.v, a.err } }

// requireAnswer checks a Get's outcome against what a loader said.
func requireAnswer(t *testing.T, want got[string], c <-chan got[string]) {
	t.Helper()
	answer := receive(t, c)
	require.Equal(t, want.v, answer.v)
	require.ErrorIs(t, answer.err, want.err)
}

// requireState checks that want is what is cached, for this guard and another.
func requireState(t *testing.T, s guardStore, want got[string], guards ...*Guard[string]) {
	t.Helper()
	for _, g := range guards {
		loads := g.Stats().Loads
		requireAnswer(t, want, goGet(t.Context(), g, "a"))
		require.Equal(t, loads, g.Stats().Loads, "answered from the cache")
	}
	if want.err != nil {
		s.requireTag(t, "a", tagNull, defaultNullTTL)
	} else {
		s.requireTag(t, "a", tagValue, defaultTTL)
	}
}

// A load has read the old row. Step by step, the row is changed at every moment
// from then to after the fill, by this process and by another, and nothing that
// is old stays in the cache.
func TestGuardChangeDuringLoad(t *testing.T) {
	moments := []string{"before the loader returns", "before the fill", "after the fill"}
	for _, change := range rowChanges() {
		for _, moment := range moments {
			for _, by := range []string{"here", "elsewhere"} {
				t.Run(fmt.Sprintf("%s %s %s", change.name, moment, by), func(t *testing.T) {
					eachSharedStore(t, func(t *testing.T, s guardStore) {
						s.known(t, "a")
						l := newStepLoader(t)
						elsewhere := newTestGuard(t, s, l.load, nil)
						hook := &hookedCache{Cache: s.cache}
						s.cache = hook
						here := newTestGuard(t, s, l.load, nil)
						writer := here
						if by == "elsewhere" {
							writer = elsewhere
						}
						filling := newGate()
						if moment == "before the fill" {
							hook.beforeFill = filling.pass
						}
						commit := func() {
							if change.before != nil {
								change.before(t, writer)
							}
							change.tell(t, writer) // the loader's answers are the database
						}

						first := goGet(t.Context(), here, "a")
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
						}
						if moment != "after the fill" {
							requireAnswer(t, change.old, first)
							s.requireTag(t, "a", tagNone, 0)
							require.Zero(t, here.Stats().Fills)
						} else {
							load.answers(change.old)
							requireAnswer(t, change.old, first)
							requireState(t, s, change.old, here, elsewhere)
							commit()
							s.requireTag(t, "a", tagNone, 0)
						}

						later := goGet(t.Context(), here, "a")
						l.next().answers(change.new)
						requireAnswer(t, change.new, later)
						requireState(t, s, change.new, here, elsewhere)
					})
				})
			}
		}
	}
}

// After the change a Get loads the new row while the old load still runs. Whoever
// ends first, and in whichever process, the new row is what stays.
func TestGuardOldAndNewLoad(t *testing.T) {
	for _, change := range rowChanges() {
		for _, newFirst := range []bool{true, false} {
			for _, where := range []string{"here", "elsewhere"} {
				t.Run(fmt.Sprintf("%s, new first: %v, %s", change.name, newFirst, where), func(t *testing.T) {
					eachSharedStore(t, func(t *testing.T, s guardStore) {
						s.known(t, "a")
						l := newStepLoader(t)
						here := newTestGuard(t, s, l.load, nil)
						elsewhere := newTestGuard(t, s, l.load, nil)
						later := here
						if where == "elsewhere" {
							later = elsewhere
						}
						first := goGet(t.Context(), here, "a")
						oldLoad := l.next()
						change.tell(t, elsewhere)
						second := goGet(t.Context(), later, "a")
						newLoad := l.next()
						if newFirst {
							newLoad.answers(change.new)
							requireAnswer(t, change.new, second)
							requireState(t, s, change.new, here, elsewhere)
						}
						oldLoad.answers(change.old)
						requireAnswer(t, change.old, first)
						if !newFirst {
							s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)
							newLoad.answers(change.new)
							requireAnswer(t, change.new, second)
						}
						requireState(t, s, change.new, here, elsewhere)
						l.none()
						require.EqualValues(t, 1, here.Stats().Fills+elsewhere.Stats().Fills)
					})
				})
			}
		}
	}
}

// The row is registered before its commit, and a Get in between caches that it is
// not there. The Register after the commit drops that.
func TestGuardRegisterTwice(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		l := newStepLoader(t)
		g := newTestGuard(t, s, l.load, nil)
		require.NoError(t, g.Register(t.Context(), "a"))
		between := goGet(t.Context(), g, "a")
		l.next().missing()
		requireAnswer(t, got[string]{"", ErrNotFound}, between)
		s.requireTag(t, "a", tagNull, defaultNullTTL)
		require.NoError(t, g.Register(t.Context(), "a"))
		after := goGet(t.Context(), g, "a")
		l.next().found("new")
		requireAnswer(t, got[string]{"new", nil}, after)
		requireState(t, s, got[string]{"new", nil}, g)
	})
}

// A row is changed several times under one long load, with loads in between.
func TestGuardManyChangesUnderOneLoad(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a")
		l := newStepLoader(t)
		guards := []*Guard[string]{newTestGuard(t, s, l.load, nil), newTestGuard(t, s, l.load, nil)}
		var answers []<-chan got[string]
		var loads []*stepCall
		const changes = 6
		for i := range changes {
			answers = append(answers, goGet(t.Context(), guards[i/2%2], "a"))
			loads = append(loads, l.next())
			require.NoError(t, guards[i%2].Invalidate(t.Context(), "a"))
		}
		for i, load := range loads {
			load.found(fmt.Sprint("version ", i))
			requireAnswer(t, got[string]{fmt.Sprint("version ", i), nil}, answers[i])
			s.requireTag(t, "a", tagNone, 0)
		}
	})
}

// Whatever takes the lease away while the load runs also stops the fill, and the
// next Get loads.
func TestGuardLeaseLost(t *testing.T) {
	later := func(t *testing.T, s guardStore, g *Guard[string], l *stepLoader) {
		c := goGet(t.Context(), g, "a")
		l.next().found("new")
		requireAnswer(t, got[string]{"new", nil}, c)
	}
	lose := func(t *testing.T, s guardStore, loss func(), want byte) {
		t.Helper()
		s.known(t, "a")
		l := newStepLoader(t)
		g := newTestGuard(t, s, l.load, nil)
		first := goGet(t.Context(), g, "a")
		load := l.next()
		s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)
		loss()
		load.found("old")
		requireAnswer(t, got[string]{"old", nil}, first)
		s.requireTag(t, "a", want, time.Minute)
		require.Zero(t, g.Stats().Fills)
		require.Zero(t, g.Stats().FillErrors)
		if want == tagNone {
			later(t, s, g, l)
			s.requireTag(t, "a", tagValue, defaultTTL)
		}
	}
	t.Run("removed", func(t *testing.T) {
		eachSharedStore(t, func(t *testing.T, s guardStore) {
			lose(t, s, func() { s.raw.del("a") }, tagNone)
		})
	})
	t.Run("expired", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, target redistest.Target) {
			s := redisStore(t, target, Classic)
			lose(t, s, func() {
				require.NoError(t, s.client.PExpire(t.Context(), s.prefix+"a", time.Millisecond).Err())
				target.Advance(5 * time.Millisecond)
			}, tagNone)
		})
	})
	for name, entry := range map[string]string{
		"a foreign entry": "foreign", "an empty one": "", "a value": `V"foreign"`, "a null": "N",
		"another lease": "L" + string(make([]byte, tokenBytes)),
	} {
		t.Run("overwritten by "+name, func(t *testing.T) {
			eachSharedStore(t, func(t *testing.T, s guardStore) {
				lose(t, s, func() { s.raw.set("a", []byte(entry), time.Minute) }, entryTag([]byte(entry)))
				left, _ := s.raw.get("a")
				require.Equal(t, entry, string(left))
			})
		})
	}
	own := func(t *testing.T) guardStore {
		return redisStore(t, redistest.Target{Name: "redis", Addr: redistest.Start(t).Addr(), Real: true}, Classic)
	}
	t.Run("flushed", func(t *testing.T) {
		s := own(t)
		lose(t, s, func() { require.NoError(t, s.client.FlushAll(t.Context()).Err()) }, tagNone)
	})
	t.Run("evicted", func(t *testing.T) {
		s := own(t)
		lose(t, s, func() {
			require.NoError(t, s.client.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
			require.NoError(t, s.client.ConfigSet(t.Context(), "maxmemory", "1").Err())
			eventually(t, "all keys are evicted", func() bool {
				_ = s.client.Set(t.Context(), "any", "value", time.Minute).Err() // evicts before it fails
				return s.client.Exists(t.Context(), s.prefix+"a").Val() == 0
			})
			require.NoError(t, s.client.ConfigSet(t.Context(), "maxmemory", "0").Err())
		}, tagNone)
	})
}
