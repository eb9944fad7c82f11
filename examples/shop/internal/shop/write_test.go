package shop

import (
	"context"
	"database/sql"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func count(t *testing.T, b *bed) int {
	t.Helper()
	n, err := b.DB.Count(t.Context())
	require.NoError(t, err)
	return int(n)
}

// Without Redis nothing can be registered, so nothing is inserted; reads go on.
func TestNothingIsStoredThatIsNotRegistered(t *testing.T) {
	b := warmBed(t)
	b.redis.Close()
	code, body, header := b.do(t, "POST", "/products", `{"name":"x"}`)
	require.Equal(t, http.StatusServiceUnavailable, code, body)
	require.NotEmpty(t, header.Get("Retry-After"))
	require.Equal(t, seeded, count(t, b))
	code, p := b.get(t, 8)
	require.Equal(t, http.StatusOK, code)
	require.EqualValues(t, 8, p.ID)
	code, _ = b.get(t, 9)
	require.Equal(t, http.StatusNotFound, code)
}

// The filter's server comes back: what is written then is whole.
func TestRedisComesBack(t *testing.T) {
	b := warmBed(t)
	b.redis.Close()
	code, _, _ := b.do(t, "POST", "/products", `{"name":"x"}`)
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.NoError(t, b.redis.Restart())
	require.Eventually(t, func() bool { return b.Redis.Ping(t.Context()).Err() == nil }, 10*time.Second, 10*time.Millisecond)
	p := b.post(t, `{"name":"y"}`)
	code, _ = b.get(t, p.ID)
	require.Equal(t, http.StatusOK, code)
}

// An update that Redis did not hear of is stored, and says so: the client tries
// again.
func TestChangeWithoutRedis(t *testing.T) {
	b := warmBed(t)
	_, before := b.get(t, 8) // cached
	b.redis.Close()
	code, _, header := b.do(t, "PUT", "/products/8", `{"name":"new"}`)
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.NotEmpty(t, header.Get("Retry-After"))

	require.NoError(t, b.redis.Restart())
	require.Eventually(t, func() bool { return b.Redis.Ping(t.Context()).Err() == nil }, 10*time.Second, 10*time.Millisecond)
	_, p := b.get(t, 8)
	require.Equal(t, before, p, "what the answer warned of")
	code, _, _ = b.do(t, "PUT", "/products/8", `{"name":"new"}`)
	require.Equal(t, http.StatusOK, code)
	_, p = b.get(t, 8)
	require.Equal(t, "new", p.Name)
}

// failCommits makes the COMMIT of every transaction fail that inserts or updates a
// product of that name: a row breaks a constraint that is checked at the end.
func failCommits(t *testing.T, b *bed, name string) {
	t.Helper()
	for _, statement := range []string{
		"CREATE TABLE owners (id INTEGER PRIMARY KEY)",
		"CREATE TABLE owned (owner INTEGER REFERENCES owners(id) DEFERRABLE INITIALLY DEFERRED)",
		"CREATE TRIGGER doomed_insert AFTER INSERT ON products WHEN NEW.name = '" + name + "' BEGIN INSERT INTO owned VALUES (1); END",
		"CREATE TRIGGER doomed_update AFTER UPDATE ON products WHEN NEW.name = '" + name + "' BEGIN INSERT INTO owned VALUES (1); END",
	} {
		_, err := b.DB.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
}

func TestCommitFails(t *testing.T) {
	b := warmBed(t)
	failCommits(t, b, "doomed")
	drops := new(atomic.Int64)
	b.onDrop(func(context.Context) { drops.Add(1) })

	code, body, _ := b.do(t, "POST", "/products", `{"name":"doomed"}`)
	require.Equal(t, http.StatusInternalServerError, code, body)
	require.Equal(t, seeded, count(t, b))
	require.EqualValues(t, 2, drops.Load(), "registered again all the same: the commit's answer may be what was lost")

	_, before := b.get(t, 8)
	code, _, _ = b.do(t, "PUT", "/products/8", `{"name":"doomed"}`)
	require.Equal(t, http.StatusInternalServerError, code)
	require.EqualValues(t, 3, drops.Load(), "likewise")
	code, p := b.get(t, 8)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, before, p)

	require.NotZero(t, b.post(t, `{"name":"fine"}`).ID, "the next one is not hindered")
}

// A reader comes between the registration and the commit, and caches that there is
// no such product. The second registration drops that.
func TestNullOfAReaderBeforeTheCommit(t *testing.T) {
	b := warmBed(t)
	next := b.post(t, `{"name":"before"}`).ID + 1
	asked := false
	b.onDrop(func(ctx context.Context) {
		if asked {
			return
		}
		asked = true
		_, err := b.Guard.Get(ctx, itemOf(next)) // registered by now, not committed
		require.Error(t, err)
	})
	p := b.post(t, `{"name":"x"}`)
	require.True(t, asked)
	require.Equal(t, next, p.ID)
	require.NotZero(t, b.Guard.Stats().LoadsNotFound, "the reader got as far as the database")
	code, got := b.get(t, p.ID)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, p, got)
}

// The client leaves right after the commit: the cache hears of it all the same.
func TestClientLeavesAfterTheCommit(t *testing.T) {
	b := warmBed(t)
	b.get(t, 8)
	ctx, leave := context.WithCancel(t.Context())
	b.onDrop(func(c context.Context) {
		leave()
		require.NoError(t, c.Err())
		_, limited := c.Deadline()
		require.True(t, limited)
	})
	require.NoError(t, b.Update(ctx, Product{ID: 8, Name: "new"}))
	require.Error(t, ctx.Err())
	_, p := b.get(t, 8)
	require.Equal(t, "new", p.Name)
}

func TestChangesOfNothing(t *testing.T) {
	b := warmBed(t)
	require.ErrorIs(t, b.Update(t.Context(), Product{ID: 9, Name: "x"}), sql.ErrNoRows)
	require.ErrorIs(t, b.Delete(t.Context(), 9), sql.ErrNoRows)
	require.ErrorIs(t, b.Update(t.Context(), Product{ID: 8}), ErrInvalidProduct)
}
