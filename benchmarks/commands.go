package main

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
)

// A candidate is one way to do with Redis' commands what a Bitmap does. None of them
// proves anything: bare commands are compared, on the same bits.
type candidate struct {
	name    string
	verdict string // whether it was taken, and if not, why
	send    func(ctx context.Context, items []string) error
}

//go:embed blocks.lua
var readBlocks string

//go:embed setlist.lua
var setList string

//go:embed setfields.lua
var setFields string

var (
	readBlocksScript = redis.NewScript(readBlocks)
	setListScript    = redis.NewScript(setList)
	setFieldsScript  = redis.NewScript(setFields)
)

// measureCommands measures what the server and the client pay for an item by each
// of the commands that could do the work.
func measureCommands(ctx context.Context, b *bench, s *section) error {
	d := b.main()
	drop, err := b.stored(ctx, d)
	defer drop()
	if err != nil {
		return err
	}
	p, err := bloom.NewParams(d.capacity, d.rate, bloom.Classic)
	if err != nil {
		return err
	}
	all := candidates(b.local.rdb, d.key("bits"), p)
	items := probes(1<<15, d.items)
	for _, size := range []int{1, 1000} {
		if err := inShortTurns(ctx, b.sc.rounds, b.sc.window, turnOf(size), all, func(c candidate, window time.Duration, sum *cost) error {
			one := func(ctx context.Context, item string) (bool, error) { return true, c.send(ctx, []string{item}) }
			many := func(ctx context.Context, items []string) ([]bool, error) { return nil, c.send(ctx, items) }
			x := &subject{server: b.local, exists: one, many: many}
			if err := x.cost(ctx, size, window, sum, items); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			return nil
		}, func(c candidate, sum cost) {
			s.record(c.name, batchOf(size), float64(size), "server CPU", "µs", sum.perItem(sum.server))
			s.record(c.name, batchOf(size), float64(size), "client CPU", "µs", sum.perItem(sum.client))
		}); err != nil {
			return err
		}
	}
	return nil
}

// candidates do the same on the textbook's bits at key: positions in one string.
func candidates(rdb *redis.Client, key string, p bloom.Params) []candidate {
	positions := textbookBits(p)
	args := func(items []string, each ...any) []any { // each, where nil stands for the offset
		var out []any
		for _, bit := range bitsOf(positions, items) {
			for _, x := range each {
				if x == nil {
					x = bit
				}
				out = append(out, x)
			}
		}
		return out
	}
	list := func(items []string) []byte {
		var out []byte
		for _, bit := range bitsOf(positions, items) {
			out = append(strconv.AppendUint(out, bit, 10), ' ')
		}
		return out
	}
	pipelined := func(ctx context.Context, n int, cmd func(i int) redis.Cmder) error {
		_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := range n {
				if err := pipe.Process(ctx, cmd(i)); err != nil {
					return err
				}
			}
			return nil
		})
		return err
	}
	// Blocks as Blocked has them: 64 bytes, of which the item's positions say which.
	block := func(item string) int64 { return int64(positions(nil, item)[0] % (p.Bits / 512) * 64) }
	field := func(name string, args []any) redis.Cmder {
		return redis.NewSliceCmd(context.Background(), append([]any{name, key}, args...)...)
	}

	return []candidate{
		{nameReads + "one BITFIELD_RO for all bits", "Classic reads with it", func(ctx context.Context, items []string) error {
			return rdb.Process(ctx, field("bitfield_ro", args(items, "get", "u1", nil)))
		}},
		{nameReads + "one BITFIELD_RO an item, pipelined", "more commands, and no proof for all in one", func(ctx context.Context, items []string) error {
			return pipelined(ctx, len(items), func(i int) redis.Cmder {
				return field("bitfield_ro", args(items[i:i+1], "get", "u1", nil))
			})
		}},
		{nameReads + "GETBITs, pipelined", "k commands an item, and other clients come between them", func(ctx context.Context, items []string) error {
			bits := bitsOf(positions, items)
			return pipelined(ctx, len(bits), func(i int) redis.Cmder { return redis.NewIntCmd(ctx, "getbit", key, bits[i]) })
		}},
		{nameReads + "GETBITs in a script, up to the first 0", "where there is no BITFIELD_RO", func(ctx context.Context, items []string) error {
			return getBitsScript.Run(ctx, rdb, []string{key}, append([]any{p.Hashes}, args(items, nil)...)...).Err()
		}},
		{nameBlocks + "one GETRANGE an item, pipelined", "Blocked reads with it", func(ctx context.Context, items []string) error {
			return pipelined(ctx, len(items), func(i int) redis.Cmder {
				from := block(items[i])
				return redis.NewStringCmd(ctx, "getrange", key, from, from+63)
			})
		}},
		{nameBlocks + "GETRANGEs in a script that answers the blocks", "a script costs more than the commands that it saves", func(ctx context.Context, items []string) error {
			all := make([]any, len(items))
			for i, item := range items {
				all[i] = block(item)
			}
			return readBlocksScript.Run(ctx, rdb, []string{key}, all...).Err()
		}},
		{nameBlocks + "one BITFIELD_RO for tag and bits of all", "what Classic costs, with a tag an item", func(ctx context.Context, items []string) error {
			var all []any
			for _, item := range items {
				from := block(item) * 8
				all = append(all, "get", "u32", from+480)
				for _, bit := range positions(nil, item) {
					all = append(all, "get", "u1", from+int64(bit%480))
				}
			}
			return rdb.Process(ctx, field("bitfield_ro", all))
		}},
		{nameSets + "SETBITs in a script, offsets in one string", "Bitmap adds with it", func(ctx context.Context, items []string) error {
			return setListScript.Run(ctx, rdb, []string{key}, p.Hashes, list(items)).Err()
		}},
		{nameSets + "SETBITs in a script, an argument an offset", "the same, and more bytes", func(ctx context.Context, items []string) error {
			return setBitsScript.Run(ctx, rdb, []string{key}, args(items, nil)...).Err()
		}},
		{nameSets + "BITFIELDs in a script", "saves a fraction of a batch; costs a single add more, and every ACL one more command", func(ctx context.Context, items []string) error {
			return setFieldsScript.Run(ctx, rdb, []string{key}, p.Hashes, list(items)).Err()
		}},
		{nameSets + "SETBITs, pipelined, no script", "writes to whatever is there: a filter of another size, a foreign key, none", func(ctx context.Context, items []string) error {
			bits := bitsOf(positions, items)
			return pipelined(ctx, len(bits), func(i int) redis.Cmder { return redis.NewIntCmd(ctx, "setbit", key, bits[i], 1) })
		}},
		{nameSets + "one BITFIELD, no script", "likewise", func(ctx context.Context, items []string) error {
			return rdb.Process(ctx, field("bitfield", args(items, "set", "u1", nil, 1)))
		}},
	}
}

const (
	nameReads  = "Read k bits: "
	nameBlocks = "Read a block: "
	nameSets   = "Set k bits: "
)

func commandTables(s *section) []table {
	t := table{name: "commands", header: []string{"", "server CPU per item of 1000, µs", "of a single one", "client CPU per item of 1000, µs", ""}}
	verdicts := map[string]string{}
	for _, c := range candidates(nil, "", bloom.Params{}) { // only what is said of them
		verdicts[c.name] = c.verdict
	}
	for _, name := range s.subjects() {
		t.rows = append(t.rows, []string{name, withSpread(s.find(name, batchOf(1000), "server CPU")),
			plain(s.find(name, batchOf(1), "server CPU")), plain(s.find(name, batchOf(1000), "client CPU")), verdicts[name]})
	}
	return []table{t}
}
