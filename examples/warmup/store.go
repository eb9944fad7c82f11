package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// store is the Redis that the filter is in.
type store struct {
	rdb      *redis.Client
	embedded *miniredis.Miniredis // nil on a real server
}

// openStore starts an embedded Redis where target is empty.
func openStore(ctx context.Context, target string) (*store, error) {
	st := new(store)
	if target == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return nil, fmt.Errorf("start the embedded Redis: %w", err)
		}
		st.embedded, target = embedded, embedded.Addr()
	}
	opts, err := clientOptions(target)
	if err != nil {
		return nil, err
	}
	opts.ContextTimeoutEnabled = true // else a call outlives its context
	st.rdb = redis.NewClient(opts)

	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := st.rdb.Ping(ctx).Err(); err != nil {
		st.close()
		return nil, fmt.Errorf("-redis: no answer from %s: %w", opts.Addr, err)
	}
	return st, nil
}

func clientOptions(target string) (*redis.Options, error) {
	if !strings.Contains(target, "://") {
		return &redis.Options{Addr: target}, nil
	}
	opts, err := redis.ParseURL(target)
	if bad := (*url.Error)(nil); errors.As(err, &bad) {
		err = bad.Err // the whole one repeats the URL, password and all
	}
	if err != nil {
		return nil, usage("-redis: %w", err)
	}
	return opts, nil
}

func (st *store) where() string {
	if st.embedded != nil {
		return "embedded (miniredis), gone when this ends"
	}
	return st.rdb.Options().Addr
}

func (st *store) close() {
	st.rdb.Close()
	if st.embedded != nil {
		st.embedded.Close()
	}
}
