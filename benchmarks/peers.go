package main

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
	"github.com/spaolacci/murmur3"
	zerobloom "github.com/zeromicro/go-zero/core/bloom"
	"github.com/zeromicro/go-zero/core/hash"
	zeroredis "github.com/zeromicro/go-zero/core/stores/redis"
)

// bare is RedisBloom without a proof that the filter is there.
func bare(server *host, rdb redis.Cmdable, key string) *subject {
	return &subject{
		name: nameBare, server: server, key: key,
		exists: func(ctx context.Context, item string) (bool, error) { return rdb.BFExists(ctx, key, item).Result() },
		many: func(ctx context.Context, items []string) ([]bool, error) {
			return nil, inPipelines(items, func(chunk []string) error { return rdb.BFMExists(ctx, key, anys(chunk)...).Err() })
		},
		add: func(ctx context.Context, items []string) error {
			return inPipelines(items, func(chunk []string) error { return rdb.BFMAdd(ctx, key, anys(chunk)...).Err() })
		},
	}
}

// goZero is go-zero's filter over as many bits as Classic has. It sets 14 of them for
// an item, whatever the size, and has no batches.
func goZero(server *host, store *zeroredis.Redis, key string, p bloom.Params) *subject {
	f := zerobloom.New(store, key, uint(p.Bits))
	return &subject{
		name: nameZero, server: server, key: key,
		exists: func(ctx context.Context, item string) (bool, error) { return f.ExistsCtx(ctx, []byte(item)) },
		add: func(ctx context.Context, items []string) error {
			for _, item := range items {
				if err := f.AddCtx(ctx, []byte(item)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

const goZeroHashes = 14

// goZeroBits are the positions of go-zero's filter.
func goZeroBits(p bloom.Params) func(dst []uint64, item string) []uint64 {
	return func(dst []uint64, item string) []uint64 {
		data := append([]byte(item), 0)
		for i := range goZeroHashes {
			data[len(data)-1] = byte(i)
			dst = append(dst, hash.Hash(data)%p.Bits)
		}
		return dst
	}
}

// textbookBits are the positions of the textbook: two hashes make k.
func textbookBits(p bloom.Params) func(dst []uint64, item string) []uint64 {
	return func(dst []uint64, item string) []uint64 {
		h1, h2 := murmur3.Sum128([]byte(item))
		for i := range p.Hashes {
			dst = append(dst, (h1+uint64(i)*h2)%p.Bits)
		}
		return dst
	}
}

// bitsOf are the positions of all items, one after the other.
func bitsOf(positions func(dst []uint64, item string) []uint64, items []string) (bits []uint64) {
	for _, item := range items {
		bits = positions(bits, item)
	}
	return bits
}

// textbook asks for k bits in one pipeline, and through an AutoPipeliner on its
// deferred face, since that does not coalesce explicit pipelines.
func textbook(server *host, rdb redis.Cmdable, key string, p bloom.Params) *subject {
	positions := textbookBits(p)
	many := func(ctx context.Context, items []string) ([]bool, error) {
		exists := make([]bool, 0, len(items))
		err := inPipelines(items, func(chunk []string) error {
			bits := bitsOf(positions, chunk)
			cmds := make([]*redis.IntCmd, len(bits))
			if err := sendAll(ctx, rdb, cmds, func(i int) *redis.IntCmd { return redis.NewIntCmd(ctx, "getbit", key, bits[i]) }); err != nil {
				return err
			}
			for at := 0; at < len(cmds); at += p.Hashes {
				all := true
				for _, cmd := range cmds[at : at+p.Hashes] {
					all = all && cmd.Val() == 1
				}
				exists = append(exists, all)
			}
			return nil
		})
		return exists, err
	}
	return &subject{
		name: nameTextbook, server: server, key: key, many: many,
		exists: func(ctx context.Context, item string) (bool, error) {
			exists, err := many(ctx, []string{item})
			return err == nil && exists[0], err
		},
		add: func(ctx context.Context, items []string) error {
			return inPipelines(items, func(chunk []string) error {
				bits := bitsOf(positions, chunk)
				_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
					for _, bit := range bits {
						pipe.SetBit(ctx, key, int64(bit), 1)
					}
					return nil
				})
				return err
			})
		},
	}
}

func sendAll(ctx context.Context, rdb redis.Cmdable, cmds []*redis.IntCmd, cmd func(i int) *redis.IntCmd) error {
	ap, ok := rdb.(*redis.AutoPipeliner)
	if !ok {
		_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range cmds {
				cmds[i] = cmd(i)
				_ = p.Process(ctx, cmds[i])
			}
			return nil
		})
		return err
	}
	face, err := ap.AsyncAutoPipeline()
	if err != nil {
		return err
	}
	futures := make([]redis.AutoFuture, len(cmds))
	for i := range cmds {
		cmds[i] = cmd(i)
		futures[i] = face.Submit(ctx, cmds[i])
	}
	for _, f := range futures {
		if err := f.WaitContext(ctx); err != nil {
			return err
		}
	}
	return nil
}

//go:embed getbits.lua
var getBits string

//go:embed setbits.lua
var setBits string

var (
	getBitsScript = redis.NewScript(getBits)
	setBitsScript = redis.NewScript(setBits)
)

// luaLoop asks for the bits in a script, up to the first that is 0.
func luaLoop(server *host, rdb redis.Cmdable, key string, p bloom.Params) *subject {
	positions := textbookBits(p)
	args := func(items []string) []any {
		bits := bitsOf(positions, items)
		out := make([]any, 1, 1+len(bits))
		out[0] = p.Hashes
		for _, bit := range bits {
			out = append(out, bit)
		}
		return out
	}
	many := func(ctx context.Context, items []string) ([]bool, error) {
		exists := make([]bool, 0, len(items))
		err := inPipelines(items, func(chunk []string) error {
			digits, err := getBitsScript.Run(ctx, rdb, []string{key}, args(chunk)...).Text()
			if err == nil && len(digits) != len(chunk) {
				err = fmt.Errorf("script answered %d of %d items", len(digits), len(chunk))
			}
			for _, d := range digits {
				exists = append(exists, d == '1')
			}
			return err
		})
		return exists, err
	}
	return &subject{
		name: nameLua, server: server, key: key, many: many,
		exists: func(ctx context.Context, item string) (bool, error) {
			exists, err := many(ctx, []string{item})
			return err == nil && exists[0], err
		},
		add: func(ctx context.Context, items []string) error {
			return inPipelines(items, func(chunk []string) error {
				return setBitsScript.Run(ctx, rdb, []string{key}, args(chunk)[1:]...).Err()
			})
		},
	}
}

// plainSet is the exact answer, at the price of the memory.
func plainSet(server *host, rdb redis.Cmdable, key string) *subject {
	return &subject{
		name: nameSet, server: server, key: key,
		exists: func(ctx context.Context, item string) (bool, error) { return rdb.SIsMember(ctx, key, item).Result() },
		many: func(ctx context.Context, items []string) ([]bool, error) {
			return nil, inPipelines(items, func(chunk []string) error { return rdb.SMIsMember(ctx, key, anys(chunk)...).Err() })
		},
		add: func(ctx context.Context, items []string) error {
			return inPipelines(items, func(chunk []string) error { return rdb.SAdd(ctx, key, anys(chunk)...).Err() })
		},
	}
}

func anys(items []string) []any {
	out := make([]any, len(items))
	for i, item := range items {
		out[i] = item
	}
	return out
}
