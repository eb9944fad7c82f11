package bloom

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// memMake returns a Memory with an empty filter.
func memMake(t testing.TB, cfg Config) *Memory {
	t.Helper()
	if cfg.FPRate == 0 {
		cfg.FPRate = defaultFPRate
	}
	m := NewMemory()
	require.NoError(t, m.CreateEmpty(t.Context(), cfg))
	return m
}

// memOps is every operation that needs a filter. Those that answer must answer
// true beside an error.
func memOps(m *Memory) map[string]func(context.Context) ([]bool, error) {
	items := []string{"a", "b", "c"}
	single := func(f func(context.Context, string) (bool, error)) func(context.Context) ([]bool, error) {
		return func(ctx context.Context) ([]bool, error) {
			answer, err := f(ctx, "a")
			return []bool{answer}, err
		}
	}
	return map[string]func(context.Context) ([]bool, error){
		"Add":         single(m.Add),
		"Exists":      single(m.Exists),
		"AddMulti":    func(ctx context.Context) ([]bool, error) { return m.AddMulti(ctx, items) },
		"ExistsMulti": func(ctx context.Context) ([]bool, error) { return m.ExistsMulti(ctx, items) },
		"Ready":       func(ctx context.Context) ([]bool, error) { return nil, m.Ready(ctx) },
		"Reset":       func(ctx context.Context) ([]bool, error) { return nil, m.Reset(ctx) },
		"Info": func(ctx context.Context) ([]bool, error) {
			info, err := m.Info(ctx)
			if err != nil && info != (Info{}) {
				return []bool{false}, err
			}
			return nil, err
		},
	}
}

func memRequireFailing(ctx context.Context, t *testing.T, m *Memory, target error) {
	t.Helper()
	for name, op := range memOps(m) {
		answers, err := op(ctx)
		require.ErrorIs(t, err, target, name)
		require.NotContains(t, answers, false, "%s denies beside an error", name)
	}
	for _, f := range []func(context.Context, []string) ([]bool, error){m.AddMulti, m.ExistsMulti} {
		answers, _ := f(ctx, make([]string, 3))
		require.Equal(t, []bool{true, true, true}, answers)
	}
}

func TestMemoryNotReady(t *testing.T) {
	m := NewMemory()
	memRequireFailing(t.Context(), t, m, ErrNotReady)
	_, err := m.WriteTo(new(memLimitedWriter))
	require.ErrorIs(t, err, ErrNotReady)

	require.NoError(t, m.CreateEmpty(t.Context(), Config{Capacity: 10, FPRate: 0.01}))
	_, err = m.Add(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, m.Drop(t.Context()))
	memRequireFailing(t.Context(), t, m, ErrNotReady)
	require.NoError(t, m.Drop(t.Context()), "what is not there can be dropped")
}

func TestMemoryCancelled(t *testing.T) {
	m := memMake(t, Config{Capacity: 10})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	memRequireFailing(ctx, t, m, context.Canceled)
	require.ErrorIs(t, m.Drop(ctx), context.Canceled)
	require.ErrorIs(t, m.CreateEmpty(ctx, Config{Capacity: 10, FPRate: 0.01}), context.Canceled)
	require.NoError(t, m.Ready(t.Context()), "and nothing has changed")
	info, err := m.Info(t.Context())
	require.NoError(t, err)
	require.Zero(t, info.Items)
	require.EqualValues(t, 1, info.Generation)

	require.ErrorIs(t, NewMemory().CreateEmpty(ctx, Config{Capacity: 10, FPRate: 0.01}), context.Canceled)
}

func TestMemoryCheck(t *testing.T) {
	_, err := New((*Memory)(nil), Config{Capacity: 10})
	require.ErrorIs(t, err, ErrInvalidParams)
	_, err = New(NewMemory(), Config{})
	require.NoError(t, err)
	_, err = New(NewMemory(), Config{Capacity: math.MaxUint64, Layout: Blocked})
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorIs(t, NewMemory().CreateEmpty(t.Context(), Config{Capacity: 1e12, FPRate: 0.01}), ErrTooLarge)
}

