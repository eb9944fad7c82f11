package bloom

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Three rows in 64 audits make a filter suspect, and the wait and 64 clean audits
// are what it takes to trust it again.
func TestAuditsJudge(t *testing.T) {
	var a audits
	a.init(0)
	require.Equal(t, trustedWait, a.wait)
	note := func(row bool, n int) (kinds []string) {
		for range n {
			if kind := a.note(row); kind != "" {
				kinds = append(kinds, kind)
			}
		}
		return kinds
	}
	require.Empty(t, note(true, 1))
	require.Empty(t, note(false, 62))
	require.Empty(t, note(true, 2), "three in 65")
	require.False(t, a.distrusts())
	require.Empty(t, note(false, 64))
	require.Empty(t, note(true, 1))
	require.Empty(t, note(false, 61))
	require.Empty(t, note(true, 1))
	require.Equal(t, []string{AnomalyDistrust}, note(true, 1), "three in 64")
	require.True(t, a.distrusts())
	require.Empty(t, note(true, 5), "it is said once")

	require.Empty(t, note(false, 1000), "30 s have not passed")
	a.wait = 0
	require.Empty(t, note(true, 1))
	require.Empty(t, note(false, 63))
	require.True(t, a.distrusts())
	require.Equal(t, []string{AnomalyTrust}, note(false, 1))
	require.False(t, a.distrusts())
	require.Empty(t, note(true, 2), "what was before is forgotten")
	require.Equal(t, []string{AnomalyDistrust}, note(true, 1))
}

// A filter that was never loaded: audits find rows, the Guard lets everything
// through and says so, until audits are clean again.
func TestGuardDistrust(t *testing.T) {
	load := func(ctx context.Context, id string) (string, error) {
		if id[0] == '-' {
			return "", ErrNotFound
		}
		return rowOf(ctx, id)
	}
	for _, s := range []guardStore{redisStore(t, sharedTarget(t), Classic), memoryStore(t)} {
		eachLookup(t, load, func(t *testing.T, get lookup, opts GuardOptions[string]) {
			require.NoError(t, s.filter.Reset(t.Context()))
			ids := numberedIDs(6)
			require.NoError(t, s.cache.Drop(t.Context(), ids))
			heard := newAnomalies()
			opts.AuditRate, opts.OnAnomaly = 1, heard.hear
			g := newTestGuard(t, s, load, &opts)
			g.audits.wait = 0
			found := func(ids ...string) {
				t.Helper()
				for _, id := range ids {
					v, err := get(t.Context(), g, id)
					require.NoError(t, err)
					require.Equal(t, "row of "+id, v)
					eventually(t, "healed", func() bool { return healsOf(g) == 0 })
				}
			}
			absent := func(prefix string, n int) {
				t.Helper()
				for i := range n {
					id := fmt.Sprint("-", prefix, i)
					s.raw.del(id)
					_, err := get(t.Context(), g, id)
					require.ErrorIs(t, err, ErrNotFound)
				}
			}
			found(ids[:3]...)
			eventually(t, "distrusted", g.audits.distrusts)

			g.audits.rate = 1e-300 // from now on audits pick none
			before := g.Stats()
			found(ids[3])
			absent("a", 10)
			now := g.Stats()
			require.Equal(t, before.FailOpens+11, now.FailOpens)
			require.Equal(t, before.Loads+11, now.Loads)
			require.Equal(t, before.Audits, now.Audits)
			require.Equal(t, before.Rejected, now.Rejected)
			require.Equal(t, before.Anomalies+1, now.Anomalies)

			absent("b", trustedAfter-11)
			found(ids[4])
			absent("c", trustedAfter-1)
			require.True(t, g.audits.distrusts())
			absent("d", 1)
			require.False(t, g.audits.distrusts())
			before = g.Stats()
			absent("e", 5)
			require.Equal(t, before.Rejected+5, g.Stats().Rejected)
			require.NoError(t, g.Close(t.Context()))

			var kinds []string
			for _, a := range heard.heard() {
				require.NoError(t, a.Err)
				kinds = append(kinds, a.Kind+" "+a.ID)
			}
			require.Equal(t, []string{
				"audited id 0", "audited id 1", "audited id 2", "distrust id 2", "audited id 3", "audited id 4",
				fmt.Sprint("trust -d", 0),
			}, kinds)
		})
	}
}

// healsOf is how many heals are under way.
func healsOf[V any](g *Guard[V]) int {
	g.heals.mu.Lock()
	defer g.heals.mu.Unlock()
	return len(g.heals.ids)
}

