package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/bloomguard/bloom"
)

// job loads one table into one filter.
type job struct {
	o     options
	out   io.Writer
	table *table
	store *store
}

func (j *job) run(ctx context.Context) error {
	capacity, err := j.capacity(ctx)
	if err != nil {
		return err
	}
	f, err := j.filter(capacity)
	if err != nil {
		return err
	}
	j.writeSetup(capacity)
	if err := j.rebuild(ctx, f); err != nil {
		return err
	}
	if j.o.verify {
		if err := j.verify(ctx, f); err != nil {
			return err
		}
	}
	if j.o.dsn == "" {
		fmt.Fprint(j.out, yourOwn)
	}
	return nil
}

// filter is a handle that makes filters of that capacity; with 0 it only looks at
// the live one.
func (j *job) filter(capacity uint64) (*bloom.Filter, error) {
	return bloom.New(bloom.NewBitmap(j.store.rdb, j.o.key), bloom.Config{
		Capacity: capacity,
		FPRate:   j.o.fpRate,
		Layout:   j.o.layout,
		TTL:      j.o.ttl,
	})
}

func (j *job) rebuild(ctx context.Context, f *bloom.Filter) error {
	m := newMeter(j.out, &j.table.rows)
	report, err := f.Rebuild(ctx, j.source(ctx), &bloom.RebuildOptions{
		Capacity: j.o.capacity, // 0: Config's, or the live filter's if that is larger
		MinItems: j.o.minItems,
		MaxAge:   j.o.maxAge,
		Settle:   orNone(j.o.settle),
		Lease:    j.o.lease,
		Progress: m.show,
	})
	m.end(report.Items, report.Elapsed)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted, the live filter is as it was: %w", err)
	case err != nil:
		return err
	}
	j.writeReport(report)
	return nil
}

// source yields the table's ids. It counts them before, for the progress, if
// nobody has: not earlier, for a load that is skipped needs no number.
func (j *job) source(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if j.table.rows == 0 {
			if _, err := j.table.count(ctx); err != nil {
				yield("", err)
				return
			}
		}
		j.table.items(ctx)(yield)
	}
}

// orNone is for an option whose 0 means a default.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// verify looks for rows that the filter denies: rows that were written by
// something that does not Register them.
func (j *job) verify(ctx context.Context, f *bloom.Filter) error {
	m := newMeter(j.out, &j.table.rows)
	report, err := f.Verify(ctx, j.source(ctx), &bloom.VerifyOptions{Progress: func(p bloom.Progress) {
		if p.Phase == "read" { // what comes before is a copy of the filter, a matter of milliseconds
			p.Phase = "verify"
			m.show(p)
		}
	}})
	m.end(report.Checked, report.Elapsed)
	if err != nil {
		return fmt.Errorf("the filter is loaded, verifying it failed: %w", err)
	}
	j.writeVerified(report)
	if report.Missing > 0 {
		return fmt.Errorf("%s of %s %w; for example %q",
			grouped(report.Missing), grouped(report.Checked), errMissing, report.Examples)
	}
	return nil
}
