package shop

import (
	"context"
	"time"

	"github.com/bloomguard/bloom"
)

const (
	checkEvery = time.Minute
	retryEvery = 5 * time.Second
)

// KeepWarm builds the filter from the table, and again once it is older than
// MaxAge or gone, until ctx ends. Meanwhile the shop serves: while there is no
// filter the guard lets everything through. Of several shops one builds, the
// others wait, so each replica calls this.
func (s *Shop) KeepWarm(ctx context.Context) {
	for ctx.Err() == nil {
		wait := checkEvery
		if err := s.rebuild(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.Error("the filter was not built, nothing is rejected without one", "err", err, "retry", retryEvery)
			wait = retryEvery
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// rebuild does nothing while the filter is young enough.
func (s *Shop) rebuild(ctx context.Context) error {
	report, err := s.Filter.Rebuild(ctx, s.DB.IDs(ctx), &bloom.RebuildOptions{
		MaxAge: s.cfg.MaxAge,
		Settle: s.cfg.Settle,
	})
	if err == nil && !report.Skipped {
		s.cfg.Log.Info("filter built", "ids", report.Items, "capacity", report.Params.Capacity,
			"bytes", report.Bytes, "generation", report.Generation, "took", report.Elapsed.Round(time.Millisecond))
	}
	return err
}
