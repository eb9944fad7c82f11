package main

import (
	"context"
	"fmt"
	"time"

	"github.com/bloomguard/bloom"
)

// builtFilter is the filter in Redis and how it got there.
type builtFilter struct {
	filter    *bloom.Filter
	info      bloom.Info
	predicted float64 // false-positive rate with every item in
	took      time.Duration
}

// buildFilter loads every item into a filter.
//
// The items exist already, so a filter that is half loaded would deny some of
// them. Rebuild fills one beside the live filter, where nobody asks it, and
// swaps it in whole.
func buildFilter(ctx context.Context, st *store, items *catalog, fpRate float64) (*builtFilter, error) {
	f, err := bloom.New(bloom.NewBitmap(st.rdb, st.prefix+"filter"), bloom.Config{
		Capacity: uint64(len(items.names)),
		FPRate:   fpRate,
		Layout:   bloom.Blocked, // one 64-byte read per look-up, for 10 % more memory at 1 %
		TTL:      keyTTL,
	})
	if err != nil {
		return nil, fmt.Errorf("size the filter: %w", err)
	}
	report, err := f.Rebuild(ctx, items.all, &bloom.RebuildOptions{
		Settle: -1, // nobody inserts meanwhile
	})
	if err != nil {
		return nil, fmt.Errorf("load the filter: %w", err)
	}
	info, err := f.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the filter's facts: %w", err)
	}
	predicted := info.Params.FPRateAt(uint64(len(items.names)))
	return &builtFilter{filter: f, info: info, predicted: predicted, took: report.Elapsed}, nil
}
