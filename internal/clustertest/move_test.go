package clustertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// A filter's slot moves under load, to and fro, with the windows left open: no
// lookup fails or is wrong, and adds wait until the slot has settled.
func TestMoveUnderLoad(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		moveUnderLoad(t, c, func(key string) bloom.Backend { return bloom.NewBitmap(rdb, key) }, layout)
	})
}

func moveUnderLoad(t *testing.T, c *redistest.Cluster, at func(key string) bloom.Backend, layout bloom.Layout) {
	key := redistest.Key(t)
	f, err := bloom.New(at(key), bloom.Config{Capacity: 20_000, Layout: layout})
	require.NoError(t, err)
	require.NoError(t, f.CreateEmpty(t.Context()))
	members := numbered("member", 200)
	_, err = f.AddMulti(t.Context(), members)
	require.NoError(t, err)
	// Others in the slot, which hold up its end.
	rdb := c.Client(t)
	for i := range 20 {
		require.NoError(t, rdb.Set(t.Context(), fmt.Sprintf("{%s}:other:%d", key, i), "v", 0).Err())
	}
	tr := startTraffic(t, members, f, f)
	for range 4 {
		tr.goOn(50)
		move := c.MoveSlot(t, key)
		time.Sleep(50 * time.Millisecond)
		move.Keys(t, fmt.Sprintf("{%s}:other:1", key), key) // gone before its slot
		time.Sleep(100 * time.Millisecond)
		before := tr.acknowledged()
		reads := tr.reads.Load()
		time.Sleep(150 * time.Millisecond)
		require.Equal(t, before, tr.acknowledged(), "no add gets through while the slot is on its way")
		require.Greater(t, tr.reads.Load(), reads, "lookups go on")
		move.End(t)
	}
	tr.goOn(50)
	members = tr.end()
	require.Zero(t, tr.failed.reads.Load(), "lookups that failed: %s", tr.kinds())
	require.Zero(t, tr.failed.adds.Load(), "adds that failed: %s", tr.kinds())
	requireMembers(t, f, members)
	requireFew(t, f, numbered("absent", 500))
	require.NoError(t, f.Drop(t.Context()))
}

// An add that meets an open window for as long as its context lasts ends with it.
func TestAddEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		key := redistest.Key(t)
		f := filled(t, rdb, key, bloom.Config{Capacity: 100, Layout: layout}, []string{"a"})
		move := c.MoveSlot(t, key)
		move.Keys(t, key)
		requireMembers(t, f, []string{"a"})

		calls := map[string]func(ctx context.Context) (bool, error){
			"Add": func(ctx context.Context) (bool, error) { return f.Add(ctx, "b") },
			"AddMulti": func(ctx context.Context) (bool, error) {
				got, err := f.AddMulti(ctx, []string{"b", "c"})
				return len(got) == 2 && got[0] && got[1], err
			},
			"Reset": func(ctx context.Context) (bool, error) { return true, f.Reset(ctx) },
			"Rebuild": func(ctx context.Context) (bool, error) {
				_, err := f.Rebuild(ctx, source([]string{"a"}), &bloom.RebuildOptions{Settle: -1})
				return true, err
			},
		}
		for name, call := range calls {
			ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
			began := time.Now()
			ok, err := call(ctx)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.True(t, ok, name)
			require.Less(t, time.Since(began), 3*time.Second, name)
		}
		// And one that has time gets through when the slot has settled.
		done := make(chan error, 1)
		go func() {
			_, err := f.Add(t.Context(), "d")
			done <- err
		}()
		time.Sleep(300 * time.Millisecond)
		select {
		case err := <-done:
			t.Fatalf("the add did not wait: %v", err)
		default:
		}
		move.End(t)
		require.NoError(t, <-done)
		requireMembers(t, f, []string{"a", "d"})
	})
}
