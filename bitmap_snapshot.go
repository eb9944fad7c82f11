package bloom

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// downloadRange is how much of the string one GETRANGE of a snapshot reads.
const downloadRange = 1 << 20

// bitmapSnapshot is a copy of the live filter.
type bitmapSnapshot struct {
	*memoryFilter
	b *Bitmap
}

// snapshot copies the live filter, in ranges.
func (b *Bitmap) snapshot(ctx context.Context, progress func(done, total uint64)) (snapshot, error) {
	for range 1 + maxRereads {
		h, err := b.readWhole(ctx)
		if err != nil {
			return nil, err
		}
		s := bitmapSnapshot{newMemoryFilter(*h), b}
		whole, err := b.download(ctx, s.memoryFilter, progress)
		if err != nil {
			return nil, err
		}
		if !whole || s.unchanged(ctx) == errChanged {
			continue
		}
		return s, s.checkBody()
	}
	return nil, b.errUnsettled()
}

// download reads the body, or reports that the string has become shorter.
func (b *Bitmap) download(ctx context.Context, f *memoryFilter, progress func(done, total uint64)) (bool, error) {
	body := f.geom.params.bodyBytes()
	for from := uint64(0); from < body; from += downloadRange {
		to := min(body, from+downloadRange)
		cmd := redis.NewStringCmd(ctx, "getrange", b.key, headerBytes+from, headerBytes+to-1)
		if err := b.read(ctx, cmd); err != nil {
			return false, err
		}
		part, err := cmd.Bytes()
		if err != nil {
			return false, b.keyError(err)
		}
		if uint64(len(part)) != to-from {
			return false, nil
		}
		f.setBody(from, part)
		progress(to, body)
	}
	return true, nil
}

// setBody stores bytes of the body, from on, a multiple of 8.
func (f *memoryFilter) setBody(from uint64, part []byte) {
	for i := from / 8; len(part) > 0; i++ {
		if len(part) < 8 {
			var last [8]byte
			copy(last[:], part)
			f.words[i] = binary.BigEndian.Uint64(last[:])
			return
		}
		f.words[i], part = binary.BigEndian.Uint64(part), part[8:]
	}
}

// unchanged compares the token of the live filter with the snapshot's.
func (s bitmapSnapshot) unchanged(ctx context.Context) error {
	h, err := s.b.readWhole(ctx)
	if err != nil {
		return fmt.Errorf("after the last item: %w", err)
	}
	if h.token != s.token {
		return errChanged
	}
	return nil
}
