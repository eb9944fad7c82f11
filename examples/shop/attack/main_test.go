package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/bloomguard/bloom/examples/shop/internal/shop"
	"github.com/stretchr/testify/require"
)

// The whole program, small.
func TestFourWays(t *testing.T) {
	out, temp := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temp)
	server := miniredis.RunT(t)
	var printed bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-rows", "500", "-rate", "150", "-step", "300ms", "-warm", "200ms",
		"-shares", "0,90", "-timeout", "5s", "-redis", server.Addr(), "-out", out}, &printed))

	for _, line := range []string{
		"(?m)^500 products in SQLite, generated, a pool of 8 connections; Redis: 127.0.0.1:",
		"(?m)^ +attack % +lookups/s +of absent +predicted +p50 ms +p99 ms +failed % +wrong$",
		`(?m)^no protection: real p99 \d+\.\d\d ms at 0 % attack, \d+\.\d\d ms at 90 % `,
		`(?m)^Guard: real p99 .*; lookups of absent products: \d+, \d+\.\d\d times the predicted \(in all steps \d+, \d+\.\d\d times\)`,
	} {
		require.Regexp(t, line, printed.String())
	}
	table, err := os.ReadFile(filepath.Join(out, "attack.md"))
	require.NoError(t, err)
	require.Regexp(t, `(?m)^\| Guard \| 0 \| `, string(table))
	checkResult(t, out)
	checkChart(t, out)

	require.Empty(t, server.Keys(), "nothing stays in Redis")
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left)
}

func checkResult(t *testing.T, folder string) {
	b, err := os.ReadFile(filepath.Join(folder, "attack.json"))
	require.NoError(t, err)
	var r result
	require.NoError(t, json.Unmarshal(b, &r))
	require.Len(t, r.Ways, len(ways))
	for _, c := range r.Ways {
		require.Len(t, c.Points, 2)
		for i, p := range c.Points {
			require.Equal(t, []int{0, 90}[i], p.Share)
			require.Equal(t, 45, p.Requests)
			require.Zero(t, p.Wrong, c.Name)
			require.Zero(t, p.FailedAll, c.Name)
			require.Positive(t, p.P99)
			require.GreaterOrEqual(t, p.P99, p.P50)
		}
		quiet, attacked := c.Points[0], c.Points[1]
		require.Zero(t, quiet.Absent)
		require.Positive(t, attacked.Attack)
		switch c.Name {
		case "no protection":
			require.EqualValues(t, attacked.Attack, attacked.Absent, "each one is looked up")
		case "null caching":
			require.InDelta(t, attacked.Predicted, attacked.Absent, 2) // two at once for one id
		default: // deleted ones, and of the others 1 in 100
			require.InDelta(t, attacked.Predicted, attacked.Absent, 4)
			require.Less(t, attacked.Absent, uint64(attacked.Attack/2))
		}
	}
}

// checkChart reads all of the SVG, whose texts are what a reader needs.
func checkChart(t *testing.T, folder string) {
	f, err := os.Open(filepath.Join(folder, "attack.svg"))
	require.NoError(t, err)
	defer f.Close()
	d := xml.NewDecoder(f)
	var texts []string
	elements := map[string]int{}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			elements[token.Name.Local]++
		case xml.CharData:
			texts = append(texts, strings.TrimSpace(string(token)))
		}
	}
	require.Equal(t, 1, elements["svg"])
	require.Greater(t, elements["path"], 2*len(ways))
	require.Subset(t, texts, []string{
		"no protection", "null caching", "filter only", "Guard",
		"database lookups/s", "p99 of real products, ms", "share of the attack, % of all requests",
		"150 requests/s in all, 500 products, SQLite, generated", "0", "90",
	})
}

