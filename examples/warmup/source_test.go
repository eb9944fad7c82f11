package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
)

// itemsOf reads a table to its end, or to the first error.
func itemsOf(t *testing.T, s *table) (items []string, err error) {
	for item, err := range s.items(t.Context()) {
		if err != nil {
			return items, err
		}
		items = append(items, item)
	}
	return items, nil
}

// requireItems reads with pages that end before, at and behind the last row.
func requireItems(t *testing.T, s *testServer, values []any) {
	t.Helper()
	want := make([]string, len(values))
	for i, value := range values {
		if bytes, ok := value.([]byte); ok {
			value = string(bytes)
		}
		want[i] = fmt.Sprint(value)
	}
	n := len(values)
	for _, page := range []int{1, 2, 3, 7, n / 2, n - 1, n, n + 1, 10 * n} {
		got, err := itemsOf(t, s.source(max(page, 1)))
		require.NoError(t, err)
		require.ElementsMatch(t, want, got, "pages of %d", page)
	}
}

func TestPagesOfIntegers(t *testing.T) {
	eachServer(t, func(t *testing.T, s *testServer) {
		values := []any{int64(math.MinInt64), int64(math.MaxInt64)}
		for id := int64(-40); id < 1_000_000; id += 1 + id*id { // gaps of any width
			values = append(values, id)
		}
		for id := int64(5000); id < 5150; id++ {
			values = append(values, id)
		}
		s.create(t, "BIGINT PRIMARY KEY", values...)
		requireItems(t, s, values)
	})
}

func TestPagesOfOddTexts(t *testing.T) {
	values := []any{"", "a b", "ab ", "O'Brien", `back\slash`, `"double"`, "`tick`", "%", "_", "new\nline", "\ttab",
		"ünïcödé", "日本", "🙂", "0", "007", "7", "-1", "NULL", "?", "$1", ":x", "'; DROP TABLE users; --", "/*", "z", "ZZ"}
	eachServer(t, func(t *testing.T, s *testServer) {
		s.create(t, s.textType+" PRIMARY KEY", values...)
		requireItems(t, s, values)
	})
}

// Bytes that are no text, such as UUIDs in 16 bytes.
func TestPagesOfBytes(t *testing.T) {
	values := make([]any, 300)
	for i := range values {
		key := make([]byte, 16)
		for at := range key {
			key[at] = byte(rand.Uint32())
		}
		values[i] = key
	}
	eachServer(t, func(t *testing.T, s *testServer) {
		s.create(t, s.bytesType+" PRIMARY KEY", values...)
		requireItems(t, s, values)
	})
}

// Where letter case counts for nothing, pages must follow the column's order, not
// that of the bytes.
func TestPagesIgnoringCase(t *testing.T) {
	values := []any{"B", "a", "D", "c", "E", "f", "g", "H"}
	eachServer(t, func(t *testing.T, s *testServer) {
		if s.ignoringCase == "" {
			t.Skip("no such type")
		}
		s.create(t, s.ignoringCase+" PRIMARY KEY", values...)
		requireItems(t, s, values)
	})
}

// A column whose characters are other bytes than the connection's.
func TestPagesOfLatin1(t *testing.T) {
	for _, setting := range []string{"", "?interpolateParams=true"} {
		t.Run(setting, func(t *testing.T) {
			t.Setenv("WARMUP_MYSQL", dsnFrom(t, "WARMUP_MYSQL")+setting)
			s := onMySQL(t)
			values := []any{"a", "b", "é", "ü", "Z", "ß", "x y"}
			s.create(t, "VARCHAR(20) CHARACTER SET latin1 PRIMARY KEY", values...)
			requireItems(t, s, values)
		})
	}
}

func TestPagesOfUnsigned(t *testing.T) {
	s := onMySQL(t)
	values := []any{uint64(0), uint64(math.MaxInt64), uint64(math.MaxInt64) + 1, uint64(math.MaxUint64)}
	s.create(t, "BIGINT UNSIGNED PRIMARY KEY", values...)
	requireItems(t, s, values)
}

