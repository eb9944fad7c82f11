package bloom_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func bothLayouts(t *testing.T, f func(*testing.T, bloom.Layout)) {
	t.Helper()
	for _, layout := range []bloom.Layout{bloom.Classic, bloom.Blocked} {
		t.Run(layout.String(), func(t *testing.T) { f(t, layout) })
	}
}

func mustNew(t testing.TB, b bloom.Backend, cfg bloom.Config) *bloom.Filter {
	t.Helper()
	f, err := bloom.New(b, cfg)
	require.NoError(t, err)
	return f
}

// attached returns a handle that has not read anything yet.
func attached(t testing.TB, rdb redis.Cmdable, key string) *bloom.Filter {
	t.Helper()
	return mustNew(t, bloom.NewBitmap(rdb, key), bloom.Config{})
}

// filled makes a filter of the given capacity at 1 % that holds members.
func filled(t testing.TB, rdb redis.Cmdable, key string, capacity uint64, layout bloom.Layout, members []string) *bloom.Filter {
	t.Helper()
	f := mustNew(t, bloom.NewBitmap(rdb, key), bloom.Config{Capacity: capacity, Layout: layout})
	require.NoError(t, f.CreateEmpty(t.Context()))
	_, err := f.AddMulti(t.Context(), members)
	require.NoError(t, err)
	return f
}

func numbered(prefix string, n int) []string {
	items := make([]string, n)
	for i := range items {
		items[i] = prefix + " " + strconv.Itoa(i)
	}
	return items
}

// requireMembers requires an undisturbed yes for each, singly (for the first
// few) and as a batch.
func requireMembers(t testing.TB, f *bloom.Filter, members []string) {
	t.Helper()
	for _, item := range members[:min(20, len(members))] {
		exists, err := f.Exists(t.Context(), item)
		require.NoError(t, err)
		require.True(t, exists, "false negative: %.20q", item)
	}
	got, err := f.ExistsMulti(t.Context(), members)
	require.NoError(t, err)
	require.Len(t, got, len(members))
	require.NotContains(t, got, false, "false negative")
}

// neverDenies requires that no member is denied, whatever errors say, and returns
// them.
func neverDenies(t testing.TB, f *bloom.Filter, members []string) error {
	t.Helper()
	var errs []error
	for _, item := range members[:min(5, len(members))] {
		exists, err := f.Exists(t.Context(), item)
		require.True(t, exists, "false negative beside error %v", err)
		errs = append(errs, err)
	}
	got, err := f.ExistsMulti(t.Context(), members)
	require.Len(t, got, len(members))
	require.NotContains(t, got, false, "false negative beside error %v", err)
	return errors.Join(append(errs, err)...)
}

// requireFailingInTime requires that on a server that does not answer every
// method ends with its context.
func requireFailingInTime(t *testing.T, f *bloom.Filter) {
	t.Helper()
	const limit = 50 * time.Millisecond
	call := func(what string, op func(ctx context.Context) (bool, error)) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		start := time.Now()
		maybe, err := op(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded, what)
		require.True(t, maybe, what)
		require.Less(t, time.Since(start), limit+time.Second, what)
	}
	two := []string{"a", "b"}
	call("Exists", func(ctx context.Context) (bool, error) { return f.Exists(ctx, "a") })
	call("Add", func(ctx context.Context) (bool, error) { return f.Add(ctx, "a") })
	call("ExistsMulti", func(ctx context.Context) (bool, error) {
		got, err := f.ExistsMulti(ctx, two)
		return len(got) == 2 && got[0] && got[1], err
	})
	call("AddMulti", func(ctx context.Context) (bool, error) {
		got, err := f.AddMulti(ctx, two)
		return len(got) == 2 && got[0] && got[1], err
	})
	call("Ready", func(ctx context.Context) (bool, error) { return true, f.Ready(ctx) })
	call("Info", func(ctx context.Context) (bool, error) { _, err := f.Info(ctx); return true, err })
}
