package redistest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// shared is the server that all tests of the process have in common.
var shared struct {
	inMain atomic.Bool // Main is running, so the server will be stopped
	once   sync.Once
	server *Server
	err    error
}

// Shared returns the one redis-server that all tests of this process have in
// common, started by the first to ask. Tests keep apart by [Key]; whoever
// wants to flush, reconfigure, stop or freeze the server needs one of [Start].
// It is skipped or fails like Start. It must run under [Main], which stops the
// server.
func Shared(t testing.TB) *Server {
	t.Helper()
	bin := mustFind(t)
	if !shared.inMain.Load() {
		t.Fatal("redistest: Shared needs func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }")
	}
	shared.once.Do(func() { shared.server, shared.err = startShared(bin) })
	s := shared.server
	if s != nil {
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(s.log())
			}
		})
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return s
}

func startShared(bin string) (*Server, error) {
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return nil, err
	}
	s, err := start(bin, dir, nil)
	s.shared = true
	return s, err
}

// Main runs the tests of a package and returns the exit code for os.Exit. It
// first names the servers that are missing, since skipped tests are easily
// overlooked; at the end it stops the shared servers, and turns a successful
// run into a failure if goroutines are left.
func Main(m *testing.M) int {
	if !Available() {
		fmt.Println("redistest: redis-server not found; the tests against a real Redis are skipped" +
			" (install it or set BLOOM_REDIS_SERVER)")
	}
	shared.inMain.Store(true)
	code := m.Run()
	shared.inMain.Store(false)

	err := errors.Join(stopShared(), stopSharedCluster())
	if code == 0 {
		err = errors.Join(err, leaks())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "redistest:", err)
		code = max(code, 1)
	}
	return code
}

// leaks finds goroutines that stay. A pool of go-redis whose server was gone looks
// once a second whether it was closed.
func leaks() error {
	if goleak.Find() == nil {
		return nil
	}
	time.Sleep(time.Second)
	return goleak.Find()
}

func stopShared() error {
	s := shared.server
	if s == nil {
		return nil
	}
	s.kill()
	return os.RemoveAll(s.dir)
}

var keys atomic.Int64

// Key returns a key that no other call in this process returns, named after
// the test. It holds no braces, so a test may add a hash tag of its own.
func Key(t testing.TB) string {
	name := strings.NewReplacer("{", "(", "}", ")").Replace(t.Name())
	return fmt.Sprintf("%s:%d", name, keys.Add(1))
}
