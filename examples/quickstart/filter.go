package main

import (
	"bytes"
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

// buildFilter fills a filter with every item, publishes it and opens it.
//
// The items exist already, so a filter that is half loaded would deny some of
// them. It is therefore filled in this process, where nobody asks it, and
// published whole: Memory writes byte for byte what a Bitmap reads, and one
// SET puts it in place.
func buildFilter(ctx context.Context, st *store, items *catalog, fpRate float64) (*builtFilter, error) {
	began := time.Now()
	image, err := fillInMemory(ctx, items.names, fpRate)
	if err != nil {
		return nil, fmt.Errorf("fill the filter: %w", err)
	}
	key := st.prefix + "filter"
	if err := st.rdb.Set(ctx, key, image, keyTTL).Err(); err != nil {
		return nil, fmt.Errorf("publish the filter: %w", err)
	}
	// What is stored says for itself what it is: an empty Config opens it.
	f, err := bloom.New(bloom.NewBitmap(st.rdb, key), bloom.Config{})
	if err != nil {
		return nil, fmt.Errorf("open the filter: %w", err)
	}
	took := time.Since(began)

	info, err := f.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the filter's facts: %w", err)
	}
	predicted := info.Params.FPRateAt(uint64(len(items.names)))
	return &builtFilter{filter: f, info: info, predicted: predicted, took: took}, nil
}

func fillInMemory(ctx context.Context, names []string, fpRate float64) ([]byte, error) {
	memory := bloom.NewMemory()
	f, err := bloom.New(memory, bloom.Config{
		Capacity: uint64(len(names)),
		FPRate:   fpRate,
		Layout:   bloom.Blocked, // one 64-byte read per look-up, for 10 % more memory at 1 %
	})
	if err != nil {
		return nil, err
	}
	if err := f.CreateEmpty(ctx); err != nil {
		return nil, err
	}
	if _, err := f.AddMulti(ctx, names); err != nil {
		return nil, err
	}
	var image bytes.Buffer
	_, err = memory.WriteTo(&image)
	return image.Bytes(), err
}
