package main

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// testServer is a database, with a table of this test's own once it is created.
type testServer struct {
	*database
	writer *sql.DB
	dsn    string
	table  string

	textType, bytesType string
	ignoringCase        string // a text type for which a and A are equal, if it has one
	schema              string // what the table is in
}

// eachServer runs test on SQLite, and on the servers that the environment names.
func eachServer(t *testing.T, test func(t *testing.T, s *testServer)) {
	for name, open := range map[string]func(*testing.T) *testServer{
		"SQLite": onSQLite, "MySQL": onMySQL, "PostgreSQL": onPostgres,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func onSQLite(t *testing.T) *testServer {
	path := filepath.Join(t.TempDir(), "test.sqlite")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	writer, err := sql.Open("sqlite", path) // the program itself only reads
	require.NoError(t, err)
	t.Cleanup(func() { writer.Close() })
	return open(t, &testServer{dsn: "sqlite:" + path, writer: writer,
		textType: "TEXT", bytesType: "BLOB", ignoringCase: "TEXT COLLATE NOCASE", schema: "main"})
}

func onMySQL(t *testing.T) *testServer {
	s := open(t, &testServer{dsn: dsnFrom(t, "WARMUP_MYSQL"),
		textType: "VARCHAR(100)", bytesType: "VARBINARY(20)", ignoringCase: "VARCHAR(20) COLLATE utf8mb4_general_ci"})
	require.NoError(t, s.QueryRow("SELECT DATABASE()").Scan(&s.schema))
	return s
}

func onPostgres(t *testing.T) *testServer {
	s := open(t, &testServer{dsn: dsnFrom(t, "WARMUP_POSTGRES"), textType: "TEXT", bytesType: "BYTEA"})
	require.NoError(t, s.QueryRow("SELECT current_schema()").Scan(&s.schema))
	return s
}

func dsnFrom(t *testing.T, variable string) string {
	dsn := os.Getenv(variable)
	if dsn == "" {
		t.Skipf("%s names no server", variable)
	}
	return dsn
}

func open(t *testing.T, s *testServer) *testServer {
	db, err := openDatabase(t.Context(), s.dsn)
	require.NoError(t, err)
	t.Cleanup(func() { db.close() })
	s.database = db
	if s.writer == nil {
		s.writer = db.DB
	}
	return s
}

// create makes a table with one column, called like a word of SQL.
func (s *testServer) create(t *testing.T, columnType string, values ...any) {
	s.table = fmt.Sprintf("warmup_Test_%x", rand.Uint64())
	s.exec(t, fmt.Sprintf("CREATE TABLE %s (%s %s)", s.name(), s.dialect.quoted("select"), columnType))
	drop := "DROP TABLE " + s.name()
	t.Cleanup(func() { s.exec(t, drop) })
	s.insert(t, values...)
}

func (s *testServer) name() string { return s.dialect.quoted(s.table) }

func (s *testServer) insert(t *testing.T, values ...any) {
	tx, err := s.writer.Begin()
	require.NoError(t, err)
	for _, value := range values {
		_, err := tx.Exec(fmt.Sprintf("INSERT INTO %s VALUES (%s)", s.name(), s.dialect.param), value)
		require.NoError(t, err, "%q", value)
	}
	require.NoError(t, tx.Commit())
}

func (s *testServer) exec(t *testing.T, statement string) {
	_, err := s.writer.Exec(statement)
	require.NoError(t, err, statement)
}

func (s *testServer) source(page int) *table { return newTable(s.database, s.table, "select", page) }
