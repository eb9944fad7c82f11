package bloom

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
)

// IDError is what kept a GetMulti from answering for one id. Its error joins them
// all: errors.As finds the first, Unwrap() []error of the joined error has each.
type IDError struct {
	ID  string
	Err error
}

func (e *IDError) Error() string { return fmt.Sprintf("%q: %v", e.ID, e.Err) }

// Unwrap returns Err.
func (e *IDError) Unwrap() error { return e.Err }

// idErrors joins the errors of many ids, and prints the first few.
type idErrors []error

const maxPrintedErrors = 3

func (es idErrors) Error() string {
	var b strings.Builder
	for i, err := range es {
		if i == maxPrintedErrors {
			fmt.Fprintf(&b, "; and %d more", len(es)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(err.Error())
	}
	return b.String()
}

func (es idErrors) Unwrap() []error { return es }

// GetMulti is Get for many ids. The map has the row of every id that has one, and
// is never nil; an id that is neither in it nor in the error has none. Filter and
// cache are asked in one round trip per thousand ids or so; what has to be loaded
// is shared with concurrent Gets of the same ids, and loaded by LoadMulti, or
// Loader id by id, a thousand ids' loads before the next thousand are asked for.
//
// Where some ids fail, the error joins an [IDError] for each, and the rows of the
// others are returned beside it.
func (g *Guard[V]) GetMulti(ctx context.Context, ids []string) (map[string]V, error) {
	m := &multi[V]{g: g, rows: make(map[string]V, len(ids))}
	asked := m.distinct(ids)
	var down reading
	for len(asked) > 0 {
		readings := g.read(ctx, asked, down)
		if err := contextError(ctx); err != nil {
			for _, id := range asked {
				m.put(id, m.none, err)
			}
			break
		}
		m.answer(ctx, asked[:len(readings)], readings)
		down = outage(readings)
		asked = asked[len(readings):]
	}
	if m.errs != nil {
		return m.rows, fmt.Errorf("bloom: get %s, %d failed: %w", plural(len(ids), "id"), len(m.errs), m.errs)
	}
	return m.rows, nil
}

// multi is one GetMulti.
type multi[V any] struct {
	g    *Guard[V]
	none V

	mu   sync.Mutex
	rows map[string]V
	errs idErrors
}

// put notes what an id came to.
func (m *multi[V]) put(id string, v V, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		m.rows[id] = v
	case !errors.Is(err, ErrNotFound):
		m.errs = append(m.errs, &IDError{id, err})
	}
}

// distinct returns each valid id once.
func (m *multi[V]) distinct(ids []string) []string {
	seen := make(map[string]struct{}, len(ids))
	out := make([]string, 0, len(ids))
	for _, id := range ids {
		if _, ok := seen[id]; ok {
			continue
		}
		seen[id] = struct{}{}
		m.g.stats.gets.Add(1)
		if m.g.opts.Validate != nil {
			if err := m.g.opts.Validate(id); err != nil {
				m.g.stats.invalid.Add(1)
				m.errs = append(m.errs, &IDError{id, err}) // also where it wraps ErrNotFound
				continue
			}
		}
		out = append(out, id)
	}
	return out
}

// unanswered are ids whose rows have to be loaded, and what was read of each.
type unanswered struct {
	ids      []string
	readings []*reading
}

// answer answers some ids from what was read of them, and loads the others.
func (m *multi[V]) answer(ctx context.Context, ids []string, readings []reading) {
	var u unanswered
	for i, id := range ids {
		r := &readings[i]
		if v, done, err := m.g.decide(ctx, id, r); done {
			m.put(id, v, err)
		} else {
			u.ids, u.readings = append(u.ids, id), append(u.readings, r)
		}
	}
	if m.g.opts.LoadMulti == nil {
		m.loadEach(ctx, u)
		return
	}
	for from := 0; from < len(u.ids); from += maxLoadIDs {
		to := min(len(u.ids), from+maxLoadIDs)
		m.loadTogether(ctx, unanswered{u.ids[from:to], u.readings[from:to]})
	}
}

// loadEach leaves slots to others, so it cannot overload a guard alone.
func (m *multi[V]) loadEach(ctx context.Context, u unanswered) {
	var (
		next    atomic.Int64
		workers sync.WaitGroup
	)
	work := func() {
		for i := next.Add(1) - 1; i < int64(len(u.ids)); i = next.Add(1) - 1 {
			v, err := m.g.miss(ctx, u.ids[i], u.readings[i])
			m.put(u.ids[i], v, err)
		}
	}
	for range min(len(u.ids), max(1, m.g.opts.MaxLoads/2)) - 1 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			work()
		}()
	}
	work()
	workers.Wait()
}

// loadTogether joins the flights that there are, and launches the others with one
// slot for all.
func (m *multi[V]) loadTogether(ctx context.Context, u unanswered) {
	if err := contextError(ctx); err != nil { // who has gone starts no load
		for i, id := range u.ids {
			v, err := m.g.conclude(ctx, nil, id, u.readings[i], m.none, err)
			m.put(id, v, err)
		}
		return
	}
	misses := make([]miss, len(u.ids))
	for i, id := range u.ids {
		misses[i] = u.readings[i].miss(id)
	}
	joined, err := m.g.board(ctx, misses, m.g.flyTogether)
	for i, id := range u.ids {
		v, err := m.g.await(ctx, joined[i], id, u.readings[i], err)
		m.put(id, v, err)
	}
}
