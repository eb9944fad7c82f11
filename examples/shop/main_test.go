package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// buffer may be read while the program still writes.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// The whole program: it serves at once, and when it is told to end, answers what
// it was asked before.
func TestServesAndShutsDown(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out buffer
	addr, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-listen", "127.0.0.1:0", "-seed", "100"}, &out, func(a string) { addr <- a })
	}()
	var url string
	select {
	case a := <-addr:
		url = "http://" + a
	case err := <-ended:
		t.Fatal(err)
	}
	resp, err := http.Get(url + "/products/8")
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)

	// A POST whose body is on its way while the shop is told to end.
	reader, writer := io.Pipe()
	answered := make(chan string, 1)
	go func() {
		resp, err := http.Post(url+"/products", "application/json", reader)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		answered <- fmt.Sprintf("%d %s", resp.StatusCode, body)
	}()
	_, err = writer.Write([]byte(`{"name":`))
	require.NoError(t, err)
	time.Sleep(200 * time.Millisecond) // it has arrived
	stop()
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "shutting down") }, 10*time.Second, time.Millisecond)
	_, err = writer.Write([]byte(`"last"}`))
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	require.Contains(t, <-answered, "201 {")
	require.NoError(t, <-ended)

	_, err = http.Get(url + "/products/8")
	require.Error(t, err, "it serves no more")
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	err = run(t.Context(), []string{"-listen", l.Addr().String()}, io.Discard, nil)
	require.ErrorContains(t, err, "in use")
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-seed -1":         "-seed -1: want 0 or more",
		"-conns 0":         "-conns 0: want at least 1",
		"-timeout 1ms":     "-timeout 1ms: want at least 10ms",
		"-max-age 0":       "-max-age 0s: want at least 1s",
		"8080":             `unexpected argument "8080"`,
		"-nothing":         "flag provided but not defined",
		"-dsn nosql://h/d": "-dsn: want mysql://…",
	} {
		t.Run(args, func(t *testing.T) {
			require.ErrorContains(t, run(t.Context(), strings.Fields(args), io.Discard, nil), want)
		})
	}
}

func TestHelpHidesPasswords(t *testing.T) {
	t.Setenv("SHOP_DSN", "mysql://u:s3cret@h/d")
	t.Setenv("SHOP_REDIS", "redis://u:s3cret@h")
	var out bytes.Buffer
	require.ErrorIs(t, run(t.Context(), []string{"-h"}, &out, nil), flag.ErrHelp)
	require.Contains(t, out.String(), "SHOP_DSN")
	require.NotContains(t, out.String(), "s3cret")
}
