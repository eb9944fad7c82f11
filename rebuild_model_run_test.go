package bloom

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The model's run: which steps it takes, late copies among them, and what it checks
// after each.

// replay delivers a command of a builder once more.
func (m *rebuildModel) replay() {
	if m.replays == nil || len(m.replays.cmds) == 0 {
		return
	}
	args := m.replays.cmds[m.rnd.IntN(len(m.replays.cmds))]
	reply, err := stringsOf(m.bed.rdb.Do(m.Context(), args...).Result())
	m.log("a late copy of %s: %q %v", m.replays.name(args), reply, err)
	if err != nil && !isWrongType(err) {
		require.NoError(m, err)
	}
	switch name := m.replays.name(args); {
	case name == "open" && reply[0] == "open" && m.staging == nil:
		m.staging = &modelBuild{name: "nobody's"}
	case name == "publish" && reply[0] == "done" && (m.live == nil || m.live.by == nil || !m.isLive(args)):
		b := m.staging // it was asked for before it was whole, and is whole now
		require.NotNil(m, b)
		require.Equal(m, b.chunks(), b.merged)
		m.published(b)
	case name == "merge" && reply[0] == "merged":
		require.NotNil(m, m.staging)
		counted := reply[1]
		if counted == fmt.Sprint(m.staging.merged+1) {
			m.staging.merged++ // staging was set back, and this is the chunk that it lacks
		}
		require.Equal(m, fmt.Sprint(m.staging.merged), counted)
	}
}

// isLive reports whether a publish was of the live generation.
func (m *rebuildModel) isLive(args []any) bool {
	d, ok := m.live.by.build.(*bitmapBuild)
	return ok && slices.Contains(args, any(d.token))
}

// rebuildReplays is a hook that keeps the scripts of builders.
type rebuildReplays struct{ cmds [][]any }

func (r *rebuildReplays) name(args []any) string {
	for name, s := range map[string]*script{"open": openScript, "merge": mergeScript, "publish": publishScript,
		"renew": renewScript, "abort": dropScript} {
		if args[1] == s.sha || args[1] == s.src {
			return name
		}
	}
	return ""
}

func (r *rebuildReplays) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *rebuildReplays) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && r.name(args) != "" {
			args = slices.Clone(args)
			for i, arg := range args {
				if b, ok := arg.([]byte); ok {
					args[i] = slices.Clone(b)
				}
			}
			r.cmds = append(r.cmds, args)
		}
		return next(ctx, cmd)
	}
}

func (r *rebuildReplays) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// check compares what is stored with the model.
func (m *rebuildModel) check(all bool) {
	for i, f := range m.users {
		if !all && i != len(m.steps)%len(m.users) {
			continue
		}
		if m.live == nil {
			exists, err := f.Exists(m.Context(), "anything")
			require.ErrorIs(m, err, ErrNotReady)
			require.True(m, exists)
			continue
		}
		items := m.live.items
		if !all {
			items = items[max(0, len(items)-30):]
		}
		found, err := f.ExistsMulti(m.Context(), items)
		require.NoError(m, err)
		if at := slices.Index(found, false); at >= 0 {
			require.FailNow(m, "false negative", "%q", items[at])
		}
	}
	if !all || m.bed.rdb == nil {
		return
	}
	for _, key := range filterKeys(m.bed.key) {
		ttl, err := m.bed.rdb.PTTL(m.Context(), key).Result()
		require.NoError(m, err)
		there := ttl != -2
		switch role := strings.TrimPrefix(key, companionKey(m.bed.key, "")); {
		case key == m.bed.key:
			require.Equal(m, m.live != nil, there)
		case role == "next":
			require.Equal(m, m.staging != nil, there, "staging")
			require.NotEqualValues(m, -1, ttl, "staging has no lease")
		case role != "build":
			require.False(m, there, key)
		}
	}
}

func (m *rebuildModel) run(steps int) {
	defer func() {
		if m.Failed() {
			m.Log("steps:\n" + strings.Join(m.steps, "\n"))
		}
	}()
	for range 3 {
		m.users = append(m.users, m.bed.open(m, Config{}))
	}
	weighted := []struct {
		weight int
		step   func()
	}{{20, m.add}, {8, m.open}, {10, m.read}, {14, m.merge}, {8, m.publish}, {3, m.look}, {2, m.abort}, {3, m.renew},
		{1, m.crash}, {2, m.expire}, {5, m.copyBack}, {3, m.create}, {1, m.reset}, {1, m.drop}, {1, m.evict}, {5, m.replay}}
	total := 0
	for _, w := range weighted {
		total += w.weight
	}
	for i := range steps {
		at := m.rnd.IntN(total)
		for _, w := range weighted {
			if at -= w.weight; at < 0 {
				w.step()
				break
			}
		}
		m.check(i%10 == 9)
	}
}

// Random interleavings of everything that builders, adders and others do, with a
// crash at every step, leases that end, copies that come late and a server that
// forgets.
func TestRebuildModel(t *testing.T) {
	t.Parallel()
	seed := rebuildSeed(t)
	rounds := 15
	switch {
	case testing.Short():
		rounds = 5
	case raceEnabled:
		rounds = 9
	}
	published := 0
	run := func(t *testing.T, bed rebuildBed, sizes []uint64, steps, round int) {
		m := &rebuildModel{T: t, bed: bed, sizes: sizes, rnd: rand.New(rand.NewPCG(seed, uint64(round))), builder: bed.backend()}
		if bed.rdb != nil && !bed.module && bed.shards == nil {
			m.replays = &rebuildReplays{}
			rdb := bed.target.Client(t)
			rdb.AddHook(m.replays)
			m.builder = NewBitmap(rdb, bed.key)
		}
		m.run(steps)
		published += m.publications
	}
	rebuildBeds(t, func(t *testing.T, bed rebuildBed) {
		if bed.layout == Blocked && bed.shards == nil {
			return // layouts change at random
		}
		published = 0
		for round := range rounds {
			switch {
			case bed.shards != nil && bed.rdb == nil:
				run(t, rebuildShards(rebuildMemory(Classic), rebuildMemory(Classic)), []uint64{100, 300}, 150, round)
			case bed.shards != nil:
				run(t, rebuildShards(rebuildBitmap(t, bed.target, Classic), rebuildBitmap(t, bed.target, Classic)), []uint64{100, 300}, 150, round)
			case bed.rdb == nil:
				run(t, rebuildMemory(Classic), []uint64{100, 300}, 200, round)
			case bed.module:
				run(t, rebuildModule(t), []uint64{8000, 10_000}, 150, round)
			case bed.real():
				run(t, rebuildBitmap(t, bed.target, Classic), []uint64{200, 60_000, 150_000}, 200, round)
			case round%3 == 0:
				run(t, rebuildBitmap(t, bed.target, Classic), []uint64{200, 300}, 120, round)
			}
		}
		require.True(t, published > 0 || rounds < 15, "nothing came of it")
	})
}
