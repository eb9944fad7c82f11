package bloom

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// rebuildBed is the place of one filter: what a test of rebuilds needs to know of
// a backend.
type rebuildBed struct {
	layout  Layout
	module  bool                    // RedisBloom
	target  redistest.Target        // zero for Memory
	rdb     *redis.Client           // nil for Memory
	key     string                  // "" for Memory
	backend func() Backend          // a new handle, as another process has
	content func(*testing.T) string // of the live filter, "" where there is none
	shards  []rebuildBed            // of a Sharded
}

// real reports whether a server keeps the filter that keeps time by itself.
func (b rebuildBed) real() bool { return b.target.Real }

// rebuildBeds runs f over every backend, layout and server.
func rebuildBeds(t *testing.T, f func(*testing.T, rebuildBed)) {
	t.Helper()
	for _, layout := range []Layout{Classic, Blocked} {
		t.Run("memory "+layout.String(), func(t *testing.T) { f(t, rebuildMemory(layout)) })
	}
	rebuildBitmaps(t, f)
	t.Run("redisbloom", func(t *testing.T) { f(t, rebuildModule(t)) })
	rebuildSharded(t, f)
}

// rebuildSharded runs f over shards in this process, and over shards on a real
// server.
func rebuildSharded(t *testing.T, f func(*testing.T, rebuildBed)) {
	t.Helper()
	t.Run("sharded memory", func(t *testing.T) {
		f(t, rebuildShards(rebuildMemory(Classic), rebuildMemory(Classic), rebuildMemory(Classic)))
	})
	t.Run("sharded bitmap", func(t *testing.T) {
		s := redistest.Shared(t)
		f(t, rebuildShards(rebuildOwn(t, s, Blocked), rebuildOwn(t, s, Blocked), rebuildOwn(t, s, Blocked)))
	})
}

// rebuildShards is one filter over the places of several.
func rebuildShards(shards ...rebuildBed) rebuildBed {
	b := shards[0]
	b.shards = shards
	b.backend = func() Backend {
		var backends []Backend
		for _, s := range shards {
			backends = append(backends, s.backend())
		}
		return NewSharded(backends...)
	}
	b.content = func(t *testing.T) (all string) {
		for _, s := range shards {
			all += s.content(t)
		}
		return all
	}
	return b
}

// rebuildBitmaps runs f over both layouts, on miniredis and on a real server.
func rebuildBitmaps(t *testing.T, f func(*testing.T, rebuildBed)) {
	t.Helper()
	for _, layout := range []Layout{Classic, Blocked} {
		t.Run("bitmap "+layout.String(), func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s redistest.Target) { f(t, rebuildBitmap(t, s, layout)) })
		})
	}
}

// rebuildReal runs f over the real servers.
func rebuildReal(t *testing.T, f func(*testing.T, rebuildBed)) {
	t.Helper()
	for _, layout := range []Layout{Classic, Blocked} {
		t.Run("bitmap "+layout.String(), func(t *testing.T) { f(t, rebuildOwn(t, redistest.Shared(t), layout)) })
	}
	t.Run("redisbloom", func(t *testing.T) { f(t, rebuildModule(t)) })
}

func rebuildMemory(layout Layout) rebuildBed {
	m := NewMemory()
	return rebuildBed{layout: layout, backend: func() Backend { return m }, content: func(*testing.T) string {
		var b bytes.Buffer
		if m.live.Load() == nil {
			return ""
		}
		_, _ = m.WriteTo(&b)
		return b.String()
	}}
}

func rebuildBitmap(t *testing.T, s redistest.Target, layout Layout) rebuildBed {
	return rebuildBitmapAt(s.Client(t), s, redistest.Key(t), layout)
}

// rebuildOwn is a Bitmap on a server.
func rebuildOwn(t *testing.T, s *redistest.Server, layout Layout) rebuildBed {
	return rebuildBitmapAt(s.Client(t), redistest.Target{Real: true, Addr: s.Addr()}, redistest.Key(t), layout)
}

func rebuildBitmapAt(rdb *redis.Client, s redistest.Target, key string, layout Layout) rebuildBed {
	return rebuildBed{layout: layout, target: s, rdb: rdb, key: key,
		backend: func() Backend { return NewBitmap(rdb, key) },
		content: func(t *testing.T) string {
			value, err := rdb.Get(t.Context(), key).Result()
			if err == redis.Nil {
				return ""
			}
			require.NoError(t, err)
			return value
		}}
}

// rebuildModule is a filter on the server with the module that BLOOM_REDISBLOOM
// names, host:port.
func rebuildModule(t *testing.T) rebuildBed {
	addr := os.Getenv("BLOOM_REDISBLOOM")
	if addr == "" {
		t.Skip("BLOOM_REDISBLOOM does not name a server with the RedisBloom module")
	}
	s := redistest.Target{Name: "redisbloom", Addr: addr, Real: true}
	rdb, key := s.Client(t), fmt.Sprintf("%s:%x", redistest.Key(t), rand.Uint64())
	t.Cleanup(func() {
		_ = rdb.Del(context.WithoutCancel(t.Context()), filterKeys(key)...).Err()
	})
	return rebuildBed{module: true, target: s, rdb: rdb, key: key,
		backend: func() Backend { return NewRedisBloom(rdb, key, nil) },
		content: func(t *testing.T) string {
			value, err := rdb.Dump(t.Context(), key).Result()
			if err == redis.Nil {
				return ""
			}
			require.NoError(t, err)
			return value
		}}
}

// config is a Config of this bed's layout.
func (b rebuildBed) config(capacity uint64) Config {
	return Config{Capacity: capacity, Layout: b.layout}
}

// open returns a new handle.
func (b rebuildBed) open(t testing.TB, cfg Config) *Filter {
	t.Helper()
	f, err := New(b.backend(), cfg)
	require.NoError(t, err)
	return f
}

