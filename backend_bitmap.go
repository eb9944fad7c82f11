package bloom

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Bitmap keeps a filter in one native Redis string: no module, no second key.
// It needs Redis 5 or later (Classic reads best from 6.0 on), or anything that
// speaks its commands: GETRANGE, SETRANGE, SETBIT, STRLEN, BITCOUNT and scripts.
//
// A Bitmap is safe for concurrent use. It follows the stored filter: after the
// filter was made anew, by any process and of any size, the next call reads and
// writes the new one.
type Bitmap struct {
	conn  conn
	key   string
	next  string // companion key: where a rebuild fills the next generation
	place shardPlace

	geom     atomic.Pointer[geometry] // as last read; every reply proves it again
	readMode atomic.Uint32            // a readMode
	staging  bool                     // of a rebuild, so replicas are never asked
}

var _ Backend = (*Bitmap)(nil)

// NewBitmap returns the filter at key on the server of rdb: a *redis.Client, a
// *redis.ClusterClient or a *redis.AutoPipeliner of either. With the last, calls of
// goroutines that come while a pipeline is under way go together in the next; its
// AutoPipelineOptions do not matter for them, hooks of the client see a context
// without the callers' values, and on a cluster a pipeline takes as long as its
// slowest node, so that one that hangs is felt by all who share it. NewBitmap does
// no I/O; what is wrong with rdb or key, [New] says.
//
// The key may be any bytes, with braces only as one non-empty hash tag. A rebuild
// of "orders" works at "{orders}:next", one of "a{t}b" at "{t}:next:a{t}b", in
// the same cluster slot.
func NewBitmap(rdb redis.Cmdable, key string) *Bitmap {
	return &Bitmap{conn: conn{rdb: rdb}, key: key, next: companionKey(key, "next"), place: alone}
}

func (b *Bitmap) withReplicas(cfg Config) Backend {
	c := b.placed(b.place).(*Bitmap)
	c.conn.setReplicas(cfg)
	return c
}

const (
	// maxRereads bounds how often one call follows a filter that was made anew
	// under it. More than once within a call is no rebuild but a fault.
	maxRereads = 3

	// createWait is how long a marker of CreateEmpty lives, so how long a
	// creator that died between its two scripts is in nobody's way.
	createWait = 10 * time.Second
)

var (
	//go:embed lua/now.lua
	luaNow string
	//go:embed lua/claim.lua
	luaClaim string
	//go:embed lua/create.lua
	luaCreate string
	//go:embed lua/reset.lua
	luaReset string
	//go:embed lua/drop.lua
	luaDrop string

	claimScript  = newScript(luaNow + luaClaim)
	createScript = newScript(luaNow + luaCreate)
	resetScript  = newScript(luaNow + luaReset)
	dropScript   = newScript(luaDrop)
)

// Key returns the filter's key.
func (b *Bitmap) Key() string { return b.key }

// Check refuses a size that one key cannot hold, an unusable key or client.
func (b *Bitmap) Check(cfg Config) error {
	if b == nil {
		return fmt.Errorf("bloom: nil *Bitmap: %w", ErrInvalidParams)
	}
	if err := checkClient(b.conn.rdb, cfg); err != nil {
		return err
	}
	if err := checkKey(b.key); err != nil {
		return err
	}
	if cfg.Capacity == 0 {
		return nil
	}
	_, err := NewParams(cfg.Capacity, cfg.FPRate, cfg.Layout)
	return err
}

// Ready reports whether the filter is present and whole.
func (b *Bitmap) Ready(ctx context.Context) error {
	_, err := b.readWhole(ctx)
	return err
}

// CreateEmpty attaches to a filter that satisfies cfg, or makes an empty one.
func (b *Bitmap) CreateEmpty(ctx context.Context, cfg Config) error {
	params, err := NewParams(cfg.Capacity, cfg.FPRate, cfg.Layout)
	if err != nil {
		return err
	}
	random := randomToken()
	for range maxRereads {
		h, err := b.readWhole(ctx)
		if err == nil {
			return attach(h.geom.params, params)
		}
		if !isNotReady(err) {
			return err
		}
		status, err := b.create(ctx, params, cfg.TTL, random)
		switch {
		case err != nil:
			return b.keyError(err)
		case status == "staging":
			return fmt.Errorf("%q exists: %w", b.next, ErrRebuilding)
		case status == "foreign":
			return fmt.Errorf("the key holds an empty string: %w", ErrCorrupt)
		case status == "made":
			return nil
		}
	}
	return fmt.Errorf("the key changed %d times meanwhile: %w", maxRereads, ErrNotReady)
}