// FailClosed: a filter that is not trusted cannot answer. Audits go on all the
// same, or it would never be trusted again.
func TestGuardDistrustFailClosed(t *testing.T) {
	eachLookup(t, rowOf, func(t *testing.T, get lookup, opts GuardOptions[string]) {
		s := memoryStore(t)
		s.raw.set("cached", []byte(`V"v"`), time.Minute)
		opts.AuditRate, opts.FailClosed = 1e-300, true
		g := newTestGuard(t, s, rowOf, &opts)
		g.audits.suspect.Store(true)
		_, err := get(t.Context(), g, "denied")
		require.ErrorIs(t, err, errDistrusted)
		require.NotErrorIs(t, err, ErrNotFound)
		require.ErrorContains(t, err, "not trusted")
		v, err := get(t.Context(), g, "cached")
		require.NoError(t, err, "what is cached needs no filter")
		require.Equal(t, "v", v)
		require.NoError(t, g.Register(t.Context(), "known"))
		_, err = get(t.Context(), g, "known")
		require.NoError(t, err, "nor does what it does not deny")
		require.Zero(t, g.Stats().FailOpens)
		require.EqualValues(t, 1, g.Stats().Loads)

		g.audits.rate = 1
		v, err = get(t.Context(), g, "denied")
		require.NoError(t, err)
		require.Equal(t, "row of denied", v)
		require.EqualValues(t, 1, g.Stats().Audits)
	})
}

// A distrusted filter lets through no more than MaxLoads.
func TestGuardDistrustIsBounded(t *testing.T) {
	s := memoryStore(t)
	count := &loadCount{pause: time.Millisecond}
	const limit = 3
	g := newTestGuard(t, s, count.load, &GuardOptions[string]{AuditRate: 1e-300, MaxLoads: limit})
	g.audits.suspect.Store(true)
	overloaded := storm(t, g, numberedIDs(60), 60)
	require.LessOrEqual(t, count.most, limit)
	require.EqualValues(t, overloaded, g.Stats().Overloads)
	require.EqualValues(t, 60, g.Stats().FailOpens)
	require.Equal(t, uint64(60), g.Stats().Loads+uint64(overloaded))
}

// OnAnomaly is called one at a time, whatever it does; what comes faster than it
// can take is left out, and Close waits for it.
func TestGuardOnAnomaly(t *testing.T) {
	for name, crash := range map[string]func(){
		"returns": func() {}, "panics": func() { panic("boom") }, "ends its goroutine": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			s := memoryStore(t)
			var running, calls atomic.Int64
			hold := newGate()
			first := sync.OnceFunc(hold.pass)
			g := newTestGuard(t, s, rows(nil), &GuardOptions[string]{OnAnomaly: func(Anomaly) {
				if running.Add(1) > 1 {
					t.Error("two at a time")
				}
				defer running.Add(-1)
				calls.Add(1)
				first()
				crash()
			}})
			const n = 3 * maxReports
			for i := range n {
				id := fmt.Sprint(i)
				s.raw.set(id, []byte(`V"v"`), time.Minute)
				start := time.Now()
				v, err := g.Get(t.Context(), id)
				require.NoError(t, err)
				require.Equal(t, "v", v)
				require.Less(t, time.Since(start), 5*time.Second, "nobody waits for it")
				eventually(t, "healed", func() bool { return g.Stats().Heals == uint64(i+1) })
			}
			receive(t, hold.reached)
			require.EqualValues(t, n, g.Stats().Anomalies)
			require.EqualValues(t, 1, calls.Load())
			short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, g.Close(short), context.DeadlineExceeded)
			close(hold.open)
			require.NoError(t, g.Close(t.Context()))
			require.Zero(t, running.Load())
			require.EqualValues(t, 1+maxReports, calls.Load())
			require.Empty(t, g.reports.waiting)
		})
	}
}

