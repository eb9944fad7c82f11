package bloom

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// mergeChunk is how many bytes of the filter one merge script ORs: about a
// millisecond of the server's time. A multiple of a block.
const mergeChunk = 64 << 10

var (
	//go:embed lua/open.lua
	luaOpen string
	//go:embed lua/renew.lua
	luaRenew string
	//go:embed lua/merge.lua
	luaMerge string
	//go:embed lua/publish.lua
	luaPublish string

	openScript    = newScript(luaNow + luaOpen)
	renewScript   = newScript(luaRenew)
	mergeScript   = newScript(luaMerge)
	publishScript = newScript(luaNow + luaPublish)
)

// bitmapBuild is the next generation of a Bitmap: its bits in this process, and
// its staging in Redis, which adders write as well.
type bitmapBuild struct {
	b     *Bitmap
	geom  *geometry
	local *memoryFilter // nil where the filter stays empty
	token string
	wish  wish
}

// openBuild opens staging by lua/open.lua.
func (b *Bitmap) openBuild(ctx context.Context, w wish) (build, RebuildReport, error) {
	random := randomToken()
	for range 1 + maxRereads {
		live, token, err := b.liveHeader(ctx)
		if err != nil {
			return nil, RebuildReport{}, err
		}
		if w.empty && live != nil {
			return nil, RebuildReport{}, errPresent
		}
		g, err := buildGeometry(w, live, b.place)
		if err != nil {
			return nil, RebuildReport{}, err
		}
		d := &bitmapBuild{b: b, geom: g, wish: w}
		young := time.Duration(0)
		if live != nil && live.purpose == purposeRebuilt && g.params.satisfiedBy(live.geom.params) {
			young = w.maxAge
		}
		h := d.opened()
		var tag []byte
		if w.empty { // nothing will be merged
			tag = g.tagString()
		}
		reply, err := b.conn.evalStrings(ctx, openScript, []string{b.key, b.next}, magicLive, magicStaging, magicMarker,
			random, h.encode(magicStaging), g.size, g.trailer(), w.lease.Milliseconds(),
			offToken, offCreated, token, young.Microseconds(), tag)
		if err != nil {
			return nil, RebuildReport{}, b.keyError(err)
		}
		switch status := reply[0]; {
		case status == "open" && len(reply) == 2:
			if d.token = reply[1]; !w.empty {
				d.local = newMemoryFilter(h)
			}
			return d, RebuildReport{}, nil
		case status == "busy":
			return nil, RebuildReport{}, fmt.Errorf("%q is leased for another %s ms: %w", b.next, reply[1], ErrRebuilding)
		case status == "young":
			return nil, RebuildReport{Generation: live.generation, Params: live.geom.params, Bytes: live.geom.size}, errYoung
		case status == "foreign":
			return nil, RebuildReport{}, fmt.Errorf("the key holds a foreign string: %w", ErrCorrupt)
		case status == "done":
			return nil, RebuildReport{}, fmt.Errorf("a token came twice: %w", ErrRebuilding)
		}
	}
	return nil, RebuildReport{}, fmt.Errorf("the filter changed %d times meanwhile: %w", 1+maxRereads, ErrRebuilding)
}

// opened is the header of staging as it is opened, but for what the script writes.
// Where nothing will be merged all is counted as merged.
func (d *bitmapBuild) opened() header {
	h := header{geom: d.geom, purpose: d.wish.purpose(), generation: 1}
	if d.wish.empty {
		h.merged = d.chunks()
	}
	return h
}

// liveHeader reads the live filter's header if it is there and whole, and before
// that its token, whole or not. One that is damaged counts as missing: a rebuild
// is what mends it.
func (b *Bitmap) liveHeader(ctx context.Context) (h *header, token string, err error) {
	cmd := redis.NewStringCmd(ctx, "getrange", b.key, offToken, offTokenEnd-1)
	if err := b.read(ctx, cmd); err != nil {
		return nil, "", err
	}
	if err := cmd.Err(); err != nil {
		return nil, "", b.keyError(err)
	}
	h, err = b.readWhole(ctx)
	if isNotReady(err) || isCorrupt(err) {
		err = nil
	}
	return h, cmd.Val(), err
}

// buildGeometry is the geometry of the next generation. If its parameters are the
// live filter's, so are its positions: then the swap disturbs no reader.
func buildGeometry(w wish, live *header, place shardPlace) (*geometry, error) {
	var now *Params
	if live != nil {
		now = &live.geom.params
	}
	cfg, err := w.resolve(now)
	if err != nil {
		return nil, err
	}
	p, err := NewParams(cfg.Capacity, cfg.FPRate, cfg.Layout)
	if err != nil {
		return nil, err
	}
	seed := randomSeed()
	if now != nil && *now == p {
		seed = live.geom.seed
	}
	return newGeometry(p, seed, place), nil
}

func (d *bitmapBuild) params() Params { return d.geom.params }

func (d *bitmapBuild) bytes() uint64 { return d.geom.size }

func (d *bitmapBuild) add(_ context.Context, item string) error {
	d.local.addAlone(item)
	return nil
}

func (d *bitmapBuild) distinct() uint64 { return d.params().itemsFor(d.local.bitsSet()) }

