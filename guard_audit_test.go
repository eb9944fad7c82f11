package bloom

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// anomalies collects what OnAnomaly hears.
type anomalies chan Anomaly

func newAnomalies() anomalies { return make(anomalies, 1000) }

func (c anomalies) hear(a Anomaly) { c <- a }

// heard returns what has come so far, once the guard is closed.
func (c anomalies) heard() (all []Anomaly) {
	for {
		select {
		case a := <-c:
			all = append(all, a)
		default:
			return all
		}
	}
}

// lookup asks for one id, by Get or by GetMulti, which must mean the same.
type lookup func(ctx context.Context, g *Guard[string], id string) (string, error)

func byGet(ctx context.Context, g *Guard[string], id string) (string, error) { return g.Get(ctx, id) }

func byMulti(ctx context.Context, g *Guard[string], id string) (string, error) {
	found, err := g.GetMulti(ctx, []string{id})
	if v, ok := found[id]; ok || err != nil {
		return v, err
	}
	return "", ErrNotFound
}

// eachLookup runs f for Get, and for GetMulti with and without LoadMulti.
func eachLookup(t *testing.T, load Loader[string], f func(t *testing.T, get lookup, opts GuardOptions[string])) {
	t.Run("Get", func(t *testing.T) { f(t, byGet, GuardOptions[string]{}) })
	t.Run("GetMulti", func(t *testing.T) { f(t, byMulti, GuardOptions[string]{}) })
	t.Run("LoadMulti", func(t *testing.T) { f(t, byMulti, GuardOptions[string]{LoadMulti: multiRows(load)}) })
}

func TestGuardAuditRateRefused(t *testing.T) {
	s := memoryStore(t)
	for _, rate := range []float64{1.01, 2, math.Inf(1), math.NaN()} {
		_, err := NewGuard(s.filter, s.cache, rows(nil), &GuardOptions[string]{AuditRate: rate})
		require.ErrorIs(t, err, ErrInvalidParams)
		require.ErrorContains(t, err, fmt.Sprintf("AuditRate %v: want at most 1", rate))
	}
	for _, rate := range []float64{1, 0.5, 0, -1, math.Inf(-1)} {
		_, err := NewGuard(s.filter, s.cache, rows(nil), &GuardOptions[string]{AuditRate: rate})
		require.NoError(t, err)
	}
}

// The share of denied ids that are audited. At the default it is one a second, and
// none in the first.
func TestGuardAuditRates(t *testing.T) {
	const n = 2000
	for rate, want := range map[float64]float64{-1: 0, 1: n, 0.5: n / 2} {
		s := memoryStore(t)
		g := newTestGuard(t, s, rows(nil), &GuardOptions[string]{AuditRate: rate})
		for i := range n {
			_, err := g.Get(t.Context(), fmt.Sprint("absent ", i))
			require.ErrorIs(t, err, ErrNotFound)
		}
		stats := g.Stats()
		tolerance := 0.0
		if rate == 0.5 {
			tolerance = 6 * math.Sqrt(n) / 2 // six standard deviations
		}
		require.InDelta(t, want, stats.Audits, tolerance, "rate %v", rate)
		require.EqualValues(t, n, stats.Audits+stats.Rejected)
		require.Equal(t, stats.Audits, stats.Loads)
	}

	s := memoryStore(t)
	g, err := NewGuard(s.filter, s.cache, rows(nil), nil)
	require.NoError(t, err)
	deny := func(id string) {
		_, err := g.Get(t.Context(), id)
		require.ErrorIs(t, err, ErrNotFound)
	}
	for i := range 100 {
		deny(fmt.Sprint("first second ", i))
	}
	require.Zero(t, g.Stats().Audits)
	for second := range 3 {
		g.audits.start = g.audits.start.Add(-auditInterval) // which passes
		for i := range 100 {
			deny(fmt.Sprint(second, i))
		}
		require.EqualValues(t, second+1, g.Stats().Audits)
	}
	// What was missed is not made up for.
	g.audits.start = g.audits.start.Add(-time.Hour)
	for i := range 100 {
		deny(fmt.Sprint("an hour later ", i))
	}
	require.EqualValues(t, 4, g.Stats().Audits)
	require.NoError(t, g.Close(t.Context()))
}

