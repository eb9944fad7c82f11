package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	demoTable = "users"
	demoRows  = 200_000
)

// demoSQL makes ids as a table has them after some years: with gaps.
const demoSQL = `
CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT NOT NULL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
INSERT INTO users SELECT 7 * i + i %% 5, 'user' || i || '@example.com' FROM n;`

// openDemo makes a SQLite database with demoRows users, in a folder of its own
// that goes when it is closed.
func openDemo(ctx context.Context) (db *database, err error) {
	dir, err := os.MkdirTemp("", "warmup-")
	if err != nil {
		return nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
	defer func() {
		if err != nil {
			err = errors.Join(err, remove())
		}
	}()
	path := filepath.Join(dir, "demo.sqlite")
	if err := generate(ctx, path); err != nil {
		return nil, fmt.Errorf("generate a table: %w", err)
	}
	if db, err = connectSQLite(path); err != nil {
		return nil, err
	}
	db.where, db.remove = "SQLite, generated", remove
	return db, nil
}

func generate(ctx context.Context, path string) error {
	db, err := sql.Open("sqlite", path+"?_pragma=journal_mode(off)&_pragma=synchronous(off)")
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, fmt.Sprintf(demoSQL, demoRows))
	return errors.Join(err, db.Close())
}
