package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/bloomguard/bloom/examples/shop/internal/shop"
	"github.com/redis/go-redis/v9"
)

// soonGone names what makeDeleted makes, for what a run that was ended has left.
const soonGone = "attack: soon gone"

// makeDeleted creates n products and deletes them again, through the shop. Their
// ids ascend, and are in its filter for good.
func (t *target) makeDeleted(ctx context.Context, n int) ([]int64, error) {
	var ids []int64
	for range n {
		var p shop.Product
		if err := t.write(ctx, http.MethodPost, "/products", shop.Product{Name: soonGone}, http.StatusCreated, &p); err != nil {
			return nil, err
		}
		ids = append(ids, p.ID)
	}
	for _, id := range ids {
		if err := t.write(ctx, http.MethodDelete, fmt.Sprintf("/products/%d", id), nil, http.StatusNoContent, nil); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

const writeTries = 20

// write repeats what the shop asks to repeat.
func (t *target) write(ctx context.Context, method, path string, body any, want int, into any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		code, got, err := t.send(ctx, method, path, b)
		switch {
		case err != nil:
			return err
		case code == http.StatusServiceUnavailable && try < writeTries:
			time.Sleep(100 * time.Millisecond)
		case code != want && !(try > 1 && method == http.MethodDelete && code == http.StatusNotFound): // a try before was stored
			return fmt.Errorf("%s %s: %d: %s", method, path, code, bytes.TrimSpace(got))
		case into == nil:
			return nil
		default:
			return json.Unmarshal(got, into)
		}
	}
}

func (t *target) send(ctx context.Context, method, path string, body []byte) (code int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, t.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// removeKeys removes what a way has left in Redis: its filter, values and nulls.
// After a way that collapsed the first tries may fail.
func removeKeys(ctx context.Context, rdb *redis.Client, prefix string) error {
	for {
		err := tryRemoveKeys(ctx, rdb, prefix)
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func tryRemoveKeys(ctx context.Context, rdb *redis.Client, prefix string) error {
	keys := rdb.Scan(ctx, 0, prefix+"*", 1000).Iterator()
	var batch []string
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		defer func() { batch = batch[:0] }()
		return rdb.Unlink(ctx, batch...).Err()
	}
	for keys.Next(ctx) {
		if batch = append(batch, keys.Val()); len(batch) == 1000 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := keys.Err(); err != nil {
		return err
	}
	return flush()
}
