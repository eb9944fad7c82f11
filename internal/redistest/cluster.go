package redistest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	clusterPrimaries = 3
	clusterNodes     = 2 * clusterPrimaries // one replica each
	clusterTimeout   = 30 * time.Second     // for what a cluster comes to by itself
)

// Cluster is a Redis Cluster of three primaries with one replica each, every one
// a process of its own. Its methods are for one goroutine at a time, except
// Client's clients.
type Cluster struct {
	nodes []*Server
}

// mustOwn keeps one test from changing the shared cluster under the others.
func (c *Cluster) mustOwn(method string) { c.nodes[0].mustOwn(method) }

func (c *Cluster) kill() {
	if c == nil {
		return
	}
	for _, s := range c.nodes {
		s.kill()
	}
}

func (c *Cluster) logTo(t testing.TB) {
	if c == nil {
		return
	}
	for _, s := range c.nodes {
		t.Log(s.log())
	}
}

// Await returns once every running node says that the cluster is whole, with all
// their replicas in step.
func (c *Cluster) Await(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	if err := c.await(ctx); err != nil {
		t.Fatal(err)
	}
}

func (c *Cluster) await(ctx context.Context) error {
	clients := c.clients()
	defer closeAll(clients)
	for i, rdb := range clients {
		if !c.nodes[i].running() {
			continue
		}
		if err := poll(ctx, func() error { return c.settled(ctx, rdb) }); err != nil {
			return fmt.Errorf("redistest: the cluster does not come up: %s: %w", c.nodes[i].Addr(), err)
		}
	}
	return nil
}

// settled returns nil if a node sees every other, every slot served, and, being a
// replica, its primary.
func (c *Cluster) settled(ctx context.Context, rdb *redis.Client) error {
	info, err := rdb.ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	for _, want := range []string{"cluster_state:ok\r", fmt.Sprintf("cluster_known_nodes:%d\r", clusterNodes)} {
		if !strings.Contains(info, want) {
			return fmt.Errorf("no %q in %q", want, info)
		}
	}
	ranges, err := clusterSlots(ctx, rdb)
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, r := range ranges {
		for _, node := range r.Nodes {
			named[node.Addr] = true
		}
	}
	for _, s := range c.nodes {
		if s.running() && !named[s.Addr()] {
			return fmt.Errorf("node %s is not known to serve slots: %v", s.Addr(), ranges)
		}
	}
	return replicaInStep(ctx, rdb)
}

// Client returns a client of the cluster that is closed when the test ends, with
// the options of [Server.Client]; mutate can change any.
func (c *Cluster) Client(t testing.TB, mutate ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	opt := &redis.ClusterOptions{
		ContextTimeoutEnabled: true,
		DialTimeout:           time.Second,
		ReadTimeout:           5 * time.Second,
		WriteTimeout:          5 * time.Second,
		// go-redis asks who serves what when it is sent elsewhere, but not when a
		// node is dead: then only this often.
		ClusterStateReloadInterval: time.Second,
	}
	for _, s := range c.nodes {
		opt.Addrs = append(opt.Addrs, s.Addr())
	}
	for _, f := range mutate {
		f(opt)
	}
	rdb := redis.NewClusterClient(opt)
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("redistest: close cluster client: %v", err)
		}
	})
	return rdb
}

// Nodes are all servers, in no order that means anything.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// Primary returns the node that serves the slot of key.
func (c *Cluster) Primary(t testing.TB, key string) *Server {
	t.Helper()
	return c.owners(t, Slot(key))[0]
}

// Replica returns the node that copies the primary of key.
func (c *Cluster) Replica(t testing.TB, key string) *Server {
	t.Helper()
	owners := c.owners(t, Slot(key))
	if len(owners) < 2 {
		t.Fatalf("redistest: the primary of %q has no replica", key)
	}
	return owners[1]
}

// Other returns a primary that does not serve the slot of key.
func (c *Cluster) Other(t testing.TB, key string) *Server {
	t.Helper()
	own := c.Primary(t, key)
	for slot := 0; slot < slots; slot += slots / clusterPrimaries / 2 {
		if s := c.owners(t, slot)[0]; s != own {
			return s
		}
	}
	t.Fatalf("redistest: %q has the only primary", key)
	return nil
}

// owners are a slot's primary and its replicas, as a running node sees it.
func (c *Cluster) owners(t testing.TB, slot int) []*Server {
	t.Helper()
	var err error
	for _, s := range c.nodes {
		if !s.running() {
			continue
		}
		var found []*Server
		if found, err = c.ownersBy(s, slot); err == nil && len(found) > 0 {
			return found
		}
	}
	t.Fatalf("redistest: nobody serves slot %d (%v)", slot, err)
	return nil
}

func (c *Cluster) ownersBy(s *Server, slot int) (owners []*Server, err error) {
	rdb := s.plainClient()
	defer rdb.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	ranges, err := clusterSlots(ctx, rdb)
	if err != nil {
		return nil, err
	}
	for _, r := range ranges {
		if slot < r.Start || slot > r.End {
			continue
		}
		for _, node := range r.Nodes {
			for _, s := range c.nodes {
				if s.Addr() == node.Addr {
					owners = append(owners, s)
				}
			}
		}
	}
	return owners, nil
}

// clusterSlots asks who serves what as go-redis' cluster client does.
func clusterSlots(ctx context.Context, rdb *redis.Client) ([]redis.ClusterSlot, error) {
	cmd := redis.NewClusterSlotsCmd(ctx, "cluster", "slots")
	_ = rdb.Process(ctx, cmd) // cmd has the error
	return cmd.Result()
}

// Failover kills the primary of key and waits until the cluster has made its
// replica the primary. It returns both; Restart brings the old one back.
func (c *Cluster) Failover(t testing.TB, key string) (killed, promoted *Server) {
	t.Helper()
	c.mustOwn("Failover")
	killed, promoted = c.Primary(t, key), c.Replica(t, key)
	killed.Stop()
	c.AwaitPrimary(t, key, promoted)
	return killed, promoted
}

// AwaitPrimary waits until every running node takes s for the primary of key, and
// the cluster for whole.
func (c *Cluster) AwaitPrimary(t testing.TB, key string, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	for _, node := range c.nodes {
		if !node.running() {
			continue
		}
		err := poll(ctx, func() error {
			owners, err := c.ownersBy(node, Slot(key))
			if err == nil && (len(owners) == 0 || owners[0] != s) {
				err = fmt.Errorf("%s does not see that %s took over", node.Addr(), s.Addr())
			}
			return err
		})
		if err != nil {
			t.Fatal("redistest: failover:", err)
		}
	}
	c.Await(t)
}

// clients returns one of each node.
func (c *Cluster) clients() []*redis.Client {
	clients := make([]*redis.Client, len(c.nodes))
	for i, s := range c.nodes {
		clients[i] = s.plainClient()
	}
	return clients
}

func closeAll(clients []*redis.Client) {
	for _, rdb := range clients {
		rdb.Close()
	}
}

// poll calls f every few milliseconds until it returns nil, or ctx ends.
func poll(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}
