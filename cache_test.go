package bloom

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// cacheUnderTest is a Cache, and how time passes for it.
type cacheUnderTest struct {
	Cache
	t       *testing.T
	advance func(time.Duration)
}

func eachCache(t *testing.T, f func(t *testing.T, c cacheUnderTest)) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		client, prefix := target.Client(t), redistest.Key(t)+":"
		t.Cleanup(func() { requireLifetimes(t, client, prefix) })
		f(t, cacheUnderTest{NewRedisCache(client, prefix), t, target.Advance})
	})
	t.Run("memory", func(t *testing.T) { f(t, cacheUnderTest{NewMemoryCache(), t, time.Sleep}) })
}

// The steps of the tests below; each checks that there was no error.
func (c cacheUnderTest) read(id string) []byte {
	c.t.Helper()
	entries, err := c.Read(c.t.Context(), []string{id})
	require.NoError(c.t, err)
	require.Len(c.t, entries, 1)
	return entries[0]
}

func (c cacheUnderTest) lease(id, lease, over string) []byte {
	c.t.Helper()
	found, err := c.Lease(c.t.Context(), id, []byte(lease), []byte(over), time.Minute)
	require.NoError(c.t, err)
	return found
}

func (c cacheUnderTest) fill(id string, lease []byte, entry string) bool {
	c.t.Helper()
	filled, err := c.Fill(c.t.Context(), id, lease, []byte(entry), time.Minute)
	require.NoError(c.t, err)
	return filled
}

func (c cacheUnderTest) drop(ids ...string) {
	c.t.Helper()
	require.NoError(c.t, c.Drop(c.t.Context(), ids))
}

// requireLease checks what a Lease planted: its own bytes and eight more.
func requireLease(t *testing.T, lease string, found []byte) {
	t.Helper()
	require.Len(t, found, len(lease)+8)
	require.Equal(t, lease, string(found[:len(lease)]))
}

