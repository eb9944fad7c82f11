package bloom

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A model of filters and builders: sets of items that must be found. Random steps
// are taken by the real thing and by the model, and after each the two must agree.

// modelBuild is a builder and its staging.
type modelBuild struct {
	build                // nil: nobody knows its token
	name        string   // in the log
	source      []string // yielded
	dual        []string // added while its staging was open
	merged      uint64   // chunks that staging counts
	merging     bool     // source is at its end
	published   bool
	copied      string // an older state of staging, and what it held
	copiedDual  int
	copiedCount uint64
}

// modelLive is a published or created generation.
type modelLive struct {
	items      []string
	generation uint64
	by         *modelBuild // nil: made empty
	params     Params
}

type rebuildModel struct {
	*testing.T
	bed     rebuildBed
	rnd     *rand.Rand
	sizes   []uint64
	users   []*Filter // with stale ideas of both filters
	builder Backend
	replays *rebuildReplays

	live         *modelLive
	staging      *modelBuild
	latest       *modelBuild   // to be published
	builds       []*modelBuild // that have not crashed
	items        int           // given out so far
	publications int
	steps        []string
}

func (m *rebuildModel) log(format string, args ...any) {
	m.steps = append(m.steps, fmt.Sprintf(format, args...))
}

// chunks is how many merges a build needs; 1 where merging is one step.
func (b *modelBuild) chunks() uint64 {
	if d, ok := b.build.(*bitmapBuild); ok {
		return d.chunks()
	}
	return 1
}

func (m *rebuildModel) pick() *modelBuild {
	if len(m.builds) == 0 {
		return nil
	}
	return m.builds[m.rnd.IntN(len(m.builds))]
}

func (m *rebuildModel) fresh(n int) []string {
	items := rebuildItems(fmt.Sprintf("item %d ", m.items), n)
	m.items++
	return items
}

// add adds items by a random handle.
func (m *rebuildModel) add() {
	items := m.fresh(1 + m.rnd.IntN(3))
	_, err := m.users[m.rnd.IntN(len(m.users))].AddMulti(m.Context(), items)
	m.log("add %q: %v", items, err)
	if m.live == nil {
		require.ErrorIs(m, err, ErrNotReady)
	} else {
		require.NoError(m, err)
		m.live.items = append(m.live.items, items...)
	}
	if m.staging != nil {
		m.staging.dual = append(m.staging.dual, items...)
	}
}

// open opens staging, or is told why not.
func (m *rebuildModel) open() {
	w := wish{config: Config{Capacity: m.sizes[m.rnd.IntN(len(m.sizes))], FPRate: 0.01}, lease: time.Minute}
	if !m.bed.module && m.rnd.IntN(2) == 0 {
		w.config.Layout = Blocked
	}
	if m.rnd.IntN(3) == 0 {
		w.maxAge = time.Hour
	}
	b, report, err := m.builder.(rebuilder).openBuild(m.Context(), w)
	want, paramsErr := NewParams(w.config.Capacity, w.config.FPRate, w.config.Layout)
	require.NoError(m, paramsErr)
	m.log("open %v, MaxAge %v: %v", w.config, w.maxAge, err)
	switch {
	case m.staging != nil:
		require.ErrorIs(m, err, ErrRebuilding)
	case w.maxAge > 0 && m.live != nil && m.live.by != nil && want.satisfiedBy(m.live.params):
		require.ErrorIs(m, err, errYoung)
		require.Equal(m, m.live.params.Capacity, report.Params.Capacity)
	default:
		require.NoError(m, err)
		m.staging = &modelBuild{build: b, name: fmt.Sprintf("build %d", len(m.steps))}
		m.builds = append(m.builds, m.staging)
	}
}

