package clustertest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Config.WaitReplicas: what WAIT makes certain, and what is lost without it.

const (
	waitTimeout = 300 * time.Millisecond // where it passes
	longWait    = 4 * time.Second        // where it must not, on a busy machine
)

// requireWaits requires that every change waits for the replica of key's node, and
// says so where there is none.
func requireWaits(t *testing.T, c *redistest.Cluster, at func(key string) bloom.Backend, layout bloom.Layout) {
	key := redistest.Key(t)
	cfg := bloom.Config{Capacity: 20_000, Layout: layout, WaitReplicas: 1, WaitTimeout: longWait}
	f, err := bloom.New(at(key), cfg)
	require.NoError(t, err)
	require.NoError(t, f.CreateEmpty(t.Context()))
	for _, item := range numbered("in step", 20) {
		added, err := f.Add(t.Context(), item)
		require.NoError(t, err)
		require.True(t, added)
	}
	cfg.WaitTimeout = waitTimeout
	short, err := bloom.New(at(key), cfg)
	require.NoError(t, err)
	requireShortage(t, c.Replica(t, key), short)
	_, err = f.AddMulti(t.Context(), append(numbered("in step", 20), "short"))
	require.NoError(t, err)
	requireMembers(t, f, append(numbered("in step", 20), "short"))
	require.NoError(t, f.Drop(t.Context()))
}

// requireShortage cuts the only replica off, and lets it come back.
func requireShortage(t *testing.T, replica *redistest.Server, f *bloom.Filter) {
	t.Helper()
	replica.CutOff(t)
	short := func(what string, call func() error) {
		t.Helper()
		began := time.Now()
		err := call()
		require.ErrorContains(t, err, "reached 0 of 1 replicas within 300ms", what)
		took := time.Since(began)
		require.GreaterOrEqual(t, took, waitTimeout-10*time.Millisecond, what)
		require.Less(t, took, 3*time.Second, what)
	}
	for range 2 { // also where the primary has the item already
		short("Add", func() error {
			added, err := f.Add(t.Context(), "short")
			require.True(t, added)
			return err
		})
	}
	many := numbered("short", 5000) // several chunks, one wait
	short("AddMulti", func() error {
		added, err := f.AddMulti(t.Context(), many)
		require.Len(t, added, len(many))
		return err
	})
	requireMembers(t, f, append(many, "short"))
	rebuilt := append(numbered("in step", 20), append(many, "short")...)
	var report bloom.RebuildReport
	before, err := f.Info(t.Context())
	require.NoError(t, err)
	short("Rebuild", func() (err error) {
		report, err = f.Rebuild(t.Context(), source(rebuilt), &bloom.RebuildOptions{Settle: -1})
		return err
	})
	after, err := f.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, report.Generation, after.Generation, "it is published all the same")
	require.NotEqual(t, before.Created, after.Created)
	short("Reset", func() error { return f.Reset(t.Context()) })
	requireFew(t, f, many)
	short("Drop", func() error { return f.Drop(t.Context()) })
	require.ErrorIs(t, f.Ready(t.Context()), bloom.ErrNotReady)
	short("CreateEmpty", func() error { return f.CreateEmpty(t.Context()) })
	require.NoError(t, f.CreateEmpty(t.Context()), "it attaches")
	replica.Reattach(t)
}

func TestWaitInCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		requireWaits(t, c, func(key string) bloom.Backend { return bloom.NewBitmap(rdb, key) }, layout)
	})
	// The WAIT is on the node of the key, wherever that is: only its replica counts.
	cut := c.Replica(t, "a")
	cut.CutOff(t)
	for _, key := range numbered("key", 30) {
		f := mustNew(t, rdb, key, bloom.Config{Capacity: 100, WaitReplicas: 1, WaitTimeout: 50 * time.Millisecond})
		if c.Replica(t, key) == cut {
			require.ErrorContains(t, f.CreateEmpty(t.Context()), "reached 0 of 1 replicas", key)
			continue
		}
		f = mustNew(t, rdb, key, bloom.Config{Capacity: 100, WaitReplicas: 1, WaitTimeout: longWait})
		require.NoError(t, f.CreateEmpty(t.Context()), key)
	}
}

// What WaitReplicas waits for goes with the slot.
func TestWaitWhileSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	key := redistest.Key(t)
	members := numbered("member", 100)
	f := filled(t, rdb, key, bloom.Config{Capacity: 20_000, WaitReplicas: 1, WaitTimeout: longWait}, members)
	tr := startTraffic(t, members, f, f)
	for range 3 {
		tr.goOn(30)
		move := c.MoveSlot(t, key)
		move.Keys(t, key)
		time.Sleep(100 * time.Millisecond)
		move.End(t)
	}
	tr.goOn(30)
	members = tr.end()
	require.Zero(t, tr.failed.adds.Load(), tr.kinds())
	require.Zero(t, tr.failed.reads.Load(), tr.kinds())
	c.Failover(t, key)
	eventually(t, "the client finds the new primary", func() bool { return f.Ready(t.Context()) == nil })
	requireMembers(t, f, members)
}

