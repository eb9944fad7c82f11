package bloom

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stepMulti hands each call of LoadMulti to the test, which answers it.
type stepMulti struct {
	t     *testing.T
	calls chan *stepMultiCall
}

type stepMultiCall struct {
	ids    []string
	ctx    context.Context
	answer chan func() (map[string]string, error)
}

func newStepMulti(t *testing.T) *stepMulti { return &stepMulti{t, make(chan *stepMultiCall, 100)} }

// load ignores its own context, as stepLoader does.
func (l *stepMulti) load(ctx context.Context, ids []string) (map[string]string, error) {
	c := &stepMultiCall{slices.Sorted(slices.Values(ids)), ctx, make(chan func() (map[string]string, error), 1)}
	l.calls <- c
	select {
	case f := <-c.answer:
		return f()
	case <-l.t.Context().Done():
		return nil, l.t.Context().Err()
	}
}

func (l *stepMulti) next() *stepMultiCall {
	l.t.Helper()
	return receive(l.t, l.calls)
}

func (l *stepMulti) none() {
	l.t.Helper()
	select {
	case c := <-l.calls:
		l.t.Fatalf("unexpected load of %q", c.ids)
	default:
	}
}

func (c *stepMultiCall) returns(found map[string]string, err error) {
	c.answer <- func() (map[string]string, error) { return found, err }
}

// row answers that each id has the row v.
func (c *stepMultiCall) row(v string) {
	found := map[string]string{}
	for _, id := range c.ids {
		found[id] = v
	}
	c.returns(found, nil)
}

type gotMulti struct {
	found map[string]string
	err   error
}

// goMulti starts a GetMulti.
func goMulti(ctx context.Context, g *Guard[string], ids ...string) <-chan gotMulti {
	c := make(chan gotMulti, 1)
	go func() {
		found, err := g.GetMulti(ctx, ids)
		c <- gotMulti{found, err}
	}()
	return c
}

// requireFound checks that a GetMulti ended without an error.
func requireFound(t *testing.T, want map[string]string, c <-chan gotMulti) {
	t.Helper()
	answer := receive(t, c)
	require.NoError(t, answer.err)
	require.Equal(t, want, answer.found)
}

// notByLoader is the Loader of guards that are to load by LoadMulti.
func notByLoader(context.Context, string) (string, error) {
	return "", errors.New("not by Loader")
}

// What LoadMulti may answer for the ids "a", "b", "c", and what that means.
func TestGuardLoadMultiAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		found  map[string]string
		err    error
		want   map[string]string
		failed []string
		tags   string // cached under a, b and c
	}{
		{"all", map[string]string{"a": "1", "b": "2", "c": "3"}, nil, map[string]string{"a": "1", "b": "2", "c": "3"}, nil, "VVV"},
		{"one left out", map[string]string{"a": "1", "c": ""}, nil, map[string]string{"a": "1", "c": ""}, nil, "VNV"},
		{"nil map", nil, nil, map[string]string{}, nil, "NNN"},
		{"more than asked", map[string]string{"a": "1", "b": "2", "c": "3", "d": "4"}, nil,
			map[string]string{"a": "1", "b": "2", "c": "3"}, nil, "VVV"},
		{"error", nil, errInjected, map[string]string{}, []string{"a", "b", "c"}, "LLL"},
		{"some beside an error", map[string]string{"b": "2"}, errInjected, map[string]string{"b": "2"}, []string{"a", "c"}, "LVL"},
		{"ErrNotFound", nil, ErrNotFound, map[string]string{}, nil, "NNN"},
		{"some beside ErrNotFound", map[string]string{"c": "3"}, fmt.Errorf("no rows: %w", ErrNotFound),
			map[string]string{"c": "3"}, nil, "NNV"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachGuardStore(t, func(t *testing.T, s guardStore) {
				s.known(t, "a", "b", "c", "d")
				l := newStepMulti(t)
				g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: l.load})
				c := goMulti(t.Context(), g, "a", "b", "c", "a", "denied")
				call := l.next()
				require.Equal(t, []string{"a", "b", "c"}, call.ids)
				deadline, ok := call.ctx.Deadline()
				require.True(t, ok)
				require.LessOrEqual(t, time.Until(deadline), defaultLoadTimeout)
				call.returns(tt.found, tt.err)
				answer := receive(t, c)
				require.Equal(t, tt.want, answer.found)
				var failed []string
				for id, err := range failures(t, errors.Unwrap(answer.err)) {
					require.ErrorIs(t, err, tt.err)
					failed = append(failed, id)
				}
				require.ElementsMatch(t, tt.failed, failed)
				for i, id := range []string{"a", "b", "c"} {
					s.requireTag(t, id, tt.tags[i], defaultTTL)
				}
				s.requireTag(t, "d", tagNone, 0)
				var nulls uint64
				for _, tag := range tt.tags {
					if tag == tagNull {
						nulls++
					}
				}
				require.Equal(t, GuardStats{
					Gets: 4, Rejected: 1, Loads: 3, LoadsNotFound: nulls, LoadErrors: uint64(len(tt.failed)),
					Fills: uint64(3 - len(tt.failed)),
				}, g.Stats())
				l.none()
			})
		})
	}
}

