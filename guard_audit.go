package bloom

import (
	"context"
	"errors"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Kinds of [Anomaly].
const (
	// AnomalyCached: the filter denied an id under which a row was cached.
	AnomalyCached = "cached"
	// AnomalyAudited: the filter denied an id, and an audit found the row.
	AnomalyAudited = "audited"
	// AnomalyDistrust: audits keep finding rows. From now on the filter's "no"s
	// are not believed. Rebuild it.
	AnomalyDistrust = "distrust"
	// AnomalyTrust: no audit finds a row any more. The filter is believed again.
	AnomalyTrust = "trust"
)

// Anomaly tells of a row behind a certain "no" of the filter, or of what the Guard
// concludes from several.
type Anomaly struct {
	Kind string // one of the Anomaly constants
	ID   string // the row's; with AnomalyTrust the last id that was audited
	Err  error  // what kept the id from being added to the filter, nil if it was
}

const (
	auditInterval = time.Second // at the default rate

	// What makes a filter suspect, and trusted again. Rows that are found one by one
	// are added to the filter, so of those that keep coming each is another one: a
	// working filter has none. Absent ids of an attack thin them out, hence 3 in 64.
	distrustAfter = 3
	trustedAfter  = 64 // at most the bits of audits.recent
	trustedWait   = 30 * time.Second
)

var errDistrusted = errors.New("audits found rows that the filter denied: it is not trusted until they find no more")

// audits choose which of the filter's "no"s are checked against the database, and
// judge the filter by what comes of them.
type audits struct {
	rate  float64 // see GuardOptions.AuditRate
	start time.Time
	due   atomic.Int64 // since start, at the default rate

	suspect atomic.Bool
	wait    time.Duration // trustedWait
	mu      sync.Mutex
	recent  uint64 // outcomes, newest in the lowest bit: 1 is a row
	clean   int    // outcomes since the last row
	lastRow time.Time
}

// init leaves a Guard's first interval without audits.
func (a *audits) init(rate float64) {
	a.rate, a.start, a.wait = rate, time.Now(), trustedWait
	a.due.Store(int64(auditInterval))
}

// pick says whether a "no" is to be checked.
func (a *audits) pick() bool {
	switch {
	case a.rate < 0:
		return false
	case a.rate > 0:
		return rand.Float64() < a.rate
	}
	now, due := int64(time.Since(a.start)), a.due.Load()
	return now >= due && a.due.CompareAndSwap(due, now+int64(auditInterval))
}

// distrusts says whether "no"s are not believed at present.
func (a *audits) distrusts() bool { return a.suspect.Load() }

// note takes an outcome, and returns the kind of anomaly if that changes what the
// filter is thought of.
func (a *audits) note(row bool) (kind string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recent <<= 1
	a.clean++
	if row {
		a.recent |= 1
		a.clean, a.lastRow = 0, time.Now()
	}
	switch suspect := a.suspect.Load(); {
	case !suspect && bits.OnesCount64(a.recent) >= distrustAfter:
		a.suspect.Store(true)
		return AnomalyDistrust
	case suspect && a.clean >= trustedAfter && time.Since(a.lastRow) >= a.wait:
		a.suspect.Store(false)
		return AnomalyTrust
	}
	return ""
}

// audited concludes from the load of an id that the filter had denied, once for all
// who share it. Where the load failed the filter's "no" stands, unless it is not
// trusted.
func (g *Guard[V]) audited(ctx context.Context, f *flight[V], id string, r *reading, v V, err error) (V, error) {
	switch {
	case err == nil:
		if f.judged.CompareAndSwap(false, true) {
			g.heal(ctx, AnomalyAudited, id)
		}
	case errors.Is(err, ErrNotFound):
		if f.judged.CompareAndSwap(false, true) {
			g.noteAudit(id, false)
		}
	case r.filterErr == nil:
		g.stats.rejected.Add(1)
		err = ErrNotFound
	}
	return v, err
}

func (g *Guard[V]) noteAudit(id string, row bool) {
	if kind := g.audits.note(row); kind != "" {
		g.reports.add(Anomaly{Kind: kind, ID: id})
	}
}

// heals are the ids that are being added to the filter.
type heals struct {
	mu  sync.Mutex
	ids map[string]struct{}
}

func (h *heals) init() { h.ids = map[string]struct{}{} }

// begin says whether id may be added now, and whether it is being added already.
func (h *heals) begin(id string) (ok, already bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, already = h.ids[id]; already || len(h.ids) == maxHeals {
		return false, already
	}
	h.ids[id] = struct{}{}
	return true, false
}

func (h *heals) end(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ids, id)
}

// heal adds an id to the filter that denied it although there is a row. The caller
// does not wait for it. While too many are under way already, ids are left for a
// later Get.
func (g *Guard[V]) heal(ctx context.Context, kind, id string) {
	ctx = context.WithoutCancel(ctx)
	ok, already := g.heals.begin(id)
	if already {
		return
	}
	if ok {
		started := g.tasks.start(func() {
			defer g.heals.end(id)
			g.healNow(ctx, kind, id)
		})
		if started {
			return
		}
		g.heals.end(id)
	}
	g.tell(kind, id, errHealsBusy)
}

var errHealsBusy = errors.New("too many ids are being added already, or the guard is closed")

func (g *Guard[V]) healNow(ctx context.Context, kind, id string) {
	ctx, cancel := context.WithTimeout(ctx, g.opts.LoadTimeout)
	defer cancel()
	added, err := g.addSafely(ctx, id)
	switch {
	case err != nil:
	case added:
		g.stats.heals.Add(1)
	default:
		return // healed by another, or registered and committed since the filter was read
	}
	g.tell(kind, id, err)
}

// addSafely is Add where nobody would catch the panic of a caller's own Backend.
func (g *Guard[V]) addSafely(ctx context.Context, id string) (added bool, err error) {
	defer catch(&err)
	return g.filter.Add(ctx, id)
}

// tell makes an anomaly known.
func (g *Guard[V]) tell(kind, id string, err error) {
	g.stats.anomalies.Add(1)
	g.reports.add(Anomaly{Kind: kind, ID: id, Err: err})
	// What was not tried to be added may have been registered while the audit ran.
	if kind == AnomalyAudited && !errors.Is(err, errHealsBusy) {
		g.noteAudit(id, true)
	}
}

const maxReports = 64 // that wait for a slow OnAnomaly

// reports calls OnAnomaly, one call at a time.
type reports struct {
	call  func(Anomaly)
	tasks *tasks

	mu      sync.Mutex
	waiting []Anomaly
	running bool
}

func (rs *reports) init(call func(Anomaly), t *tasks) { rs.call, rs.tasks = call, t }

func (rs *reports) add(a Anomaly) {
	if rs.call == nil {
		return
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if len(rs.waiting) == maxReports {
		return
	}
	rs.waiting = append(rs.waiting, a)
	if !rs.running {
		rs.running = rs.tasks.follow(rs.run)
	}
}

// run ends once nothing waits any more, or the callback ended its goroutine.
func (rs *reports) run() {
	defer func() {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		rs.running = len(rs.waiting) > 0 && rs.tasks.follow(rs.run)
	}()
	for {
		rs.mu.Lock()
		if len(rs.waiting) == 0 {
			rs.mu.Unlock()
			return
		}
		a := rs.waiting[0]
		rs.waiting = rs.waiting[1:]
		rs.mu.Unlock()
		rs.callWith(a)
	}
}

// callWith survives a callback that panics: it only looks on.
func (rs *reports) callWith(a Anomaly) {
	defer func() { _ = recover() }()
	rs.call(a)
}
