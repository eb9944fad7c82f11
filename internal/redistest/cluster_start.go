package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// sharedCluster is the cluster that all tests of the process have in common.
var sharedCluster struct {
	once    sync.Once
	cluster *Cluster
	dir     string
	err     error
}

// StartCluster starts a cluster that belongs to this test: one that may be
// ill-treated. Nodes find out that another is dead after a second or so. The args
// are for every node, as those of [Start]. It takes about a second.
func StartCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	bin := mustFind(t)
	c, err := startCluster(bin, t.TempDir(), args)
	t.Cleanup(func() {
		c.kill()
		if t.Failed() {
			c.logTo(t)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// SharedCluster returns the one cluster that all tests of this process have in
// common, as [Shared] does for servers. Its replicas never take over: the machine
// may be busy.
func SharedCluster(t testing.TB) *Cluster {
	t.Helper()
	bin := mustFind(t)
	if !shared.inMain.Load() {
		t.Fatal("redistest: SharedCluster needs func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }")
	}
	s := &sharedCluster
	s.once.Do(func() {
		if s.dir, s.err = os.MkdirTemp("", "redistest-"); s.err == nil {
			s.cluster, s.err = startCluster(bin, s.dir, []string{"--cluster-replica-no-failover", "yes"})
			for _, node := range s.cluster.nodes {
				node.shared = true
			}
		}
	})
	t.Cleanup(func() {
		if t.Failed() {
			s.cluster.logTo(t)
		}
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.cluster
}

func stopSharedCluster() error {
	s := &sharedCluster
	if s.dir == "" {
		return nil
	}
	s.cluster.kill()
	return os.RemoveAll(s.dir)
}

// startCluster starts the nodes and makes a cluster of them. What did start comes
// back beside an error too.
func startCluster(bin, dir string, args []string) (*Cluster, error) {
	args = append([]string{
		"--cluster-enabled", "yes",
		"--cluster-node-timeout", "1000",
		"--cluster-allow-replica-migration", "no",
		"--cluster-replica-validity-factor", "0", // a replica that was cut off may take over
		"--repl-diskless-sync-delay", "0",
	}, args...)
	c, errs := &Cluster{nodes: make([]*Server, clusterNodes)}, make([]error, clusterNodes)
	var wg sync.WaitGroup
	for i := range c.nodes {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c.nodes[i], errs[i] = startNode(bin, filepath.Join(dir, strconv.Itoa(i)), args)
		}()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return c, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	if err := c.join(ctx); err != nil {
		return c, fmt.Errorf("redistest: make a cluster: %w", err)
	}
	return c, c.await(ctx)
}

// startNode starts a cluster node on two free ports.
func startNode(bin, dir string, args []string) (s *Server, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return &Server{}, err
	}
	for range portTries {
		s = &Server{bin: bin, dir: dir, args: args, port: freePort(lastClusterPort)}
		err = s.launch()
		if err == nil || !strings.Contains(s.log(), "Address already in use") {
			break
		}
		_ = os.Remove(s.logPath())
		_ = os.Remove(filepath.Join(dir, "nodes.conf"))
	}
	return s, err
}

// join makes the nodes know each other, hands out the slots, and makes the second
// half the replicas of the first.
func (c *Cluster) join(ctx context.Context) error {
	clients := c.clients()
	defer closeAll(clients)
	ids := make([]string, clusterNodes)
	for i, rdb := range clients {
		var err error
		if ids[i], err = rdb.ClusterMyID(ctx).Result(); err != nil {
			return err
		}
		if err := rdb.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			return err
		}
		for _, earlier := range clients[:i] { // each with each, which is faster than gossip
			if err := earlier.ClusterMeet(ctx, "127.0.0.1", strconv.Itoa(c.nodes[i].port)).Err(); err != nil {
				return err
			}
		}
	}
	for i, rdb := range clients[:clusterPrimaries] {
		first, end := i*slots/clusterPrimaries, (i+1)*slots/clusterPrimaries
		if err := rdb.ClusterAddSlotsRange(ctx, first, end-1).Err(); err != nil {
			return err
		}
	}
	for i, rdb := range clients[clusterPrimaries:] {
		err := poll(ctx, func() error { return rdb.ClusterReplicate(ctx, ids[i]).Err() })
		if err != nil {
			return err
		}
	}
	for i, rdb := range clients[:clusterPrimaries] {
		// CLUSTER SLOTS does not name replicas that have not got a single write.
		key := keyIn(i*slots/clusterPrimaries, (i+1)*slots/clusterPrimaries)
		if err := poll(ctx, func() error { return rdb.Set(ctx, key, "", time.Millisecond).Err() }); err != nil {
			return err
		}
	}
	return nil
}