func TestDatabaseOfAnotherSize(t *testing.T) {
	dsn := "sqlite:" + filepath.Join(t.TempDir(), "a.sqlite")
	small := []string{"-dsn", dsn, "-rate", "100", "-step", "100ms", "-warm", "0", "-shares", "0", "-timeout", "5s", "-out", t.TempDir()}
	require.NoError(t, run(t.Context(), append(small, "-rows", "100"), io.Discard))
	leaveProduct(t, dsn, soonGone)
	require.NoError(t, run(t.Context(), append(small, "-rows", "100"), io.Discard), "it is used again, also after a run that was ended")
	require.ErrorContains(t, run(t.Context(), append(small, "-rows", "200"), io.Discard),
		"there are 100 products in SQLite, "+strings.TrimPrefix(dsn, "sqlite:")+": want none or -rows 200")
}

func leaveProduct(t *testing.T, dsn, name string) {
	s, err := shop.Open(t.Context(), shop.Config{DSN: dsn})
	require.NoError(t, err)
	_, err = s.Create(t.Context(), shop.Product{Name: name})
	require.NoError(t, err)
	require.NoError(t, s.Close(t.Context()))
}

// What the shop asks to repeat is repeated; what it refuses is not.
func TestWriteRepeats(t *testing.T) {
	codes := make(chan int, 3)
	target := testTarget(t, time.Second, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(<-codes)
		fmt.Fprint(w, "{}")
	})
	codes <- http.StatusServiceUnavailable
	codes <- http.StatusCreated
	require.NoError(t, target.write(t.Context(), "POST", "/products", nil, http.StatusCreated, &shop.Product{}))
	codes <- http.StatusServiceUnavailable
	codes <- http.StatusNotFound
	require.NoError(t, target.write(t.Context(), "DELETE", "/products/8", nil, http.StatusNoContent, nil))
	codes <- http.StatusNotFound
	require.ErrorContains(t, target.write(t.Context(), "DELETE", "/products/8", nil, http.StatusNoContent, nil), "DELETE /products/8: 404: {}")
	require.Empty(t, codes)
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-rows 99":        "-rows 99: want 100 to 100000000",
		"-conns 0":        "-conns 0: want at least 1",
		"-db-rtt -1s":     "round trip of -1s to the database: want 0 or more",
		"-rate 0":         "-rate 0: want 1 to 100000",
		"-step 1ms":       "-step 1ms: want at least 100ms",
		"-warm -1s":       "-warm -1s: want 0 (none) or more",
		"-zipf 1":         "-zipf 1: want above 1, at most 10",
		"-zipf NaN":       "-zipf NaN: want above 1",
		"-timeout 11s":    "-timeout 11s: want 10ms to 10s",
		"-shares 0,100":   `-shares "0,100": want percentages from 0 to 99`,
		"-shares 50,0":    `-shares "50,0": want them ascending`,
		"-shares x":       `-shares "x": want percentages`,
		"-out /nowhere":   `-out "/nowhere": want a folder that exists`,
		"-dsn nosql://h/": "-dsn: want mysql://…",
		"now":             `unexpected argument "now"`,
	} {
		t.Run(args, func(t *testing.T) {
			require.ErrorContains(t, run(t.Context(), strings.Fields(args), io.Discard), want)
		})
	}
	require.ErrorIs(t, run(t.Context(), []string{"-h"}, io.Discard), flag.ErrHelp)
}

func TestTicks(t *testing.T) {
	labels := func(highest float64) (s []string) {
		for _, tick := range linearTicks(0, highest) {
			s = append(s, tick.Label)
		}
		return s
	}
	require.Equal(t, []string{"0", "1,000", "2,000", "3,000", "4,000"}, labels(4800))
	require.Equal(t, []string{"0", "500", "1,000", "1,500", "2,000"}, labels(2100))
	require.Equal(t, []string{"0", "250", "500", "750", "1,000"}, labels(1100))
	var s []string
	for _, tick := range logTicks(0.1, 1000) {
		if tick.Label != "" {
			s = append(s, tick.Label)
		}
	}
	require.Equal(t, []string{"0.1", "1", "10", "100", "1,000"}, s)
}
