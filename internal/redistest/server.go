package redistest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	startTimeout = 10 * time.Second // from exec to the first PONG, loading included
	portTries    = 20               // ports tried before a start gives up

	// Ports are drawn below 32768, where Linux begins to number outgoing
	// connections, so that none of those takes a server's port between Stop
	// and Restart. A cluster node has a second port, busOffset above the first.
	firstPort, lastPort = 20000, 32000
	busOffset           = 10000
	lastClusterPort     = 32767 - busOffset

	maxLog = 8 << 10 // bytes of the server's log shown when a test failed
)

// Server is a redis-server process of its own, on a port of 127.0.0.1.
// Its methods may be called from any goroutine, except that the ones that
// change its life (Stop, Restart, Freeze, Thaw) are for one at a time.
type Server struct {
	bin      string
	dir      string
	port     int
	args     []string
	shared   bool // belongs to every test of the process; see Shared
	sentinel bool // runs as a Sentinel, on the configuration file in dir

	mu   sync.Mutex
	proc *process // the running or last process
}

// Start starts a redis-server that belongs to this test, without persistence
// unless args ask for it, and returns once it answers. The args come last on
// its command line, so they override the defaults, except --port and --dir.
// The server is killed when the test ends; its log is shown if the test failed.
//
// Starting takes about 20 ms; a test that leaves the server intact can use
// [Shared]. Without a redis-server the test is skipped, or fails; see the
// package documentation.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	bin := mustFind(t)
	s, err := start(bin, t.TempDir(), args)
	if s != nil {
		t.Cleanup(func() {
			s.kill()
			if t.Failed() {
				t.Log(s.log())
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Available reports whether there is a redis-server to start.
func Available() bool {
	_, err := find()
	return err == nil
}

// Addr returns the host:port of the server; it survives Restart.
func (s *Server) Addr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// Client returns a client of the server that is closed when the test ends.
// It honours context deadlines and has short timeouts; mutate can change any
// option, the address included (for instance to that of a [Proxy]).
func (s *Server) Client(t testing.TB, mutate ...func(*redis.Options)) *redis.Client {
	t.Helper()
	return newClient(t, s.Addr(), mutate...)
}

// Stop kills the server with SIGKILL, so that it neither saves nor says
// goodbye, and waits until it is gone. Stopping it twice is harmless.
func (s *Server) Stop() {
	s.mustOwn("Stop")
	s.kill()
}

// Restart kills the server if it is running, starts it on the same port and
// folder with the same arguments, and returns once it has loaded its data (it
// has any only if the arguments of Start turned persistence on) and answers.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.mustOwn("Restart")
	s.kill()
	if err := s.launch(); err != nil {
		t.Fatal(err)
	}
}

// Freeze suspends the server with SIGSTOP: its connections stay open and the
// kernel goes on accepting new ones, but nothing is answered until Thaw. It
// panics where the system has no such signal (Windows).
func (s *Server) Freeze() {
	s.mustOwn("Freeze")
	s.process().freeze()
}

// Thaw lets a frozen server go on; it then answers what it was sent meanwhile.
func (s *Server) Thaw() {
	s.mustOwn("Thaw")
	s.process().thaw()
}

// mustOwn keeps one test from pulling the shared server from under the others.
func (s *Server) mustOwn(method string) {
	if s.shared {
		panic("redistest: " + method + " on the shared server; use a server of Start")
	}
}

// find returns the path of the redis-server executable.
func find() (string, error) {
	bin := os.Getenv("BLOOM_REDIS_SERVER")
	if bin == "" {
		bin = "redis-server"
	}
	return exec.LookPath(bin)
}

// mustFind returns the path of redis-server, or ends the test without one.
func mustFind(t testing.TB) string {
	t.Helper()
	bin, err := find()
	if err != nil {
		report := t.Skip
		if os.Getenv("BLOOM_REQUIRE_REDIS") == "1" {
			report = t.Fatal
		}
		report("redis-server is not installed:", err)
	}
	return bin
}

// start starts a server on a free port. A server that did not come up is
// returned together with the error, for its log.
func start(bin, dir string, args []string) (s *Server, err error) {
	for range portTries {
		s = &Server{bin: bin, dir: dir, args: args, port: freePort(lastPort)}
		err = s.launch()
		if err == nil || !strings.Contains(s.log(), "Address already in use") {
			break
		}
		_ = os.Remove(s.logPath()) // so that the next try is judged by its own log
	}
	return s, err
}

// freePort returns a port up to last that was free a moment ago.
func freePort(last int) int {
	for {
		port := firstPort + rand.IntN(last-firstPort)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			l.Close()
			return port
		}
	}
}

// launch runs redis-server and waits until it answers. On an error no process
// is left.
func (s *Server) launch() error {
	args := append([]string{"--save", "", "--appendonly", "no", "--bind", "127.0.0.1"}, s.args...)
	args = append(args, "--dir", s.dir, "--port", strconv.Itoa(s.port))
	if s.sentinel {
		args = []string{s.sentinelConf(), "--sentinel"}
	}
	proc, err := spawn(exec.Command(s.bin, args...), s.logPath())
	if err != nil {
		return fmt.Errorf("redistest: start %s: %w", s.bin, err)
	}
	s.mu.Lock()
	s.proc = proc
	s.mu.Unlock()

	if err := s.await(proc); err != nil {
		s.kill()
		return err
	}
	return nil
}

// await waits until proc answers.
func (s *Server) await(proc *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		err := s.ready(ctx, proc)
		if err == nil {
			return nil
		}
		select {
		case <-proc.gone:
			return fmt.Errorf("redistest: redis-server at %s ended at once: %v", s.Addr(), proc.err)
		case <-ctx.Done():
			return fmt.Errorf("redistest: redis-server at %s does not answer: %w", s.Addr(), err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// ready returns nil if proc, and not some other server that has its port,
// answers PING, which it does without an error only once its data is loaded.
func (s *Server) ready(ctx context.Context, proc *process) error {
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		return err // found out without go-redis, which would log each failure
	}
	conn.Close()

	c := redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	defer c.Close()
	if err := c.Ping(ctx).Err(); err != nil {
		if strings.HasPrefix(err.Error(), "NOAUTH") {
			return nil // the args set a password; it answers all the same
		}
		return err
	}
	info, err := c.Info(ctx, "server").Result()
	if err == nil && !strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", proc.pid())) {
		err = errors.New("the port belongs to another server")
	}
	return err
}

func (s *Server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

func (s *Server) kill() {
	if p := s.process(); p != nil {
		p.kill()
	}
}

func (s *Server) logPath() string { return filepath.Join(s.dir, "redis.log") }

// log returns the end of the server's log.
func (s *Server) log() string {
	text, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	if len(text) > maxLog {
		text = text[len(text)-maxLog:]
	}
	return "log of redis-server " + s.Addr() + ":\n" + string(text)
}

// newClient returns a client as described at [Server.Client].
func newClient(t testing.TB, addr string, mutate ...func(*redis.Options)) *redis.Client {
	t.Helper()
	opt := &redis.Options{
		Addr:                  addr,
		ContextTimeoutEnabled: true,
		DialTimeout:           time.Second,
		ReadTimeout:           5 * time.Second,
		WriteTimeout:          5 * time.Second,
	}
	for _, f := range mutate {
		f(opt)
	}
	c := redis.NewClient(opt)
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("redistest: close client: %v", err)
		}
	})
	return c
}
