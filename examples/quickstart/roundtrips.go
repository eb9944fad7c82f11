package main

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// roundTrips is a go-redis hook that counts waits for the server: a single
// command is one, and so is a pipeline of any length.
type roundTrips struct{ atomic.Int64 }

func (r *roundTrips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *roundTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.count(cmd)
		return next(ctx, cmd)
	}
}

func (r *roundTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.count(cmds[0])
		return next(ctx, cmds)
	}
}

func (r *roundTrips) count(first redis.Cmder) {
	switch first.Name() {
	case "hello", "auth", "select", "client":
		return // the greeting of a new connection passes through hooks too
	}
	r.Add(1)
}
