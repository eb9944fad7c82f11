package shop

import (
	"context"
	"errors"
	"time"

	"github.com/bloomguard/bloom"
)

const (
	checkEvery = time.Minute
	retryEvery = 5 * time.Second

	leastCapacity = 10_000
)

// KeepWarm builds the filter from the table, and again once it is older than
// MaxAge, gone, or outgrown, until ctx ends. Meanwhile the shop serves: while there
// is no filter the guard lets everything through. Of several shops one builds, the
// others wait, so each replica calls this.
func (s *Shop) KeepWarm(ctx context.Context) {
	for ctx.Err() == nil {
		wait := checkEvery
		switch err := s.warm(ctx); {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, bloom.ErrRebuildRefused): // an empty table, and rows may come
			s.cfg.Log.Warn("no filter, or an old one", "err", err, "retry", wait)
		default:
			wait = retryEvery
			s.cfg.Log.Error("the filter was not built", "err", err, "retry", wait)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// warm builds the filter unless it is as it should be.
func (s *Shop) warm(ctx context.Context) error {
	info, err := s.Filter.Info(ctx)
	if err == nil && time.Since(info.Created) < s.cfg.MaxAge && info.Items <= info.Params.Capacity {
		return nil
	}
	capacity, err := s.capacity(ctx)
	if err != nil {
		return err
	}
	report, err := s.Filter.Rebuild(ctx, s.DB.IDs(ctx), &bloom.RebuildOptions{
		Capacity: capacity,
		MaxAge:   s.cfg.MaxAge,
		Settle:   s.cfg.Settle,
	})
	if err == nil && !report.Skipped {
		s.cfg.Log.Info("filter built", "ids", report.Items, "capacity", report.Params.Capacity,
			"bytes", report.Bytes, "generation", report.Generation, "took", report.Elapsed.Round(time.Millisecond))
	}
	return err
}

// capacity leaves room for half as many rows again, rounded up to two digits: of
// several shops each counts another number, and all should arrive at one size.
func (s *Shop) capacity(ctx context.Context) (uint64, error) {
	if s.cfg.Capacity > 0 {
		return s.cfg.Capacity, nil
	}
	rows, err := s.DB.Count(ctx)
	if err != nil {
		return 0, err
	}
	n, unit := max(rows+rows/2, leastCapacity), uint64(1)
	for n/unit >= 100 {
		unit *= 10
	}
	return (n + unit - 1) / unit * unit, nil
}
