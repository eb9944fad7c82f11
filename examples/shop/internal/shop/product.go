package shop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"unicode/utf8"

	"github.com/bloomguard/bloom"
)

// Product is what the service answers.
type Product struct {
	ID          int64  `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description"`
	Cents       int64  `json:"cents"`
	Stock       []int  `json:"stock"` // pieces, by warehouse
}

var (
	// ErrInvalidID says that an id is not the canonical decimal of 1 to 2⁶³-1.
	ErrInvalidID = errors.New("invalid id")
	// ErrInvalidProduct says what of a product cannot be stored.
	ErrInvalidProduct = errors.New("invalid product")
	// ErrUnavailable says that a write should be tried again: it was not stored, or
	// it was and a cache may not know.
	ErrUnavailable = errors.New("try again")
)

// ValidateID lets only one spelling of each number through. "007" and "+7" would
// be found by the database as 7, and never by the filter, which knows "7".
func ValidateID(id string) error {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != id {
		return fmt.Errorf("%w %q: want a number from 1 to 2^63-1, in plain decimal", ErrInvalidID, id)
	}
	return nil
}

func itemOf(id int64) string { return strconv.FormatInt(id, 10) }

const (
	maxName        = 100   // characters
	maxDescription = 10000 // bytes
	maxWarehouses  = 100
)

func (p Product) validate() error {
	switch {
	case p.Name == "" || utf8.RuneCountInString(p.Name) > maxName || !utf8.ValidString(p.Name):
		return fmt.Errorf("%w: name %q: want 1 to %d characters", ErrInvalidProduct, p.Name, maxName)
	case len(p.Description) > maxDescription || !utf8.ValidString(p.Description):
		return fmt.Errorf("%w: description of %d bytes: want at most %d, in UTF-8", ErrInvalidProduct, len(p.Description), maxDescription)
	case p.Cents < 0:
		return fmt.Errorf("%w: cents %d: want 0 or more", ErrInvalidProduct, p.Cents)
	case len(p.Stock) > maxWarehouses:
		return fmt.Errorf("%w: stock of %d warehouses: want at most %d", ErrInvalidProduct, len(p.Stock), maxWarehouses)
	}
	for i, n := range p.Stock {
		if n < 0 || n > 1e9 {
			return fmt.Errorf("%w: stock %d in warehouse %d: want 0 to 1000000000", ErrInvalidProduct, n, i)
		}
	}
	return nil
}

// Lookups are the lookups that a database was asked for: those that waited for a
// connection in vain never reached it.
type Lookups struct{ Found, Absent, Failed uint64 }

// All is their sum.
func (l Lookups) All() uint64 { return l.Found + l.Absent + l.Failed }

type lookupCounters struct{ found, absent, failed atomic.Uint64 }

// Lookups returns the counts so far.
func (db *Database) Lookups() Lookups {
	c := &db.lookups
	return Lookups{Found: c.found.Load(), Absent: c.absent.Load(), Failed: c.failed.Load()}
}

// Lookup reads a product in one read-only transaction, so that its rows fit
// together: BEGIN, product and price, stock, COMMIT. An absent one takes BEGIN,
// one query, ROLLBACK. It returns [bloom.ErrNotFound] for that, as the loader of a
// guard must.
func (db *Database) Lookup(ctx context.Context, id string) (Product, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return Product{}, err
	}
	defer tx.Rollback()
	p, err := db.read(ctx, tx, id)
	switch {
	case err == nil:
		db.lookups.found.Add(1)
	case errors.Is(err, sql.ErrNoRows):
		db.lookups.absent.Add(1)
		return Product{}, bloom.ErrNotFound
	default:
		db.lookups.failed.Add(1)
		return Product{}, fmt.Errorf("read product %s: %w", id, err)
	}
	return p, nil
}