// A rebuild under way when its slot moves: both keys of an add are at the other
// node before their slot is, so go-redis is sent there by ASK.
func TestWaitAsked(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		key := redistest.Key(t)
		f := filled(t, rdb, key, bloom.Config{Capacity: 1000, Layout: layout, WaitReplicas: 1}, []string{"a"})
		_, err := f.Rebuild(t.Context(), func(yield func(string, error) bool) {
			move := c.MoveSlot(t, key)
			move.Keys(t)
			added, err := f.Add(t.Context(), "asked")
			require.NoError(t, err)
			require.True(t, added)
			move.End(t)
			yield("a", nil)
		}, &bloom.RebuildOptions{Settle: -1})
		require.NoError(t, err)
		requireMembers(t, f, []string{"a", "asked"})
		requireFew(t, f, numbered("absent", 100))
	})
}

// One primary and one replica: the limit of the promise, and what moves it. A
// failover to a replica that had not got an add loses it, and no client can tell:
// the filter is whole, and denies the item. With WaitReplicas the add is an error.
func TestFailoverLosesAdds(t *testing.T) {
	t.Parallel()
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		for name, cfg := range map[string]bloom.Config{
			"without": {Capacity: 1000, Layout: layout},
			"with":    {Capacity: 1000, Layout: layout, WaitReplicas: 1, WaitTimeout: longWait},
		} {
			t.Run(name+" WaitReplicas", func(t *testing.T) {
				primary := redistest.Start(t)
				replica := redistest.StartReplica(t, primary)
				f := filled(t, primary.Client(t), "k", cfg, numbered("before", 100))
				if cfg.WaitReplicas == 0 {
					replica.AwaitInStep(t) // otherwise WAIT has seen to it
				}
				replica.CutOff(t)
				if cfg.WaitReplicas > 0 {
					cfg.WaitTimeout = waitTimeout
					f = mustNew(t, primary.Client(t), "k", cfg)
				}
				_, err := f.Add(t.Context(), "lost")
				if cfg.WaitReplicas == 0 {
					require.NoError(t, err, "Redis has acknowledged it")
				} else {
					require.ErrorContains(t, err, "reached 0 of 1 replicas")
				}
				requireMembers(t, f, []string{"lost"})

				primary.Stop()
				replica.Promote(t)
				f = mustNew(t, replica.Client(t), "k", bloom.Config{})
				require.NoError(t, f.Ready(t.Context()))
				requireMembers(t, f, numbered("before", 100))
				exists, err := f.Exists(t.Context(), "lost")
				require.NoError(t, err)
				require.False(t, exists, "this is the false negative that the documentation names")

				// The remedy, whoever knows of the failover.
				_, err = f.Rebuild(t.Context(), source(append(numbered("before", 100), "lost")), &bloom.RebuildOptions{Settle: -1})
				require.NoError(t, err)
				requireMembers(t, f, append(numbered("before", 100), "lost"))
			})
		}
	})
}

// An item whose add waited is there after a failover, although another client had
// added it before, without waiting.
func TestWaitCoversEarlierAdds(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t)
	replica := redistest.StartReplica(t, primary)
	waits := filled(t, primary.Client(t), "k", bloom.Config{Capacity: 1000, WaitReplicas: 1, WaitTimeout: longWait}, nil)
	replica.CutOff(t)
	hasty := mustNew(t, primary.Client(t), "k", bloom.Config{})
	_, err := hasty.Add(t.Context(), "a")
	require.NoError(t, err)
	added, err := waits.Add(t.Context(), "a")
	require.ErrorContains(t, err, "reached 0 of 1 replicas")
	require.True(t, added)
	replica.Reattach(t)
	added, err = waits.Add(t.Context(), "a")
	require.NoError(t, err)
	require.False(t, added)
	primary.Stop()
	replica.Promote(t)
	requireMembers(t, mustNew(t, replica.Client(t), "k", bloom.Config{}), []string{"a"})
}

// Newer servers make WAIT ask only for what the connection itself has written. So an
// add that waits writes something even where the filter has the item.
func requireAlwaysWrites(t *testing.T, s *redistest.Server, b bloom.Backend) {
	t.Helper()
	offset := func() string {
		info, err := s.Client(t).Info(t.Context(), "replication").Result()
		require.NoError(t, err)
		_, info, _ = strings.Cut(info, "master_repl_offset:")
		info, _, _ = strings.Cut(info, "\r")
		return info
	}
	f, err := bloom.New(b, bloom.Config{Capacity: 1000, WaitReplicas: 1})
	require.NoError(t, err)
	require.NoError(t, f.CreateEmpty(t.Context()))
	_, err = f.AddMulti(t.Context(), []string{"a", "b"})
	require.NoError(t, err)
	for range 3 {
		before := offset()
		added, err := f.Add(t.Context(), "a")
		require.NoError(t, err)
		require.False(t, added)
		require.NotEqual(t, before, offset(), "nothing was written")
		before = offset()
		_, err = f.AddMulti(t.Context(), []string{"a", "b"})
		require.NoError(t, err)
		require.NotEqual(t, before, offset(), "nothing was written")
	}
	requireMembers(t, f, []string{"a", "b"})
	requireFew(t, f, numbered("absent", 100))
	require.NoError(t, f.Ready(t.Context()))
}

