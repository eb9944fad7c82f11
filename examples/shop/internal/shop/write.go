package shop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Create stores p under a new id.
//
// The id is registered before the commit, so that the filter never denies a row
// that others can see; if that fails nothing is stored. It is registered again
// after the commit, which drops a "no such product" that a reader who came in
// between has cached.
func (s *Shop) Create(ctx context.Context, p Product) (Product, error) {
	if err := p.validate(); err != nil {
		return Product{}, err
	}
	tx, err := s.DB.BeginTx(ctx, nil)
	if err != nil {
		return Product{}, err
	}
	defer tx.Rollback()
	if err := s.DB.insert(ctx, tx, &p); err != nil {
		return Product{}, fmt.Errorf("insert product: %w", err)
	}
	id := itemOf(p.ID)
	if err := s.Guard.Register(ctx, id); err != nil {
		return Product{}, fmt.Errorf("%w: product not stored: %w", ErrUnavailable, err)
	}
	committed := tx.Commit()
	// Also where the commit failed, which may mean that only its answer was lost.
	err = s.afterwards(ctx, func(ctx context.Context) error { return s.Guard.Register(ctx, id) })
	if committed != nil {
		return Product{}, fmt.Errorf("commit product: %w", committed)
	}
	if err != nil {
		// The row is stored and the filter knows it. At worst a cached "no such
		// product" stays for NullTTL.
		s.cfg.Log.Warn("not registered after the commit", "id", id, "err", err)
	}
	return p, nil
}

// Update replaces the product p.ID, or returns sql.ErrNoRows.
func (s *Shop) Update(ctx context.Context, p Product) error {
	if err := p.validate(); err != nil {
		return err
	}
	return s.change(ctx, p.ID, func(tx *sql.Tx) (bool, error) { return s.DB.update(ctx, tx, &p) })
}

// Delete removes a product, or returns sql.ErrNoRows. Its id stays in the filter
// until that is built anew; until then a lookup costs the database one query per
// NullTTL.
func (s *Shop) Delete(ctx context.Context, id int64) error {
	return s.change(ctx, id, func(tx *sql.Tx) (bool, error) { return s.DB.delete(ctx, tx, id) })
}

// change commits a change of a row, then drops what is cached of it: always, for
// an error of the commit may mean that only its answer was lost, and a client that
// was told to try again may find the row gone.
func (s *Shop) change(ctx context.Context, id int64, do func(*sql.Tx) (bool, error)) error {
	err := s.commit(ctx, id, do)
	dropped := s.afterwards(ctx, func(ctx context.Context) error { return s.Guard.Invalidate(ctx, itemOf(id)) })
	if err == nil && dropped != nil {
		return fmt.Errorf("%w: product %d is stored, the old one may still be cached: %w", ErrUnavailable, id, dropped)
	}
	return err
}

func (s *Shop) commit(ctx context.Context, id int64, do func(*sql.Tx) (bool, error)) error {
	tx, err := s.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	found, err := do(tx)
	if err == nil && !found {
		err = sql.ErrNoRows
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return fmt.Errorf("change product %d: %w", id, err)
	}
	return nil
}

const afterTries = 3

// afterwards does what must follow a commit, whether or not the client still waits
// for the answer, and tries again for a while.
func (s *Shop) afterwards(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout)
	defer cancel()
	var errs error
	for try := range afterTries {
		if try > 0 {
			time.Sleep(time.Duration(try) * 50 * time.Millisecond)
		}
		err := do(ctx)
		if err == nil {
			return nil
		}
		errs = errors.Join(errs, err)
	}
	return errs
}