func TestPagesOfUUIDs(t *testing.T) {
	s := onPostgres(t)
	values := []any{"00000000-0000-0000-0000-000000000000", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "ffffffff-ffff-ffff-ffff-ffffffffffff"}
	s.create(t, "UUID PRIMARY KEY", values...)
	requireItems(t, s, values)
}

func TestPagesOfNothing(t *testing.T) {
	eachServer(t, func(t *testing.T, s *testServer) {
		s.create(t, "BIGINT PRIMARY KEY")
		items, err := itemsOf(t, s.source(10))
		require.NoError(t, err)
		require.Empty(t, items)
	})
}

// The rebuild counts on seeing what was committed after the iterator was made,
// and also behind the page that is being read.
func TestItemsAreReadLate(t *testing.T) {
	eachServer(t, func(t *testing.T, s *testServer) {
		s.create(t, "BIGINT PRIMARY KEY", 1, 2, 3)
		items := s.source(2).items(t.Context())
		s.insert(t, 0)
		var got []string
		for item, err := range items {
			require.NoError(t, err)
			if item == "1" {
				s.insert(t, 99)
			}
			got = append(got, item)
		}
		require.Equal(t, []string{"0", "1", "2", "3", "99"}, got)
	})
}

func TestItemsEndEarly(t *testing.T) {
	s := onSQLite(t)
	s.create(t, "BIGINT PRIMARY KEY", 1, 2, 3)
	for item := range s.source(2).items(t.Context()) {
		require.Equal(t, "1", item)
		break
	}
	require.Zero(t, s.Stats().InUse)
}

func TestColumnRefused(t *testing.T) {
	eachServer(t, func(t *testing.T, s *testServer) {
		for name, c := range map[string]struct {
			columnType string
			values     []any
			want       string
		}{
			"not unique": {"BIGINT", []any{7, 7, 8}, "2 rows have a value equal to \"7\": want a unique column"},
			"NULL":       {"BIGINT", []any{nil}, "holds NULL"},
			"floats":     {"DOUBLE PRECISION PRIMARY KEY", []any{0.5}, "want integers or text"},
		} {
			t.Run(name, func(t *testing.T) {
				s.create(t, c.columnType, c.values...)
				_, err := itemsOf(t, s.source(1))
				require.ErrorContains(t, err, c.want)
				require.ErrorContains(t, err, "read "+s.table+".select: ")
			})
		}
	})
}

// Equal for the database, but not the same id: the next page would begin behind both.
func TestColumnRefusedForCase(t *testing.T) {
	s := onSQLite(t)
	s.create(t, s.ignoringCase, "a", "A", "b")
	_, err := itemsOf(t, s.source(1))
	require.ErrorContains(t, err, "want a unique column")
}

func TestMySQLTypesRefused(t *testing.T) {
	s := onMySQL(t)
	for columnType, value := range map[string]any{"DECIMAL(30)": 1, "ENUM('b', 'a')": "a", "BIT(8)": 1, "DATETIME": "2026-01-02 03:04:05"} {
		t.Run(columnType, func(t *testing.T) {
			s.create(t, columnType+" PRIMARY KEY", value)
			_, err := itemsOf(t, s.source(1))
			require.ErrorContains(t, err, "want integers or text")
		})
	}
}

// The whole program, on every server.
func TestLoadEachServer(t *testing.T) {
	eachServer(t, func(t *testing.T, s *testServer) {
		values := make([]any, 3000)
		for i := range values {
			values[i] = fmt.Sprintf("user %d <o'%d@example.com>", i, i*i)
		}
		s.create(t, s.textType+" PRIMARY KEY", values...)
		redis := miniredis.RunT(t)
		code, out := warmup(t, "-dsn", s.dsn, "-table", s.schema+"."+s.table, "-column", "select",
			"-redis", redis.Addr(), "-key", "k", "-settle", "0", "-page", "500", "-verify")
		require.Equal(t, exitOK, code, out)
		require.Contains(t, out, "rows      3,000\n")
		require.Contains(t, out, "3,000 rows, none is missing")

		found, err := filterAt(t, redis, 1).Exists(t.Context(), values[1234].(string))
		require.NoError(t, err)
		require.True(t, found)
	})
}
