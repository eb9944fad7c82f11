package redistest

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSlot(t *testing.T) {
	node := SharedCluster(t).Nodes()[0].Client(t)
	for _, key := range []string{"", "foo", "{foo}bar", "a{}foo", "123456789", "{user}:{x}", "a{b", "a}b{c}", "\x00ü"} {
		assert.EqualValues(t, node.ClusterKeySlot(ctx, key).Val(), Slot(key), "%q", key)
	}
}

func TestSharedCluster(t *testing.T) {
	c := SharedCluster(t)
	assert.Same(t, c, SharedCluster(t))
	rdb := c.Client(t)
	seen := map[*Server]bool{}
	for range 50 {
		key := Key(t)
		require.NoError(t, rdb.Set(ctx, key, "v", time.Minute).Err())
		require.Equal(t, "v", c.Primary(t, key).Client(t).Get(ctx, key).Val())
		require.NotEqual(t, c.Primary(t, key), c.Replica(t, key))
		require.NotEqual(t, c.Primary(t, key), c.Other(t, key))
		seen[c.Primary(t, key)] = true
	}
	assert.Len(t, seen, 3)
	assert.Len(t, c.Nodes(), 6)
	assert.Panics(t, c.Nodes()[0].Stop)
	assert.Panics(t, func() { c.Nodes()[0].CutOff(t) })
	assert.Panics(t, func() { c.MoveSlot(t, "a") })
	assert.Panics(t, func() { c.Failover(t, "a") })
}

// A slot moves step by step, and what is on its way answers as documented.
func TestMoveSlot(t *testing.T) {
	c := StartCluster(t)
	rdb := c.Client(t)
	require.NoError(t, rdb.MSet(ctx, "{t}a", 1, "{t}b", 2, "{t}c", 3).Err())
	from, to := c.Primary(t, "{t}a"), c.Other(t, "{t}a")

	move := c.MoveSlot(t, "{t}a")
	assert.NoError(t, from.Client(t).Get(ctx, "{t}a").Err())
	move.Keys(t, "{t}a")
	assert.ErrorContains(t, from.Client(t).Get(ctx, "{t}a").Err(), "ASK")
	assert.ErrorContains(t, from.Client(t, once).MGet(ctx, "{t}a", "{t}b").Err(), "TRYAGAIN")
	assert.ErrorContains(t, to.Client(t).Get(ctx, "{t}a").Err(), "MOVED")
	assert.Equal(t, "1", rdb.Get(ctx, "{t}a").Val())
	move.End(t)
	assert.Equal(t, []any{"1", "2", "3"}, to.Client(t).MGet(ctx, "{t}a", "{t}b", "{t}c").Val())
	assert.ErrorContains(t, from.Client(t).Get(ctx, "{t}a").Err(), "MOVED")
	assert.Same(t, to, c.Primary(t, "{t}a"))
	assert.Equal(t, []any{"1", "2", "3"}, rdb.MGet(ctx, "{t}a", "{t}b", "{t}c").Val())
}

// once does not let go-redis repeat what failed.
func once(o *redis.Options) { o.MaxRetries = -1 }

func TestClusterFailover(t *testing.T) {
	c := StartCluster(t)
	rdb := c.Client(t)
	require.NoError(t, rdb.Set(ctx, "a", "v", 0).Err())
	c.Await(t) // with the replicas in step
	killed, promoted := c.Failover(t, "a")
	assert.Same(t, promoted, c.Primary(t, "a"))
	assert.Equal(t, "v", promoted.Client(t).Get(ctx, "a").Val())
	require.Eventually(t, func() bool { return rdb.Get(ctx, "a").Val() == "v" }, 10*time.Second, 10*time.Millisecond)

	killed.Restart(t)
	c.Await(t)
	assert.Same(t, killed, c.Replica(t, "a"))
}

func TestReplica(t *testing.T) {
	primary := Start(t)
	p := primary.Client(t)
	require.NoError(t, p.Set(ctx, "k", "old", 0).Err())
	replica := StartReplica(t, primary)
	r := replica.Client(t, once)
	assert.Equal(t, "old", r.Get(ctx, "k").Val())
	assert.ErrorContains(t, r.Set(ctx, "k", "v", 0).Err(), "READONLY")

	replica.CutOff(t)
	require.NoError(t, p.Set(ctx, "k", "new", 0).Err())
	assert.Zero(t, p.Wait(ctx, 1, 50*time.Millisecond).Val())
	assert.Equal(t, "old", r.Get(ctx, "k").Val(), "it answers with what it has")
	replica.Reattach(t)
	assert.Equal(t, "new", r.Get(ctx, "k").Val())

	replica.CutOff(t)
	require.NoError(t, p.Set(ctx, "k", "lost", 0).Err())
	primary.Stop()
	replica.Promote(t)
	assert.Equal(t, "new", r.Get(ctx, "k").Val())
	assert.NoError(t, r.Set(ctx, "k", "v", 0).Err())
}

func TestSentinels(t *testing.T) {
	primary := Start(t)
	replica := StartReplica(t, primary)
	sentinels := StartSentinels(t, 3, primary, replica)
	rdb := sentinels.Client(t)
	require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err())
	replica.AwaitInStep(t)
	primary.Stop()
	sentinels.AwaitPrimary(t, replica)
	require.Eventually(t, func() bool {
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return rdb.Set(short, "k", "w", 0).Err() == nil
	}, 10*time.Second, 10*time.Millisecond)
	assert.Equal(t, "w", replica.Client(t).Get(ctx, "k").Val())
}