// attach decides whether a stored filter serves a configuration.
func attach(stored, want Params) error {
	if stored.Layout != want.Layout || stored.Capacity < want.Capacity || stored.FPRate > want.FPRate {
		return fmt.Errorf("stored is %v for %d items at %v, wanted %v for %d at %v: %w",
			stored.Layout, stored.Capacity, stored.FPRate, want.Layout, want.Capacity, want.FPRate, ErrParamsMismatch)
	}
	return nil
}

// create plants a marker, or adopts another creator's, and completes it.
func (b *Bitmap) create(ctx context.Context, params Params, ttl time.Duration, random []byte) (string, error) {
	keys := []string{b.key, b.next}
	claim, err := b.conn.evalStrings(ctx, claimScript, keys, magicMarker, random, createWait.Milliseconds())
	if err != nil || claim[0] != "marker" {
		return first(claim), err
	}
	h := header{geom: newGeometry(params, randomSeed(), b.place), purpose: purposeEmpty, generation: 1}
	made, err := b.conn.change(ctx, createScript, keys, magicMarker, claim[1], h.encode(magicLive),
		h.geom.size, h.geom.trailer(), h.geom.tagString(), ttl.Milliseconds(), offCreated)
	return first(made), err
}

// Reset makes the stored filter empty again, in place.
func (b *Bitmap) Reset(ctx context.Context) error {
	random := randomToken()
	for range maxRereads {
		h, err := b.readWhole(ctx)
		if err != nil {
			return err
		}
		g := h.geom
		tail := make([]byte, offCreated-offPurpose)
		tail[0] = purposeEmpty
		binary.BigEndian.PutUint64(tail[offGeneration-offPurpose:], h.generation+1)
		done, err := b.conn.change(ctx, resetScript, []string{b.key, b.next}, magicLive, h.token[:], random,
			g.size, g.trailer(), g.tagString(), headerBytes, offPurpose, tail, offToken)
		switch {
		case err != nil:
			return b.keyError(err)
		case done[0] == "staging":
			return fmt.Errorf("%q exists: %w", b.next, ErrRebuilding)
		case done[0] == "done":
			return nil
		}
	}
	return fmt.Errorf("the filter changed %d times meanwhile: %w", maxRereads, ErrCorrupt)
}

// Drop removes the filter and what a rebuild is filling, as they are now. What
// is no filter stays, with ErrCorrupt.
func (b *Bitmap) Drop(ctx context.Context) error {
	live := redis.NewStringCmd(ctx, "getrange", b.key, 0, offTokenEnd-1)
	next := redis.NewStringCmd(ctx, "getrange", b.next, 0, offTokenEnd-1)
	if err := b.read(ctx, live, next); err != nil {
		return err
	}
	for _, cmd := range []*redis.StringCmd{live, next} {
		if err := cmd.Err(); err != nil {
			return fmt.Errorf("%q: %w", cmd.Args()[1], b.keyError(err))
		}
		v := cmd.Val()
		if v != "" && !isOurs(v) {
			return fmt.Errorf("%q holds a foreign string, which stays: %w", cmd.Args()[1], ErrCorrupt)
		}
		if p, ok := placeOf(v); ok && !p.sameStored(b.place) {
			return b.place.mismatch(p)
		}
	}
	_, err := b.conn.change(ctx, dropScript, []string{b.key, b.next}, live.Val(), next.Val(), offTokenEnd)
	b.geom.Store(nil)
	return b.keyError(err)
}

func isOurs(s string) bool {
	return strings.HasPrefix(s, magicLive) || strings.HasPrefix(s, magicStaging) || strings.HasPrefix(s, magicMarker)
}