// read gives items of the source to a builder, whoever has its staging by now.
func (m *rebuildModel) read() {
	b := m.pick()
	if b == nil || b.merging {
		return
	}
	items := m.fresh(1 + m.rnd.IntN(20))
	if m.live != nil && m.rnd.IntN(2) == 0 {
		items = append(items, m.live.items[:min(200, len(m.live.items))]...)
	}
	for _, item := range items {
		require.NoError(m, b.add(m.Context(), item))
	}
	b.source = append(b.source, items...)
	m.log("%s reads %d items", b.name, len(items))
}

// merge sends a chunk: the next one, or one that staging must not take.
func (m *rebuildModel) merge() {
	b := m.pick()
	if b == nil {
		return
	}
	b.merging = true
	d, chunked := b.build.(*bitmapBuild)
	if !chunked {
		err := b.build.merge(m.Context(), func(uint64, uint64) {})
		m.log("%s merges: %v", b.name, err)
		if m.staging == b {
			require.NoError(m, err)
			b.merged = 1
		}
		return
	}
	i := b.merged
	if m.rnd.IntN(4) == 0 {
		i = uint64(m.rnd.IntN(int(d.chunks())))
	}
	if i >= d.chunks() {
		return
	}
	from := i * mergeChunk
	counted, err := d.mergeOne(m.Context(), i, d.local.appendBody(nil, from, min(d.params().bodyBytes(), from+mergeChunk)))
	m.log("%s merges %d: %d %v", b.name, i, counted, err)
	if m.staging != b {
		require.ErrorIs(m, err, ErrRebuildRefused)
		return
	}
	require.NoError(m, err)
	if i == b.merged {
		b.merged++
	}
	require.Equal(m, b.merged, counted)
}

// publish publishes what is whole, and nothing else.
func (m *rebuildModel) publish() {
	b := m.pick()
	if b == nil {
		return
	}
	if b.merging = true; b.merged == 0 && b.chunks() == 1 {
		_ = b.build.merge(m.Context(), func(uint64, uint64) {})
		if m.staging == b {
			b.merged = 1
		}
	}
	generation, err := b.build.publish(m.Context())
	m.log("%s publishes: %d %v", b.name, generation, err)
	switch {
	case m.bed.shards != nil && b.published:
		require.NoError(m, err, "its builder knows")
	case m.live != nil && m.live.by == b && m.bed.rdb != nil:
		require.NoError(m, err, "asked again it says so again")
		m.requireGeneration(generation)
	case m.bed.module && m.latest == b && err == nil:
		// Its state is beside the filter, so it may remember one that is lost.
	case m.staging != b:
		require.ErrorIs(m, err, ErrRebuildRefused)
	case b.merged < b.chunks():
		require.ErrorIs(m, err, errMergeAgain)
	default:
		require.NoError(m, err)
		m.published(b)
		m.requireGeneration(generation)
	}
}

func (m *rebuildModel) published(b *modelBuild) {
	generation := uint64(1)
	if m.live != nil {
		generation = m.live.generation + 1
	}
	m.live = &modelLive{items: slices.Concat(b.source, b.dual), generation: generation, by: b, params: b.params()}
	m.staging, m.latest, b.published = nil, b, true
	m.publications++
}

func (m *rebuildModel) requireGeneration(generation uint64) {
	if !m.bed.module { // whose count is beside the filter
		require.Equal(m, m.live.generation, generation)
	}
}

// look looks into staging by its builder's eyes.
func (m *rebuildModel) look() {
	b := m.pick()
	if b == nil || m.staging != b || m.bed.module {
		return
	}
	items := b.dual
	switch {
	case b.merged == b.chunks():
		items = slices.Concat(items, b.source)
	case b.params().Layout == Blocked:
		return // tags come with the merge
	}
	found, err := b.lookUp(m.Context(), items)
	m.log("%s looks up %d: %v", b.name, len(items), err)
	require.NoError(m, err)
	require.False(m, slices.Contains(found, false))
}

// abort gives up a build, also one that is not any more.
func (m *rebuildModel) abort() {
	b := m.pick()
	if b == nil {
		return
	}
	err := b.build.abort(m.Context())
	m.log("%s aborts: %v", b.name, err)
	require.NoError(m, err)
	if m.staging == b {
		m.staging = nil
	}
}

