package bloom

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Replies that are lost, and commands that come twice and late.

// rebuildChunks is the capacity of a filter of three chunks, in both layouts.
const rebuildChunks = 120_000

// rebuildFaults is a filter behind a proxy, of 200 rows that a rebuild brought.
type rebuildFaults struct {
	rebuildBed
	proxy *redistest.Proxy
	slow  *Filter // through the proxy
	items []string
}

func newRebuildFaults(t *testing.T, s *redistest.Server, layout Layout) *rebuildFaults {
	t.Helper()
	return newRebuildFaultsRetrying(t, s, layout, time.Millisecond)
}

// newRebuildFaultsRetrying is the same with a client that waits before it repeats
// a command.
func newRebuildFaultsRetrying(t *testing.T, s *redistest.Server, layout Layout, retryAfter time.Duration) *rebuildFaults {
	t.Helper()
	proxy := redistest.NewProxy(t, s.Addr())
	b := &rebuildFaults{rebuildBed: rebuildOwn(t, s, layout), proxy: proxy, items: rebuildItems("row ", 200)}
	rdb := s.Client(t, func(o *redis.Options) {
		o.Addr = proxy.Addr()
		o.MinRetryBackoff, o.MaxRetryBackoff = retryAfter, 2*retryAfter
	})
	f, err := New(NewBitmap(rdb, b.key), b.config(rebuildChunks))
	require.NoError(t, err)
	b.slow = f
	require.NoError(t, b.open(t, Config{}).Drop(t.Context()))
	b.built(t, rebuildChunks, b.items) // all scripts are known to the server then
	require.NoError(t, b.rdb.ScriptLoad(t.Context(), renewScript.src).Err())
	return b
}

// generation is the live filter's.
func (b *rebuildFaults) generation(t *testing.T) uint64 {
	t.Helper()
	info, err := b.open(t, Config{}).Info(t.Context())
	require.NoError(t, err)
	return info.Generation
}

// requireRebuilt requires that one generation came of one rebuild, with all that
// belongs into it.
func (b *rebuildFaults) requireRebuilt(t *testing.T, report RebuildReport, err error, before uint64, during []string) {
	t.Helper()
	require.NoError(t, err)
	require.Equal(t, before+1, report.Generation)
	require.Equal(t, before+1, b.generation(t))
	require.EqualValues(t, len(b.items), report.Items)
	rebuildRequireAll(t, b.slow, b.items)
	rebuildRequireAll(t, b.slow, during)
	b.requireClean(t)
	ttl, err := b.rdb.PTTL(t.Context(), b.key).Result()
	require.NoError(t, err)
	require.EqualValues(t, -1, ttl)
}

// rebuildScriptOf names the script of a command, or else the command.
func rebuildScriptOf(args []string) string {
	for name, s := range map[string]*script{"open": openScript, "merge": mergeScript, "publish": publishScript,
		"renew": renewScript, "abort": dropScript, "add": addScript} {
		if len(args) > 1 && (args[1] == s.sha || args[1] == s.src) {
			return name
		}
	}
	return strings.ToLower(args[0])
}

// The reply to each command of a rebuild in turn is lost: go-redis repeats it, and
// nothing is refused, lost or doubled.
func TestRebuildLosesReplies(t *testing.T) {
	for _, layout := range []Layout{Classic, Blocked} {
		t.Run(layout.String(), func(t *testing.T) {
			b := newRebuildFaults(t, redistest.Shared(t), layout)
			var cut []string
			for at := int64(1); ; at++ {
				var n atomic.Int64
				hit := make(chan string, 1)
				b.proxy.Intercept(func(args []string) redistest.Action {
					name := rebuildScriptOf(args)
					if name == "hello" || name == "client" || n.Add(1) != at {
						return redistest.Pass
					}
					hit <- name
					return redistest.CutReply
				})
				before, during := b.generation(t), rebuildItems(fmt.Sprint("meanwhile ", at, " "), 5)
				report, err := b.slow.Rebuild(t.Context(), rebuildMidway(b.items, func() {
					_, err := b.open(t, Config{}).AddMulti(t.Context(), during)
					require.NoError(t, err)
				}), &RebuildOptions{Settle: -1, VerifySample: 20})
				b.proxy.Intercept(nil)
				b.requireRebuilt(t, report, err, before, during)
				if len(hit) == 0 {
					break
				}
				cut = append(cut, <-hit)
			}
			t.Logf("cut: %v", cut)
			for _, name := range []string{"open", "merge", "publish", "bitcount"} {
				require.Contains(t, cut, name)
			}
		})
	}
}