// placeOf reads the place from the first bytes of a filter or of staging, of its
// hash key the fingerprint.
func placeOf(head string) (shardPlace, bool) {
	if len(head) < offHashKey+8 {
		return shardPlace{}, false
	}
	key := uint64(bigEndian32(head[offHashKey:]))<<32 | uint64(bigEndian32(head[offHashKey+4:]))
	p := shardPlace{bigEndian32(head[offShard:]), bigEndian32(head[offShards:]), hashKey{fingerprint: key}}
	return p, p.index < p.count // else it is no header
}

// readWhole reads the header and proves by the trailer that the string has its
// whole length, no more and no less.
func (b *Bitmap) readWhole(ctx context.Context) (*header, error) {
	guess := b.geom.Load()
	for range 1 + maxRereads {
		h, end, err := b.readEnds(ctx, guess)
		if err != nil {
			return nil, err
		}
		if guess != nil && guess.fingerprint == h.geom.fingerprint {
			if end == string(guess.trailer()) {
				return h, nil
			}
			// Header and trailer are two commands: the next round tells a filter
			// that was made anew between them from one that lost its end.
		}
		guess = h.geom
	}
	return nil, fmt.Errorf("the trailer is not where the header puts it: %w", ErrCorrupt)
}

// readEnds reads the header and, given a geometry, what stands from its trailer
// on, in one round trip with commands of the caller's.
func (b *Bitmap) readEnds(ctx context.Context, guess *geometry, riders ...redis.Cmder) (*header, string, error) {
	head := redis.NewStringCmd(ctx, "getrange", b.key, 0, headerBytes-1)
	cmds := []redis.Cmder{head}
	var end *redis.StringCmd
	if guess != nil {
		from := guess.size - trailerBytes
		end = redis.NewStringCmd(ctx, "getrange", b.key, from, from+trailerBytes) // one byte more shows a longer string
		cmds = append(cmds, end)
	}
	if err := b.read(ctx, append(cmds, riders...)...); err != nil {
		return nil, "", err
	}
	h, err := b.parseHead(head)
	if err != nil || end == nil {
		return h, "", err
	}
	return h, end.Val(), b.keyError(end.Err())
}

// parseHead reads the reply to a GETRANGE of the header, and remembers the
// geometry for the calls to come.
func (b *Bitmap) parseHead(head *redis.StringCmd) (*header, error) {
	if err := head.Err(); err != nil {
		return nil, b.keyError(err)
	}
	h, err := parseHeader([]byte(head.Val()), b.place.key)
	if err != nil {
		b.geom.Store(nil)
		return nil, err
	}
	if h.geom.place != b.place {
		b.geom.Store(nil)
		return nil, b.place.mismatch(h.geom.place)
	}
	if known := b.geom.Load(); known != nil && *known == *h.geom {
		h.geom = known
	} else {
		b.geom.Store(h.geom)
	}
	return h, nil
}

// geometry returns the geometry as last read, or reads it.
func (b *Bitmap) geometry(ctx context.Context) (*geometry, error) {
	if g := b.geom.Load(); g != nil {
		return g, nil
	}
	h, _, err := b.readEnds(ctx, nil)
	if err != nil {
		return nil, err
	}
	return h.geom, nil
}

// stale forgets g, which a reply disproved.
func (b *Bitmap) stale(g *geometry) { b.geom.CompareAndSwap(g, nil) }

// errUnsettled is what is left when re-reading did not help.
func (b *Bitmap) errUnsettled() error {
	return fmt.Errorf("header and bits still do not fit after %d reads of the header: %w", maxRereads, ErrCorrupt)
}

// keyError maps an error of Redis that tells about the key.
func (b *Bitmap) keyError(err error) error {
	if isWrongType(err) {
		return fmt.Errorf("the key is no string: %w (%w)", ErrCorrupt, err)
	}
	return err
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

// randomToken returns the creator's part of a token; the server adds its clock.
func randomToken() []byte {
	b := make([]byte, randomBytes)
	_, _ = rand.Read(b) // never fails, see crypto/rand
	return b
}

// randomSeed returns any seed but that of the routing.
func randomSeed() uint32 {
	for {
		if seed := binary.BigEndian.Uint32(randomToken()); seed != routingSeed {
			return seed
		}
	}
}