func (m *rebuildModel) renew() {
	b := m.pick()
	if b == nil {
		return
	}
	err := b.renew(m.Context())
	m.log("%s renews: %v", b.name, err)
	if m.staging == b || m.bed.shards != nil && b.published { // then there is nothing to renew
		require.NoError(m, err)
	} else {
		require.ErrorIs(m, err, ErrRebuildRefused)
	}
}

// crash forgets a builder; its staging stays.
func (m *rebuildModel) crash() {
	if b := m.pick(); b != nil {
		m.builds = slices.DeleteFunc(m.builds, func(c *modelBuild) bool { return c == b })
		m.log("%s crashes", b.name)
	}
}

// expire ends the lease of staging.
func (m *rebuildModel) expire() {
	if m.staging == nil || m.bed.rdb == nil {
		return
	}
	m.log("the lease of %s ends", m.staging.name)
	var keys []string
	for _, s := range append(m.bed.shards, m.bed) {
		if keys = append(keys, companionKey(s.key, "next")); s.module {
			keys = append(keys, companionKey(s.key, "build"))
		}
	}
	for _, key := range keys {
		require.NoError(m, m.bed.rdb.PExpire(m.Context(), key, 2*time.Millisecond).Err())
	}
	m.bed.target.Advance(4 * time.Millisecond)
	m.staging = nil
	if m.bed.module && m.live != nil {
		m.live.by = nil // the state told of it
	}
}

// copyBack keeps a copy of staging, or brings it back: a server that lost its last
// commands. What was added since is lost by the server.
func (m *rebuildModel) copyBack() {
	if m.staging == nil || m.bed.rdb == nil || m.bed.module || m.bed.shards != nil {
		return
	}
	b, next := m.staging, companionKey(m.bed.key, "next")
	if b.copied == "" || m.rnd.IntN(2) == 0 {
		value, err := m.bed.rdb.Get(m.Context(), next).Result()
		require.NoError(m, err)
		b.copied, b.copiedDual, b.copiedCount = value, len(b.dual), b.merged
		m.log("%s is copied, %d merged", b.name, b.merged)
		return
	}
	require.NoError(m, m.bed.rdb.Set(m.Context(), next, b.copied, time.Minute).Err())
	b.dual, b.merged = b.dual[:b.copiedDual:b.copiedDual], b.copiedCount
	m.log("%s is as it was with %d merged", b.name, b.merged)
}

// create, reset, drop and evict are what others do to the filter.
func (m *rebuildModel) create() {
	cfg := Config{Capacity: m.sizes[0], FPRate: 0.25}
	if m.live != nil {
		cfg.Layout = m.live.params.Layout
	}
	err := m.bed.open(m, cfg).CreateEmpty(m.Context())
	m.log("create: %v", err)
	switch {
	case m.live != nil:
		require.NoError(m, err)
	case m.staging != nil:
		require.ErrorIs(m, err, ErrRebuilding)
	default:
		require.NoError(m, err)
		m.live = &modelLive{generation: 1, params: Params{Layout: cfg.Layout}}
	}
}

func (m *rebuildModel) reset() {
	err := m.users[0].Reset(m.Context())
	m.log("reset: %v", err)
	switch {
	case m.live == nil:
		require.ErrorIs(m, err, ErrNotReady)
	case m.staging != nil:
		require.ErrorIs(m, err, ErrRebuilding)
	default:
		require.NoError(m, err)
		m.live = &modelLive{generation: m.live.generation + 1, params: m.live.params}
	}
}

func (m *rebuildModel) drop() {
	err := m.users[0].Drop(m.Context())
	m.log("drop: %v", err)
	require.NoError(m, err)
	m.live, m.staging = nil, nil
}

func (m *rebuildModel) evict() {
	if m.bed.rdb == nil {
		return
	}
	m.log("live is evicted")
	m.bed.evict(m)
	m.live = nil
}