func (d *bitmapBuild) liveItems(ctx context.Context) (uint64, error) {
	info, err := d.b.Info(ctx)
	if isNotReady(err) || isCorrupt(err) {
		return 0, nil
	}
	return info.Items, err
}

// merge sends the chunks that staging does not count yet, in order.
func (d *bitmapBuild) merge(ctx context.Context, progress func(done, total uint64)) error {
	if d.local == nil {
		return nil
	}
	body := d.geom.params.bodyBytes()
	buf := make([]byte, 0, mergeChunk)
	for i := uint64(0); i < d.chunks(); {
		from := i * mergeChunk
		buf = d.local.appendBody(buf[:0], from, min(body, from+mergeChunk))
		counted, err := d.mergeOne(ctx, i, buf)
		if err != nil {
			return err
		}
		i = counted // usually i + 1; less where the server lost some, more where a first try was merged
		progress(min(body, i*mergeChunk), body)
	}
	return nil
}

// mergeOne sends chunk i and returns how many chunks staging counts. data is the
// caller's again unless there is an error: then a client may yet be sending it.
func (d *bitmapBuild) mergeOne(ctx context.Context, i uint64, data []byte) (counted uint64, err error) {
	keys := []string{d.b.next, companionKey(d.b.key, "next-a"), companionKey(d.b.key, "next-b")}
	if allZero(data) {
		data = nil
	}
	reply, err := d.b.conn.evalStrings(ctx, mergeScript, keys, d.token, offToken, offMerged, i, headerBytes+i*mergeChunk, data)
	if err != nil {
		return 0, d.b.keyError(err)
	}
	if reply[0] != "merged" || len(reply) != 2 {
		return 0, errLeaseLost
	}
	if counted, err = strconv.ParseUint(reply[1], 10, 64); err != nil {
		return 0, fmt.Errorf("merge script answered %q", reply)
	}
	return counted, nil
}

func (d *bitmapBuild) chunks() uint64 {
	return (d.geom.params.bodyBytes() + mergeChunk - 1) / mergeChunk
}

// lookUp reads staging with its own geometry. Whatever else is there is an error.
func (d *bitmapBuild) lookUp(ctx context.Context, items []string) ([]bool, error) {
	staging := &Bitmap{conn: conn{rdb: d.b.conn.rdb, replicas: d.b.conn.replicas}, key: d.b.next, place: d.b.place, staging: true}
	staging.readMode.Store(d.b.readMode.Load())
	staging.geom.Store(d.geom)
	found, err := staging.ExistsMulti(ctx, items)
	if isNotReady(err) || isCorrupt(err) {
		err = errLeaseLost
	}
	return found, err
}

func (d *bitmapBuild) renew(ctx context.Context) error {
	reply, err := d.b.conn.evalStrings(ctx, renewScript, []string{d.b.next}, d.token, offToken, d.wish.lease.Milliseconds())
	if err != nil {
		return d.b.keyError(err)
	}
	if reply[0] != "renewed" {
		return errLeaseLost
	}
	return nil
}

func (d *bitmapBuild) publish(ctx context.Context) (uint64, error) {
	g, onlyMissing := d.geom, ""
	if d.wish.empty {
		onlyMissing = "1"
	}
	reply, err := d.b.conn.change(ctx, publishScript, []string{d.b.key, d.b.next}, magicLive, magicStaging, magicMarker,
		d.token, offToken, offMerged, binary.BigEndian.AppendUint64(nil, d.chunks()), g.size, g.trailer(),
		d.wish.ttl.Milliseconds(), offGeneration, onlyMissing)
	if err != nil && !isShort(err) {
		return 0, d.b.keyError(err)
	}
	switch status := reply[0]; {
	case status == "done" && len(reply) == 2:
		return publishedAs(reply[1], err)
	case status == "back":
		return 0, errMergeAgain
	case status == "foreign":
		return 0, fmt.Errorf("the key holds a foreign string: %w", ErrCorrupt)
	case status == "present":
		return 0, errPresent
	}
	return 0, errLeaseLost
}

// publishedAs reads the generation that a publish script answered. short is nil, or
// says that too few replicas have it.
func publishedAs(generation string, short error) (uint64, error) {
	n, err := strconv.ParseUint(generation, 10, 64)
	if err == nil {
		err = short
	}
	return n, err
}

// abort removes staging as it was opened, token included.
func (d *bitmapBuild) abort(ctx context.Context) error {
	h := d.opened()
	copy(h.token[:], d.token)
	_, err := d.b.conn.eval(ctx, dropScript, []string{d.b.key, d.b.next}, "", h.encode(magicStaging)[:offTokenEnd], offTokenEnd)
	return err
}

// addAlone is add for a filter that no other goroutine has.
func (f *memoryFilter) addAlone(item string) {
	var few [maxHashes]uint64
	for _, bit := range f.geom.appendPositions(few[:0], item) {
		f.words[bit>>6] |= uint64(1) << 63 >> (bit & 63)
	}
}

// appendBody appends the bytes [from, to) of the body; from is a multiple of 8.
func (f *memoryFilter) appendBody(dst []byte, from, to uint64) []byte {
	want := len(dst) + int(to-from)
	for i := from / 8; i*8 < to; i++ {
		dst = binary.BigEndian.AppendUint64(dst, f.words[i])
	}
	return dst[:want]
}