// built returns a handle on a filter of the given capacity that a rebuild has
// filled.
func (b rebuildBed) built(t testing.TB, capacity uint64, items []string) *Filter {
	t.Helper()
	f := b.open(t, b.config(capacity))
	_, err := f.Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
	require.NoError(t, err)
	return f
}

// staged reports whether staging is there.
func (b rebuildBed) staged(t testing.TB) bool {
	t.Helper()
	if b.shards != nil {
		return slices.ContainsFunc(b.shards, func(s rebuildBed) bool { return s.staged(t) })
	}
	if m, ok := b.backend().(*Memory); ok {
		return m.next.Load() != nil
	}
	n, err := b.rdb.Exists(t.Context(), companionKey(b.key, "next")).Result()
	require.NoError(t, err)
	return n == 1
}

// evict removes the live filter, every shard of it.
func (b rebuildBed) evict(t testing.TB) {
	t.Helper()
	for _, s := range append(b.shards, b) {
		require.NoError(t, b.rdb.Del(t.Context(), s.key).Err())
	}
}

// requireClean requires that a rebuild left nothing: no staging and no scratch
// keys. RedisBloom keeps the state of what it published.
func (b rebuildBed) requireClean(t testing.TB) {
	t.Helper()
	for _, s := range b.shards {
		s.requireClean(t)
	}
	if b.shards != nil {
		return
	}
	require.False(t, b.staged(t), "staging is left")
	if b.rdb == nil {
		return
	}
	keys := []string{companionKey(b.key, "next-a"), companionKey(b.key, "next-b")}
	if !b.module {
		keys = append(keys, companionKey(b.key, "build"))
	}
	n, err := b.rdb.Exists(t.Context(), keys...).Result()
	require.NoError(t, err)
	require.Zero(t, n, "scratch keys are left")
}

// requireUntouched requires the very bytes of before, and nothing else of a
// rebuild.
func (b rebuildBed) requireUntouched(t *testing.T, before string) {
	t.Helper()
	require.True(t, before == b.content(t), "the live filter has changed")
	b.requireClean(t)
}

// rebuildQuick are options without the wait.
func rebuildQuick() *RebuildOptions { return &RebuildOptions{Settle: -1} }

func rebuildItems(prefix string, n int) []string {
	items := make([]string, n)
	for i := range items {
		items[i] = prefix + strconv.Itoa(i)
	}
	return items
}

func rebuildSource(items []string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// rebuildMidway is a source that calls f once, behind half of the items.
func rebuildMidway(items []string, f func()) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for i, item := range items {
			if i == len(items)/2 {
				f()
			}
			if !yield(item, nil) {
				return
			}
		}
	}
}

// rebuildEmpty is a source without items.
func rebuildEmpty(func(string, error) bool) {}

// rebuildRequireAll requires an undisturbed yes for each item.
func rebuildRequireAll(t testing.TB, f *Filter, items []string) {
	t.Helper()
	got, err := f.ExistsMulti(t.Context(), items)
	require.NoError(t, err)
	require.Len(t, got, len(items))
	if at := slices.Index(got, false); at >= 0 {
		t.Fatalf("false negative: %q is denied", items[at])
	}
}

// rebuildRequireMostlyAbsent requires that a filter denies nearly all items.
func rebuildRequireMostlyAbsent(t testing.TB, f *Filter, items []string) {
	t.Helper()
	got, err := f.ExistsMulti(t.Context(), items)
	require.NoError(t, err)
	found := 0
	for _, exists := range got {
		if exists {
			found++
		}
	}
	require.LessOrEqual(t, found, len(items)/5+2, "of %d items that nobody should find", len(items))
}

// rebuildSeam puts itself between Rebuild and the build of a backend.
type rebuildSeam struct {
	Backend
	wrap func(build) build
}

func (s rebuildSeam) openBuild(ctx context.Context, w wish) (build, RebuildReport, error) {
	b, report, err := s.Backend.(rebuilder).openBuild(ctx, w)
	if b != nil {
		b = s.wrap(b)
	}
	return b, report, err
}

// rebuildSteps is a build that calls a function in front of each step, if set.
type rebuildSteps struct {
	build
	before func(step string) error
}

func (s rebuildSteps) add(ctx context.Context, item string) error {
	if err := s.before("add"); err != nil {
		return err
	}
	return s.build.add(ctx, item)
}

func (s rebuildSteps) merge(ctx context.Context, progress func(done, total uint64)) error {
	if err := s.before("merge"); err != nil {
		return err
	}
	return s.build.merge(ctx, progress)
}

func (s rebuildSteps) lookUp(ctx context.Context, items []string) ([]bool, error) {
	if err := s.before("check"); err != nil {
		return nil, err
	}
	return s.build.lookUp(ctx, items)
}

func (s rebuildSteps) publish(ctx context.Context) (uint64, error) {
	if err := s.before("publish"); err != nil {
		return 0, err
	}
	return s.build.publish(ctx)
}

// stepwise returns a handle that calls f in front of each step of a rebuild.
func (b rebuildBed) stepwise(t testing.TB, cfg Config, f func(step string) error) *Filter {
	t.Helper()
	seam := rebuildSeam{b.backend(), func(next build) build { return rebuildSteps{next, f} }}
	filter, err := New(seam, cfg)
	require.NoError(t, err)
	return filter
}

// rebuildSeed returns the seed of a test's random choices, BLOOM_SEED if set, and
// prints it.
func rebuildSeed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("BLOOM_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("BLOOM_SEED=%d", seed)
	return seed
}

// rebuildWait waits until ready.
func rebuildWait(t testing.TB, what string, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ready(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "waited in vain for %s", what)
	}
}
