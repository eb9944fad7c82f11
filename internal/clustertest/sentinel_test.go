package clustertest

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Sentinels make a replica the primary, under load: errors meanwhile, and then
// everything works by itself, through the same handles.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t)
	replica := redistest.StartReplica(t, primary)
	sentinels := redistest.StartSentinels(t, 3, primary, replica)
	rdb := sentinels.Client(t)

	type place struct {
		f       *bloom.Filter
		traffic *traffic
	}
	var places []place
	for _, layout := range []bloom.Layout{bloom.Classic, bloom.Blocked} {
		members := numbered("member", 200)
		f := filled(t, rdb, layout.String(), bloom.Config{Capacity: 50_000, Layout: layout, WaitReplicas: 1, WaitTimeout: waitTimeout}, members)
		places = append(places, place{f, startTraffic(t, members, f, f)})
	}
	db := &table{}
	guarded := filled(t, rdb, "guarded", bloom.Config{Capacity: 50_000, Layout: bloom.Blocked, WaitReplicas: 1, WaitTimeout: waitTimeout}, nil)
	gtr := startGuardTraffic(t, newGuard(t, guarded, rdb, "row:", db), db)
	goOn := func() {
		for _, p := range places {
			p.traffic.goOn(50)
		}
		gtr.goOn(50)
	}
	goOn()
	primary.Stop()
	sentinels.AwaitPrimary(t, replica)
	primary.Restart(t)
	require.NoError(t, primary.Client(t).ReplicaOf(t.Context(), "127.0.0.1", portOf(replica)).Err())
	primary.AwaitInStep(t)
	goOn()
	gtr.end()
	for _, p := range places {
		members := p.traffic.end()
		requireMembers(t, p.f, members)
		requireFew(t, p.f, numbered("absent", 500))
		_, err := p.f.Rebuild(t.Context(), source(members), &bloom.RebuildOptions{Settle: -1})
		require.NoError(t, err)
		requireMembers(t, p.f, members)
	}
}

func portOf(s *redistest.Server) string {
	_, port, _ := net.SplitHostPort(s.Addr())
	return port
}

// A replica becomes the primary in the middle of a rebuild's merge, without the
// last of what was merged: the merge goes back to what the server has, or the
// rebuild ends, and never is a generation published that lacks items.
func TestPromotedMidMerge(t *testing.T) {
	t.Parallel()
	const never, opening, publishing = -2, -1, 1000
	const last = 999 // stands for the last chunk
	for name, c := range map[string]struct {
		cutAt      int // what the replica does not get any more: from this chunk on
		promotedAt int // what the replica gets as the primary: from this chunk on
		published  bool
		layout     bloom.Layout
	}{
		"nothing is lost":           {never, 8, true, bloom.Classic},
		"some chunks are lost":      {3, 8, true, bloom.Classic},
		"some blocks are lost":      {3, 8, true, bloom.Blocked},
		"all chunks are lost":       {0, 8, true, bloom.Blocked},
		"the last is, at the end":   {last, publishing, true, bloom.Classic},
		"staging is lost":           {opening, 8, false, bloom.Blocked},
		"staging is, at the end":    {opening, publishing, false, bloom.Classic},
		"nothing is, at the end":    {never, publishing, true, bloom.Blocked},
		"lost before the first one": {opening, 0, false, bloom.Classic},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := redistest.Start(t)
			replica := redistest.StartReplica(t, primary)
			var addr atomic.Value
			addr.Store(primary.Addr())
			rdb := primary.Client(t, func(o *redis.Options) {
				o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, network, addr.Load().(string))
				}
			})
			// The live filter has items that the source lacks, and the other way round.
			old, rows := numbered("old", 500), numbered("row", 20_000)
			f := filled(t, rdb, "k", bloom.Config{Capacity: 800_000, Layout: c.layout}, old)
			info, err := f.Info(t.Context())
			require.NoError(t, err)
			chunks := int(info.Bytes)/65536 + 1
			cutAt := c.cutAt
			if cutAt == last {
				cutAt = chunks - 1
			}
			hook := &mergeHook{before: func(step int) {
				if step == cutAt {
					replica.AwaitInStep(t) // with all that came before
					replica.CutOff(t)
				}
				if step == c.promotedAt {
					if cutAt == never {
						replica.AwaitInStep(t)
					}
					primary.Stop()
					replica.Promote(t)
					addr.Store(replica.Addr())
				}
			}, publishing: publishing}
			replica.AwaitInStep(t)
			if cutAt == opening {
				replica.CutOff(t)
			}
			rdb.AddHook(hook)
			report, err := f.Rebuild(t.Context(), source(rows), &bloom.RebuildOptions{Settle: -1, Lease: 5 * time.Second, MinItems: 1})
			t.Logf("chunks sent, of %d: %v (%v)", chunks, hook.sent, err)
			f = mustNew(t, replica.Client(t), "k", bloom.Config{})
			if c.published {
				require.NoError(t, err)
				require.EqualValues(t, 2, report.Generation)
				requireMembers(t, f, rows)
				requireFew(t, f, old)
				if cutAt >= 0 {
					require.Greater(t, len(hook.sent), chunks, "the merge did not go back")
				}
			} else {
				require.ErrorIs(t, err, bloom.ErrRebuildRefused)
				requireMembers(t, f, old)
				requireFew(t, f, rows[:1000])
			}
			require.True(t, hook.told[c.promotedAt], "the promotion was part of the test")
			n, err := replica.Client(t).Exists(t.Context(), "{k}:next", "{k}:next-a", "{k}:next-b").Result()
			require.NoError(t, err)
			require.Zero(t, n)
		})
	}
}

// mergeHook calls before in front of the first try of each chunk, by its number,
// and of the publishing.
type mergeHook struct {
	before     func(step int)
	publishing int
	told       map[int]bool
	sent       []int // chunks, in order
}

func (h *mergeHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *mergeHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args() // evalsha, script, number of keys, keys, arguments
		if name := cmd.Name(); len(args) > 9 && (name == "evalsha" || name == "eval") {
			switch second, _ := args[4].(string); {
			case strings.HasSuffix(second, ":next-a"):
				chunk := int(args[9].(uint64))
				h.sent = append(h.sent, chunk)
				h.tell(chunk)
			case len(h.sent) > 0 && second == "{k}:next" && len(args) > 12:
				h.tell(h.publishing)
			}
		}
		return next(ctx, cmd)
	}
}

func (h *mergeHook) tell(step int) {
	if h.told[step] {
		return
	}
	if h.told == nil {
		h.told = map[int]bool{}
	}
	h.told[step] = true
	h.before(step)
}

func (h *mergeHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