func TestMemoryAttach(t *testing.T) {
	m := memMake(t, Config{Capacity: 100, FPRate: 0.01, Layout: Blocked})
	_, err := m.Add(t.Context(), "kept")
	require.NoError(t, err)
	for _, tt := range []struct {
		cfg Config
		err error
	}{
		{Config{Capacity: 100, FPRate: 0.01, Layout: Blocked}, nil},
		{Config{Capacity: 99, FPRate: 0.02, Layout: Blocked}, nil},
		{Config{Capacity: 101, FPRate: 0.01, Layout: Blocked}, ErrParamsMismatch},
		{Config{Capacity: 100, FPRate: 0.009, Layout: Blocked}, ErrParamsMismatch},
		{Config{Capacity: 100, FPRate: 0.01, Layout: Classic}, ErrParamsMismatch},
	} {
		t.Run(fmt.Sprintf("%+v", tt.cfg), func(t *testing.T) {
			require.ErrorIs(t, m.CreateEmpty(t.Context(), tt.cfg), tt.err)
			found, err := m.Exists(t.Context(), "kept")
			require.NoError(t, err)
			require.True(t, found)
		})
	}
}

func TestMemoryTTL(t *testing.T) {
	cfg := Config{Capacity: 10, FPRate: 0.01, TTL: time.Hour}
	m := memMake(t, cfg)
	expires := m.live.Load().expires
	require.WithinDuration(t, time.Now().Add(time.Hour), expires, time.Minute)
	require.NoError(t, m.CreateEmpty(t.Context(), cfg))
	_, err := m.Add(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, expires, m.live.Load().expires, "neither attaching nor adding extends it")
	require.NoError(t, m.Reset(t.Context()))
	require.Equal(t, expires, m.live.Load().expires, "nor does Reset")

	m = memMake(t, Config{Capacity: 10, FPRate: 0.01, TTL: time.Millisecond})
	time.Sleep(2 * time.Millisecond)
	memRequireFailing(t.Context(), t, m, ErrNotReady)
	require.NoError(t, m.CreateEmpty(t.Context(), Config{Capacity: 10, FPRate: 0.01}))
	require.NoError(t, m.Ready(t.Context()), "the new one has no TTL")
	require.EqualValues(t, 1, m.live.Load().generation)
}

// memHookContext runs a function at the first look at it: in the middle of an
// operation that has already begun.
type memHookContext struct {
	context.Context
	hook func()
}

func (c *memHookContext) Err() error {
	if hook := c.hook; hook != nil {
		c.hook = nil
		hook()
	}
	return c.Context.Err()
}

// An Add during which the filter is replaced ends up in what replaced it.
func TestMemoryAddMeetsReplacement(t *testing.T) {
	for _, layout := range sizingLayouts {
		cfg := Config{Capacity: 100, FPRate: 0.01, Layout: layout}
		var saved memBytes
		_, err := memMake(t, Config{Capacity: 50, FPRate: 0.001, Layout: layout}).WriteTo(&saved)
		require.NoError(t, err)
		for name, replace := range map[string]func(*testing.T, *Memory){
			"Reset": func(t *testing.T, m *Memory) { require.NoError(t, m.Reset(t.Context())) },
			"Drop and CreateEmpty of another size": func(t *testing.T, m *Memory) {
				require.NoError(t, m.Drop(t.Context()))
				require.NoError(t, m.CreateEmpty(t.Context(), Config{Capacity: 5000, FPRate: 0.1, Layout: layout}))
			},
			"ReadFrom": func(t *testing.T, m *Memory) {
				_, err := m.ReadFrom(saved.reader())
				require.NoError(t, err)
			},
		} {
			t.Run(fmt.Sprint(layout, " ", name), func(t *testing.T) {
				m := memMake(t, cfg)
				before, called := m.live.Load(), false
				ctx := &memHookContext{t.Context(), func() { replace(t, m); called = true }}
				added, err := m.Add(ctx, "a")
				require.NoError(t, err)
				require.True(t, added)
				require.True(t, called)
				require.NotSame(t, before, m.live.Load())
				found, err := m.Exists(t.Context(), "a")
				require.NoError(t, err)
				require.True(t, found)
			})
		}
	}
	t.Run("Drop", func(t *testing.T) {
		m := memMake(t, Config{Capacity: 100})
		added, err := m.Add(&memHookContext{t.Context(), func() { _ = m.Drop(t.Context()) }}, "a")
		require.ErrorIs(t, err, ErrNotReady)
		require.True(t, added)
	})
	t.Run("a rebuild opens", func(t *testing.T) {
		m := memMake(t, Config{Capacity: 100})
		next := newMemoryFilter(newHeader(newGeometry(sizingParams(t, 200, 0.01, Classic), 1, alone), 1))
		_, err := m.Add(&memHookContext{t.Context(), func() { m.next.Store(next) }}, "a")
		require.NoError(t, err)
		require.True(t, m.live.Load().exists("a"))
		require.True(t, next.exists("a"), "it is written, too, before Add returns")
	})
	t.Run("a rebuild publishes", func(t *testing.T) {
		m := memMake(t, Config{Capacity: 100})
		next := newMemoryFilter(newHeader(newGeometry(sizingParams(t, 200, 0.01, Classic), 1, alone), 2))
		m.next.Store(next)
		_, err := m.Add(&memHookContext{t.Context(), func() { m.live.Store(next); m.next.Store(nil) }}, "a")
		require.NoError(t, err)
		require.True(t, next.exists("a"))
	})
}

