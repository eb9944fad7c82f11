package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/bloomguard/bloom/examples/shop/internal/shop"
	"github.com/redis/go-redis/v9"
)

// makeDeleted creates n products and deletes them again, through the shop. Their
// ids ascend, and are in its filter for good.
func (t *target) makeDeleted(ctx context.Context, n int) ([]int64, error) {
	var ids []int64
	for range n {
		var p shop.Product
		if err := t.write(ctx, http.MethodPost, "/products", shop.Product{Name: "Soon gone"}, http.StatusCreated, &p); err != nil {
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

func (t *target) write(ctx context.Context, method, path string, body any, want int, into any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, t.url+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != want {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(got))
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(got, into)
}

// removeKeys removes what a way has left in Redis: its filter, values and nulls.
func removeKeys(ctx context.Context, rdb *redis.Client, prefix string) error {
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
