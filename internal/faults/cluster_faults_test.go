package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// quietFailover kills a primary once it acknowledges nothing any more, and its replica
// has all that it did acknowledge: nothing is lost.
var quietFailover = fault{"failover", func(d *driver, n *node) {
	primary := n.cluster.Primary(d.t, n.key)
	d.admin(func(ctx context.Context) error {
		return n.at(d.t, primary).Do(ctx, "client", "pause", 10_000, "write").Err()
	})
	n.cluster.Replica(d.t, n.key).AwaitInStep(d.t)
	n.failOver(d, primary)
}}

// suddenFailover kills a primary in the middle of everything.
var suddenFailover = fault{"sudden failover", func(d *driver, n *node) {
	n.failOver(d, n.cluster.Primary(d.t, n.key))
}}

// laggingFailover promotes a replica that has missed what came last.
var laggingFailover = fault{"failover to a replica that lags", func(d *driver, n *node) {
	replica := n.cluster.Replica(d.t, n.key)
	replica.CutOff(d.t)
	d.pause(300)
	n.failOver(d, n.cluster.Primary(d.t, n.key))
	replica.Reattach(d.t)
}}

func (n *node) failOver(d *driver, primary *redistest.Server) {
	replica := n.cluster.Replica(d.t, n.key)
	primary.Stop()
	n.takeOver(d, replica, "takeover")
	d.pause(300)
	primary.Restart(d.t)
	n.cluster.Await(d.t)
}

// clusterFaults happen to a cluster of which no node is ever taken for dead by
// itself: what primaries acknowledge and replicas don't have would be lost then, and
// no client could see it.
var clusterFaults = []fault{
	{"handover", func(d *driver, n *node) {
		replica := n.cluster.Replica(d.t, n.key)
		replica.AwaitInStep(d.t)
		time.Sleep(time.Until(n.elected[replica].Add(electionForgotten)))
		n.takeOver(d, replica)
		n.elected[replica] = time.Now()
	}},
	{"slot moved", func(d *driver, n *node) {
		move := n.cluster.MoveSlot(d.t, n.key)
		d.pause(100)
		if d.rnd.IntN(2) == 0 {
			move.Keys(d.t, n.key, n.companion("next")) // those that are there
			d.pause(150)
		}
		move.End(d.t)
		n.cluster.Replica(d.t, n.key).AwaitInStep(d.t) // it has what moved
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

// electionForgotten is when a node no longer takes the votes of its last election
// for those of the next. Until then it may believe that it won, in an epoch that no
// other node accepts, and the cluster stays down: four times its node timeout.
const electionForgotten = 4*time.Second + 200*time.Millisecond

// takeOver makes a replica the primary of the key, by an election unless how says
// otherwise.
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
	return &node{key: key, cluster: c, elected: map[*redistest.Server]time.Time{}, admin: c.Client(t, func(o *redis.ClusterOptions) { o.ReadTimeout = 10 * time.Second })}
}
