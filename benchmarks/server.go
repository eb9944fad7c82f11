package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A host is a Redis server that is measured.
type host struct {
	addr string
	rdb  *redis.Client
	info map[string]string // INFO, as of the start
}

func dial(ctx context.Context, addr string) (*host, error) {
	h := &host{addr: addr, rdb: redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})}
	info, err := h.rdb.Info(ctx, "server").Result()
	if err != nil {
		_ = h.rdb.Close()
		return nil, err
	}
	h.info = parseInfo(info)
	return h, nil
}

// cpu returns the processor time that the server's main thread has used.
func (h *host) cpu(ctx context.Context) (time.Duration, error) {
	text, err := h.rdb.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	info := parseInfo(text)
	total := 0.0
	for _, kind := range []string{"user", "sys"} {
		v, ok := info["used_cpu_"+kind+"_main_thread"]
		if !ok { // before Redis 6.2: all threads, of which the others sleep
			v = info["used_cpu_"+kind]
		}
		seconds, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return 0, fmt.Errorf("INFO cpu of %s: %w", h.addr, err)
		}
		total += seconds
	}
	return time.Duration(total * float64(time.Second)), nil
}

// hasModule reports whether the server knows the commands of RedisBloom.
func (h *host) hasModule(ctx context.Context) bool {
	err := h.rdb.Do(ctx, "bf.exists", "no such key", "x").Err()
	return err == nil
}

func parseInfo(text string) map[string]string {
	info := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		if k, v, ok := strings.Cut(strings.TrimSpace(lines.Text()), ":"); ok {
			info[k] = v
		}
	}
	return info
}

const (
	startTries   = 5 // ports tried, since another program may take a free one first
	startTimeout = 10 * time.Second
)

// startServer starts a redis-server without persistence in a folder of its own, on
// a free port of 127.0.0.1. stop ends it and removes the folder.
func startServer(ctx context.Context, bin, module string) (h *host, stop func(), err error) {
	dir, err := os.MkdirTemp("", "bloom-benchmarks-")
	if err != nil {
		return nil, nil, err
	}
	for range startTries {
		var kill func()
		if h, kill, err = tryServer(ctx, bin, module, dir); err == nil {
			return h, func() { kill(); _ = os.RemoveAll(dir) }, nil
		}
		if ctx.Err() != nil || errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	_ = os.RemoveAll(dir)
	return nil, nil, err
}

func tryServer(ctx context.Context, bin, module, dir string) (*host, func(), error) {
	port, err := freePort()
	if err != nil {
		return nil, nil, err
	}
	logPath := filepath.Join(dir, "log")
	args := []string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--logfile", logPath,
		"--save", "", "--appendonly", "no", "--maxclients", "10000"}
	if module != "" {
		args = append(args, "--loadmodule", module)
	}
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.SysProcAttr = endWithUs()
	started, gone := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // which must live as long as the child, see endWithUs
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if started <- err; err == nil {
			gone <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, nil, err
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	for deadline := time.Now().Add(startTimeout); ; {
		var h *host
		listening, err := net.Dial("tcp", addr) // a client would try several times
		if err == nil {
			_ = listening.Close()
			h, err = dial(ctx, addr)
		}
		if err == nil && h.info["process_id"] == strconv.Itoa(cmd.Process.Pid) {
			return h, func() { _ = h.rdb.Close(); _ = cmd.Process.Kill(); <-gone }, nil
		}
		if err == nil {
			_ = h.rdb.Close() // another program's server has the port; ours will end
		}
		select {
		case <-gone:
			text, _ := os.ReadFile(logPath)
			return nil, nil, fmt.Errorf("%s ended at once:\n%s", bin, text)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			<-gone
			return nil, nil, fmt.Errorf("%s did not answer within %v: %w", bin, startTimeout, err)
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
