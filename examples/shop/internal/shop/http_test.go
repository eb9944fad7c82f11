package shop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/stretchr/testify/require"
)

func TestLifeOfAProduct(t *testing.T) {
	b := warmBed(t)
	lifeOfAProduct(t, b)
}

// lifeOfAProduct also runs on the servers of servers_test.go.
func lifeOfAProduct(t *testing.T, b *bed) {
	p := b.post(t, `{"name":"Tüte","description":"of paper","cents":20,"stock":[3,0,4]}`)
	require.Equal(t, Product{ID: p.ID, Name: "Tüte", Description: "of paper", Cents: 20, Stock: []int{3, 0, 4}}, p)
	require.Greater(t, p.ID, SeededID(seeded))

	for range 2 { // from the database, from the cache
		code, got := b.get(t, p.ID)
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, p, got)
	}
	path := fmt.Sprintf("/products/%d", p.ID)
	code, body, _ := b.do(t, "PUT", path, `{"name":"Bag","cents":30}`)
	require.Equal(t, http.StatusOK, code, body)
	code, got := b.get(t, p.ID)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, Product{ID: p.ID, Name: "Bag", Cents: 30, Stock: []int{}}, got)

	code, body, _ = b.do(t, "PUT", path, `{"name":"Bag","cents":30}`)
	require.Equal(t, http.StatusOK, code, "a change that changes nothing: %s", body)

	code, body, _ = b.do(t, "DELETE", path, "")
	require.Equal(t, http.StatusNoContent, code, body)
	for range 2 {
		code, _ = b.get(t, p.ID)
		require.Equal(t, http.StatusNotFound, code)
	}
	for _, method := range []string{"PUT", "DELETE"} {
		code, body, _ = b.do(t, method, path, `{"name":"Bag"}`)
		require.Equal(t, http.StatusNotFound, code, method)
		require.JSONEq(t, `{"error":"no such product"}`, body)
	}
	require.Greater(t, b.post(t, `{"name":"Next"}`).ID, p.ID, "an id is never given twice")
}

func TestAbsentProductsDoNotReachTheDatabase(t *testing.T) {
	b := warmBed(t)
	for i := 1; i <= seeded; i++ {
		code, p := b.get(t, SeededID(i))
		require.Equal(t, http.StatusOK, code, "product %d", SeededID(i))
		require.Equal(t, fmt.Sprintf("Product %d", p.ID), p.Name)
		require.Len(t, p.Stock, seedWarehouses)
	}
	require.Equal(t, Lookups{Found: seeded}, b.DB.Lookups())
	const absent = 200
	for i := range absent {
		code, _ := b.get(t, SeededID(seeded)+1+int64(i))
		require.Equal(t, http.StatusNotFound, code)
	}
	// Sized for 10,000, the filter holds 200: less than 1 in a million is let through.
	require.LessOrEqual(t, b.DB.Lookups().Absent, uint64(2))
}

func TestInvalidIDs(t *testing.T) {
	b := warmBed(t)
	for _, id := range []string{"007", "+7", "0", "-1", "abc", "1e3", "0x7", "9223372036854775808", "%207", "7%20", "7.0", "%D9%A7", "7%00"} {
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			code, body, _ := b.do(t, method, "/products/"+id, `{"name":"x"}`)
			require.Equal(t, http.StatusBadRequest, code, "%s %s", method, id)
			require.Contains(t, body, "want a number from 1 to 2^63-1")
		}
	}
	require.Zero(t, b.DB.Lookups())
	require.NoError(t, ValidateID("9223372036854775807"))
}

