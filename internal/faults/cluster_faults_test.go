package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// clusterFaults happen to a cluster of which no node is ever taken for dead by
// itself: what primaries acknowledge and replicas don't have would be lost then, and
// no client could see it.
var clusterFaults = []fault{
	{"failover", func(d *driver, n *node) {
		primary, replica := n.cluster.Primary(d.t, n.key), n.cluster.Replica(d.t, n.key)
		// Nothing is acknowledged any more, and the replica has what was.
		d.admin(func(ctx context.Context) error {
			return n.at(d.t, primary).Do(ctx, "client", "pause", 10_000, "write").Err()
		})
		replica.AwaitInStep(d.t)
		primary.Stop()
		n.takeOver(d, replica, "force")
		d.pause(300)
		primary.Restart(d.t)
		n.cluster.Await(d.t)
	}},
	{"handover", func(d *driver, n *node) {
		replica := n.cluster.Replica(d.t, n.key)
		replica.AwaitInStep(d.t)
		n.takeOver(d, replica)
	}},
	{"slot moved", func(d *driver, n *node) {
		move := n.cluster.MoveSlot(d.t, n.key)
		d.pause(100)
		if d.rnd.IntN(2) == 0 {
			move.Keys(d.t, n.key, n.companion("next")) // those that are there
			d.pause(150)
		}
		move.End(d.t)
	}},
	{"SIGSTOP", func(d *driver, n *node) {
		primary := n.cluster.Primary(d.t, n.key)
		primary.Freeze()
		d.pause(250)
		primary.Thaw()
	}},
	{"SCRIPT FLUSH on one node", func(d *driver, n *node) {
		d.admin(func(ctx context.Context) error { return n.primary(d.t).ScriptFlush(ctx).Err() })
	}},
	{"CLIENT KILL", func(d *driver, n *node) {
		d.admin(func(ctx context.Context) error {
			return n.primary(d.t).Do(ctx, "client", "kill", "type", "normal").Err()
		})
	}},
}

// takeOver makes a replica the primary of the key.
func (n *node) takeOver(d *driver, replica *redistest.Server, how ...any) {
	d.admin(func(ctx context.Context) error {
		err := n.at(d.t, replica).Do(ctx, append([]any{"cluster", "failover"}, how...)...).Err()
		if err != nil {
			return err
		}
		for range 100 { // an election may fail
			if n.cluster.Primary(d.t, n.key) == replica {
				return nil
			}
			time.Sleep(10 * time.Millisecond)
		}
		return fmt.Errorf("%s did not take over", replica.Addr())
	})
	n.cluster.AwaitPrimary(d.t, n.key, replica)
}

// startCluster starts a cluster with a filter's key.
func startCluster(t *testing.T, key string) *node {
	c := redistest.StartCluster(t, "--cluster-replica-no-failover", "yes") // but when told to
	return &node{key: key, cluster: c, admin: c.Client(t, func(o *redis.ClusterOptions) { o.ReadTimeout = 10 * time.Second })}
}
