package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// outcome of one request.
type outcome uint8

const (
	answered outcome = iota
	failed           // refused, timed out, or the connection broke
	wrong            // a product that is not there, or a real one denied
)

// target is where a shop listens.
type target struct {
	url     string
	client  *http.Client
	timeout time.Duration // from when a request was due; then it has failed
}

// maxConnections of the client. Requests that find them all in use wait for one,
// and that is part of their latency, as in front of any service.
const maxConnections = 4000

func newTarget(url string, timeout time.Duration) *target {
	return &target{url: url, timeout: timeout, client: &http.Client{Transport: &http.Transport{
		MaxConnsPerHost:     maxConnections,
		MaxIdleConnsPerHost: maxConnections,
		DisableCompression:  true,
	}}}
}

// fire sends every shot when it is due, interval after the one before, however
// the shop does meanwhile: an open loop. A latency begins when the request was
// due, not when it could be sent, so a shop that stalls is charged for all who
// would have come meanwhile (no coordinated omission). It returns once all have
// ended.
func (t *target) fire(ctx context.Context, shots []shot, interval time.Duration) (*tally, error) {
	latencies, outcomes := make([]time.Duration, len(shots)), make([]outcome, len(shots))
	lag := newHistogram()
	var wg sync.WaitGroup
	began := time.Now()
	for i := range shots {
		if ctx.Err() != nil {
			break
		}
		due := began.Add(time.Duration(i) * interval)
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		}
		record(lag, time.Since(due))
		wg.Add(1)
		go func() {
			defer wg.Done()
			outcomes[i] = t.ask(ctx, shots[i], due.Add(t.timeout))
			latencies[i] = time.Since(due)
		}()
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	y := &tally{real: newHistogram(), lag: lag, took: time.Since(began)}
	for i := range shots {
		y.count(shots[i], outcomes[i], latencies[i], t.timeout)
	}
	return y, nil
}

// ask sends one request and judges the answer.
func (t *target) ask(ctx context.Context, s shot, deadline time.Time) outcome {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/products/%d", t.url, s.id), nil)
	if err != nil {
		return failed
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return failed
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return failed
	}
	switch {
	case resp.StatusCode == http.StatusOK && s.real && bytes.HasPrefix(body, fmt.Appendf(nil, `{"id":%d,`, s.id)):
		return answered
	case resp.StatusCode == http.StatusNotFound && !s.real:
		return answered
	case resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusNotFound:
		return wrong
	}
	return failed
}

// tally is what came of one plan.
type tally struct {
	real                          *hdrhistogram.Histogram // latencies of requests for real products
	lag                           *hdrhistogram.Histogram // how late the generator itself was
	took                          time.Duration           // until the last had ended
	requests, attack              int
	failedReal, failedAll, wrongs int
}

func (y *tally) count(s shot, o outcome, latency, timeout time.Duration) {
	y.requests++
	if !s.real {
		y.attack++
	}
	switch o {
	case wrong:
		y.wrongs++
	case failed:
		y.failedAll++
		if s.real {
			y.failedReal++
		}
		// Whoever was refused at once would wait and come again.
		latency = max(latency, timeout)
	}
	if s.real {
		record(y.real, latency)
	}
}

const maxTimeout = 10 * time.Second // of a request in the shop

// newHistogram holds what can occur, to three digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, (20 * maxTimeout).Microseconds(), 3)
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	// Its only error is a value above its range, which no wait of a request reaches.
	_ = h.RecordValue(min(d.Microseconds(), h.HighestTrackableValue()))
}

// quantile in milliseconds.
func quantile(h *hdrhistogram.Histogram, percent float64) float64 {
	return float64(h.ValueAtQuantile(percent)) / 1000
}
