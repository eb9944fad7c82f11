package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-requests", "2000", "-seed", "7"}, &out))
	for _, row := range []string{
		`(?m)^ +no protection +null caching +Guard$`,
		`(?m)^requests +2,000 +2,000 +2,000$`,
		`(?m)^  for ids that do not exist +1,600 +1,600 +1,600$`,
		`(?m)^database queries +[\d,]+ +[\d,]+ +[\d,]+$`,
		`(?m)^  for ids that do not exist +1,600 +1,600 +\d+$`,
		`(?m)^cache keys created +[\d,]+ +[\d,]+ +[\d,]+$`,
		`(?m)^wrong answers +0 +0 +0$`,
		`(?m)^false-positive rate, measured +- +- +\d\.\d\d %$`,
		`(?m)^false-positive rate, predicted +- +- +(1\.0\d|0\.9\d) %$`,
		`(?m)^bytes of the filter +- +- +[\d,]+$`,
		`(?m)^bytes of a Redis set of the items \* +- +- +[\d,]+$`,
		`(?m)^round trips to Redis per request +1\.\d\d +1\.\d\d +1\.\d\d$`,
		`-seed 7\n`,
	} {
		require.Regexp(t, regexp.MustCompile(row), out.String())
	}
	for line := range strings.Lines(out.String()) {
		require.LessOrEqual(t, len(line), 101, line)
	}
}

// A server that other programs use keeps what was theirs and nothing of ours.
func TestRunLeavesNoKeys(t *testing.T) {
	server := miniredis.RunT(t)
	require.NoError(t, server.Set("theirs", "1"))
	require.NoError(t, server.Set("bloom-quickstart:theirs", "2"))
	args := []string{"-redis", server.Addr(), "-requests", "500", "-items", writeItems(t, "ids", []byte("a-1\nb-2\n"))}

	require.NoError(t, run(t.Context(), args, io.Discard))
	require.Equal(t, []string{"bloom-quickstart:theirs", "theirs"}, server.Keys())
}

func TestRunInterrupted(t *testing.T) {
	server := miniredis.RunT(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for len(server.Keys()) < 100 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	err := run(ctx, []string{"-redis", server.Addr(), "-requests", "100000"}, io.Discard)
	require.ErrorContains(t, err, "interrupted")
	require.Empty(t, server.Keys())
}

func TestRunRefuses(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())

	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no request":     {[]string{"-requests", "0"}, "-requests 0: want 1 to 1000000"},
		"no worker":      {[]string{"-workers", "-3"}, "-workers -3: want 1 to 256"},
		"rate as 5 %":    {[]string{"-fprate", "5"}, "-fprate 5: want above 0 and below 1"},
		"rate NaN":       {[]string{"-fprate", "NaN"}, "-fprate NaN: want above 0 and below 1"},
		"unknown flag":   {[]string{"-colour"}, "-colour"},
		"stray argument": {[]string{"ids.txt"}, `unexpected argument "ids.txt"`},
		"missing file":   {[]string{"-items", "no/such/file"}, "-items: open no/such/file"},
		"empty file":     {[]string{"-items", writeItems(t, "empty", nil)}, "no items in it"},
		"blank lines":    {[]string{"-items", writeItems(t, "blank", []byte("\n\r\n\n"))}, "no items in it"},
		"cut gzip":       {[]string{"-items", writeItems(t, "cut.gz", gzipped("a\nb\n")[:20])}, "unexpected EOF"},
		"no server":      {[]string{"-redis", closed.Addr().String()}, "no answer from " + closed.Addr().String()},
		"bad URL":        {[]string{"-redis", "http://:secret@host"}, "-redis: redis: invalid URL scheme: http"},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), c.args, io.Discard)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestPasswordStaysOutOfErrors(t *testing.T) {
	_, err := clientOptions("redis://:s3cret@host:port%zz")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "s3cret")
}

func TestHelp(t *testing.T) {
	var out bytes.Buffer
	require.ErrorIs(t, run(t.Context(), []string{"-h"}, &out), flag.ErrHelp)
	require.Contains(t, out.String(), "-redis host:port")
}

func TestCatalog(t *testing.T) {
	const text = "b\n\na\r\nb\nlast, without a newline"
	for name, content := range map[string][]byte{"plain": []byte(text), "gzip": gzipped(text)} {
		t.Run(name, func(t *testing.T) {
			c, err := openCatalog(writeItems(t, "ids", content))
			require.NoError(t, err)
			require.Equal(t, []string{"b", "a", "last, without a newline"}, c.names)
			require.Equal(t, 1, c.duplicates)
			require.True(t, c.has("a"))
			require.False(t, c.has(""))
		})
	}
}

func TestCatalogNamesTheLine(t *testing.T) {
	_, err := readCatalog("", io.MultiReader(strings.NewReader("a\n"), strings.NewReader(strings.Repeat("x", maxLine+1))))
	require.ErrorContains(t, err, "line 2: ")
}

func TestShippedNames(t *testing.T) {
	c, err := openCatalog("")
	require.NoError(t, err)
	require.Len(t, c.names, 19_997)
	require.Zero(t, c.duplicates)
}

func writeItems(t *testing.T, name string, content []byte) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

func gzipped(text string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, text)
	w.Close()
	return b.Bytes()
}

func TestRoundTrips(t *testing.T) {
	st, err := openStore(t.Context(), "", 1)
	require.NoError(t, err)
	defer st.close()
	before := st.trips.Load()
	require.NoError(t, st.rdb.Set(t.Context(), "k", "v", 0).Err())
	_, err = st.rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Get(t.Context(), "k")
		p.Get(t.Context(), "k")
		return nil
	})
	require.NoError(t, err)
	require.EqualValues(t, 2, st.trips.Load()-before)
}
