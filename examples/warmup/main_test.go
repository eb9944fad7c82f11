package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestMain makes this binary the program itself where a test starts it as such.
func TestMain(m *testing.M) {
	if os.Getenv("WARMUP_TEST_AS_PROGRAM") != "" {
		main()
	}
	os.Exit(m.Run())
}

// warmup runs the program and returns its exit code and all it printed.
func warmup(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), args, &out)
	if err != nil {
		out.WriteString(err.Error())
	}
	return exitCode(err), out.String()
}

func TestDemonstration(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	code, out := warmup(t, "-settle", "0")
	require.Equal(t, exitOK, code, out)
	for _, line := range []string{
		`(?m)^table +users\.id: 200,000 rows, SQLite, generated$`,
		`(?m)^filter +"users", blocked, for 300,000 ids at 1\.00 %$`,
		`(?m)^  read +200,000 rows in \d+\.\d s$`,
		`(?m)^loaded +generation 1 of "users"$`,
		`(?m)^rows +200,000$`,
		`(?m)^distinct +(200,000|199,\d{3}), estimated`,
		`(?m)^bytes +\d{3},\d{3} \(\d+\.\d KiB\)$`,
		`(?m)^rate +0\.1\d % of absent ids are let through; 1\.00 % with 300,000 ids$`,
		`(?m)^seconds +\d+\.\d in all$`,
		`(?m)^verified +200,000 rows, none is missing`,
		`(?m)^  go run \. -dsn postgres://`,
	} {
		require.Regexp(t, line, out)
	}
	leftovers, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, leftovers)
}

func TestExitLoadedThenSkipped(t *testing.T) {
	server, dsn := miniredis.RunT(t), usersDatabase(t, 2500)
	load := []string{"-dsn", dsn, "-table", "users", "-redis", server.Addr(), "-key", "k", "-settle", "0", "-max-age", "1h", "-verify"}

	code, out := warmup(t, load...)
	require.Equal(t, exitOK, code, out)
	require.Contains(t, out, `loaded    generation 1 of "k"`)

	code, out = warmup(t, load...)
	require.Equal(t, exitOK, code, out)
	require.Contains(t, out, `skipped   generation 1 of "k" is younger than 1h0m0s`)
	require.Contains(t, out, "2,500 rows, none is missing")

	execSQLite(t, dsn, "INSERT INTO users VALUES (-1)")
	code, out = warmup(t, load...)
	require.Equal(t, exitMissing, code, "a row that nobody registered:\n%s", out)
	require.Contains(t, out, `1 of 2,501 rows are not in the filter, which denies them; for example ["-1"]`)
}

func TestExitFailed(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	nobody := closed.Addr().String()
	dsn := usersDatabase(t, 1)
	nowhere := filepath.Join(t.TempDir(), "none.sqlite")

	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no Redis":      {[]string{"-redis", nobody, "-key", "k"}, "-redis: no answer from " + nobody},
		"no MySQL":      {[]string{"-dsn", "mysql://u:s3cret@" + nobody + "/d", "-table", "t"}, "-dsn: no answer from MySQL at " + nobody},
		"no PostgreSQL": {[]string{"-dsn", "postgres://u:s3cret@" + nobody + "/d", "-table", "t"}, "-dsn: no answer from PostgreSQL at " + nobody},
		"no file":       {[]string{"-dsn", "sqlite:" + nowhere, "-table", "t"}, "-dsn: no answer from SQLite"},
		"no table":      {[]string{"-dsn", dsn, "-table", "nobody"}, "no such table"},
		"no column":     {[]string{"-dsn", dsn, "-table", "users", "-column", "email"}, "no such column"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := warmup(t, c.args...)
			require.Equal(t, exitFailed, code, out)
			require.Contains(t, out, c.want)
			require.NotContains(t, out, "s3cret")
		})
	}
	require.NoFileExists(t, nowhere)
}

func TestExitFailedForeignKey(t *testing.T) {
	server := miniredis.RunT(t)
	require.NoError(t, server.Set("theirs", "not a filter, and longer than a header that says it is one"))
	code, out := warmup(t, "-dsn", usersDatabase(t, 10), "-table", "users", "-redis", server.Addr(), "-key", "theirs")
	require.Equal(t, exitFailed, code, out)
	require.Contains(t, out, bloom.ErrCorrupt.Error())
}

