package redistest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

var ctx = context.Background()

func TestStart(t *testing.T) {
	s := Start(t, "--maxmemory", "100mb")
	c := s.Client(t)
	assert.Equal(t, "104857600", c.ConfigGet(ctx, "maxmemory").Val()["maxmemory"])
	require.NoError(t, c.Set(ctx, "k", "v", 0).Err())

	other := Start(t)
	assert.NotEqual(t, s.Addr(), other.Addr())
	assert.ErrorIs(t, other.Client(t).Get(ctx, "k").Err(), redis.Nil)
}

func TestStartWithPassword(t *testing.T) {
	s := Start(t, "--requirepass", "secret")
	assert.Error(t, s.Client(t).Ping(ctx).Err())
	c := s.Client(t, func(o *redis.Options) { o.Password = "secret" })
	assert.NoError(t, c.Ping(ctx).Err())
}

// A port that is taken shows only when redis-server tries to bind it.
func TestStartReportsTakenPort(t *testing.T) {
	taken := Shared(t)
	s := &Server{bin: taken.bin, dir: t.TempDir(), port: taken.port}
	assert.ErrorContains(t, s.launch(), "ended at once")
	assert.Contains(t, s.log(), "Address already in use")
}

func TestStartReportsBadArgument(t *testing.T) {
	bin := Shared(t).bin
	s, err := start(bin, t.TempDir(), []string{"--no-such-option", "1"})
	assert.ErrorContains(t, err, "ended at once")
	assert.Contains(t, s.log(), "no-such-option")
}

func TestRestart(t *testing.T) {
	s := Start(t, "--appendonly", "yes", "--appendfsync", "always")
	c := s.Client(t)
	require.NoError(t, c.Set(ctx, "k", "v", 0).Err())

	s.Stop()
	s.Stop()
	_, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	require.Error(t, err, "the port is closed once Stop returns")

	addr := s.Addr()
	s.Restart(t)
	assert.Equal(t, addr, s.Addr())
	assert.Equal(t, "v", c.Get(ctx, "k").Val(), "the append-only file is loaded")

	s.Restart(t)
	assert.Equal(t, "v", c.Get(ctx, "k").Val(), "Restart stops a running server first")
}

func TestFreeze(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no SIGSTOP")
	}
	s := Start(t)
	c := s.Client(t)
	require.NoError(t, c.Ping(ctx).Err())

	s.Freeze()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, c.Set(short, "k", "v", 0).Err(), context.DeadlineExceeded)

	s.Thaw()
	assert.NoError(t, c.Ping(ctx).Err())

	s.Freeze() // the cleanup must get rid of a frozen server as well
}

func TestSharedIsProtected(t *testing.T) {
	s := Shared(t)
	assert.Same(t, s, Shared(t))
	assert.Panics(t, s.Stop)
	assert.Panics(t, s.Freeze)
	assert.Panics(t, s.Thaw)
	assert.Panics(t, func() { s.Restart(t) })
	assert.NoError(t, s.Client(t).Ping(ctx).Err())
}

func TestNotInstalled(t *testing.T) {
	t.Setenv("BLOOM_REDIS_SERVER", "no-such-redis-server")
	t.Setenv("BLOOM_REQUIRE_REDIS", "")
	assert.False(t, Available())
	t.Run("skipped", func(t *testing.T) {
		t.Cleanup(func() { assert.True(t, t.Skipped()) })
		Start(t)
		t.Error("not reached")
	})
}

// The children must not outlive a test binary that is killed, as go test does
// with one that takes too long. This test runs the binary once more, as one
// that is killed while its server runs.
func TestServerDiesWithTestBinary(t *testing.T) {
	if os.Getenv("REDISTEST_HANG") != "" {
		fmt.Println("addr", Start(t).Addr())
		select {}
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has Pdeathsig")
	}
	Shared(t) // skips if there is no server

	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "REDISTEST_HANG=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var addr string
	for lines := bufio.NewScanner(out); addr == "" && lines.Scan(); {
		addr, _ = strings.CutPrefix(lines.Text(), "addr ")
	}
	assert.NoError(t, cmd.Process.Kill())
	assert.Error(t, cmd.Wait())
	require.NotEmpty(t, addr)

	assert.Eventually(t, func() bool {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, 5*time.Second, 5*time.Millisecond, "redis-server is left behind")
}

func TestEach(t *testing.T) {
	var names []string
	Each(t, func(t *testing.T, s Target) {
		names = append(names, s.Name)
		assert.Equal(t, s.Name == "redis", s.Real)
		c, key := s.Client(t), Key(t)
		require.NoError(t, c.Set(ctx, key, "v", 20*time.Millisecond).Err())
		require.Equal(t, "v", c.Get(ctx, key).Val())
		s.Advance(25 * time.Millisecond)
		assert.ErrorIs(t, c.Get(ctx, key).Err(), redis.Nil)
	})
	want := []string{"miniredis"}
	if Available() {
		want = append(want, "redis")
	}
	assert.Equal(t, want, names)
}

func TestKey(t *testing.T) {
	t.Run("{tag}", func(t *testing.T) {
		assert.NotContains(t, Key(t), "{")
		assert.NotContains(t, Key(t), "}")
		assert.NotEqual(t, Key(t), Key(t))
	})
}

func TestTrips(t *testing.T) {
	c := MiniClient(t, Mini(t), func(o *redis.Options) { o.DB = 3 })
	trips := &Trips{Record: true}
	c.AddHook(trips)

	require.NoError(t, c.Set(ctx, "k", []byte("v"), time.Minute).Err())
	assert.EqualValues(t, 1, trips.N(), "the handshake does not count")
	assert.Equal(t, [][]string{{"set", "k", "v", "ex", "60"}}, trips.Commands())

	trips.Reset()
	assert.Zero(t, trips.N())
	assert.Empty(t, trips.Commands())

	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Incr(ctx, "n")
		p.IncrBy(ctx, "n", 2)
		return nil
	})
	require.NoError(t, err)
	_, err = c.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Incr(ctx, "n").Err() })
	require.NoError(t, err)
	assert.ErrorIs(t, c.Get(ctx, "none").Err(), redis.Nil)
	assert.EqualValues(t, 3, trips.N())
	assert.Equal(t, [][]string{
		{"incr", "n"}, {"incrby", "n", "2"},
		{"multi"}, {"incr", "n"}, {"exec"},
		{"get", "none"},
	}, trips.Commands())
}
