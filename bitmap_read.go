package bloom

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/exists.lua
var luaExists string

var existsScript = newScript(luaExists)

const (
	// maxChunkItems, readChunkBits and addChunkBits bound what one round trip asks
	// of the server: at most about 5 ms of its time, during which nobody else is
	// served. Setting a bit from a script costs it three times as much as reading
	// one.
	maxChunkItems = 1024
	readChunkBits = 8192
	addChunkBits  = 3072
)

// chunkItems is how many items of k bits go into one round trip.
func chunkItems(k, bits int) int { return min(maxChunkItems, max(1, bits/k)) }

// A readMode is how Classic reads. What the server refuses is remembered.
type readMode uint32

const (
	readBitfield readMode = iota // BITFIELD_RO, one native command
	readScriptRO                 // EVALSHA_RO, for ACLs that allow only reading
	readScript                   // EVALSHA, before Redis 7
)

// command returns the scripting command of a mode and what it names the script by.
func (m readMode) command(source bool) (name, script string) {
	name, script = "evalsha", existsScript.sha
	if source {
		name, script = "eval", existsScript.src
	}
	if m == readScriptRO {
		name += "_ro"
	}
	return name, script
}

// Exists reports whether item may be in the filter.
func (b *Bitmap) Exists(ctx context.Context, item string) (bool, error) {
	items, exists := [1]string{item}, [1]bool{true}
	err := b.existsChunk(ctx, items[:], exists[:])
	return exists[0], err
}

// ExistsMulti reports for each item whether it may be in the filter.
func (b *Bitmap) ExistsMulti(ctx context.Context, items []string) ([]bool, error) {
	exists := allTrue(len(items))
	for from := 0; from < len(items); {
		g, err := b.geometry(ctx)
		if err != nil {
			return exists, err
		}
		to := min(len(items), from+chunkItems(g.params.Hashes, readChunkBits))
		if err := b.existsChunk(ctx, items[from:to], exists[from:to]); err != nil {
			return exists, err
		}
		from = to
	}
	return exists, nil
}

// existsWith asks about as many of the first items as go into one round trip, see
// rider.
func (b *Bitmap) existsWith(ctx context.Context, items []string, riders []redis.Cmder) ([]bool, error) {
	k := maxHashes // while the filter has not been seen
	if g := b.geom.Load(); g != nil {
		k = g.params.Hashes
	}
	n := min(len(items), chunkItems(k, readChunkBits))
	exists := allTrue(n)
	return exists, b.existsChunk(ctx, items[:n], exists, present(riders[:n])...)
}

// existsChunk asks about some items in one round trip, and again, whole, where
// the reply shows that the filter has another geometry than the handle believed.
// Riders go with the first trip. On an error exists is all true.
func (b *Bitmap) existsChunk(ctx context.Context, items []string, exists []bool, riders ...redis.Cmder) error {
	mode, source := readMode(b.readMode.Load()), false
	primary := b.staging
	for reread := 0; reread <= maxRereads; {
		g := b.geom.Load()
		if g == nil {
			h, _, err := b.readEnds(ctx, nil, riders...)
			if err != nil {
				return err
			}
			g, riders = h.geom, nil
		}
		r := b.ask(ctx, g, mode, source, items)
		send := b.conn.do
		if primary {
			send = b.read
		}
		if err := send(ctx, append(r.cmds, riders...)...); err != nil {
			return err
		}
		riders = nil
		answered, err := r.answer(exists)
		switch {
		case answered:
			if g.params.Layout == Classic {
				b.readMode.Store(uint32(mode))
			}
			return nil
		case r.refused(err):
			mode++
		case !source && r.unloaded(err):
			source = true
		case err != nil:
			return b.keyError(err)
		default:
			b.stale(g)
			primary = true // a replica is not asked twice: it may have another generation, or none
			reread++
		}
	}
	return b.errUnsettled()
}

// read runs commands that only the primary may answer.
func (b *Bitmap) read(ctx context.Context, cmds ...redis.Cmder) error {
	return b.conn.read(ctx, b.key, cmds...)
}

// bitmapRead is a question that was put: commands whose replies prove that the
// filter is present, whole and of this geometry, or answer nothing.
type bitmapRead struct {
	g    *geometry
	mode readMode
	cmds []redis.Cmder
	h2   []uint64 // Blocked: what the positions in each item's block come from
	args []uint64 // numbers that commands refer to, which costs no allocation for each

	// What these are made of for a single item.
	few struct {
		cmds [2]redis.Cmder // one may ride along
		h2   [1]uint64
		args [2]uint64
	}
}

// ask prepares the read of some items, one round trip. Where a script reads,
// source sends it whole.
func (b *Bitmap) ask(ctx context.Context, g *geometry, mode readMode, source bool, items []string) *bitmapRead {
	r := &bitmapRead{g: g, mode: mode}
	switch {
	case g.params.Layout == Blocked:
		b.askBlocks(ctx, r, items)
	case mode == readBitfield:
		b.askBitfield(ctx, r, items)
	default:
		name, script := mode.command(source)
		r.cmds = []redis.Cmder{evalCmd(ctx, name, script, []string{b.key},
			[]any{g.size, g.trailer(), g.params.Hashes, g.offsetList(items)})}
	}
	return r
}