func TestWaitAlwaysWrites(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t)
	redistest.StartReplica(t, primary)
	requireAlwaysWrites(t, primary, bloom.NewBitmap(primary.Client(t), "k"))
}

// WAIT costs no round trip more, and ends with the context.
func TestWaitTrips(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t)
	replica := redistest.StartReplica(t, primary)
	rdb := primary.Client(t)
	trips := &redistest.Trips{Record: true}
	rdb.AddHook(trips)
	f := filled(t, rdb, "k", bloom.Config{Capacity: 1000, WaitReplicas: 1, WaitTimeout: 4 * time.Second}, []string{"a"})
	trips.Reset()
	_, err := f.Add(t.Context(), "b")
	require.NoError(t, err)
	require.EqualValues(t, 1, trips.N())
	commands := trips.Commands()
	require.Len(t, commands, 2)
	require.Equal(t, "evalsha", commands[0][0])
	require.Equal(t, []string{"wait", "1", "4000"}, commands[1])

	replica.CutOff(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = f.Add(ctx, "c")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), 2*time.Second)
	replica.Reattach(t)

	// Two replicas are wanted, one is there.
	f = mustNew(t, rdb, "k", bloom.Config{WaitReplicas: 2, WaitTimeout: 50 * time.Millisecond})
	_, err = f.Add(t.Context(), "d")
	require.ErrorContains(t, err, "reached 1 of 2 replicas within 50ms")
}

// An ACL that does not let a user wait is an error; the one that the documentation
// names is enough.
func TestWaitRefusedByServer(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t)
	admin := primary.Client(t)
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "app", "on", ">secret", "~*", "+@all", "-wait").Err())
	rdb := primary.Client(t, func(o *redis.Options) { o.Username, o.Password = "app", "secret" })
	filled(t, rdb, "k", bloom.Config{Capacity: 100}, []string{"a"})
	f := mustNew(t, rdb, "k", bloom.Config{WaitReplicas: 1})
	_, err := f.Add(t.Context(), "b")
	require.ErrorContains(t, err, "not known to have reached 1 replicas")
	require.ErrorContains(t, err, "NOPERM")
	report, err := f.Rebuild(t.Context(), source([]string{"a", "b"}), &bloom.RebuildOptions{Settle: -1})
	require.ErrorContains(t, err, "NOPERM")
	require.EqualValues(t, 2, report.Generation, "it is published all the same, and the report says so")

	redistest.StartReplica(t, primary)
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "adder", "on", ">secret", "~k", "~{k}:*",
		"+evalsha", "+eval", "+getrange", "+setbit", "+strlen", "+setrange", "+wait").Err())
	rdb = primary.Client(t, func(o *redis.Options) { o.Username, o.Password = "adder", "secret" })
	f = mustNew(t, rdb, "k", bloom.Config{WaitReplicas: 1, WaitTimeout: longWait})
	_, err = f.AddMulti(t.Context(), []string{"a", "b", "c"})
	require.NoError(t, err)
}

// During the warm-up there is no filter, which is no reason to fail; but an add that too
// few replicas have is: a failover may lose it from what will be published.
func TestWaitShortDuringWarmUp(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	reading, release := make(chan struct{}), make(chan struct{})
	built := make(chan error, 1)
	go func() {
		_, err := mustNew(t, rdb, "k", bloom.Config{Capacity: 100}).Rebuild(t.Context(), func(yield func(string, error) bool) {
			close(reading)
			<-release
			yield("row", nil)
		}, &bloom.RebuildOptions{Settle: -1})
		built <- err
	}()
	<-reading
	f := mustNew(t, rdb, "k", bloom.Config{WaitReplicas: 1, WaitTimeout: 20 * time.Millisecond})
	_, err := f.Add(t.Context(), "a")
	require.ErrorContains(t, err, "reached 0 of 1 replicas")
	require.NotErrorIs(t, err, bloom.ErrNotReady)
	_, err = f.AddMulti(t.Context(), []string{"b", "c"})
	require.ErrorContains(t, err, "reached 0 of 1 replicas")
	require.NotErrorIs(t, err, bloom.ErrNotReady)
	_, err = mustNew(t, rdb, "k", bloom.Config{}).Add(t.Context(), "d")
	require.ErrorIs(t, err, bloom.ErrNotReady, "who does not wait for replicas")
	close(release)
	require.NoError(t, <-built)
	exists, err := f.ExistsMulti(t.Context(), []string{"row", "a", "b", "c", "d"})
	require.NoError(t, err)
	require.NotContains(t, exists, false)
}
