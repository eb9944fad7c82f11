package clustertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func noRows(context.Context, string) (string, error) { return "", bloom.ErrNotFound }

// table is a database of the rows that exist.
type table struct {
	rows    sync.Map
	queries atomic.Int64
}

func (db *table) load(_ context.Context, id string) (string, error) {
	db.queries.Add(1)
	if _, ok := db.rows.Load(id); !ok {
		return "", bloom.ErrNotFound
	}
	return "row " + id, nil
}

func newGuard(t *testing.T, f *bloom.Filter, rdb redis.Cmdable, prefix string, db *table) *bloom.Guard[string] {
	t.Helper()
	g, err := bloom.NewGuard(f, bloom.NewRedisCache(rdb, prefix), db.load, &bloom.GuardOptions[string]{AuditRate: -1})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, g.Close(ctx))
	})
	return g
}

// A Guard's round trip to a cluster is one, which go-redis splits by node and sends
// to all at once: two nodes for an id, at most all three for many.
func TestGuardTrips(t *testing.T) {
	t.Parallel()
	c := redistest.SharedCluster(t)
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		rdb, prefix := c.Client(t), redistest.Key(t)
		var nodes redistest.Trips
		rdb.OnNewNode(func(node *redis.Client) { node.AddHook(&nodes) })
		f := filled(t, rdb, prefix+"filter", bloom.Config{Capacity: 1000, Layout: layout}, nil)
		db := &table{}
		g := newGuard(t, f, rdb, prefix+":", db)
		ids := numbered("id", 200)
		require.NoError(t, g.Register(t.Context(), ids...))
		for _, id := range ids {
			db.rows.Store(id, true)
		}
		got, err := g.GetMulti(t.Context(), ids)
		require.NoError(t, err)
		require.Len(t, got, len(ids))
		eventually(t, "all is cached", func() bool { return g.Stats().Fills == uint64(len(ids)) })

		var trips redistest.Trips
		rdb.AddHook(&trips)
		for _, id := range append(ids, numbered("absent", 100)...) {
			trips.Reset()
			nodes.Reset()
			_, err := g.Get(t.Context(), id)
			if _, is := db.rows.Load(id); is {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, bloom.ErrNotFound)
				if g.Stats().LoadsNotFound > 0 {
					continue // a false positive was loaded
				}
			}
			require.EqualValues(t, 1, trips.N(), id)
			require.LessOrEqual(t, nodes.N(), int64(2), id)
		}
		trips.Reset()
		nodes.Reset()
		got, err = g.GetMulti(t.Context(), ids[:100])
		require.NoError(t, err)
		require.Len(t, got, 100)
		require.EqualValues(t, 1, trips.N())
		require.LessOrEqual(t, nodes.N(), int64(3))
		require.EqualValues(t, len(ids)+int(g.Stats().LoadsNotFound), db.queries.Load())
	})
}

// guardTraffic registers rows and gets them: one that was registered and committed
// is never denied, whatever happens to servers.
type guardTraffic struct {
	t         *testing.T
	db        *table
	g         *bloom.Guard[string]
	ctx       context.Context
	stop      context.CancelFunc
	all       sync.WaitGroup
	committed atomic.Int64
	gets      atomic.Int64
	errs      atomic.Int64
}

func startGuardTraffic(t *testing.T, g *bloom.Guard[string], db *table) *guardTraffic {
	tr := &guardTraffic{t: t, db: db, g: g}
	tr.ctx, tr.stop = context.WithCancel(context.Background())
	t.Cleanup(func() { tr.stop(); tr.all.Wait() })
	tr.all.Add(4)
	go func() {
		defer tr.all.Done()
		for n := int64(0); tr.ctx.Err() == nil; {
			id := fmt.Sprint("row ", n)
			ctx, cancel := context.WithTimeout(tr.ctx, perCall)
			err := g.Register(ctx, id) // an error rolls back
			cancel()
			if err != nil {
				tr.errs.Add(1)
				continue
			}
			db.rows.Store(id, true)
			n++
			tr.committed.Store(n)
			ctx, cancel = context.WithTimeout(context.Background(), perCall)
			_ = g.Register(ctx, id) // drops a null, which lives a minute at most without it
			cancel()
			time.Sleep(time.Millisecond)
		}
	}()
	for i := range 3 {
		go func() {
			defer tr.all.Done()
			for n := int64(i); tr.ctx.Err() == nil; n += 7 {
				limit := tr.committed.Load()
				if limit == 0 {
					time.Sleep(time.Millisecond)
					continue
				}
				id := fmt.Sprint("row ", n%limit)
				ctx, cancel := context.WithTimeout(tr.ctx, perCall)
				v, err := g.Get(ctx, id)
				cancel()
				switch {
				case errors.Is(err, bloom.ErrNotFound):
					t.Errorf("FALSE NEGATIVE: %q", id)
				case err != nil:
					tr.errs.Add(1)
				case v != "row "+id:
					t.Errorf("%q is %q", id, v)
				}
				tr.gets.Add(1)
			}
		}()
	}
	return tr
}

func (tr *guardTraffic) goOn(n int64) {
	tr.t.Helper()
	committed, gets := tr.committed.Load(), tr.gets.Load()
	eventually(tr.t, fmt.Sprintf("%d more rows and Gets", n), func() bool {
		return tr.t.Failed() || tr.committed.Load() >= committed+n && tr.gets.Load() >= gets+n
	})
}

func (tr *guardTraffic) end() {
	tr.t.Helper()
	tr.stop()
	tr.all.Wait()
	tr.t.Logf("%d rows, %d Gets, %d errors; %+v", tr.committed.Load(), tr.gets.Load(), tr.errs.Load(), tr.g.Stats())
}
