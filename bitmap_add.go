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
	var at addGeometry
	err := b.addChunk(ctx, []string{item}, added[:], &at)
	return added[0], worse(err, at.short)
}

// AddMulti adds all items, chunk by chunk. After an error the items of the
// chunks before it are in; the rest may be. But while a rebuild runs all items
// reach the generation that it fills, also where an error says that the filter is
// missing or damaged: what that rebuild publishes must have them.
func (b *Bitmap) AddMulti(ctx context.Context, items []string) ([]bool, error) {
	added := allTrue(len(items))
	var at addGeometry
	var failed error
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
			failed = err
		}
		from = to
	}
	return added, worse(failed, at.short)
}

// addGeometry is what an adder knows of the two filters that it writes.
type addGeometry struct {
	staging *geometry // nil: unknown, or of the filter's own geometry
	staged  bool      // the last chunk is in staging alone
	short   error     // a chunk did not reach enough replicas; those behind it don't wait
}

// addChunk adds some items to the filter and to staging. Where the filter is
// damaged, which is an error, staging gets them all the same.
func (b *Bitmap) addChunk(ctx context.Context, items []string, added []bool, at *addGeometry) error {
	at.staged = false
	damage := b.addBoth(ctx, items, added, at)
	if !isCorrupt(damage) {
		return damage
	}
	if err := b.addStaging(ctx, items, at); err != nil || at.staged {
		return damage
	}
	// No staging any more: if it was published meanwhile, that mended the filter.
	if _, err := b.readWhole(ctx); err == nil {
		return b.addBoth(ctx, items, added, at)
	}
	return damage
}

// addStaging adds some items to staging alone. at.staged says whether there is one.
func (b *Bitmap) addStaging(ctx context.Context, items []string, at *addGeometry) error {
	for range 1 + maxRereads {
		reply, err := b.conn.evalStrings(ctx, addScript, []string{b.key, b.next}, append(addArgs(items, nil, at.staging), "staging")...)
		if err != nil {
			return b.keyError(err)
		}
		if reply[0] != "staging" || len(reply) != 2 {
			at.staged = reply[0] == "staged"
			return nil
		}
		if at.staging, err = b.stagingGeometry(reply[1]); err != nil {
			return err
		}
	}
	return nil
}

// addBoth adds some items by one script, and by another one where that says
// that it lacks the positions for one of the two filters.
func (b *Bitmap) addBoth(ctx context.Context, items []string, added []bool, at *addGeometry) error {
	for reread := 0; reread <= maxRereads; reread++ {
		g, err := b.geometry(ctx)
		if err != nil && !isNotReady(err) {
			return err
		}
		run, args := b.conn.evalStrings, addArgs(items, g, at.staging)
		if b.conn.wait.replicas > 0 && at.short == nil {
			run, args = b.conn.change, append(args, "write")
		}
		reply, err := run(ctx, addScript, []string{b.key, b.next}, args...)
		if err != nil && !isShort(err) {
			return b.keyError(err)
		}
		status := reply[0]
		if err != nil && (status == "added" || status == "staged") {
			at.short = err
		}
		switch {
		case status == "added" && len(reply) == 2:
			return readDigits(reply[1], added)
		case status == "missing", status == "staged":
			b.stale(g)
			at.staged = status == "staged"
			return fmt.Errorf("no such key: %w", ErrNotReady)
		case status == "filter":
			b.stale(g)
		case status == "staging" && len(reply) == 2:
			known := at.staging
			if at.staging, err = b.stagingGeometry(reply[1]); err != nil {
				return fmt.Errorf("a rebuild fills %q: %w", b.next, err)
			}
			if known == nil || known.fingerprint != at.staging.fingerprint {
				reread-- // no fault: a rebuild opened anew; the caller's context bounds that
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
	args := []any{magicLive, magicStaging, magicMarker, offVersion}
	for _, g := range geometries {
		if g == nil {
			args = append(args, "", "", 0, 0, "")
			continue
		}
		args = append(args, g.fixed(), g.trailer(), g.size, g.params.Hashes, g.offsetList(items))
	}
	return args
}

// stagingGeometry reads the header of a filter that a rebuild is filling.
func (b *Bitmap) stagingGeometry(head string) (*geometry, error) {
	if len(head) < headerBytes {
		return nil, fmt.Errorf("truncated to %d bytes: %w", len(head), ErrCorrupt)
	}
	h, err := decodeHeader([]byte(head), b.place.key)
	if err != nil {
		return nil, err
	}
	if h.geom.place != b.place {
		return nil, b.place.mismatch(h.geom.place)
	}
	return h.geom, nil
}
