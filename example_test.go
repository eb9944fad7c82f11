package bloom_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
)

type Product struct{ ID, Name string }

// products stands for the database: a table, and how often it was asked.
type products struct {
	mu      sync.Mutex
	rows    map[string]Product
	queries int
}

func newProducts(ids ...string) *products {
	db := &products{rows: map[string]Product{}}
	for _, id := range ids {
		db.rows[id] = Product{ID: id, Name: "Product " + id}
	}
	return db
}

// Product is a bloom.Loader.
func (db *products) Product(_ context.Context, id string) (Product, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.queries++
	p, ok := db.rows[id]
	if !ok {
		return Product{}, fmt.Errorf("product %s: %w", id, bloom.ErrNotFound)
	}
	return p, nil
}

func (db *products) IDs(context.Context) ([]string, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	return slices.Sorted(maps.Keys(db.rows)), nil
}

// AllIDs is for Rebuild: a query that is opened when the ids are wanted.
func (db *products) AllIDs(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		ids, err := db.IDs(ctx) // SELECT id FROM products
		if err != nil {
			yield("", err)
			return
		}
		for _, id := range ids {
			if !yield(id, nil) {
				return
			}
		}
	}
}

func (db *products) Insert(p Product) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.rows[p.ID] = p
}

// testServer starts a Redis for one example.
func testServer() (addr string, stop func()) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		log.Fatal(err)
	}
	return m.Addr(), m.Close
}

func testClient() (rdb *redis.Client, stop func()) {
	addr, stopServer := testServer()
	rdb = redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	return rdb, func() { rdb.Close(); stopServer() }
}

