package main

import (
	"bytes"
	"flag"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBadFlags(t *testing.T) {
	table := []string{"-dsn", "sqlite:x", "-table", "t"}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"unknown flag":     {[]string{"-colour"}, "-colour"},
		"stray argument":   {[]string{"users"}, `unexpected argument "users"`},
		"no number":        {[]string{"-capacity", "many"}, "-capacity"},
		"dsn alone":        {[]string{"-dsn", "sqlite:x"}, "-dsn needs a -table"},
		"table alone":      {[]string{"-table", "users"}, "-table needs a -dsn"},
		"redis alone":      {[]string{"-redis", "localhost:1"}, "-redis needs the -key"},
		"no rows":          {[]string{"-page", "0"}, "-page 0: want 1 to 100000"},
		"rate as 5 %":      {[]string{"-fprate", "5"}, "-fprate 5: want above 0 and below 1"},
		"rate NaN":         {[]string{"-fprate", "NaN"}, "-fprate NaN"},
		"layout":           {[]string{"-layout", "sparse"}, "want classic or blocked"},
		"settle":           {[]string{"-settle", "-1s"}, "-settle -1s: want 0 (none) or more"},
		"max-age":          {[]string{"-max-age", "-1s"}, "-max-age -1s"},
		"lease":            {[]string{"-lease", "10ms"}, "-lease 10ms: want at least 1s"},
		"ttl":              {[]string{"-ttl", "-1s"}, "TTL -1s: want 0"},
		"too large":        {[]string{"-capacity", "1000000000000"}, "too large for one key"},
		"key":              {[]string{"-key", "{"}, "brace"},
		"database unknown": {[]string{"-dsn", "oracle://u:s3cret@h/d", "-table", "t"}, "-dsn: want mysql://"},
		"database URL":     {[]string{"-dsn", "mysql://u:s3cret@h:port/d", "-table", "t"}, "-dsn: "},
		"database setting": {[]string{"-dsn", "mysql://u:s3cret@h/d?parseTime=maybe", "-table", "t"}, "-dsn: "},
		"PostgreSQL URL":   {[]string{"-dsn", "postgres://u:s3cret@h:port/d", "-table", "t"}, "-dsn: "},
		"no path":          {[]string{"-dsn", "sqlite:", "-table", "t"}, "-dsn: want sqlite:path"},
		"Redis URL":        {[]string{"-redis", "http://:s3cret@h", "-key", "k"}, "-redis: redis: invalid URL scheme: http"},
		"quote":            {append(table, "-column", "id` FROM t; DROP TABLE t; --"), "-column"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := warmup(t, c.args...)
			require.Equal(t, exitFlags, code, out)
			require.Contains(t, out, c.want)
			require.NotContains(t, out, "s3cret")
		})
	}
}

func TestNamesRefused(t *testing.T) {
	for _, name := range []string{"", " ", "a b", "1a", "a-b", `a"`, "a`", "a'", "a;", "a(", "a\x00", "a\n", "*", "ta\\ble", "\xff", strings.Repeat("x", 65)} {
		require.ErrorContains(t, checkNames("t", name), "-column", "%q", name)
		if name != "" { // the embedded database's
			require.ErrorContains(t, checkNames(name, "c"), "-table", "%q", name)
		}
		require.ErrorContains(t, checkNames("t."+name, "c"), "-table", "%q", name)
	}
	require.ErrorContains(t, checkNames("a.b.c", "d"), "-table")
	require.ErrorContains(t, checkNames("t", "a.b"), "-column")
}

func TestNamesTaken(t *testing.T) {
	for _, name := range []string{"t", "_", "Users", "order", "a1$", "größe", "シ"} {
		require.NoError(t, checkNames(name, name))
		require.NoError(t, checkNames("shop."+name, name))
	}
	require.Equal(t, "`shop`.`order`", mysqlDialect.quoted("shop.order"))
	require.Equal(t, `"shop"."order"`, postgresDialect.quoted("shop.order"))
	require.Equal(t, "`a``b`", sqliteDialect.quoted("a`b"))
}

func TestHelp(t *testing.T) {
	t.Setenv("WARMUP_DSN", "mysql://u:s3cret@h/d")
	t.Setenv("WARMUP_REDIS", "redis://:s3cret@h")
	var out bytes.Buffer
	err := run(t.Context(), []string{"-h"}, &out)
	require.ErrorIs(t, err, flag.ErrHelp)
	require.Contains(t, out.String(), "-max-age duration")
	require.Contains(t, out.String(), "  5  -verify found rows")
	require.NotContains(t, out.String(), "s3cret")
}

func TestPasswordsFromTheEnvironment(t *testing.T) {
	t.Setenv("WARMUP_DSN", "sqlite:x")
	t.Setenv("WARMUP_REDIS", "localhost:1")
	o, err := parseOptions([]string{"-table", "t", "-key", "k"}, nil)
	require.NoError(t, err)
	require.Equal(t, "sqlite:x", o.dsn)
	require.Equal(t, "localhost:1", o.redis)
	require.False(t, o.verify)
}
