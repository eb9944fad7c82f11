package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // registers "sqlite"
)

const pingTimeout = 10 * time.Second

// dialect is all that differs between the databases in the statements used here.
type dialect struct {
	name  string
	quote string // around names. SQLite takes "…" for a string where there is no such column, but never `…`
	param string // the first parameter
	// keyTypes are the column types that can be read page by page; nil: whatever
	// comes as an integer, a text or bytes.
	keyTypes map[string]bool
}

var (
	mysqlDialect    = dialect{name: "MySQL", quote: "`", param: "?", keyTypes: mysqlKeyTypes}
	postgresDialect = dialect{name: "PostgreSQL", quote: `"`, param: "$1"}
	sqliteDialect   = dialect{name: "SQLite", quote: "`", param: "?"}
)

// mysqlKeyTypes leaves out those that MySQL does not compare with a parameter the
// way it sorts them, and whose pages would have holes: DECIMAL (compared as
// floats), ENUM (sorted by number, compared by name), BIT.
var mysqlKeyTypes = setOf("TINYINT SMALLINT MEDIUMINT INT BIGINT " +
	"CHAR VARCHAR TINYTEXT TEXT MEDIUMTEXT LONGTEXT BINARY VARBINARY TINYBLOB BLOB MEDIUMBLOB LONGBLOB")

func setOf(words string) map[string]bool {
	set := make(map[string]bool)
	for _, word := range strings.Fields(words) {
		set[word] = true
	}
	return set
}

// database is an open one, and what it is called in the output.
type database struct {
	*sql.DB
	dialect dialect
	where   string
	remove  func() error // of the embedded one, after closing it
}

// openDatabase generates one where dsn is empty.
func openDatabase(ctx context.Context, dsn string) (*database, error) {
	if dsn == "" {
		return openDemo(ctx)
	}
	db, err := connect(dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // one query at a time: a job among services takes no more than it uses
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("-dsn: no answer from %s: %w", db.where, err), db.close())
	}
	return db, nil
}

func (db *database) close() error {
	err := db.Close()
	if db.remove != nil {
		err = errors.Join(err, db.remove())
	}
	return err
}

func connect(dsn string) (*database, error) {
	switch scheme, rest, _ := strings.Cut(dsn, ":"); scheme {
	case "mysql":
		return connectMySQL(dsn)
	case "postgres", "postgresql":
		return connectPostgres(dsn)
	case "sqlite":
		return connectSQLite(rest)
	}
	return nil, usage("-dsn: want mysql://…, postgres://… or sqlite:path") // and not a word of it, there may be a password
}

// connectMySQL takes the driver's parameters after the question mark.
func connectMySQL(dsn string) (*database, error) {
	u, err := url.Parse(dsn)
	if bad := (*url.Error)(nil); errors.As(err, &bad) {
		err = bad.Err // the whole one repeats the URL, password and all
	}
	if err != nil {
		return nil, usage("-dsn: %w", err)
	}
	cfg, err := mysql.ParseDSN("/?" + u.RawQuery)
	if err != nil {
		return nil, usage("-dsn: %w", err)
	}
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", hostPort(u, "3306"), strings.TrimPrefix(u.Path, "/")
	forPages(cfg)
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, usage("-dsn: %w", err)
	}
	return &database{DB: sql.OpenDB(connector), dialect: mysqlDialect, where: "MySQL at " + cfg.Addr}, nil
}

// forPages keeps two settings from hiding rows. A server without autocommit would
// show all pages as of the first query, which may be older than what the filter
// counts on; and keys that the driver writes into the statement are compared byte
// by byte, not in the column's order.
func forPages(cfg *mysql.Config) {
	if cfg.Params == nil {
		cfg.Params = make(map[string]string)
	}
	cfg.Params["autocommit"] = "1"
	cfg.InterpolateParams = false
}

func hostPort(u *url.URL, port string) string {
	host := u.Hostname()
	if host == "" {
		host = "localhost"
	}
	if u.Port() != "" {
		port = u.Port()
	}
	return net.JoinHostPort(host, port)
}

// connectPostgres knows all of libpq's settings, and its environment variables.
func connectPostgres(dsn string) (*database, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, usage("-dsn: %w", err) // pgx hides the password
	}
	where := fmt.Sprintf("PostgreSQL at %s:%d", cfg.Host, cfg.Port)
	return &database{DB: stdlib.OpenDB(*cfg), dialect: postgresDialect, where: where}, nil
}

// connectSQLite opens what is there: SQLite would make an empty database of a
// mistyped path.
func connectSQLite(path string) (*database, error) {
	if path == "" {
		return nil, usage("-dsn: want sqlite:path")
	}
	escaped := (&url.URL{Path: filepath.ToSlash(filepath.Clean(path))}).EscapedPath()
	db, err := sql.Open("sqlite", "file:"+escaped+"?mode=ro&_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	return &database{DB: db, dialect: sqliteDialect, where: "SQLite, " + path}, nil
}
