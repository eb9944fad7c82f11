package clustertest

import (
	"strings"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A primary dies under load and its replica takes over, and so does the first
// again: errors, but never a "no" for an item whose Add has returned nil, which
// with WaitReplicas says that the replica has it.
func TestFailoverUnderLoad(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		rdb, key := c.Client(t), redistest.Key(t)
		members := numbered("member", 200)
		f := filled(t, rdb, key, bloom.Config{Capacity: 50_000, Layout: layout, WaitReplicas: 1, WaitTimeout: waitTimeout}, members)
		db := &table{}
		g := newGuard(t, f, rdb, key+":", db)
		tr, gtr := startTraffic(t, members, f, f), startGuardTraffic(t, g, db)
		tr.goOn(50)
		gtr.goOn(50)
		killed, _ := c.Failover(t, key)
		killed.Restart(t)
		c.Await(t)
		tr.goOn(50)
		gtr.goOn(50)
		gtr.end()
		members = tr.end()
		requireMembers(t, f, members)
		requireFew(t, f, numbered("absent", 500))
	})
}

// While a rebuild runs: it ends with an error, and then the filter is as it was, or
// it publishes everything.
func TestRebuildWhile(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	for name, disturb := range map[string]func(t *testing.T, key string){
		"slot moves": func(t *testing.T, key string) {
			move := c.MoveSlot(t, key)
			move.Keys(t, key)
			time.Sleep(200 * time.Millisecond)
			move.End(t)
		},
		"failover": func(t *testing.T, key string) {
			killed, _ := c.Failover(t, key)
			killed.Restart(t)
			c.Await(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
				rdb, key := c.Client(t), redistest.Key(t)
				members := numbered("member", 300)
				cfg := bloom.Config{Capacity: 20_000, Layout: layout, WaitReplicas: 1, WaitTimeout: waitTimeout}
				f := filled(t, rdb, key, cfg, members)
				tr := startTraffic(t, members, f, f)
				tr.goOn(20)
				disturbed := make(chan struct{})
				go func() {
					defer close(disturbed)
					disturb(t, key)
				}()
				rebuilt, refused := 0, 0
				for over := false; !over || rebuilt == 0; {
					select {
					case <-disturbed:
						over = true
					default:
					}
					require.False(t, t.Failed())
					// The source has what was begun to be added when staging had just been
					// opened. What came after that has to be there all the same.
					var rows []string
					_, err := f.Rebuild(t.Context(), func(yield func(string, error) bool) {
						for i, item := range rows {
							if i%100 == 0 {
								time.Sleep(10 * time.Millisecond)
							}
							if !yield(item, nil) {
								return
							}
						}
					}, &bloom.RebuildOptions{Settle: 50 * time.Millisecond, Lease: 2 * time.Second, Capacity: uint64(20_000 + 5000*(rebuilt%2)),
						Progress: func(p bloom.Progress) {
							if rows == nil {
								require.Equal(t, "settle", p.Phase)
								rows = tr.begunSoFar()
							}
						}})
					if err == nil {
						rebuilt++
					} else {
						refused++
						time.Sleep(20 * time.Millisecond)
					}
				}
				tr.goOn(20)
				members = tr.end()
				t.Logf("%d rebuilds, %d ended with an error", rebuilt, refused)
				requireMembers(t, f, members)
				requireFew(t, f, numbered("absent", 500))
				require.NoError(t, f.Drop(t.Context()))
			})
		})
	}
}

// A cluster that lost one of its primaries for good answers nothing.
func TestClusterDown(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-replica-no-failover", "yes")
	rdb := c.Client(t)
	var filters []*bloom.Filter
	for _, layout := range []bloom.Layout{bloom.Classic, bloom.Blocked} {
		filters = append(filters, filled(t, rdb, "{k}"+layout.String(), bloom.Config{Capacity: 100, Layout: layout}, []string{"a"}))
	}
	c.Other(t, "k").Stop()
	eventually(t, "the cluster is down", func() bool { return rdb.Get(t.Context(), "k").Err() != redis.Nil })
	for _, f := range filters {
		requireErrors(t, f, "CLUSTERDOWN")
		requireAddErrors(t, f, "CLUSTERDOWN")
	}
}

// What the servers say instead of an answer is an error, and true beside it.
func TestServersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		t.Run("MASTERDOWN and READONLY", func(t *testing.T) {
			primary := redistest.Start(t)
			replica := redistest.StartReplica(t, primary, "--replica-serve-stale-data", "no")
			filled(t, primary.Client(t), "k", bloom.Config{Capacity: 100, Layout: layout}, []string{"a"})
			replica.AwaitInStep(t)
			rdb := replica.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
			f := mustNew(t, rdb, "k", bloom.Config{})
			requireMembers(t, f, []string{"a"})
			requireAddErrors(t, f, "READONLY")
			primary.Stop()
			eventually(t, "the replica notices", func() bool { return rdb.Get(t.Context(), "k").Err() != nil })
			requireErrors(t, f, "MASTERDOWN")
			requireAddErrors(t, f, "MASTERDOWN")
		})
		t.Run("LOADING", func(t *testing.T) {
			s := redistest.Start(t, "--enable-debug-command", "yes", "--key-load-delay", "100000",
				"--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no")
			rdb := s.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
			f := filled(t, rdb, "k", bloom.Config{Capacity: 100, Layout: layout}, []string{"a"})
			for _, key := range numbered("other", 100) { // a tenth of a second each
				require.NoError(t, rdb.Set(t.Context(), key, strings.Repeat("v", 2000), 0).Err())
			}
			done := make(chan error, 1)
			go func() {
				done <- s.Client(t, func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 }).Do(t.Context(), "debug", "reload").Err()
			}()
			eventually(t, "it loads", func() bool { return redis.IsLoadingError(rdb.Get(t.Context(), "k").Err()) })
			requireErrors(t, f, "LOADING")
			requireAddErrors(t, f, "LOADING")
			s.Stop()
			require.Error(t, <-done)
		})
	})
}
