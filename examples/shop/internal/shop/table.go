package shop

import (
	"context"
	"fmt"
	"iter"
	"strings"
)

func (db *Database) createTables(ctx context.Context) error {
	for _, statement := range []string{
		"CREATE TABLE IF NOT EXISTS products (id " + db.dialect.key + ", name VARCHAR(100) NOT NULL, description TEXT NOT NULL)",
		"CREATE TABLE IF NOT EXISTS prices (product_id BIGINT NOT NULL PRIMARY KEY, cents BIGINT NOT NULL)",
		"CREATE TABLE IF NOT EXISTS stock (product_id BIGINT NOT NULL, warehouse INT NOT NULL, quantity INT NOT NULL, PRIMARY KEY (product_id, warehouse))",
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

const pageRows = 1000 // ids per query

// IDs yields the id of every product, a page at a time. The queries are opened as
// it is ranged over, and are no one transaction: a rebuild must see what was
// committed until its Settle was over.
func (db *Database) IDs(ctx context.Context) iter.Seq2[string, error] {
	statement := db.dialect.bind(fmt.Sprintf("SELECT id FROM products WHERE id > ? ORDER BY id LIMIT %d", pageRows))
	return func(yield func(string, error) bool) {
		for last, more := int64(0), true; more; {
			ids, err := db.page(ctx, statement, last)
			if err != nil {
				yield("", fmt.Errorf("read products.id: %w", err))
				return
			}
			for _, id := range ids {
				if !yield(itemOf(id), nil) {
					return
				}
				last = id
			}
			more = len(ids) == pageRows
		}
	}
}

func (db *Database) page(ctx context.Context, statement string, after int64) ([]int64, error) {
	rows, err := db.QueryContext(ctx, statement, after)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	ids := make([]int64, 0, pageRows)
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// Count returns the number of products.
func (db *Database) Count(ctx context.Context) (n uint64, err error) {
	err = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM products").Scan(&n)
	return n, err
}

// SeededID is the id of the i-th product that Seed makes, from 1: with gaps, as
// after some years.
func SeededID(i int) int64 { return 7*int64(i) + int64(i)%5 }

// Seeded reports whether id is one of the first n that Seed makes.
func Seeded(id int64, n int) bool {
	// SeededID(i) lies in 7i … 7i+4.
	i := id / 7
	return i >= 1 && i <= int64(n) && SeededID(int(i)) == id
}

const (
	seedRows       = 1000 // per statement
	seedWarehouses = 2
)

// about makes a row as large as a real one: some 600 bytes.
var about = strings.Repeat("Made to last, packed with care, sent the same day. ", 11)

// Seed makes n products with their prices and stock. The tables must be empty.
func (db *Database) Seed(ctx context.Context, n int, progress func(done int)) error {
	if n < 1 {
		return fmt.Errorf("seed %d rows: want at least 1", n)
	}
	for from := 1; from <= n; from += seedRows {
		if err := db.seed(ctx, from, min(n, from+seedRows-1)); err != nil {
			return fmt.Errorf("seed rows from %d on: %w", from, err)
		}
		progress(min(n, from+seedRows-1))
	}
	if db.dialect.afterIDs != "" {
		if _, err := db.ExecContext(ctx, db.dialect.afterIDs); err != nil {
			return fmt.Errorf("seed: %w", err)
		}
	}
	return nil
}

func (db *Database) seed(ctx context.Context, from, to int) error {
	var products, prices, stock []any
	for i := from; i <= to; i++ {
		id := SeededID(i)
		products = append(products, id, fmt.Sprintf("Product %d", id), about)
		prices = append(prices, id, 100+id%9900)
		for w := range seedWarehouses {
			stock = append(stock, id, w, (id+int64(w))%50)
		}
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, table := range []struct {
		insert  string
		columns int
		values  []any
	}{
		{"INSERT INTO products (id, name, description) VALUES ", 3, products},
		{"INSERT INTO prices VALUES ", 2, prices},
		{"INSERT INTO stock VALUES ", 3, stock},
	} {
		var statement strings.Builder
		statement.WriteString(table.insert)
		for at := 0; at < len(table.values); at += table.columns {
			if at > 0 {
				statement.WriteByte(',')
			}
			statement.WriteString("(" + db.dialect.params(at+1, table.columns) + ")")
		}
		if _, err := tx.ExecContext(ctx, statement.String(), table.values...); err != nil {
			return err
		}
	}
	return tx.Commit()
}