// A row behind a "no" is returned, healed, counted and reported, once.
func TestGuardAuditFindsARow(t *testing.T) {
	load := rows(map[string]string{"unregistered": "v"})
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		eachLookup(t, load, func(t *testing.T, get lookup, opts GuardOptions[string]) {
			require.NoError(t, s.filter.Reset(t.Context()))
			s.raw.del("unregistered")
			heard := newAnomalies()
			opts.AuditRate, opts.OnAnomaly = 1, heard.hear
			g := newTestGuard(t, s, load, &opts)
			v, err := get(t.Context(), g, "unregistered")
			require.NoError(t, err)
			require.Equal(t, "v", v)
			eventually(t, "healed", func() bool { return g.Stats().Heals == 1 })
			v, err = get(t.Context(), g, "unregistered")
			require.NoError(t, err)
			require.Equal(t, "v", v)
			require.NoError(t, g.Close(t.Context()))
			require.Equal(t, GuardStats{Gets: 2, Hits: 1, Loads: 1, Fills: 1, Audits: 1, Anomalies: 1, Heals: 1}, g.Stats())
			require.Equal(t, []Anomaly{{Kind: AnomalyAudited, ID: "unregistered"}}, heard.heard())
			exists, err := s.filter.Exists(t.Context(), "unregistered")
			require.NoError(t, err)
			require.True(t, exists)
			s.requireTag(t, "unregistered", tagValue, defaultTTL)
		})
	})
}

// An audit that finds nothing confirms the "no". It is cached, and is no false
// positive of the filter.
func TestGuardAuditFindsNothing(t *testing.T) {
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		eachLookup(t, rows(nil), func(t *testing.T, get lookup, opts GuardOptions[string]) {
			s.raw.del("absent")
			heard := newAnomalies()
			opts.AuditRate, opts.OnAnomaly = 1, heard.hear
			g := newTestGuard(t, s, rows(nil), &opts)
			for range 2 {
				_, err := get(t.Context(), g, "absent")
				require.ErrorIs(t, err, ErrNotFound)
			}
			require.NoError(t, g.Close(t.Context()))
			require.Equal(t, GuardStats{Gets: 2, NullHits: 1, Loads: 1, Fills: 1, Audits: 1}, g.Stats())
			require.Empty(t, heard.heard())
			exists, err := s.filter.Exists(t.Context(), "absent")
			require.NoError(t, err)
			require.False(t, exists)
			s.requireTag(t, "absent", tagNull, defaultNullTTL)
		})
	})
}

// A load shared by one whose id the filter did not deny is no audit.
func TestGuardAuditSharedWithAMiss(t *testing.T) {
	s := memoryStore(t)
	l := newStepLoader(t)
	g := newTestGuard(t, s, l.load, &GuardOptions[string]{AuditRate: 1})
	audit := goGet(t.Context(), g, "a")
	load := l.next()
	queued := goGet(t.Context(), g, "b")
	loadB := l.next()
	s.known(t, "a", "b")
	miss := goGet(t.Context(), g, "a") // has read the audit's lease
	joined(t, g, 1)
	load.missing()
	loadB.missing()
	for _, c := range []<-chan got[string]{audit, queued, miss} {
		require.ErrorIs(t, receive(t, c).err, ErrNotFound)
	}
	require.Equal(t, GuardStats{Gets: 3, Loads: 2, LoadsNotFound: 1, SharedLoads: 1, Fills: 2, Audits: 2}, g.Stats())
}

type leaving struct{}

