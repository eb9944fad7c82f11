package redistest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

var errNotYet = errors.New("not yet")

// StartReplica starts a replica of primary that belongs to this test, and returns
// once it is in step. The args are as those of [Start].
func StartReplica(t testing.TB, primary *Server, args ...string) *Server {
	t.Helper()
	primary.mustOwn("StartReplica")
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	rdb := primary.plainClient()
	defer rdb.Close()
	// Primaries wait five seconds for more replicas to come.
	if err := rdb.ConfigSet(ctx, "repl-diskless-sync-delay", "0").Err(); err != nil {
		t.Fatal("redistest: start a replica:", err)
	}
	s := Start(t, append([]string{"--replicaof", "127.0.0.1 " + strconv.Itoa(primary.port), "--repl-diskless-sync-delay", "0"}, args...)...)
	s.AwaitInStep(t)
	return s
}

// AwaitInStep waits until a replica is linked to its primary, and has all that the
// primary had when it was called. A primary is always in step.
func (s *Server) AwaitInStep(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	rdb := s.plainClient()
	defer rdb.Close()
	if err := poll(ctx, func() error { return replicaInStep(ctx, rdb) }); err != nil {
		t.Fatalf("redistest: replica %s: %v", s.Addr(), err)
	}
}

// replicaInStep returns nil for a primary, and for a replica whose link is up and
// which has applied what its primary has sent.
func replicaInStep(ctx context.Context, rdb *redis.Client) error {
	info, err := replication(ctx, rdb)
	if err != nil || info["role"] == "master" {
		return err
	}
	if info["master_link_status"] != "up" {
		return fmt.Errorf("replica: link is %s", info["master_link_status"])
	}
	primary := redis.NewClient(&redis.Options{Addr: info["master_host"] + ":" + info["master_port"], ContextTimeoutEnabled: true})
	defer primary.Close()
	sent, err := replication(ctx, primary)
	if err != nil {
		return err
	}
	if info, err = replication(ctx, rdb); err != nil {
		return err
	}
	there, _ := strconv.ParseInt(sent["master_repl_offset"], 10, 64)
	here, _ := strconv.ParseInt(info["slave_repl_offset"], 10, 64)
	if here < there {
		return fmt.Errorf("replica: at %d of %d", here, there)
	}
	// After a full copy the primary does not count it before its first ACK.
	_, port, _ := strings.Cut(rdb.Options().Addr, ":")
	for name, value := range sent {
		if strings.HasPrefix(name, "slave") && strings.Contains(value, "port="+port+",state=online") {
			return nil
		}
	}
	return fmt.Errorf("replica: not online for its primary, which has %v", sent)
}

func replication(ctx context.Context, rdb *redis.Client) (map[string]string, error) {
	text, err := rdb.Info(ctx, "replication").Result()
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for _, line := range strings.Split(text, "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}

// CutOff ends a replica's replication and keeps it from starting again, as a
// network that parts the two would: the replica goes on answering with what it
// has. It returns once the link is down.
func (s *Server) CutOff(t testing.TB) {
	t.Helper()
	s.mustOwn("CutOff")
	// It can't sign in at its primary any more.
	s.configure(t, "masterauth", "no such password")
	s.configure(t, "masteruser", "nobody")
	s.whileReplica(t, func(ctx context.Context, rdb *redis.Client, info map[string]string) error {
		if info["master_link_status"] == "down" {
			return nil
		}
		if err := rdb.Do(ctx, "client", "kill", "type", "master").Err(); err != nil {
			return err
		}
		return errNotYet
	})
}

// Reattach undoes CutOff and waits until the replica is in step.
func (s *Server) Reattach(t testing.TB) {
	t.Helper()
	s.configure(t, "masteruser", "")
	s.configure(t, "masterauth", "")
	s.AwaitInStep(t)
}

// Promote makes a replica a primary.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	s.mustOwn("Promote")
	rdb := s.plainClient()
	defer rdb.Close()
	if err := rdb.ReplicaOf(context.Background(), "NO", "ONE").Err(); err != nil {
		t.Fatal("redistest: promote:", err)
	}
}

func (s *Server) configure(t testing.TB, name, value string) {
	t.Helper()
	rdb := s.plainClient()
	defer rdb.Close()
	if err := rdb.ConfigSet(context.Background(), name, value).Err(); err != nil {
		t.Fatalf("redistest: configure %s: %v", name, err)
	}
}

func (s *Server) whileReplica(t testing.TB, f func(context.Context, *redis.Client, map[string]string) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	rdb := s.plainClient()
	defer rdb.Close()
	err := poll(ctx, func() error {
		info, err := replication(ctx, rdb)
		if err != nil {
			return err
		}
		if info["role"] != "slave" {
			return errors.New("is no replica")
		}
		return f(ctx, rdb, info)
	})
	if err != nil {
		t.Fatalf("redistest: %s: %v", s.Addr(), err)
	}
}

// plainClient returns a client for the bed's own use.
func (s *Server) plainClient() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.Addr(), ContextTimeoutEnabled: true,
		DialTimeout: time.Second, ReadTimeout: 10 * time.Second, MaxRetries: -1, PoolSize: 1})
}

// running reports whether the process is there, frozen or not.
func (s *Server) running() bool {
	p := s.process()
	if p == nil {
		return false
	}
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}