// A panic, and a goroutine that ends, are an error for each id. The next call works.
func TestGuardLoadMultiCrashes(t *testing.T) {
	for name, crash := range map[string]func(){"boom": func() { panic("boom") }, "loader ended its goroutine": runtime.Goexit} {
		eachSharedStore(t, func(t *testing.T, s guardStore) {
			s.known(t, "a", "b")
			l := newStepMulti(t)
			g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: l.load, MaxLoads: 1})
			c := goMulti(t.Context(), g, "a", "b")
			l.next().answer <- func() (map[string]string, error) { crash(); return nil, nil }
			answer := receive(t, c)
			require.Empty(t, answer.found)
			byID := failures(t, errors.Unwrap(answer.err))
			require.ErrorContains(t, byID["a"], name)
			require.ErrorContains(t, byID["b"], name)
			require.Equal(t, GuardStats{Gets: 2, Loads: 2, LoadErrors: 2}, g.Stats())
			c = goMulti(t.Context(), g, "a", "b")
			l.next().row("v")
			requireFound(t, map[string]string{"a": "v", "b": "v"}, c)
		})
	}
}

// A nil pointer is no row, and no reason to lose the others.
func TestGuardLoadMultiNilPointers(t *testing.T) {
	s := memoryStore(t)
	s.known(t, "a", "b", "c")
	v := "v"
	g := newTestGuard(t, s, func(context.Context, string) (*string, error) { return &v, nil },
		&GuardOptions[*string]{LoadMulti: func(context.Context, []string) (map[string]*string, error) {
			return map[string]*string{"a": &v, "b": nil}, nil
		}})
	found, err := g.GetMulti(t.Context(), []string{"a", "b", "c"})
	require.Equal(t, map[string]*string{"a": &v}, found)
	byID := failures(t, errors.Unwrap(err))
	require.Len(t, byID, 1)
	require.ErrorContains(t, byID["b"], "nil *string")
	require.Equal(t, GuardStats{Gets: 3, Loads: 3, LoadsNotFound: 1, LoadErrors: 1, Fills: 2}, g.Stats())
	s.requireTag(t, "b", tagLease, 2*defaultLoadTimeout)
}

// Who waits is told on time; what LoadMulti finds later is neither returned nor
// cached, and its slot is taken until then.
func TestGuardLoadMultiTimeout(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		const timeout = 150 * time.Millisecond
		s.known(t, "a", "b")
		l := newStepMulti(t)
		g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{LoadMulti: l.load, LoadTimeout: timeout, MaxLoads: 1})
		start := time.Now()
		c := goMulti(t.Context(), g, "a", "b")
		late := l.next()
		answer := receive(t, c)
		require.GreaterOrEqual(t, time.Since(start), timeout)
		require.Empty(t, answer.found)
		require.ErrorIs(t, answer.err, context.DeadlineExceeded)
		require.Len(t, failures(t, errors.Unwrap(answer.err)), 2)
		require.ErrorContains(t, answer.err, "longer than 150ms")
		require.ErrorIs(t, late.ctx.Err(), context.DeadlineExceeded)
		require.Equal(t, GuardStats{Gets: 2, Loads: 2, LoadErrors: 2}, g.Stats())

		c = goMulti(t.Context(), g, "a", "b")
		eventually(t, "queued", func() bool { return queueLength(g) == 1 })
		late.row("too late")
		next := l.next()
		s.requireNoValue(t, "a")
		s.requireNoValue(t, "b")
		next.row("in time")
		requireFound(t, map[string]string{"a": "in time", "b": "in time"}, c)
		require.NoError(t, g.Close(t.Context()))
		require.EqualValues(t, 2, g.Stats().Fills)
	})
}

