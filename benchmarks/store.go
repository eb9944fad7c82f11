package main

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
)

// store makes the stored sets of d. What is a string of bits is set as a whole, the
// way it would be after so many adds.
func (b *bench) store(ctx context.Context, d dataset) error {
	p, err := bloom.NewParams(d.capacity, d.rate, bloom.Classic)
	if err != nil {
		return err
	}
	for layout, name := range map[bloom.Layout]string{bloom.Classic: "classic", bloom.Blocked: "blocked"} {
		if err := rebuild(ctx, bloom.NewBitmap(b.local.rdb, d.key(name)), d, layout); err != nil {
			return err
		}
	}
	if b.module != nil {
		if err := rebuild(ctx, bloom.NewRedisBloom(b.module.rdb, d.key("module"), nil), d, bloom.Classic); err != nil {
			return err
		}
	}
	for name, positions := range map[string]func([]uint64, string) []uint64{"zero": goZeroBits(p), "bits": textbookBits(p)} {
		if err := b.local.rdb.Set(ctx, d.key(name), bitString(p.Bits, d.items, positions), 0).Err(); err != nil {
			return err
		}
	}
	if err := b.local.rdb.Set(ctx, "floor", "12345", 0).Err(); err != nil {
		return err
	}
	if d.items > maxSetItems {
		return nil
	}
	set := plainSet(b.local, b.local.rdb, d.key("set"))
	return inChunks(d.items, func(items []string) error { return set.add(ctx, items) })
}

// maxSetItems is where a plain set becomes too large to compare with.
const maxSetItems = 2_000_000

func rebuild(ctx context.Context, backend bloom.Backend, d dataset, layout bloom.Layout) error {
	f, err := bloom.New(backend, bloom.Config{Capacity: d.capacity, FPRate: d.rate, Layout: layout})
	if err != nil {
		return err
	}
	if _, err := f.Rebuild(ctx, source(d.items), &bloom.RebuildOptions{Settle: -1}); err != nil {
		return err
	}
	return nil
}

// source yields the first n items.
func source(n int) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for i := range n {
			if !yield(itemName(i), nil) {
				return
			}
		}
	}
}

// inChunks calls do with the first n items, some thousands at a time.
func inChunks(n int, do func(items []string) error) error {
	for from := 0; from < n; from += 10_000 {
		items := make([]string, 0, 10_000)
		for i := from; i < min(n, from+10_000); i++ {
			items = append(items, itemName(i))
		}
		if err := do(items); err != nil {
			return err
		}
	}
	return nil
}

// bitString is a Redis string of so many bits with those of the first n items set.
func bitString(bits uint64, n int, positions func([]uint64, string) []uint64) string {
	s := make([]byte, (bits+7)/8)
	var few [64]uint64
	for i := range n {
		for _, bit := range positions(few[:0], itemName(i)) {
			s[bit>>3] |= 0x80 >> (bit & 7)
		}
	}
	return string(s)
}

// drop removes the stored sets of d.
func (b *bench) drop(ctx context.Context, d dataset) error {
	var failed error
	for _, name := range []string{"classic", "blocked", "zero", "bits", "set"} {
		failed = errors.Join(failed, b.local.rdb.Unlink(ctx, d.key(name)).Err())
	}
	if b.module != nil {
		f, err := bloom.New(bloom.NewRedisBloom(b.module.rdb, d.key("module"), nil), bloom.Config{})
		if err != nil {
			return err
		}
		failed = errors.Join(failed, f.Drop(ctx), b.module.rdb.Unlink(ctx, "{"+d.key("module")+"}:build").Err())
	}
	return failed
}

// memory returns what a key takes on its server by MEMORY USAGE, rounded up by the
// allocator, and the bytes in its value, which are the same where Redis does not say.
func (h *host) memory(ctx context.Context, key string) (used, size float64, err error) {
	n, err := h.rdb.MemoryUsage(ctx, key, 0).Result()
	if errors.Is(err, redis.Nil) {
		return 0, 0, fmt.Errorf("MEMORY USAGE: no key %q", key)
	}
	if err != nil {
		return 0, 0, err
	}
	used, size = float64(n), float64(n)
	if length, err := h.rdb.StrLen(ctx, key).Result(); err == nil {
		size = float64(length)
	}
	return used, size, nil
}

// sweep removes the keys that begin with prefix, from a server that stays: those of caches.
func (h *host) sweep(prefix string) {
	ctx := context.Background()
	keys := h.rdb.Scan(ctx, 0, prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		_ = h.rdb.Unlink(ctx, keys.Val()).Err()
	}
}
