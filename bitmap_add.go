package bloom

import (
	"context"
	_ "embed"
	"fmt"
)

//go:embed lua/add.lua
var luaAdd string

var addScript = newScript(luaAdd)

// Add puts item into the filter, and into the one that a rebuild is filling.
func (b *Bitmap) Add(ctx context.Context, item string) (bool, error) {
	added := [1]bool{true}
	err := b.addChunk(ctx, []string{item}, added[:], new(addGeometry))
	return added[0], err
}

// AddMulti adds all items, chunk by chunk. After an error the items of the
// chunks before it are in; the rest may be. But while a rebuild fills staging all
// items reach it, also where ErrNotReady says that there is no filter yet: what
// that rebuild publishes must have them.
func (b *Bitmap) AddMulti(ctx context.Context, items []string) ([]bool, error) {
	added := allTrue(len(items))
	var at addGeometry
	var notReady error
	for from := 0; from < len(items); {
		// Sized by the filter as last read; where a rebuild fills one of more
		// hashes, its chunk is as much larger.
		k := maxHashes
		if g, err := b.geometry(ctx); err == nil {
			k = g.params.Hashes
		} else if at.staging != nil {
			k = at.staging.params.Hashes
		}
		to := min(len(items), from+chunkItems(k, addChunkBits))
		if err := b.addChunk(ctx, items[from:to], added[from:to], &at); err != nil {
			if !at.staged {
				return added, err
			}
			notReady = err
		}
		from = to
	}
	return added, notReady
}

// addGeometry is what an adder knows of the two filters that it writes.
type addGeometry struct {
	staging *geometry // nil: unknown, or of the filter's own geometry
	staged  bool      // the last chunk is in staging, and there was no filter
}

// addChunk adds some items by one script, and by another one where that says
// that it lacks the positions for one of the two filters.
func (b *Bitmap) addChunk(ctx context.Context, items []string, added []bool, at *addGeometry) error {
	at.staged = false
	for reread := 0; reread <= maxRereads; reread++ {
		g, err := b.geometry(ctx)
		if err != nil && !isNotReady(err) {
			return err
		}
		reply, err := b.conn.evalStrings(ctx, addScript, []string{b.key, b.next}, addArgs(items, g, at.staging)...)
		if err != nil {
			return b.keyError(err)
		}
		switch status := reply[0]; {
		case status == "added" && len(reply) == 2:
			return readDigits(reply[1], added)
		case status == "missing", status == "staged":
			b.stale(g)
			at.staged = status == "staged"
			return fmt.Errorf("no such key: %w", ErrNotReady)
		case status == "filter":
			b.stale(g)
		case status == "staging" && len(reply) == 2:
			if at.staging, err = stagingGeometry(reply[1]); err != nil {
				return fmt.Errorf("a rebuild fills %q: %w", b.next, err)
			}
		case status == "companion":
			return fmt.Errorf("%q holds a foreign string: %w", b.next, ErrCorrupt)
		default:
			return fmt.Errorf("add script answered %q", reply)
		}
	}
	return b.errUnsettled()
}

// addArgs are the arguments of lua/add.lua.
func addArgs(items []string, geometries ...*geometry) []any {
	args := []any{magicLive, magicStaging, magicMarker, offFingerprint}
	for _, g := range geometries {
		if g == nil {
			args = append(args, "", 0, 0, "")
			continue
		}
		args = append(args, g.trailer(), g.size, g.params.Hashes, g.packOffsets(items))
	}
	return args
}

// stagingGeometry reads the header of a filter that a rebuild is filling.
func stagingGeometry(head string) (*geometry, error) {
	if len(head) < headerBytes {
		return nil, fmt.Errorf("truncated to %d bytes: %w", len(head), ErrCorrupt)
	}
	h, err := decodeHeader([]byte(head))
	if err != nil {
		return nil, err
	}
	return h.geom, nil
}