func TestExitRebuilding(t *testing.T) {
	server := miniredis.RunT(t)
	started, end, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		_, err := filterAt(t, server, 100).Rebuild(t.Context(), func(yield func(string, error) bool) {
			close(started)
			<-end
			yield("1", nil)
		}, &bloom.RebuildOptions{Settle: -1})
		ended <- err
	}()
	<-started
	code, out := warmup(t, "-dsn", usersDatabase(t, 10), "-table", "users", "-redis", server.Addr(), "-key", "k")
	require.Equal(t, exitRebuilding, code, out)
	close(end)
	require.NoError(t, <-ended)
}

func TestExitRefused(t *testing.T) {
	server := miniredis.RunT(t)
	load := func(rows int, args ...string) (int, string) {
		args = append(args, "-dsn", usersDatabase(t, rows), "-table", "users", "-redis", server.Addr(), "-key", "k", "-settle", "0")
		return warmup(t, args...)
	}
	code, out := load(0)
	require.Equal(t, exitRefused, code, "an empty table:\n%s", out)

	code, out = load(100)
	require.Equal(t, exitOK, code, out)

	code, out = load(100, "-min-items", "101")
	require.Equal(t, exitRefused, code, out)
	// Distinct items are estimated from the bits set, and never more than the rows.
	require.Regexp(t, `\b(9[5-9]|100) distinct items of [0-9]+ that the source yielded, want at least 101`, out)

	code, out = load(40)
	require.Equal(t, exitRefused, code, "most rows are gone:\n%s", out)
	code, out = load(40, "-min-items", "36")
	require.Equal(t, exitOK, code, out)
}

// Ctrl-C, to a process of its own: the live filter stays, what was being built is
// gone.
func TestInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no process can be sent a Ctrl-C here")
	}
	server := miniredis.RunT(t)
	live := filterAt(t, server, 100)
	_, err := live.Rebuild(t.Context(), one("7"), &bloom.RebuildOptions{Settle: -1})
	require.NoError(t, err)

	cmd := exec.Command(os.Args[0], "-dsn", usersDatabase(t, 10), "-table", "users", "-redis", server.Addr(), "-key", "k", "-settle", "1h")
	cmd.Env = append(os.Environ(), "WARMUP_TEST_AS_PROGRAM=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return server.Exists("{k}:next") }, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))

	failed := new(exec.ExitError)
	require.ErrorAs(t, cmd.Wait(), &failed)
	require.Equal(t, exitFailed, failed.ExitCode(), out.String())
	require.Contains(t, out.String(), "interrupted, the live filter is as it was")
	require.Equal(t, []string{"k"}, server.Keys())
	info, err := live.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, info.Generation)
}

func TestExitCodes(t *testing.T) {
	for err, want := range map[error]int{
		nil:                      0,
		flag.ErrHelp:             0,
		io.ErrUnexpectedEOF:      1,
		context.Canceled:         1,
		usage("-x"):              2,
		bloom.ErrInvalidParams:   2,
		bloom.ErrTooLarge:        2,
		bloom.ErrRebuilding:      3,
		bloom.ErrRebuildRefused:  4,
		errMissing:               5,
		errors.New("some other"): 1,
	} {
		require.Equal(t, want, exitCode(err), "%v", err)
	}
}

// usersDatabase makes a SQLite file with a table users(id) of ids 1, 2, 3, …
func usersDatabase(t *testing.T, rows int) (dsn string) {
	dsn = "sqlite:" + filepath.Join(t.TempDir(), "a file, 100 %.sqlite")
	execSQLite(t, dsn, "CREATE TABLE users (id INTEGER PRIMARY KEY)")
	execSQLite(t, dsn, "WITH RECURSIVE n(i) AS (SELECT 1 WHERE ? > 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?) INSERT INTO users SELECT i FROM n", rows, rows)
	return dsn
}

func execSQLite(t *testing.T, dsn, statement string, args ...any) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn[len("sqlite:"):])
	require.NoError(t, err)
	defer db.Close()
	_, err = db.Exec(statement, args...)
	require.NoError(t, err)
}

func filterAt(t *testing.T, server *miniredis.Miniredis, capacity uint64) *bloom.Filter {
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { rdb.Close() })
	f, err := bloom.New(bloom.NewBitmap(rdb, "k"), bloom.Config{Capacity: capacity})
	require.NoError(t, err)
	return f
}

func one(item string) func(func(string, error) bool) {
	return func(yield func(string, error) bool) { yield(item, nil) }
}
