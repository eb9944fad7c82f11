package bloom_test

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"log"
	"maps"
	"slices"
	"time"

	"github.com/bloomguard/bloom"
)

// Products is for GuardOptions.LoadMulti: what it leaves out has no row.
func (db *products) Products(_ context.Context, ids []string) (map[string]Product, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.queries++ // SELECT … WHERE id IN (…)
	found := map[string]Product{}
	for _, id := range ids {
		if p, ok := db.rows[id]; ok {
			found[id] = p
		}
	}
	return found, nil
}

// testProducts is a filter and a cache over a database of some products.
func testProducts(ctx context.Context, ids ...string) (
	filter *bloom.Filter, cache bloom.Cache, db *products, stop func(),
) {
	rdb, stop := testClient()
	filter, err := bloom.New(bloom.NewBitmap(rdb, "{products}"), bloom.Config{Capacity: 1_000})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := filter.Rebuild(ctx, func(yield func(string, error) bool) {
		for _, id := range ids {
			if !yield(id, nil) {
				return
			}
		}
	}, &bloom.RebuildOptions{Settle: -1}); err != nil {
		log.Fatal(err)
	}
	return filter, bloom.NewRedisCache(rdb, "product:"), newProducts(ids...), stop
}

// Writes in the order that keeps the guard right.
func ExampleGuard_Register() {
	ctx := context.Background()
	filter, cache, db, stop := testProducts(ctx, "1")
	defer stop()

	guard, err := bloom.NewGuard(filter, cache, db.Product, &bloom.GuardOptions[Product]{
		TTL:     10 * time.Minute,
		NullTTL: 30 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer guard.Close(ctx)

	insert := func(ctx context.Context, p Product) error {
		// BEGIN; INSERT …
		if err := guard.Register(ctx, p.ID); err != nil {
			return err // ROLLBACK: an unregistered row would be denied
		}
		db.Insert(p) // COMMIT
		// Drops a "no such row" cached meanwhile, also if the caller has left by now.
		return guard.Register(context.WithoutCancel(ctx), p.ID)
	}
	update := func(ctx context.Context, p Product) error {
		db.Insert(p) // UPDATE …; COMMIT. Likewise DELETE
		return guard.Invalidate(context.WithoutCancel(ctx), p.ID)
	}

	fmt.Println(insert(ctx, Product{ID: "2", Name: "Lamp"}), update(ctx, Product{ID: "2", Name: "Desk lamp"}))
	p, err := guard.Get(ctx, "2")
	fmt.Println(p.Name, err)

	// Output:
	// <nil> <nil>
	// Desk lamp <nil>
}

// Many ids at once: one round trip, and one query for all that are not cached.
func ExampleGuard_GetMulti() {
	ctx := context.Background()
	filter, cache, db, stop := testProducts(ctx, "1", "2", "3")
	defer stop()

	guard, err := bloom.NewGuard(filter, cache, db.Product, &bloom.GuardOptions[Product]{
		LoadMulti: db.Products,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer guard.Close(ctx)

	found, err := guard.GetMulti(ctx, []string{"1", "3", "no such id", "1"})
	var failed *bloom.IDError
	if errors.As(err, &failed) {
		log.Printf("%s and perhaps others: %v", failed.ID, err) // found has the rest
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		fmt.Println(found[id].Name)
	}
	fmt.Println("queries:", db.queries)

	// Output:
	// Product 1
	// Product 3
	// queries: 1
}

// Statistics for /debug/vars of net/http.
func ExampleGuard_Stats() {
	ctx := context.Background()
	filter, cache, db, stop := testProducts(ctx, "1")
	defer stop()

	guard, err := bloom.NewGuard(filter, cache, db.Product, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer guard.Close(ctx)
	expvar.Publish("products", expvar.Func(func() any { return guard.Stats() }))

	for _, id := range []string{"1", "1", "no such id"} {
		_, _ = guard.Get(ctx, id)
	}
	fmt.Println(expvar.Get("products"))

	// Output:
	// {"Gets":3,"Invalid":0,"Rejected":1,"Hits":1,"NullHits":0,"Loads":1,"LoadsNotFound":0,"LoadErrors":0,"SharedLoads":0,"FailOpens":0,"Fills":1,"FillErrors":0,"Audits":0,"Anomalies":0,"Heals":0,"Overloads":0}
}