// Heals of rows that audits find are bounded like those of cached ones, and told
// of when they fail.
func TestGuardAuditHealsBounded(t *testing.T) {
	s := memoryStore(t)
	block := make(chan struct{})
	f, err := New(blockedAdds{s.filter.backend, block}, Config{})
	require.NoError(t, err)
	s.filter = f
	heard := newAnomalies()
	g := newTestGuard(t, s, rowOf, &GuardOptions[string]{AuditRate: 1, OnAnomaly: heard.hear, LoadMulti: multiRows(rowOf)})
	ids := numberedIDs(3 * maxHeals) // few enough for no report to be left out
	found, err := g.GetMulti(t.Context(), ids)
	require.NoError(t, err)
	require.Len(t, found, len(ids))
	close(block)
	require.NoError(t, g.Close(t.Context()))
	var audited, busy, distrust int
	for _, a := range heard.heard() {
		switch {
		case a.Kind == AnomalyDistrust:
			distrust++
		case a.Err != nil:
			require.ErrorIs(t, a.Err, errHealsBusy)
			busy++
		default:
			require.Equal(t, AnomalyAudited, a.Kind)
			audited++
		}
	}
	require.Equal(t, []int{maxHeals, 1}, []int{audited, distrust})
	require.Positive(t, busy)
	require.EqualValues(t, len(ids), g.Stats().Anomalies)
	require.EqualValues(t, maxHeals, g.Stats().Heals)
	require.EqualValues(t, len(ids), g.Stats().Audits)
}

// A filter that cannot take the row is an anomaly with that error, and so is a
// Backend of the caller's own that panics.
func TestGuardHealFails(t *testing.T) {
	for name, text := range map[string]string{"error": "injected", "panic": "panic: boom"} {
		t.Run(name, func(t *testing.T) {
			s := memoryStore(t)
			f, err := New(failingAdds{s.filter.backend, name}, Config{})
			require.NoError(t, err)
			s.filter = f
			s.raw.set("cached", []byte(`V"v"`), time.Minute)
			heard := newAnomalies()
			g := newTestGuard(t, s, rowOf, &GuardOptions[string]{AuditRate: 1, OnAnomaly: heard.hear})
			for _, id := range []string{"cached", "audited"} {
				_, err := g.Get(t.Context(), id)
				require.NoError(t, err)
			}
			require.NoError(t, g.Close(t.Context()))
			all := heard.heard()
			require.Len(t, all, 2)
			for _, a := range all {
				require.Equal(t, a.Kind, a.ID)
				require.ErrorContains(t, a.Err, text)
			}
			require.Equal(t, GuardStats{Gets: 2, Hits: 1, Loads: 1, Fills: 1, Audits: 1, Anomalies: 2}, g.Stats())
		})
	}
}

type failingAdds struct {
	Backend
	how string
}

func (b failingAdds) Add(context.Context, string) (bool, error) {
	if b.how == "panic" {
		panic("boom")
	}
	return true, errInjected
}

// What one load found is one outcome of an audit, however many Gets shared it, also
// where the row cannot be added to the filter.
func TestGuardAuditJudgedOnce(t *testing.T) {
	for answer, rows := range map[error]int{nil: 1, ErrNotFound: 0} {
		s := memoryStore(t)
		f, err := New(failingAdds{s.filter.backend, "error"}, Config{})
		require.NoError(t, err)
		s.filter = f
		l := newStepLoader(t)
		heard := newAnomalies()
		g := newTestGuard(t, s, l.load, &GuardOptions[string]{AuditRate: 1, OnAnomaly: heard.hear})
		var all []<-chan got[string]
		for range 20 {
			all = append(all, goGet(t.Context(), g, "a"))
		}
		load := l.next()
		joined(t, g, 19)
		load.fails(answer)
		for _, c := range all {
			require.ErrorIs(t, receive(t, c).err, answer)
			eventually(t, "not healed", func() bool { return healsOf(g) == 0 })
		}
		require.NoError(t, g.Close(t.Context()))
		require.EqualValues(t, rows, g.audits.recent)
		require.Equal(t, 1-rows, g.audits.clean)
		require.Len(t, heard.heard(), rows)
		require.False(t, g.audits.distrusts())
	}
}

// Rows that were not tried to be added, since too many others are, are no reason to
// distrust the filter: they may have been registered meanwhile. They are reported.
func TestGuardAuditBusyHeals(t *testing.T) {
	s := memoryStore(t)
	heard := newAnomalies()
	g := newTestGuard(t, s, rowOf, &GuardOptions[string]{AuditRate: 1, OnAnomaly: heard.hear})
	busy := numberedIDs(maxHeals)
	for _, id := range busy {
		ok, _ := g.heals.begin(id)
		require.True(t, ok)
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		_, err := g.Get(t.Context(), id)
		require.NoError(t, err)
	}
	_, err := g.Get(t.Context(), busy[0]) // is being added already
	require.NoError(t, err)
	for _, id := range busy {
		g.heals.end(id)
	}
	require.NoError(t, g.Close(t.Context()))
	require.Len(t, heard.heard(), 4)
	require.EqualValues(t, 4, g.Stats().Anomalies)
	require.Zero(t, g.audits.recent)
}
