package main

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
)

func TestRoomy(t *testing.T) {
	for rows, want := range map[uint64]uint64{
		0: 1000, 600: 1000, 667: 1000, 668: 1100, 200_000: 300_000, 200_001: 310_000, 10_000_000: 15_000_000, 12_345_678: 19_000_000,
	} {
		require.Equal(t, want, roomy(rows), "%d rows", rows)
	}
}

// A filter keeps its size until the table has outgrown it, so that a few rows
// more are no reason for a replica that boots later to load again.
func TestCapacityFollowsTheTable(t *testing.T) {
	server := miniredis.RunT(t)
	load := func(rows int, want string, args ...string) {
		t.Helper()
		code, out := warmup(t, append([]string{"-dsn", usersDatabase(t, rows), "-table", "users",
			"-redis", server.Addr(), "-key", "k", "-settle", "0", "-max-age", "1h"}, args...)...)
		require.Equal(t, exitOK, code, out)
		require.Contains(t, out, want)
	}
	load(1000, "for 1,500 ids at")
	load(1500, "skipped   generation 1")
	load(1501, "for 2,300 ids at")
	load(1502, "skipped   generation 2")
	load(1502, "loaded    generation 3", "-fprate", "0.001")
	load(1502, "for 1,000 ids at", "-capacity", "1000", "-max-age", "0")
	load(1502, "WARNING   the table has outgrown the filter", "-capacity", "1000", "-max-age", "0")
}