// The same for what is sent beside the way: the renewal, and giving up.
func TestRebuildLosesOtherReplies(t *testing.T) {
	b := newRebuildFaults(t, redistest.Shared(t), Classic)
	cut := []redistest.Action{redistest.CutReply, redistest.Pass, redistest.CutRequest, redistest.Pass}
	var renewed, aborted atomic.Int64
	b.proxy.Intercept(func(args []string) redistest.Action {
		switch rebuildScriptOf(args) {
		case "renew":
			return cut[renewed.Add(1)%4]
		case "abort":
			return cut[(aborted.Add(1)-1)%4]
		}
		return redistest.Pass
	})
	const lease = 2 * time.Second
	before := b.generation(t)
	report, err := b.slow.Rebuild(t.Context(), rebuildMidway(b.items, func() { time.Sleep(lease + lease/10) }),
		&RebuildOptions{Settle: -1, Lease: lease})
	require.GreaterOrEqual(t, renewed.Load(), int64(4), "the lease would be over")
	b.requireRebuilt(t, report, err, before, nil)

	content := b.content(t)
	for tries := int64(2); tries <= 4; tries += 2 {
		_, err = b.slow.Rebuild(t.Context(), rebuildFailing(b.items, errRebuildBroken), rebuildQuick())
		require.ErrorIs(t, err, errRebuildBroken)
		require.NotContains(t, err.Error(), "until its lease ends")
		require.Equal(t, tries, aborted.Load())
		b.requireUntouched(t, content)
	}
}

// A publish whose outcome stays unknown for longer than go-redis tries is asked for
// again, and reported as what it was.
func TestRebuildPublishesOnce(t *testing.T) {
	b := newRebuildFaults(t, redistest.Shared(t), Blocked)
	for _, action := range []redistest.Action{redistest.CutReply, redistest.CutRequest} {
		var n atomic.Int64
		b.proxy.Intercept(func(args []string) redistest.Action {
			if rebuildScriptOf(args) == "publish" && n.Add(1) <= 6 { // more than its 1 + 3 tries
				return action
			}
			return redistest.Pass
		})
		before := b.generation(t)
		report, err := b.slow.Rebuild(t.Context(), rebuildSource(b.items), rebuildQuick())
		require.Greater(t, n.Load(), int64(6))
		b.proxy.Intercept(nil)
		b.requireRebuilt(t, report, err, before, nil)
	}
}

// A lease that cannot be renewed ends the rebuild, source included.
func TestRebuildCannotRenew(t *testing.T) {
	b := newRebuildFaults(t, redistest.Shared(t), Classic)
	content := b.content(t)
	b.proxy.Intercept(func(args []string) redistest.Action {
		if rebuildScriptOf(args) == "renew" {
			return redistest.CutRequest
		}
		return redistest.Pass
	})
	stopped := false
	_, err := b.slow.Rebuild(t.Context(), func(yield func(string, error) bool) {
		stopped = rebuildStops(yield)
	}, &RebuildOptions{Settle: -1, Lease: minLease})
	require.True(t, stopped)
	require.ErrorIs(t, err, ErrRebuildRefused)
	require.ErrorContains(t, err, "lease not renewed")
	b.requireUntouched(t, content)
}

// A server that is out of reach for the whole of the publication: it says that it
// does not know, and what was live is live.
func TestRebuildNeverReachesPublication(t *testing.T) {
	b := newRebuildFaults(t, redistest.Shared(t), Classic)
	content := b.content(t)
	b.proxy.Intercept(func(args []string) redistest.Action {
		if rebuildScriptOf(args) == "publish" {
			return redistest.CutRequest
		}
		return redistest.Pass
	})
	_, err := b.slow.Rebuild(t.Context(), rebuildSource(b.items), &RebuildOptions{Settle: -1, Lease: minLease})
	require.ErrorContains(t, err, "not known whether this was published")
	b.requireUntouched(t, content)
}

// rebuildLate holds back the first copy of a script's use, the nth of it, or of a
// command, until it is released.
func (b *rebuildFaults) rebuildLate(name string, nth int64) {
	var n atomic.Int64
	b.proxy.Intercept(func(args []string) redistest.Action {
		if rebuildScriptOf(args) == name && n.Add(1) == nth {
			return redistest.HoldFirst(0)
		}
		return redistest.Pass
	})
}