func (db *Database) read(ctx context.Context, tx *sql.Tx, id string) (Product, error) {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return Product{}, err
	}
	p := Product{Stock: []int{}}
	row := tx.QueryRowContext(ctx, db.dialect.bind(
		"SELECT p.id, p.name, p.description, c.cents FROM products p JOIN prices c ON c.product_id = p.id WHERE p.id = ?"), n)
	if err := row.Scan(&p.ID, &p.Name, &p.Description, &p.Cents); err != nil {
		return p, err
	}
	rows, err := tx.QueryContext(ctx, db.dialect.bind("SELECT quantity FROM stock WHERE product_id = ? ORDER BY warehouse"), n)
	if err != nil {
		return p, err
	}
	defer rows.Close()
	for rows.Next() {
		var quantity int
		if err := rows.Scan(&quantity); err != nil {
			return p, err
		}
		p.Stock = append(p.Stock, quantity)
	}
	if err := rows.Err(); err != nil {
		return p, err
	}
	return p, tx.Commit()
}

// insert stores a product under an id that the database gives it.
func (db *Database) insert(ctx context.Context, tx *sql.Tx, p *Product) error {
	insert := "INSERT INTO products (name, description) VALUES (?, ?)"
	if db.dialect.dollars { // PostgreSQL's drivers know no last insert id
		row := tx.QueryRowContext(ctx, db.dialect.bind(insert+" RETURNING id"), p.Name, p.Description)
		if err := row.Scan(&p.ID); err != nil {
			return err
		}
	} else {
		result, err := tx.ExecContext(ctx, insert, p.Name, p.Description)
		if err != nil {
			return err
		}
		if p.ID, err = result.LastInsertId(); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, db.dialect.bind("INSERT INTO prices VALUES (?, ?)"), p.ID, p.Cents); err != nil {
		return err
	}
	return db.insertStock(ctx, tx, p)
}

// update reports whether there was such a product.
func (db *Database) update(ctx context.Context, tx *sql.Tx, p *Product) (bool, error) {
	result, err := tx.ExecContext(ctx, db.dialect.bind("UPDATE products SET name = ?, description = ? WHERE id = ?"), p.Name, p.Description, p.ID)
	if err != nil {
		return false, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, db.dialect.bind("UPDATE prices SET cents = ? WHERE product_id = ?"), p.Cents, p.ID); err != nil {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, db.dialect.bind("DELETE FROM stock WHERE product_id = ?"), p.ID); err != nil {
		return false, err
	}
	return true, db.insertStock(ctx, tx, p)
}

// delete reports whether there was such a product.
func (db *Database) delete(ctx context.Context, tx *sql.Tx, id int64) (bool, error) {
	for _, statement := range []string{"DELETE FROM stock WHERE product_id = ?", "DELETE FROM prices WHERE product_id = ?"} {
		if _, err := tx.ExecContext(ctx, db.dialect.bind(statement), id); err != nil {
			return false, err
		}
	}
	result, err := tx.ExecContext(ctx, db.dialect.bind("DELETE FROM products WHERE id = ?"), id)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// DeleteNamed deletes every product of that name whose id is above the given one,
// while no shop serves: none hears of it.
func (db *Database) DeleteNamed(ctx context.Context, name string, above int64) error {
	// It goes last, for it says which.
	for _, statement := range []string{
		"DELETE FROM stock WHERE product_id IN (SELECT id FROM products WHERE id > ? AND name = ?)",
		"DELETE FROM prices WHERE product_id IN (SELECT id FROM products WHERE id > ? AND name = ?)",
		"DELETE FROM products WHERE id > ? AND name = ?",
	} {
		if _, err := db.ExecContext(ctx, db.dialect.bind(statement), above, name); err != nil {
			return fmt.Errorf("delete products %q: %w", name, err)
		}
	}
	return nil
}

func (db *Database) insertStock(ctx context.Context, tx *sql.Tx, p *Product) error {
	for warehouse, quantity := range p.Stock {
		if _, err := tx.ExecContext(ctx, db.dialect.bind("INSERT INTO stock VALUES (?, ?, ?)"), p.ID, warehouse, quantity); err != nil {
			return err
		}
	}
	return nil
}
