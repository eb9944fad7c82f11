package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// setSample is how many items are put into a real set to learn its size.
const setSample = 20_000

// setSize is what a Redis set of all items takes: the exact alternative to a
// filter.
type setSize struct {
	bytes uint64
	how   string // measured, scaled or computed
}

// measureSet asks a real server, with a set of its own that is gone again
// afterwards. The embedded one knows no sizes, nor do some managed servers.
func measureSet(ctx context.Context, st *store, names []string) (setSize, error) {
	computed := setSize{computedSetBytes(names), "computed for Redis 7.0"}
	if st.embedded != nil {
		return computed, nil
	}
	sample := everyNth(names, setSample)
	key := st.prefix + "set"
	if err := fillSet(ctx, st.rdb, key, sample); err != nil {
		return setSize{}, fmt.Errorf("fill a sample set: %w", err)
	}
	used, err := st.rdb.MemoryUsage(ctx, key, 0).Result() // 0: look at every member
	if err != nil {
		computed.how += ", MEMORY USAGE being refused"
		return computed, nil
	}
	if err := st.rdb.Unlink(ctx, key).Err(); err != nil {
		return setSize{}, fmt.Errorf("remove the sample set: %w", err)
	}
	if len(sample) == len(names) {
		return setSize{uint64(used), "measured with MEMORY USAGE"}, nil
	}
	scaled := float64(used) / float64(len(sample)) * float64(len(names))
	return setSize{uint64(scaled), fmt.Sprintf("scaled from MEMORY USAGE of %s of them", grouped(len(sample)))}, nil
}

// everyNth spreads n samples evenly over names, which may be sorted.
func everyNth(names []string, n int) []string {
	if len(names) <= n {
		return names
	}
	sample := make([]string, n)
	for i := range sample {
		sample[i] = names[i*len(names)/n]
	}
	return sample
}

// fillSet adds every member twice: the second time moves a growing set's last
// members to its new table, else MEMORY USAGE counts the old one as well.
func fillSet(ctx context.Context, rdb *redis.Client, key string, members []string) error {
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for range 2 {
			for batch := range slices.Chunk(members, keyBatch) {
				p.SAdd(ctx, key, batch)
			}
		}
		p.Expire(ctx, key, keyTTL)
		return nil
	})
	return err
}

// computedSetBytes adds up what Redis 7.0 allocates for a set: a pointer per
// bucket, as many buckets as the next power of two, and per member an entry of
// three words and the string with its header and final zero, rounded up as
// jemalloc does. MEMORY USAGE of a real set of the shipped names differs by 144
// bytes.
func computedSetBytes(names []string) uint64 {
	const pointer, entry = 8, 24
	buckets := uint64(4)
	for buckets < uint64(len(names)) {
		buckets *= 2
	}
	total := buckets * pointer
	for _, name := range names {
		header := 1
		if len(name) >= 32 {
			header = 3
		}
		total += entry + allocated(uint64(header+len(name)+1))
	}
	return total
}

// allocated rounds up to jemalloc's size classes: 16 apart up to 128 bytes,
// above it four to each doubling.
func allocated(n uint64) uint64 {
	if n <= 8 {
		return 8
	}
	step := uint64(16)
	for limit := uint64(128); n > limit; limit *= 2 {
		step = limit / 4
	}
	return (n + step - 1) / step * step
}
