package bloom

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// sentinels are those of a filter that is alone.
var sentinels = RedisBloomSentinels(0, 1)

// ModuleDouble is bloomtest.RedisBloom.
var ModuleDouble func(*miniredis.Miniredis)

// moduleBed is a server with the RedisBloom module, or its double, and a protocol.
type moduleBed struct {
	addr string
	resp int
	mini *miniredis.Miniredis // nil on a real server
	rdb  *redis.Client        // with a pool as by default
}

// moduleBeds runs f over bloomtest, and over the server that BLOOM_REDISBLOOM
// names, host:port, if it is set; over both with RESP2 and RESP3.
func moduleBeds(t *testing.T, f func(*testing.T, *moduleBed)) {
	t.Helper()
	for _, resp := range []int{2, 3} {
		t.Run(fmt.Sprintf("bloomtest RESP%d", resp), func(t *testing.T) {
			m := redistest.Mini(t)
			ModuleDouble(m)
			f(t, newModuleBed(t, &moduleBed{addr: m.Addr(), resp: resp, mini: m}))
		})
		if addr := os.Getenv("BLOOM_REDISBLOOM"); addr != "" {
			t.Run(fmt.Sprintf("module RESP%d", resp), func(t *testing.T) {
				f(t, newModuleBed(t, &moduleBed{addr: addr, resp: resp}))
			})
		}
	}
}

func newModuleBed(t *testing.T, b *moduleBed) *moduleBed {
	b.rdb = b.client(t)
	return b
}

// once skips a slow test's second run where everything takes ten times as long.
func (b *moduleBed) once(t *testing.T) {
	if raceEnabled && b.resp == 2 {
		t.Skip("one protocol is enough with the race detector")
	}
}

func (b *moduleBed) real() bool { return b.mini == nil }

// client returns another client, as another process has.
func (b *moduleBed) client(t testing.TB, mutate ...func(*redis.Options)) *redis.Client {
	t.Helper()
	mutate = append([]func(*redis.Options){func(o *redis.Options) { o.Protocol = b.resp }}, mutate...)
	return redistest.Target{Addr: b.addr}.Client(t, mutate...)
}

// advance lets time pass for TTLs.
func (b *moduleBed) advance(d time.Duration) {
	if b.mini != nil {
		b.mini.FastForward(d)
		return
	}
	time.Sleep(d)
}

// key returns a key of this test alone, and removes what belongs to it in the end:
// the server may be somebody's.
func (b *moduleBed) key(t *testing.T) string {
	t.Helper()
	return b.own(t, redistest.Key(t))
}

// own is key with a name of the test's choice, to which it adds a random part.
func (b *moduleBed) own(t *testing.T, key string) string {
	t.Helper()
	key = fmt.Sprintf("bloom-test-%x %s", rand.Uint64(), key)
	b.clean(t, key)
	return key
}

func (b *moduleBed) clean(t *testing.T, key string) {
	t.Cleanup(func() {
		_ = b.rdb.Del(context.WithoutCancel(t.Context()), moduleKeys(key)...).Err()
	})
}

// moduleKeys are the filter's key and all that may stand beside it.
func moduleKeys(key string) []string {
	return append(filterKeys(key), NewRedisBloom(nil, key, nil).ticket)
}

// filter returns a handle.
func (b *moduleBed) filter(t testing.TB, key string, cfg Config, opts *RedisBloomOptions) *Filter {
	t.Helper()
	return moduleFilter(t, b.rdb, key, cfg, opts)
}

func moduleFilter(t testing.TB, rdb redis.Cmdable, key string, cfg Config, opts *RedisBloomOptions) *Filter {
	t.Helper()
	f, err := New(NewRedisBloom(rdb, key, opts), cfg)
	require.NoError(t, err)
	return f
}

// made returns a filter of some capacity at 1 % that CreateEmpty made, with items.
func (b *moduleBed) made(t testing.TB, key string, capacity uint64, items ...string) *Filter {
	t.Helper()
	f := b.filter(t, key, Config{Capacity: capacity}, nil)
	require.NoError(t, f.CreateEmpty(t.Context()))
	if len(items) > 0 {
		_, err := f.AddMulti(t.Context(), items)
		require.NoError(t, err)
	}
	return f
}

// foreign makes a filter as another program does, with BF.RESERVE's options, and
// fills it.
func (b *moduleBed) foreign(t testing.TB, key string, rate float64, capacity int, options []any, items ...string) {
	t.Helper()
	reserve := append([]any{"BF.RESERVE", key, rate, capacity}, options...)
	require.NoError(t, b.rdb.Do(t.Context(), reserve...).Err())
	if len(items) > 0 {
		b.foreignAdd(t, key, items...)
	}
}

