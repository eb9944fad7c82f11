package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

const (
	// keyTTL is on every key, so that even a killed program leaves nothing for long.
	keyTTL = time.Hour
	// keyBatch bounds how long one SCAN or UNLINK keeps other users of the server waiting.
	keyBatch    = 1000
	pingTimeout = 5 * time.Second
	// cleanupTimeout is this long since SCAN walks over everybody's keys.
	cleanupTimeout = time.Minute
)

// store is the Redis that the attack is played on. All that the program writes
// there begins with prefix, which no other run has.
type store struct {
	rdb      *redis.Client
	prefix   string
	trips    *roundTrips
	embedded *miniredis.Miniredis // nil on a real server
}

// openStore starts an embedded Redis where target is empty.
func openStore(ctx context.Context, target string, workers int) (*store, error) {
	st := &store{prefix: "bloom-quickstart:" + randomName() + ":", trips: new(roundTrips)}
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
	opts.PoolSize = 2 * workers       // the Guard loads and fills beside its callers
	st.rdb = redis.NewClient(opts)
	st.rdb.AddHook(st.trips)

	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := st.rdb.Ping(ctx).Err(); err != nil {
		st.disconnect()
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
		return nil, fmt.Errorf("-redis: %w", err)
	}
	return opts, nil
}

func randomName() string {
	b := make([]byte, 8)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// keys lists the keys under prefix. SCAN may name one twice.
func (st *store) keys(ctx context.Context, prefix string) (map[string]struct{}, error) {
	found := make(map[string]struct{})
	scan := st.rdb.Scan(ctx, 0, prefix+"*", keyBatch).Iterator()
	for scan.Next(ctx) {
		found[scan.Val()] = struct{}{}
	}
	return found, scan.Err()
}

// close removes every key of this run, also when its context has ended, and
// disconnects.
func (st *store) close() error {
	defer st.disconnect()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := st.removeKeys(ctx); err != nil {
		return fmt.Errorf("remove the keys %s* (they expire within %v): %w", st.prefix, keyTTL, err)
	}
	return nil
}

func (st *store) removeKeys(ctx context.Context) error {
	found, err := st.keys(ctx, st.prefix)
	if err != nil {
		return err
	}
	batch := make([]string, 0, keyBatch)
	for key := range found {
		if batch = append(batch, key); len(batch) < keyBatch {
			continue
		}
		if err := st.rdb.Unlink(ctx, batch...).Err(); err != nil {
			return err
		}
		batch = batch[:0]
	}
	if len(batch) == 0 {
		return nil
	}
	return st.rdb.Unlink(ctx, batch...).Err()
}

func (st *store) disconnect() {
	st.rdb.Close()
	if st.embedded != nil {
		st.embedded.Close()
	}
}