func TestInvalidProducts(t *testing.T) {
	b := warmBed(t)
	for name, body := range map[string]string{
		"no JSON":          `name=x`,
		"nothing":          ``,
		"two":              `{"name":"x"}{"name":"y"}`,
		"no name":          `{"cents":1}`,
		"long name":        `{"name":"` + strings.Repeat("ä", 101) + `"}`,
		"long description": `{"name":"x","description":"` + strings.Repeat("x", maxDescription+1) + `"}`,
		"large":            `{"name":"x","description":"` + strings.Repeat("x", maxBody) + `"}`,
		"negative price":   `{"name":"x","cents":-1}`,
		"negative stock":   `{"name":"x","stock":[1,-1]}`,
		"unknown field":    `{"name":"x","price":1}`,
		"another id":       `{"id":5,"name":"x"}`,
	} {
		t.Run(name, func(t *testing.T) {
			code, got, _ := b.do(t, "POST", "/products", body)
			require.Equal(t, http.StatusBadRequest, code, got)
			require.Contains(t, got, "invalid product")
			code, got, _ = b.do(t, "PUT", "/products/8", body)
			require.Equal(t, http.StatusBadRequest, code, got)
		})
	}
	_, p := b.get(t, 8)
	require.Equal(t, "Product 8", p.Name)
	n, err := b.DB.Count(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, seeded, n)
}

func TestMethods(t *testing.T) {
	b := warmBed(t)
	for path, method := range map[string]string{"/products/8": "POST", "/products": "GET"} {
		code, _, _ := b.do(t, method, path, "")
		require.Equal(t, http.StatusMethodNotAllowed, code, path)
	}
	code, _, _ := b.do(t, "GET", "/nothing", "")
	require.Equal(t, http.StatusNotFound, code)
}

func TestMetrics(t *testing.T) {
	b := warmBed(t)
	b.get(t, 8)
	b.get(t, SeededID(seeded)+1)
	code, body, _ := b.do(t, "GET", "/metrics", "")
	require.Equal(t, http.StatusOK, code)
	for _, line := range []string{
		`shop_database_lookups_total{result="found"} 1`,
		`shop_request_duration_seconds_count{code="200",method="get"} 1`,
		`shop_request_duration_seconds_count{code="404",method="get"} 1`,
		`bloom_guard_gets_total{guard="products"} 2`,
		`bloom_guard_rejected_total{guard="products"} 1`,
		`bloom_filter_up{filter="products"} 1`,
		`go_sql_max_open_connections{db_name="products"} 8`,
	} {
		require.Contains(t, body, line+"\n")
	}
}

type failing struct{ err error }

func (f failing) Get(context.Context, string) (Product, error) { return Product{}, f.err }

func TestCodes(t *testing.T) {
	b := newBed(t, nil)
	for name, c := range map[string]struct {
		err  error
		code int
		body string
	}{
		"overloaded": {fmt.Errorf("wrapped: %w", bloom.ErrOverloaded), http.StatusServiceUnavailable, "try again"},
		"too late":   {context.DeadlineExceeded, http.StatusServiceUnavailable, "try again"},
		"other":      {errors.New("password s3cret"), http.StatusInternalServerError, "internal error"},
		"not found":  {fmt.Errorf("wrapped: %w", bloom.ErrNotFound), http.StatusNotFound, "no such product"},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			b.Handler(failing{c.err}).ServeHTTP(w, httptest.NewRequest("GET", "/products/8", nil))
			require.Equal(t, c.code, w.Code)
			require.JSONEq(t, `{"error":"`+c.body+`"}`, w.Body.String())
			require.Equal(t, c.code == http.StatusServiceUnavailable, w.Header().Get("Retry-After") != "")
		})
	}
}

// A request that takes too long ends with its timeout.
func TestTimeout(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Timeout = 50 * time.Millisecond; c.Conns = 1 })
	held, err := b.DB.Conn(t.Context()) // the only one
	require.NoError(t, err)
	defer held.Close()
	began := time.Now()
	code, _ := b.get(t, 8)
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Less(t, time.Since(began), 5*time.Second)
	require.Zero(t, b.DB.Lookups(), "it never reached the database")
}
