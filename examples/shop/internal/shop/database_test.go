package shop

import (
	"context"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSeededIDs(t *testing.T) {
	const n = 1000
	made := map[int64]bool{}
	last := int64(0)
	for i := 1; i <= n; i++ {
		id := SeededID(i)
		require.Greater(t, id, last)
		made[id], last = true, id
	}
	for id := int64(-10); id < last+100; id++ {
		require.Equal(t, made[id], Seeded(id, n), "id %d", id)
	}
}

// More rows than a page, and than a statement inserts.
func TestIDsOfManyPages(t *testing.T) {
	db, err := OpenDatabase(t.Context(), "", 2, 0)
	require.NoError(t, err)
	const n = 2*pageRows + 1
	told := 0
	require.NoError(t, db.Seed(t.Context(), n, func(done int) { told = done }))
	require.Equal(t, n, told)
	i := 0
	for id, err := range db.IDs(t.Context()) {
		require.NoError(t, err)
		i++
		require.Equal(t, itemOf(SeededID(i)), id)
	}
	require.Equal(t, n, i)
	require.NoError(t, db.Close())
	for _, err := range db.IDs(t.Context()) {
		require.Error(t, err)
	}
}

func TestGeneratedDatabaseIsRemoved(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	s, err := Open(t.Context(), Config{Seed: 10, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	require.NoError(t, err)
	require.NoError(t, s.Close(context.Background()))
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"scheme":   {Config{DSN: "oracle://u:s3cret@h/d"}, "-dsn: want mysql://…, postgres://… or sqlite:path"},
		"path":     {Config{DSN: "sqlite:"}, "-dsn: want sqlite:path"},
		"MySQL":    {Config{DSN: "mysql://u:s3cret@127.0.0.1:1/d"}, "-dsn: no answer from MySQL at 127.0.0.1:1"},
		"URL":      {Config{DSN: "mysql://u:s3cret@h:port/d"}, "-dsn: invalid port"},
		"Postgres": {Config{DSN: "postgres://u:s3cret@127.0.0.1:1/d"}, "-dsn: no answer from PostgreSQL at 127.0.0.1:1"},
		"Redis":    {Config{Redis: "redis://u:s3cret@h:port"}, "-redis: invalid port"},
		"conns":    {Config{Conns: -1}, "-1 database connections: want at least 1"},
		"far":      {Config{RTT: time.Millisecond}, "SQLite is in this process: no round trip can be added"},
		"near":     {Config{RTT: -1}, "round trip of -1ns to the database: want 0 or more"},
		"seed":     {Config{Seed: -1}, "-seed -1: want 0 or more"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(t.Context(), c.cfg)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "s3cret")
		})
	}
}