func TestMemoryAllocatesNothing(t *testing.T) {
	ctx := t.Context()
	for _, layout := range sizingLayouts {
		for _, rate := range []float64{0.01, 1e-15} {
			m := memMake(t, Config{Capacity: 1000, FPRate: rate, Layout: layout, TTL: time.Hour})
			require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = m.Add(ctx, "present") }))
			require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = m.Exists(ctx, "present") }))
			require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = m.Exists(ctx, "absent") }))
		}
	}
}

func memFill(t *testing.T, m *Memory, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		_, err := m.Add(t.Context(), fmt.Sprint("item:", i))
		require.NoError(t, err)
	}
}

func TestMemoryInfo(t *testing.T) {
	t.Parallel()
	const capacity = 50_000
	for _, layout := range sizingLayouts {
		t.Run(layout.String(), func(t *testing.T) {
			m := memMake(t, Config{Capacity: capacity, FPRate: 0.01, Layout: layout})
			p := sizingParams(t, capacity, 0.01, layout)
			in := 0
			for _, items := range []int{0, 1, capacity / 2, capacity, capacity * 3 / 2} {
				memFill(t, m, in, items)
				in = items
				info, err := m.Info(t.Context())
				require.NoError(t, err)
				require.InDelta(t, items, info.Items, 0.02*float64(items))
				require.Equal(t, items > capacity, info.Items > uint64(1.02*capacity), "past capacity")
				require.InEpsilon(t, p.FPRateAt(uint64(items))+1e-300, info.FPRate+1e-300, 0.2)
				require.WithinDuration(t, time.Now(), info.Created, time.Minute)

				// The share of bits, counted in what is written.
				var out memBytes
				_, err = m.WriteTo(&out)
				require.NoError(t, err)
				set := out.bodyOnes(p.Layout, m.live.Load().geom.tag)
				require.InDelta(t, float64(set)/float64(p.Bits), info.Fill, 1e-12)

				require.Equal(t, Info{
					Backend: "memory", Params: p, Bytes: p.Bytes(), Shards: 1, SubFilters: 1, Generation: 1,
					Items: info.Items, Fill: info.Fill, FPRate: info.FPRate, Created: info.Created,
				}, info)
			}
			require.NoError(t, m.Reset(t.Context()))
			info, err := m.Info(t.Context())
			require.NoError(t, err)
			require.Zero(t, info.Items)
			require.Zero(t, info.Fill)
			require.Equal(t, p, info.Params)
			require.EqualValues(t, 2, info.Generation)
		})
	}
}

// With every bit set nothing can be estimated.
func TestMemoryInfoSaturated(t *testing.T) {
	for _, layout := range sizingLayouts {
		t.Run(layout.String(), func(t *testing.T) {
			m := memMake(t, Config{Capacity: 20, FPRate: 0.01, Layout: layout})
			memFill(t, m, 0, 5000)
			info, err := m.Info(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 1, info.Fill)
			require.EqualValues(t, 40, info.Items)
			found, err := m.Exists(t.Context(), "absent")
			require.NoError(t, err)
			require.True(t, found)
		})
	}
}