func TestCacheContract(t *testing.T) {
	for name, f := range map[string]func(t *testing.T, c cacheUnderTest){
		"nothing is there": func(t *testing.T, c cacheUnderTest) {
			require.Nil(t, c.read("a"))
			require.False(t, c.fill("a", []byte("lease"), "entry"), "nothing is ever stored because nothing was there")
			require.False(t, c.fill("a", nil, "entry"))
			require.Nil(t, c.read("a"))
			c.drop("a")
		},
		"lease, fill, drop": func(t *testing.T, c cacheUnderTest) {
			token := c.lease("a", "lease", "")
			requireLease(t, "lease", token)
			require.Equal(t, token, c.read("a"))
			require.True(t, c.fill("a", token, "entry"))
			require.Equal(t, "entry", string(c.read("a")))
			c.drop("a")
			require.Nil(t, c.read("a"))
		},
		"no two leases are the same": func(t *testing.T, c cacheUnderTest) {
			// Not even of the same bytes: a copy of the call that comes late must
			// not revive a lease that was dropped.
			seen := map[string]bool{}
			for range 200 {
				token := c.lease("a", "lease", "")
				requireLease(t, "lease", token)
				require.False(t, seen[string(token)])
				seen[string(token)] = true
				c.drop("a")
			}
			require.Nil(t, c.read("a"))
		},
		"a lease repeated finds the first": func(t *testing.T, c cacheUnderTest) {
			token := c.lease("a", "lease", "")
			require.Equal(t, token, c.lease("a", "lease", ""))
			require.Equal(t, token, c.lease("a", "lease", "other"))
			require.True(t, c.fill("a", token, "entry"))
			require.Equal(t, "entry", string(c.lease("a", "lease", "")))
		},
		"a lease leaves what is there": func(t *testing.T, c cacheUnderTest) {
			token := c.lease("a", "lease", "")
			require.Equal(t, token, c.lease("a", "other", ""))
			require.True(t, c.fill("a", token, "entry"))
			require.Equal(t, "entry", string(c.lease("a", "other", "")))
			require.Equal(t, "entry", string(c.read("a")))
		},
		"a lease over exactly what is there": func(t *testing.T, c cacheUnderTest) {
			require.True(t, c.fill("a", c.lease("a", "lease", ""), "entry"))
			for _, over := range []string{"entr", "entry ", "Entry", "\x00entry", "x"} {
				require.Equal(t, "entry", string(c.lease("a", "second", over)), "over %q", over)
			}
			token := c.lease("a", "second", "entry")
			requireLease(t, "second", token)
			require.Equal(t, token, c.read("a"))
			require.Equal(t, token, c.lease("a", "third", "entry"))
			require.True(t, c.fill("a", token, "new"))
		},
		"a lease over nothing": func(t *testing.T, c cacheUnderTest) {
			// What was to be replaced is gone: the lease is planted all the same.
			requireLease(t, "lease", c.lease("a", "lease", "gone"))
		},
		"an empty entry is an entry": func(t *testing.T, c cacheUnderTest) {
			require.True(t, c.fill("a", c.lease("a", "lease", ""), ""))
			require.NotNil(t, c.read("a"))
			require.Empty(t, c.read("a"))
			require.Empty(t, c.lease("a", "lease", ""), "no bytes to replace are none")
		},
		"fill wants exactly its lease": func(t *testing.T, c cacheUnderTest) {
			token := c.lease("a", "lease", "")
			for _, wrong := range [][]byte{nil, []byte("lease"), token[:len(token)-1], append(bytes.Clone(token), 0)} {
				require.False(t, c.fill("a", wrong, "entry"))
			}
			require.Equal(t, token, c.read("a"))
			c.drop("a")
			require.False(t, c.fill("a", token, "entry"))
			next := c.lease("a", "lease", "")
			require.False(t, c.fill("a", token, "entry"))
			require.Equal(t, next, c.read("a"))
		},
		"fill repeated changes nothing": func(t *testing.T, c cacheUnderTest) {
			token := c.lease("a", "lease", "")
			require.True(t, c.fill("a", token, "entry"))
			c.fill("a", token, "entry") // what it reports differs: Redis may see a copy of the first
			require.Equal(t, "entry", string(c.read("a")))
			require.False(t, c.fill("a", token, "other"))
			require.Equal(t, "entry", string(c.read("a")))
		},
		"many at once": func(t *testing.T, c cacheUnderTest) {
			ids := numberedIDs(100)
			for i, id := range ids {
				if i%2 == 0 {
					require.True(t, c.fill(id, c.lease(id, "lease", ""), "entry of "+id))
				}
			}
			read := func() [][]byte {
				entries, err := c.Read(t.Context(), ids)
				require.NoError(t, err)
				require.Len(t, entries, len(ids))
				return entries
			}
			for i, entry := range read() {
				if i%2 == 0 {
					require.Equal(t, "entry of "+ids[i], string(entry))
				} else {
					require.Nil(t, entry)
				}
			}
			entries, err := c.Read(t.Context(), []string{ids[0], ids[1], ids[0]})
			require.NoError(t, err)
			require.Equal(t, entries[0], entries[2])
			c.drop(slices.Concat(ids[:50], ids[:1], []string{"never there"})...)
			for i, entry := range read() {
				require.Equal(t, i >= 50 && i%2 == 0, entry != nil)
			}
		},
		"of none at all": func(t *testing.T, c cacheUnderTest) {
			entries, err := c.Read(t.Context(), nil)
			require.NoError(t, err)
			require.Empty(t, entries)
			c.drop()
		},
		"any bytes": func(t *testing.T, c cacheUnderTest) {
			for _, s := range []string{"", "\x00", "\xff\xfe", "\r\n", strings.Repeat("x", 1<<16)} {
				token := c.lease(s, s, "")
				requireLease(t, s, token)
				require.True(t, c.fill(s, token, s))
				entry := c.read(s)
				require.NotNil(t, entry)
				require.Equal(t, s, string(entry))
			}
		},
		"everything expires": func(t *testing.T, c cacheUnderTest) {
			const short = 20 * time.Millisecond
			token, err := c.Lease(t.Context(), "a", []byte("lease"), nil, short)
			require.NoError(t, err)
			c.advance(short + 5*time.Millisecond)
			require.Nil(t, c.read("a"))
			require.False(t, c.fill("a", token, "entry"))
			next := c.lease("a", "lease", "")
			requireLease(t, "lease", next)
			require.NotEqual(t, token, next)
			filled, err := c.Fill(t.Context(), "a", next, []byte("entry"), short)
			require.NoError(t, err)
			require.True(t, filled)
			c.advance(short + 5*time.Millisecond)
			require.Nil(t, c.read("a"), "the entry's lifetime counts, not its lease's")
		},
		"what was given away stays": func(t *testing.T, c cacheUnderTest) {
			lease, entry := []byte("lease"), []byte("entry")
			token, err := c.Lease(t.Context(), "a", lease, nil, time.Minute)
			require.NoError(t, err)
			lease[0] = 'X'
			require.Equal(t, token, c.read("a"))
			_, err = c.Fill(t.Context(), "a", token, entry, time.Minute)
			require.NoError(t, err)
			entry[0] = 'X'
			require.Equal(t, "entry", string(c.read("a")))
		},
		"a context that has ended": func(t *testing.T, c cacheUnderTest) {
			token := c.lease("a", "lease", "")
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := c.Read(ctx, []string{"a"})
			require.ErrorIs(t, err, context.Canceled)
			_, err = c.Lease(ctx, "b", []byte("lease"), nil, time.Minute)
			require.ErrorIs(t, err, context.Canceled)
			_, err = c.Fill(ctx, "a", token, []byte("entry"), time.Minute)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, c.Drop(ctx, []string{"a"}), context.Canceled)
			require.Equal(t, token, c.read("a"))
			require.Nil(t, c.read("b"))
		},
		"of many who lease one wins": func(t *testing.T, c cacheUnderTest) {
			var fills atomic.Int32
			var all sync.WaitGroup
			for i := range 20 {
				all.Add(1)
				go func() {
					defer all.Done()
					token := c.lease("a", fmt.Sprintf("lease %02d", i), "")
					if strings.HasPrefix(string(token), "entry") {
						return
					}
					if c.fill("a", token, fmt.Sprintf("entry %02d", i)) {
						fills.Add(1)
					}
				}()
			}
			all.Wait()
			require.EqualValues(t, 1, fills.Load())
		},
	} {
		t.Run(name, func(t *testing.T) { eachCache(t, f) })
	}
}

