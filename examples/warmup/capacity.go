package main

import (
	"context"
	"errors"

	"github.com/bloomguard/bloom"
)

const leastCapacity = 1000

// capacity is what the filter should be sized for, at the least: -capacity, or
// what the table needs. A table that still fits into the live filter leaves it as
// large as it is, so that a row more is no reason to resize, nor to think that a
// filter which is young enough is too small.
func (j *job) capacity(ctx context.Context) (uint64, error) {
	if j.o.capacity > 0 {
		return j.o.capacity, nil
	}
	rows, err := j.table.count(ctx)
	if err != nil {
		return 0, err
	}
	live, err := j.liveCapacity(ctx)
	if err != nil {
		return 0, err
	}
	if live == 0 || rows > live {
		return roomy(rows), nil
	}
	return live, nil
}

// liveCapacity is 0 where there is no filter. Whether something else at the key
// may be replaced is for Rebuild to say.
func (j *job) liveCapacity(ctx context.Context) (uint64, error) {
	f, err := j.filter(0)
	if err != nil {
		return 0, err
	}
	info, err := f.Info(ctx)
	if errors.Is(err, bloom.ErrNotReady) || errors.Is(err, bloom.ErrCorrupt) {
		return 0, nil
	}
	return info.Params.Capacity, err
}

// roomy adds half of rows, and rounds up to two digits: of several that load a
// table at once, each counts another number of rows, and all should arrive at the
// same size.
func roomy(rows uint64) uint64 {
	n, unit := max(rows+rows/2, leastCapacity), uint64(1)
	for n/unit >= 100 {
		unit *= 10
	}
	return (n + unit - 1) / unit * unit
}