func (b *Bitmap) askBlocks(ctx context.Context, r *bitmapRead, items []string) {
	r.cmds, r.h2, r.args = r.few.cmds[:0], r.few.h2[:], r.few.args[:]
	if n := len(items); n > 1 {
		r.cmds, r.h2, r.args = make([]redis.Cmder, 0, n), make([]uint64, n), make([]uint64, 2*n)
	}
	var key any = b.key
	for i, item := range items {
		h := r.g.hash(item)
		r.h2[i] = h.h2
		from, to := &r.args[2*i], &r.args[2*i+1]
		*from = headerBytes + h.block(r.g.blocks)*blockBytes
		*to = *from + blockBytes - 1
		r.cmds = append(r.cmds, redis.NewStringCmd(ctx, "getrange", key, from, to))
	}
}

// askBitfield makes one command of the trailer and every bit of every item: it
// is atomic, so the trailer speaks for all bits. A bit past the end reads 0, and
// so does the trailer then.
func (b *Bitmap) askBitfield(ctx context.Context, r *bitmapRead, items []string) {
	r.args = make([]uint64, 0, 1+len(items)*r.g.params.Hashes)
	r.args = append(r.args, r.g.trailerBit())
	for _, item := range items {
		r.args = r.g.appendPositions(r.args, item)
	}
	args := make([]any, 0, 2+3*len(r.args))
	args = append(args, "bitfield_ro", b.key, "get", "u63", &r.args[0])
	for i := 1; i < len(r.args); i++ {
		r.args[i] += bodyBit
		args = append(args, "get", "u1", &r.args[i])
	}
	r.cmds = append(r.few.cmds[:0], redis.NewIntSliceCmd(ctx, args...))
}

// answer reads the replies into exists. Only if it returns true did they prove
// what they say, and only then was exists written; an error is of Redis, neither
// means another filter.
func (r *bitmapRead) answer(exists []bool) (bool, error) {
	for _, cmd := range r.cmds {
		if err := cmd.Err(); err != nil {
			return false, err
		}
	}
	switch cmd := r.cmds[0].(type) {
	case *redis.IntSliceCmd:
		return r.answerBitfield(cmd.Val(), exists)
	case *redis.Cmd:
		return answerDigits(cmd, exists)
	}
	return r.answerBlocks(exists), nil
}

func (r *bitmapRead) answerBitfield(v []int64, exists []bool) (bool, error) {
	k := r.g.params.Hashes
	if len(v) != 1+len(exists)*k {
		return false, fmt.Errorf("BITFIELD_RO answered %d values for %d", len(v), 1+len(exists)*k)
	}
	if uint64(v[0]) != r.g.fingerprint {
		return false, nil
	}
	for i := range exists {
		exists[i] = true
		for _, bit := range v[1+i*k : 1+(i+1)*k] {
			if bit == 0 {
				exists[i] = false
				break
			}
		}
	}
	return true, nil
}

func (r *bitmapRead) answerBlocks(exists []bool) bool {
	for _, cmd := range r.cmds {
		if !r.g.ownsBlock(cmd.(*redis.StringCmd).Val()) {
			return false
		}
	}
	for i, cmd := range r.cmds {
		exists[i] = inBlockString(cmd.(*redis.StringCmd).Val(), r.h2[i], r.g.params.Hashes)
	}
	return true
}

// ownsBlock reports whether a reply is a whole block of this geometry.
func (g *geometry) ownsBlock(block string) bool {
	return len(block) == blockBytes && bigEndian32(block[blockBytes-tagBytes:]) == g.tag
}

func bigEndian32(s string) uint32 {
	return uint32(s[0])<<24 | uint32(s[1])<<16 | uint32(s[2])<<8 | uint32(s[3])
}

func inBlockString(block string, h2 uint64, k int) bool {
	x, bit := h2, uint64(0)
	for range k {
		x, bit = inBlock(x)
		if block[bit>>3]&(0x80>>(bit&7)) == 0 {
			return false
		}
	}
	return true
}

// answerDigits reads a script's reply, one '0' or '1' an item.
func answerDigits(cmd *redis.Cmd, exists []bool) (bool, error) {
	s, err := cmd.Text()
	if err != nil || s == "" {
		return false, err
	}
	return true, readDigits(s, exists)
}

func readDigits(s string, out []bool) error {
	if len(s) != len(out) {
		return fmt.Errorf("script answered %d items instead of %d", len(s), len(out))
	}
	for i := range out {
		out[i] = s[i] != '0'
	}
	return nil
}

// refused reports whether the server does not know the command, and there is
// another to try.
func (r *bitmapRead) refused(err error) bool {
	return r.g.params.Layout == Classic && r.mode < readScript && isRefused(err)
}

// unloaded reports whether the server does not have the script.
func (r *bitmapRead) unloaded(err error) bool {
	return r.mode != readBitfield && isNoScript(err)
}

// offsetList lists the bit offsets of all items, from the start of the string, for
// a script: in decimal, since there they are the arguments of commands as they are.
func (g *geometry) offsetList(items []string) []byte {
	list := make([]byte, 0, 11*len(items)*g.params.Hashes) // a string holds at most 2³² bits: ten digits and a space
	var few [maxHashes]uint64
	for _, item := range items {
		for _, bit := range g.appendPositions(few[:0], item) {
			list = append(strconv.AppendUint(list, bodyBit+bit, 10), ' ')
		}
	}
	return list
}

func allTrue(n int) []bool {
	b := make([]bool, n)
	for i := range b {
		b[i] = true
	}
	return b
}