// A service that guards its product lookups.
func Example() {
	addr, stop := testServer()
	defer stop()
	ctx, db := context.Background(), newProducts("40", "41")

	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	defer rdb.Close()

	filter, err := bloom.New(bloom.NewBitmap(rdb, "products"), bloom.Config{Capacity: 10_000, FPRate: 0.01})
	if err != nil {
		log.Fatal(err)
	}
	// The ids of all rows. One of the processes that start reads them, the others skip.
	if _, err := filter.Rebuild(ctx, db.AllIDs(ctx), &bloom.RebuildOptions{MaxAge: 12 * time.Hour}); err != nil {
		log.Fatal(err)
	}
	guard, err := bloom.NewGuard(filter, bloom.NewRedisCache(rdb, "product:"), db.Product, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer guard.Close(ctx)

	if err := guard.Register(ctx, "42"); err != nil { // before the row is committed
		log.Fatal(err)
	}
	db.Insert(Product{ID: "42", Name: "Towel"})

	p, err := guard.Get(ctx, "42") // filter: maybe; loaded once, then cached
	fmt.Println(p.Name, err)
	_, err = guard.Get(ctx, "43") // filter: certainly not there; the database is not asked
	fmt.Println(errors.Is(err, bloom.ErrNotFound), "queries:", db.queries)

	// Output:
	// Towel <nil>
	// true queries: 1
}

func ExampleFilter() {
	rdb, stop := testClient()
	defer stop()
	ctx := context.Background()

	filter, err := bloom.New(bloom.NewBitmap(rdb, "emails"), bloom.Config{Capacity: 1_000, FPRate: 0.001})
	if err != nil {
		log.Fatal(err)
	}
	if err := filter.CreateEmpty(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := filter.AddMulti(ctx, []string{"ada@example.com", "alan@example.com"}); err != nil {
		log.Fatal(err)
	}
	exists, err := filter.ExistsMulti(ctx, []string{"ada@example.com", "eve@example.com"})
	switch {
	case err != nil:
		log.Fatal(err) // exists is true where unknown: nobody is denied by a fault
	case exists[0]:
		fmt.Println("ada: probably there; 1 in 1000 absent ones is told so too")
	}
	if !exists[1] {
		fmt.Println("eve: certainly not there")
	}

	// Output:
	// ada: probably there; 1 in 1000 absent ones is told so too
	// eve: certainly not there
}

func ExampleNewParams() {
	for _, layout := range []bloom.Layout{bloom.Classic, bloom.Blocked} {
		p, err := bloom.NewParams(10_000_000, 0.01, layout)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%v: %.1f MiB, k = %d, %.2f %% wrong at capacity, %.1f %% at twice that\n",
			layout, float64(p.Bytes())/(1<<20), p.Hashes, 100*p.FPRateAt(10_000_000), 100*p.FPRateAt(20_000_000))
	}

	// Output:
	// classic: 11.4 MiB, k = 7, 1.00 % wrong at capacity, 15.7 % at twice that
	// blocked: 12.6 MiB, k = 6, 1.00 % wrong at capacity, 12.2 % at twice that
}

// How errors keep the promise: nothing is denied that is not certain.
func ExampleFilter_Exists() {
	rdb, stop := testClient()
	defer stop()
	ctx := context.Background()

	filter, err := bloom.New(bloom.NewBitmap(rdb, "orders"), bloom.Config{Capacity: 1_000})
	if err != nil {
		log.Fatal(err)
	}
	exists, err := filter.Exists(ctx, "order-1")
	fmt.Println(exists, errors.Is(err, bloom.ErrNotReady))

	rdb.Set(ctx, "orders", "overwritten", 0)
	exists, err = filter.Exists(ctx, "order-1")
	fmt.Println(exists, errors.Is(err, bloom.ErrCorrupt))

	// Output:
	// true true
	// true true
}

// A filter whose positions nobody can compute who lacks the key.
func ExampleConfig_hashKey() {
	rdb, stop := testClient()
	defer stop()
	ctx := context.Background()
	secret := []byte("16 random bytes!") // from where the service has its secrets

	filter, err := bloom.New(bloom.NewBitmap(rdb, "orders"), bloom.Config{Capacity: 1_000, HashKey: secret})
	if err != nil {
		log.Fatal(err)
	}
	if err := filter.CreateEmpty(ctx); err != nil {
		log.Fatal(err)
	}

	other, err := bloom.New(bloom.NewBitmap(rdb, "orders"), bloom.Config{})
	if err != nil {
		log.Fatal(err)
	}
	exists, err := other.Exists(ctx, "1")
	fmt.Println(exists, errors.Is(err, bloom.ErrParamsMismatch))

	// Output:
	// true true
}

// The calls of many goroutines share round trips.
func ExampleNewBitmap_autoPipeliner() {
	rdb, stop := testClient()
	defer stop()
	ctx := context.Background()

	pipeliner, err := rdb.AutoPipeline()
	if err != nil {
		log.Fatal(err)
	}
	defer pipeliner.Close()
	filter, err := bloom.New(bloom.NewBitmap(pipeliner, "users"), bloom.Config{Capacity: 1_000, Layout: bloom.Blocked})
	if err != nil {
		log.Fatal(err)
	}
	if err := filter.CreateEmpty(ctx); err != nil {
		log.Fatal(err)
	}
	added, err := filter.Add(ctx, "user-1")
	fmt.Println(added, err)

	// Output: true <nil>
}

// Warm-up at boot and every night: a filter is loaded from a table.
func ExampleFilter_Rebuild() {
	rdb, stop := testClient()
	defer stop()
	ctx, db := context.Background(), newProducts("1", "2", "3")

	filter, err := bloom.New(bloom.NewBitmap(rdb, "products"), bloom.Config{Capacity: 1_000, FPRate: 0.01})
	if err != nil {
		log.Fatal(err)
	}
	ids := func(yield func(string, error) bool) { // opened here, once Settle is over
		rows, err := db.IDs(ctx)
		if err != nil {
			yield("", err)
			return
		}
		for _, id := range rows {
			if !yield(id, nil) {
				return
			}
		}
	}
	report, err := filter.Rebuild(ctx, ids, &bloom.RebuildOptions{
		MaxAge: 12 * time.Hour,        // of many replicas that boot one loads, the others wait and skip
		Settle: 50 * time.Millisecond, // above the longest transaction
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("loaded", report.Items, "generation", report.Generation)

	check, err := filter.Verify(ctx, ids, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("missing", check.Missing, "of", check.Checked)

	// Output:
	// loaded 3 generation 1
	// missing 0 of 3
}

// A filter that was built in this process is put into Redis by one SET.
func ExampleMemory_WriteTo() {
	rdb, stop := testClient()
	defer stop()
	ctx := context.Background()

	memory := bloom.NewMemory()
	local, err := bloom.New(memory, bloom.Config{Capacity: 1_000})
	if err != nil {
		log.Fatal(err)
	}
	if err := local.CreateEmpty(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := local.AddMulti(ctx, []string{"a", "b", "c"}); err != nil {
		log.Fatal(err)
	}
	var stored bytes.Buffer
	if _, err := memory.WriteTo(&stored); err != nil {
		log.Fatal(err)
	}
	if err := rdb.Set(ctx, "letters", stored.Bytes(), 0).Err(); err != nil {
		log.Fatal(err)
	}

	shared, err := bloom.New(bloom.NewBitmap(rdb, "letters"), bloom.Config{}) // attaches to what is stored
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(shared.ExistsMulti(ctx, []string{"a", "b", "c"}))

	// Output: [true true true] <nil>
}

// One filter over eight keys, which in a cluster lie on all of its primaries.
func ExampleNewSharded() {
	rdb, stop := testClient()
	defer stop()
	ctx := context.Background()

	var shards []bloom.Backend
	for _, key := range bloom.ShardKeys("orders", 8) { // spread evenly over the slots of a cluster
		shards = append(shards, bloom.NewBitmap(rdb, key))
	}
	filter, err := bloom.New(bloom.NewSharded(shards...), bloom.Config{Capacity: 1_000})
	if err != nil {
		log.Fatal(err)
	}
	if err := filter.CreateEmpty(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := filter.AddMulti(ctx, []string{"order-1", "order-2"}); err != nil {
		log.Fatal(err)
	}
	exists, err := filter.ExistsMulti(ctx, []string{"order-1", "order-2", "order-3"})
	fmt.Println(exists, err)

	rdb.Del(ctx, shards[3].Key()) // lost: what lay there is not denied
	fmt.Println(errors.Is(filter.Ready(ctx), bloom.ErrNotReady))

	// Output:
	// [true true false] <nil>
	// true
}