func (b *moduleBed) foreignAdd(t testing.TB, key string, items ...string) {
	t.Helper()
	for _, x := range moduleReply(t, b.rdb.Do(t.Context(), appendStrings([]any{"BF.MADD", key}, items)...)) {
		if err, refused := x.(error); refused {
			require.NoError(t, err)
		}
	}
}

func moduleReply(t testing.TB, cmd *redis.Cmd) []any {
	t.Helper()
	reply, err := cmd.Slice()
	require.NoError(t, err)
	return reply
}

// content is all that a filter holds, bit by bit, or "" where there is none.
func (b *moduleBed) content(t testing.TB, key string) string {
	t.Helper()
	var all strings.Builder
	for iter := int64(0); ; {
		dump, err := b.rdb.Do(t.Context(), "BF.SCANDUMP", key, iter).Slice()
		if redisErrorHas(err, "not found") {
			return ""
		}
		require.NoError(t, err)
		if iter = dump[0].(int64); iter == 0 {
			return all.String()
		}
		all.WriteString(dump[1].(string))
	}
}

// card is BF.CARD.
func (b *moduleBed) card(t testing.TB, key string) int64 {
	t.Helper()
	n, err := b.rdb.Do(t.Context(), "BF.CARD", key).Int64()
	require.NoError(t, err)
	return n
}

// count returns how many of the keys exist.
func (b *moduleBed) count(t testing.TB, keys ...string) int64 {
	t.Helper()
	n, err := b.rdb.Exists(t.Context(), keys...).Result()
	require.NoError(t, err)
	return n
}

// pttl returns what is left of the key's TTL, or a negative number.
func (b *moduleBed) pttl(t testing.TB, key string) time.Duration {
	t.Helper()
	ttl, err := b.rdb.PTTL(t.Context(), key).Result()
	require.NoError(t, err)
	return ttl
}

// requireNone requires that no key of the filter exists. Tickets go by themselves.
func (b *moduleBed) requireNone(t testing.TB, key string) {
	t.Helper()
	require.Zero(t, b.count(t, filterKeys(key)...), "a key came back")
}

// moduleItems returns n items that differ.
func moduleItems(prefix string, n int) []string {
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprint(prefix, " ", i)
	}
	return items
}

// moduleRequire requires one answer for all items, without an error.
func moduleRequire(t testing.TB, f *Filter, want bool, items ...string) {
	t.Helper()
	got, err := f.ExistsMulti(t.Context(), items)
	require.NoError(t, err)
	require.Len(t, got, len(items))
	require.NotContains(t, got, !want)
	for _, item := range items[:min(3, len(items))] {
		one, err := f.Exists(t.Context(), item)
		require.NoError(t, err)
		require.Equal(t, want, one)
	}
}

// moduleFails calls every method of a filter, requires target of each, and true
// wherever an answer is given. It returns the error texts.
func moduleFails(t testing.TB, f *Filter, target error) []string {
	t.Helper()
	var texts []string
	fails := func(name string, err error) {
		t.Helper()
		require.ErrorIs(t, err, target, name)
		texts = append(texts, err.Error())
	}
	one, err := f.Exists(t.Context(), "a")
	fails("Exists", err)
	require.True(t, one)
	many, err := f.ExistsMulti(t.Context(), []string{"a", "", "a"})
	fails("ExistsMulti", err)
	require.Equal(t, []bool{true, true, true}, many)
	one, err = f.Add(t.Context(), "a")
	fails("Add", err)
	require.True(t, one)
	many, err = f.AddMulti(t.Context(), []string{"a", "", "a"})
	fails("AddMulti", err)
	require.Equal(t, []bool{true, true, true}, many)
	info, err := f.Info(t.Context())
	fails("Info", err)
	require.Zero(t, info)
	fails("Ready", f.Ready(t.Context()))
	fails("Reset", f.Reset(t.Context()))
	return texts
}

// moduleHook calls functions before calls of a script.
type moduleHook struct {
	script *script
	first  func()
	each   func()
}

// moduleBefore calls f before the first call of a script.
func moduleBefore(s *script, f func()) *moduleHook {
	return &moduleHook{script: s, first: sync.OnceFunc(f), each: func() {}}
}

func (h *moduleHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *moduleHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 1 && args[0] == "evalsha" && args[1] == h.script.sha {
			h.first()
			h.each()
		}
		return next(ctx, cmd)
	}
}

func (h *moduleHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
