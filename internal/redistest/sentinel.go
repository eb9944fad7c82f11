package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// primaryName is what the Sentinels call the primary that they watch.
const primaryName = "primary"

// Sentinels are Redis Sentinel processes that watch one primary, and make one of
// its replicas the primary when it dies.
type Sentinels struct {
	servers []*Server
}

// StartSentinels starts n Sentinels, for a test of its own, and returns once they
// know each other and all replicas. They take a primary for dead after half a
// second, by majority.
func StartSentinels(t testing.TB, n int, primary *Server, replicas ...*Server) *Sentinels {
	t.Helper()
	bin := mustFind(t)
	all := &Sentinels{}
	t.Cleanup(func() {
		for _, s := range all.servers {
			s.kill()
			if t.Failed() {
				t.Log(s.log())
			}
		}
	})
	for range n {
		s, err := startSentinel(bin, t.TempDir(), primary, n/2+1)
		if s != nil {
			all.servers = append(all.servers, s)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	for _, s := range all.servers {
		err := poll(ctx, func() error {
			state, err := s.sentinelState(ctx)
			if err != nil {
				return err
			}
			want := map[string]string{"num-slaves": fmt.Sprint(len(replicas)), "num-other-sentinels": fmt.Sprint(n - 1), "flags": "master"}
			for name, value := range want {
				if state[name] != value {
					return fmt.Errorf("%s is %q, want %q", name, state[name], value)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatalf("redistest: Sentinel %s: %v", s.Addr(), err)
		}
	}
	return all
}

func startSentinel(bin, dir string, primary *Server, quorum int) (s *Server, err error) {
	for range portTries {
		s = &Server{bin: bin, dir: dir, port: freePort(lastPort), sentinel: true}
		conf := fmt.Sprintf(`bind 127.0.0.1
port %d
dir %s
sentinel monitor %[3]s 127.0.0.1 %[4]d %[5]d
sentinel down-after-milliseconds %[3]s 500
sentinel failover-timeout %[3]s 5000
`, s.port, dir, primaryName, primary.port, quorum)
		if err := os.WriteFile(s.sentinelConf(), []byte(conf), 0o600); err != nil {
			return s, err
		}
		err = s.launch()
		if err == nil || !strings.Contains(s.log(), "Address already in use") {
			break
		}
		_ = os.Remove(s.logPath())
	}
	return s, err
}

// sentinelConf is the path of a Sentinel's configuration file, which it rewrites.
func (s *Server) sentinelConf() string { return filepath.Join(s.dir, "sentinel.conf") }

func (s *Server) sentinelState(ctx context.Context) (map[string]string, error) {
	rdb := redis.NewSentinelClient(&redis.Options{Addr: s.Addr(), ContextTimeoutEnabled: true, MaxRetries: -1})
	defer rdb.Close()
	return rdb.Master(ctx, primaryName).Result()
}

// Client returns a client that follows the primary, closed when the test ends,
// with the options of [Server.Client]; mutate can change any.
func (all *Sentinels) Client(t testing.TB, mutate ...func(*redis.FailoverOptions)) *redis.Client {
	t.Helper()
	opt := &redis.FailoverOptions{
		MasterName:            primaryName,
		ContextTimeoutEnabled: true,
		DialTimeout:           time.Second,
		ReadTimeout:           5 * time.Second,
		WriteTimeout:          5 * time.Second,
	}
	for _, s := range all.servers {
		opt.SentinelAddrs = append(opt.SentinelAddrs, s.Addr())
	}
	for _, f := range mutate {
		f(opt)
	}
	rdb := redis.NewFailoverClient(opt)
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("redistest: close failover client: %v", err)
		}
	})
	return rdb
}

// AwaitPrimary waits until every Sentinel says that s is the primary.
func (all *Sentinels) AwaitPrimary(t testing.TB, primary *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	for _, s := range all.servers {
		err := poll(ctx, func() error {
			state, err := s.sentinelState(ctx)
			if err == nil && state["ip"]+":"+state["port"] != primary.Addr() {
				err = fmt.Errorf("%s says that the primary is at port %s", s.Addr(), state["port"])
			}
			return err
		})
		if err != nil {
			t.Fatal("redistest: failover:", err)
		}
	}
}
