package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/stretchr/testify/require"
)

// phases is what a rebuild of some minutes reports. More rows come than were counted.
func phases(m *meter, rows *uint64) {
	m.show(bloom.Progress{Phase: "settle"})
	m.show(bloom.Progress{Phase: "read", Elapsed: time.Second})
	*rows = 3000
	for n := range uint64(5) {
		m.show(bloom.Progress{Phase: "read", Items: n * 1024, Elapsed: time.Duration(1+n*6) * time.Second})
	}
	m.show(bloom.Progress{Phase: "merge", Items: 5000, Elapsed: 30 * time.Second})
	m.show(bloom.Progress{Phase: "merge", Items: 5000, Done: 1 << 20, Total: 3 << 20, Elapsed: 45 * time.Second})
	m.show(bloom.Progress{Phase: "check", Items: 5000, Elapsed: 50 * time.Second})
	m.end(5000, time.Minute)
}

const phaseLines = `  settle    until the transactions that were open have ended
  read      2,048 of 3,000 rows
  read      4,096 rows
  read      5,000 rows in 29.0 s
  merge     1.0 MiB of 3.0 MiB
  merge     into Redis in 20.0 s
  check     a sample of the rows, in what was built
`

func TestProgressInLines(t *testing.T) {
	var out bytes.Buffer
	rows := new(uint64)
	phases(newMeter(&out, rows), rows)
	require.Equal(t, phaseLines, out.String())
}

func TestProgressOnTerminal(t *testing.T) {
	var out bytes.Buffer
	rows := new(uint64)
	m := newMeter(&out, rows)
	m.terminal = true
	phases(m, rows)
	require.Contains(t, out.String(), "  read      34% |█████")
	require.Contains(t, out.String(), "(2048/3000,")
	require.Contains(t, out.String(), "(4096/4097,")
	require.Contains(t, out.String(), "  merge     33% |█████")
	require.Contains(t, out.String(), "(1.0/3.0 MiB")
	require.Contains(t, out.String(), "\r  read      5,000 rows in 29.0 s\n")
	require.Contains(t, out.String(), "\r  merge     into Redis in 20.0 s\n")
}