// RedisCache writes its keys behind its prefix, with lifetimes in milliseconds.
func TestRedisCacheKeys(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		client, prefix := target.Client(t), redistest.Key(t)+":"
		c := NewRedisCache(client, prefix)
		token, err := c.Lease(t.Context(), "a", []byte("lease"), nil, 1500*time.Millisecond)
		require.NoError(t, err)
		ttl := client.PTTL(t.Context(), prefix+"a").Val()
		require.Greater(t, ttl, time.Second)
		require.LessOrEqual(t, ttl, 1500*time.Millisecond)
		_, err = c.Fill(t.Context(), "a", token, []byte("entry"), time.Hour)
		require.NoError(t, err)
		require.Greater(t, client.PTTL(t.Context(), prefix+"a").Val(), 59*time.Minute)
		require.Equal(t, "entry", client.Get(t.Context(), prefix+"a").Val())

		// Redis keeps no time below a millisecond: refused, and never for ever.
		_, err = c.Lease(t.Context(), "b", []byte("lease"), nil, time.Microsecond)
		require.Error(t, err)
		require.Zero(t, client.Exists(t.Context(), prefix+"b").Val())
	})
}

// One failed key of many is an error of the whole call, said once.
func TestRedisCacheErrors(t *testing.T) {
	m := redistest.Mini(t)
	client := redistest.MiniClient(t, m)
	c := NewRedisCache(client, "c:")
	require.NoError(t, client.LPush(t.Context(), "c:list", "x").Err())
	_, err := c.Read(t.Context(), []string{"a", "list", "b"})
	require.ErrorContains(t, err, "WRONGTYPE")
	_, err = c.Lease(t.Context(), "list", []byte("lease"), nil, time.Minute)
	require.ErrorContains(t, err, "WRONGTYPE")
	_, err = c.Fill(t.Context(), "list", []byte("lease"), []byte("entry"), time.Minute)
	require.ErrorContains(t, err, "WRONGTYPE")
	require.NoError(t, c.Drop(t.Context(), []string{"list"}))

	m.SetError("READONLY You can't write against a read only replica.")
	err = c.Drop(t.Context(), numberedIDs(1000))
	var reply redis.Error
	require.ErrorAs(t, err, &reply)
	require.Less(t, len(err.Error()), 200)
}

// MemoryCache lets go of what has expired, so that it holds at most about twice
// what was alive.
func TestMemoryCacheSweeps(t *testing.T) {
	c := NewMemoryCache()
	size := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.entries)
	}
	for i := range 20 * minSweep {
		_, err := c.Lease(t.Context(), fmt.Sprint("passing ", i), []byte("lease"), nil, time.Nanosecond)
		require.NoError(t, err)
		require.LessOrEqual(t, size(), minSweep)
	}
	for i := range 5 * minSweep {
		_, err := c.Lease(t.Context(), fmt.Sprint("staying ", i), []byte("lease"), nil, time.Hour)
		require.NoError(t, err)
	}
	for i := range 40 * minSweep {
		_, err := c.Lease(t.Context(), fmt.Sprint("passing ", i), []byte("lease"), nil, time.Nanosecond)
		require.NoError(t, err)
		require.LessOrEqual(t, size(), 4*5*minSweep)
	}
	entries, err := c.Read(t.Context(), []string{"staying 0", fmt.Sprint("staying ", 5*minSweep-1), "passing 0"})
	require.NoError(t, err)
	require.NotNil(t, entries[0])
	require.NotNil(t, entries[1])
	require.Nil(t, entries[2])
}