// An audit that fails leaves the filter's "no", unless the filter is not trusted.
func TestGuardAuditFails(t *testing.T) {
	type failure struct {
		err    error
		loads  uint64
		errors uint64
		get    func(t *testing.T, g *Guard[string], get lookup) error
	}
	plain := func(t *testing.T, g *Guard[string], get lookup) error {
		_, err := get(t.Context(), g, "absent")
		return err
	}
	failures := map[string]failure{
		"load": {errInjected, 1, 1, plain},
		"overload": {ErrOverloaded, 0, 0, func(t *testing.T, g *Guard[string], get lookup) error {
			for range 2 {
				g.flights.slots <- struct{}{} // both are taken
				g.flights.requeue()           // and as many wait
			}
			defer func() {
				for range 2 {
					<-g.flights.slots
					g.flights.unqueue()
				}
			}()
			return plain(t, g, get)
		}},
		"closed": {ErrClosed, 0, 0, func(t *testing.T, g *Guard[string], get lookup) error {
			require.NoError(t, g.Close(t.Context()))
			return plain(t, g, get)
		}},
		"caller leaves": {context.Canceled, 1, 1, func(t *testing.T, g *Guard[string], get lookup) error {
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), leaving{}, make(chan struct{})))
			loading := ctx.Value(leaving{}).(chan struct{})
			go func() {
				loading <- struct{}{}
				cancel()
			}()
			_, err := get(ctx, g, "absent")
			loading <- struct{}{}
			require.NoError(t, g.Close(t.Context()))
			return err
		}},
	}
	for name, f := range failures {
		for _, suspect := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", distrusted: ", suspect), func(t *testing.T) {
				load := func(ctx context.Context, _ string) (string, error) {
					if c, ok := ctx.Value(leaving{}).(chan struct{}); ok {
						<-c
						<-c // once the caller has left
					}
					return "", errInjected
				}
				eachLookup(t, load, func(t *testing.T, get lookup, opts GuardOptions[string]) {
					s := memoryStore(t)
					heard := newAnomalies()
					opts.AuditRate, opts.OnAnomaly, opts.MaxLoads = 1, heard.hear, 2
					g := newTestGuard(t, s, load, &opts)
					g.audits.suspect.Store(suspect)
					err := f.get(t, g, get)
					want := GuardStats{Gets: 1, Audits: 1, Loads: f.loads, LoadErrors: f.errors}
					if suspect {
						require.ErrorIs(t, err, f.err)
						require.NotErrorIs(t, err, ErrNotFound)
						if name == "overload" {
							want.Overloads = 1
						}
					} else {
						require.ErrorIs(t, err, ErrNotFound)
						want.Rejected = 1
					}
					require.Equal(t, want, g.Stats())
					require.NoError(t, g.Close(t.Context()))
					require.Empty(t, heard.heard())
					require.Zero(t, g.audits.clean, "nothing was learned")
				})
			})
		}
	}
}

// A row that is registered and committed while its audit runs is found, and is no
// anomaly.
func TestGuardAuditMeetsRegister(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		l := newStepLoader(t)
		heard := newAnomalies()
		g := newTestGuard(t, s, l.load, &GuardOptions[string]{AuditRate: 1, OnAnomaly: heard.hear})
		c := goGet(t.Context(), g, "a")
		load := l.next()
		require.NoError(t, g.Register(t.Context(), "a"))
		load.found("v")
		require.Equal(t, got[string]{"v", nil}, receive(t, c))
		require.NoError(t, g.Close(t.Context()))
		require.Equal(t, GuardStats{Gets: 1, Loads: 1, Audits: 1}, g.Stats())
		require.Empty(t, heard.heard())
		require.Zero(t, g.audits.recent)
	})
}

// However many Gets share the audit of one row, it is one anomaly, and one
// forgotten Register does not make a filter suspect.
func TestGuardAuditSharedByMany(t *testing.T) {
	s := memoryStore(t)
	block := make(chan struct{})
	f, err := New(blockedAdds{s.filter.backend, block}, Config{})
	require.NoError(t, err)
	s.filter = f
	l := newStepLoader(t)
	heard := newAnomalies()
	g := newTestGuard(t, s, l.load, &GuardOptions[string]{AuditRate: 1, OnAnomaly: heard.hear})
	var all []<-chan got[string]
	for range 5 * maxHeals {
		all = append(all, goGet(t.Context(), g, "a"))
	}
	multi := goMulti(t.Context(), g, "a", "a")
	load := l.next()
	joined(t, g, 5*maxHeals)
	load.found("v")
	for _, c := range all {
		require.Equal(t, got[string]{"v", nil}, receive(t, c))
	}
	requireFound(t, map[string]string{"a": "v"}, multi)
	for range 5 * maxHeals { // and it is cached, while it is being added
		_, err := g.Get(t.Context(), "a")
		require.NoError(t, err)
	}
	close(block)
	require.NoError(t, g.Close(t.Context()))
	require.Equal(t, []Anomaly{{Kind: AnomalyAudited, ID: "a"}}, heard.heard())
	require.False(t, g.audits.distrusts())
	stats := g.Stats()
	require.EqualValues(t, 1, stats.Heals)
	require.EqualValues(t, 1, stats.Anomalies)
}