// LoadMulti gets 500 ids at most, and its slice is its own.
func TestGuardLoadMultiChunks(t *testing.T) {
	s := memoryStore(t)
	ids := numberedIDs(700)
	s.known(t, ids...)
	var sizes []int
	g := newTestGuard(t, s, notByLoader, &GuardOptions[string]{
		LoadMulti: func(ctx context.Context, ids []string) (map[string]string, error) {
			sizes = append(sizes, len(ids)) // one call at a time
			found, err := multiRows(func(_ context.Context, id string) (string, error) { return "row of " + id, nil })(ctx, ids)
			clear(ids)
			return found, err
		},
	})
	found, err := g.GetMulti(t.Context(), ids)
	require.NoError(t, err)
	require.Len(t, found, len(ids))
	for _, id := range ids {
		require.Equal(t, "row of "+id, found[id])
	}
	require.Equal(t, []int{500, 200}, sizes)
}

// A caller who has gone gets what was known by then, and starts nothing more.
func TestGuardMultiCallerLeaves(t *testing.T) {
	const n = 1200
	ids := numberedIDs(n)
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprint("together: ", together), func(t *testing.T) {
			s := memoryStore(t)
			s.known(t, ids...)
			s.raw.set(ids[n-1], []byte(`V"cached"`), time.Minute) // of the second round trip
			s.raw.set(ids[0], []byte(`V"cached"`), time.Minute)
			ctx, cancel := context.WithCancel(t.Context())
			var calls atomic.Int64
			release := make(chan struct{})
			load := func(context.Context, string) (string, error) {
				if calls.Add(1) == 1 {
					cancel()
				}
				<-release
				return "v", nil
			}
			opts := GuardOptions[string]{MaxLoads: 2}
			if together {
				opts.LoadMulti = multiRows(load)
			}
			g := newTestGuard(t, s, load, &opts)
			found, err := g.GetMulti(ctx, ids)
			require.Equal(t, map[string]string{ids[0]: "cached"}, found)
			require.ErrorIs(t, err, context.Canceled)
			require.Len(t, failures(t, errors.Unwrap(err)), n-1)
			require.Zero(t, g.Stats().Overloads)
			close(release)
			require.NoError(t, g.Close(t.Context()))
			if together {
				require.EqualValues(t, maxLoadIDs, g.Stats().Loads)
			} else {
				require.EqualValues(t, 1, g.Stats().Loads)
			}
			require.Equal(t, g.Stats().Loads, g.Stats().Fills, "what was begun goes on")

			// One who comes like that gets an error for each, and loads nothing.
			found, err = g.GetMulti(ctx, ids[:2])
			require.NotNil(t, found)
			require.Empty(t, found)
			require.Len(t, failures(t, errors.Unwrap(err)), 2)
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}

// Each id that finds no room is overloaded by itself; what others load is shared.
func TestGuardMultiOverloaded(t *testing.T) {
	s := memoryStore(t)
	s.known(t, "a", "b", "c", "d", "e")
	s.raw.set("cached", []byte(`V"v"`), time.Minute)
	l, one := newStepMulti(t), newStepLoader(t)
	g := newTestGuard(t, s, one.load, &GuardOptions[string]{LoadMulti: l.load, MaxLoads: 1})
	running := goMulti(t.Context(), g, "a", "b")
	call := l.next()
	queued := goGet(t.Context(), g, "c")
	eventually(t, "queued", func() bool { return queueLength(g) == 1 })

	third := goMulti(t.Context(), g, "cached", "a", "c", "d", "e")
	joined(t, g, 2)
	one.none()
	l.none()
	call.row("v")
	requireFound(t, map[string]string{"a": "v", "b": "v"}, running)
	one.next().found("w")
	require.Equal(t, got[string]{"w", nil}, receive(t, queued))
	answer := receive(t, third)
	require.Equal(t, map[string]string{"cached": "v", "a": "v", "c": "w"}, answer.found)
	byID := failures(t, errors.Unwrap(answer.err))
	require.Equal(t, map[string]error{"d": ErrOverloaded, "e": ErrOverloaded}, byID)
	require.EqualValues(t, 2, g.Stats().Overloads)
	l.none()
}

// A closed guard answers what needs no load.
func TestGuardMultiClosed(t *testing.T) {
	s := memoryStore(t)
	s.known(t, "a", "b")
	s.raw.set("cached", []byte(`V"v"`), time.Minute)
	for _, opts := range []GuardOptions[string]{{}, {LoadMulti: multiRows(rows(nil))}} {
		g := newTestGuard(t, s, rows(nil), &opts)
		require.NoError(t, g.Close(t.Context()))
		for range 3 {
			found, err := g.GetMulti(t.Context(), []string{"a", "cached", "denied", "b"})
			require.Equal(t, map[string]string{"cached": "v"}, found)
			require.Equal(t, map[string]error{"a": ErrClosed, "b": ErrClosed}, failures(t, errors.Unwrap(err)))
		}
	}
}
