package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func testTarget(t *testing.T, timeout time.Duration, h http.HandlerFunc) *target {
	server := httptest.NewServer(h)
	target := newTarget(server.URL, timeout)
	t.Cleanup(func() {
		target.client.CloseIdleConnections()
		server.Close()
	})
	return target
}

func realShots(n int) []shot {
	shots := make([]shot, n)
	for i := range shots {
		shots[i] = shot{id: 8, real: true}
	}
	return shots
}

func echo(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, `{"id":%s,"name":"x"}`, strings.TrimPrefix(r.URL.Path, "/products/"))
}

// A server that answers nobody for a while is charged for all who came meanwhile:
// they are sent when they are due, and their latencies begin then.
func TestOpenLoop(t *testing.T) {
	const stall = 500 * time.Millisecond
	var came atomic.Int64
	began := time.Now()
	target := testTarget(t, 10*time.Second, func(w http.ResponseWriter, r *http.Request) {
		came.Add(1)
		time.Sleep(time.Until(began.Add(stall)))
		echo(w, r)
	})
	began = time.Now()
	y, err := target.fire(t.Context(), realShots(100), 5*time.Millisecond) // all within the stall
	require.NoError(t, err)
	require.EqualValues(t, 100, came.Load())
	require.Zero(t, y.failedAll+y.wrongs)
	// The i-th waits stall - 5i ms: the median a half of it. A closed loop would see
	// one slow request and 99 fast ones.
	require.InDelta(t, 250, quantile(y.real, 50), 150)
	require.Greater(t, quantile(y.real, 99), 450.0)
	require.GreaterOrEqual(t, y.took, stall)
}

// The rate does not depend on how the server does.
func TestSchedule(t *testing.T) {
	target := testTarget(t, time.Second, echo)
	began := time.Now()
	y, err := target.fire(t.Context(), realShots(100), 3*time.Millisecond)
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(began), 297*time.Millisecond)
	require.EqualValues(t, 100, y.real.TotalCount())
	require.EqualValues(t, 100, y.lag.TotalCount())
}

func TestCancelled(t *testing.T) {
	target := testTarget(t, time.Second, echo)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := target.fire(ctx, realShots(1000), 10*time.Millisecond)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestTimeoutFails(t *testing.T) {
	release := make(chan struct{})
	target := testTarget(t, 100*time.Millisecond, func(http.ResponseWriter, *http.Request) { <-release })
	y, err := target.fire(t.Context(), realShots(3), time.Millisecond)
	close(release)
	require.NoError(t, err)
	require.Equal(t, 3, y.failedReal)
	require.GreaterOrEqual(t, quantile(y.real, 1), 99.9)
}

func TestJudgement(t *testing.T) {
	for name, c := range map[string]struct {
		code int
		body string
		real bool
		want outcome
	}{
		"found":           {200, `{"id":8,"name":"x"}`, true, answered},
		"another":         {200, `{"id":80,"name":"x"}`, true, wrong},
		"nothing":         {200, ``, true, wrong},
		"denied":          {404, `{}`, true, wrong},
		"absent":          {404, `{}`, false, answered},
		"invented":        {200, `{"id":8,"name":"x"}`, false, wrong},
		"overloaded":      {503, `{}`, true, failed},
		"overloaded, too": {503, `{}`, false, failed},
		"broken":          {500, `{}`, false, failed},
		"refused":         {400, `{}`, false, failed},
	} {
		t.Run(name, func(t *testing.T) {
			target := testTarget(t, 5*time.Second, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.code)
				fmt.Fprint(w, c.body)
			})
			require.Equal(t, c.want, target.ask(t.Context(), shot{id: 8, real: c.real}, time.Now().Add(5*time.Second)))
		})
	}
}

func TestTally(t *testing.T) {
	y := &tally{real: newHistogram()}
	for i := 1; i <= 1000; i++ {
		y.count(shot{id: 8, real: true}, answered, time.Duration(i)*time.Millisecond, 5*time.Second)
	}
	for range 500 {
		y.count(shot{id: 9}, answered, time.Hour, 5*time.Second) // the attack's own latency is not asked for
	}
	require.InDelta(t, 500, quantile(y.real, 50), 1)
	require.InDelta(t, 990, quantile(y.real, 99), 1.5)
	require.Equal(t, 1500, y.requests)
	require.Equal(t, 500, y.attack)

	for range 50 { // refused at once: no fast answer
		y.count(shot{id: 8, real: true}, failed, time.Millisecond, 5*time.Second)
	}
	y.count(shot{id: 9}, failed, time.Millisecond, 5*time.Second)
	y.count(shot{id: 9}, wrong, time.Millisecond, 5*time.Second)
	require.InDelta(t, 5000, quantile(y.real, 99), 5)
	require.Equal(t, 50, y.failedReal)
	require.Equal(t, 51, y.failedAll)
	require.Equal(t, 1, y.wrongs)

	y.count(shot{id: 8, real: true}, answered, 24*time.Hour, 5*time.Second)
	require.InDelta(t, (20*maxTimeout).Seconds()*1000, quantile(y.real, 100), 200, "beyond the histogram: its end")
}
