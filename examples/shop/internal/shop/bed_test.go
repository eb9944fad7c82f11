package shop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

const seeded = 200 // rows of a bed

// bed is a shop on a SQLite file and a miniredis of its own, that serves.
type bed struct {
	*Shop
	redis *miniredis.Miniredis
	url   string
}

// newBed has no filter yet.
func newBed(t *testing.T, change func(*Config)) *bed {
	t.Helper()
	b := &bed{redis: miniredis.RunT(t)}
	cfg := Config{
		DSN:     "sqlite:" + filepath.Join(t.TempDir(), "a shop, 100 %.sqlite"),
		Redis:   b.redis.Addr(),
		Seed:    seeded,
		Settle:  -1,
		Timeout: 5 * time.Second,
	}
	if change != nil {
		change(&cfg)
	}
	s, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	b.Shop = s
	server := httptest.NewServer(s.Handler(s.Guard))
	b.url = server.URL
	t.Cleanup(func() {
		server.Close()
		require.NoError(t, s.Close(context.Background()))
	})
	return b
}

// warmBed has its filter.
func warmBed(t *testing.T) *bed {
	t.Helper()
	b := newBed(t, nil)
	require.NoError(t, b.warm(t.Context()))
	return b
}

func (b *bed) do(t *testing.T, method, path, body string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, b.url+path, bytes.NewBufferString(body))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(got), resp.Header
}

func (b *bed) get(t *testing.T, id int64) (int, Product) {
	t.Helper()
	code, body, _ := b.do(t, "GET", fmt.Sprintf("/products/%d", id), "")
	var p Product
	if code == http.StatusOK {
		require.NoError(t, json.Unmarshal([]byte(body), &p))
	}
	return code, p
}

func (b *bed) post(t *testing.T, body string) Product {
	t.Helper()
	code, got, header := b.do(t, "POST", "/products", body)
	require.Equal(t, http.StatusCreated, code, got)
	var p Product
	require.NoError(t, json.Unmarshal([]byte(got), &p))
	require.Equal(t, fmt.Sprintf("/products/%d", p.ID), header.Get("Location"))
	return p
}

// onDrop calls do before each DEL of a cached product, with that command's context.
func (b *bed) onDrop(do func(ctx context.Context)) { b.Redis.AddHook(dropHook{do}) }

type dropHook struct{ do func(context.Context) }

func (h dropHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h dropHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "del" {
			h.do(ctx)
		}
		return next(ctx, cmd)
	}
}

func (h dropHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if cmd.Name() == "del" {
				h.do(ctx)
			}
		}
		return next(ctx, cmds)
	}
}