// The first copy of each command of a builder comes late: after its rebuild, after
// another one, under another one, after the filter was dropped. Nothing that is
// live changes, and nothing without a lease is left.
func TestRebuildLateCopies(t *testing.T) {
	t.Parallel()
	type when struct {
		name string
		// release delivers the copy, at the right moment; it returns the replies.
		release func(t *testing.T, b *rebuildFaults) []string
	}
	unharmed := func(t *testing.T, b *rebuildFaults) []string {
		t.Helper()
		before := b.content(t)
		replies := b.proxy.ReleaseLate()
		require.True(t, before == b.content(t), "the live filter has changed")
		return replies
	}
	moments := []when{
		{"after its rebuild", unharmed},
		{"after another rebuild", func(t *testing.T, b *rebuildFaults) []string {
			b.built(t, rebuildChunks, b.items)
			return unharmed(t, b)
		}},
		{"under another rebuild", func(t *testing.T, b *rebuildFaults) (replies []string) {
			generation := b.generation(t)
			report, err := b.open(t, b.config(rebuildChunks)).Rebuild(t.Context(), rebuildMidway(b.items, func() {
				replies = unharmed(t, b)
			}), rebuildQuick())
			b.requireRebuilt(t, report, err, generation, nil)
			return replies
		}},
		{"after Drop", func(t *testing.T, b *rebuildFaults) []string {
			require.NoError(t, b.open(t, Config{}).Drop(t.Context()))
			replies := unharmed(t, b)
			require.ErrorIs(t, b.slow.Ready(t.Context()), ErrNotReady)
			return replies
		}},
	}
	answers := map[string][]string{ // in the order of moments
		"open":    {"done", "changed", "done", "changed"},
		"merge":   {"lost", "lost", "lost", "lost"},
		"renew":   {"lost", "lost", "lost", "lost"},
		"publish": {"done", "lost", "done", "lost"},
		"abort":   {"done", "done", "done", "done"},
	}
	for name, want := range answers {
		t.Run(name, func(t *testing.T) {
			for i, moment := range moments {
				b := newRebuildFaults(t, redistest.Shared(t), Layout(i%2))
				b.rebuildLate(name, 1)
				before := b.generation(t)
				opts := rebuildQuick()
				if name == "renew" {
					opts.Lease = 2 * minLease
				}
				if name == "abort" {
					_, err := b.slow.Rebuild(t.Context(), rebuildFailing(b.items, errRebuildBroken), opts)
					require.ErrorIs(t, err, errRebuildBroken)
				} else {
					report, err := b.slow.Rebuild(t.Context(), rebuildMidway(b.items, func() {
						if name == "renew" {
							time.Sleep(opts.Lease * 2 / 5)
						}
					}), opts)
					b.requireRebuilt(t, report, err, before, nil)
				}
				b.proxy.Intercept(nil)
				replies := moment.release(t, b)
				require.Len(t, replies, 1, "%s, %s", name, moment.name)
				require.Contains(t, replies[0], want[i], "%s, %s", name, moment.name)
				b.requireLeases(t)
			}
		})
	}
}

// The one copy that makes something is that of a warm-up's first step, where there
// is no filter again: it is in the next rebuild's way until its lease ends.
func TestRebuildLateOpening(t *testing.T) {
	b := newRebuildFaults(t, redistest.Shared(t), Classic)
	require.NoError(t, b.slow.Drop(t.Context()))
	b.rebuildLate("open", 1)
	_, err := b.slow.Rebuild(t.Context(), rebuildSource(b.items), &RebuildOptions{Settle: -1, Lease: 2 * minLease})
	require.NoError(t, err)
	b.proxy.Intercept(nil)
	require.NoError(t, b.slow.Drop(t.Context()))
	require.Contains(t, fmt.Sprint(b.proxy.ReleaseLate()), "open")
	b.requireLeases(t)
	require.True(t, b.staged(t))
	_, err = b.slow.Add(t.Context(), "one")
	require.ErrorIs(t, err, ErrNotReady)
	require.ErrorIs(t, b.slow.CreateEmpty(t.Context()), ErrRebuilding)
	report, err := b.slow.Rebuild(t.Context(), rebuildSource(b.items), rebuildDaily())
	b.requireRebuilt(t, report, err, 0, nil)
}

// requireLeases requires that no key but the live one is without a TTL.
func (b *rebuildFaults) requireLeases(t *testing.T) {
	t.Helper()
	for _, key := range filterKeys(b.key)[1:] {
		ttl, err := b.rdb.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		require.NotEqualValues(t, -1, ttl, "%q stays for ever", key)
		if !strings.HasSuffix(key, "next") {
			require.EqualValues(t, -2, ttl, "%q is left", key)
		}
	}
}

// Each chunk's first copy comes after those behind it, while the rebuild goes on.
func TestRebuildLateChunks(t *testing.T) {
	for nth := int64(1); nth <= 3; nth++ {
		b := newRebuildFaults(t, redistest.Shared(t), Classic)
		b.rebuildLate("merge", nth)
		var replies []string
		seam := rebuildSeam{b.slow.backend, func(next build) build {
			return rebuildSteps{next, func(step string) error {
				if step == "check" {
					replies = b.proxy.ReleaseLate()
				}
				return nil
			}}
		}}
		f, err := New(seam, b.config(rebuildChunks))
		require.NoError(t, err)
		before := b.generation(t)
		report, err := f.Rebuild(t.Context(), rebuildSource(b.items), rebuildQuick())
		b.requireRebuilt(t, report, err, before, nil)
		require.Len(t, replies, 1)
		require.Contains(t, replies[0], "merged")
		require.True(t, slices.ContainsFunc(replies, func(s string) bool { return strings.Contains(s, "\r\n3\r\n") }), "%q", replies)
	}
}
