package bloom

import (
	"testing"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// The first copy of a command arrives after the world has moved on.

// world is what became of the filter before the copy arrived.
type world struct {
	name string
	move func(t *testing.T, l *lossy, layout Layout)
}

// A filter that is lost stays lost, and one that was made meanwhile stays as it
// is, whichever half of whichever change comes late.
func TestLateIntoAnotherWorld(t *testing.T) {
	t.Parallel()
	other := func(n uint64, otherLayout bool) func(*testing.T, *lossy, Layout) {
		return func(t *testing.T, l *lossy, layout Layout) {
			require.NoError(t, l.near.Del(t.Context(), l.key).Err())
			if otherLayout {
				layout = Classic + Blocked - layout
			}
			l.filled(t, n, layout, numberedItems("another", 50))
		}
	}
	worlds := []world{
		{"dropped", func(t *testing.T, l *lossy, layout Layout) {
			require.NoError(t, l.filter(t, l.near, 100, layout).Drop(t.Context()))
		}},
		{"lost", func(t *testing.T, l *lossy, _ Layout) { require.NoError(t, l.near.FlushAll(t.Context()).Err()) }},
		{"made anew", other(100, false)},
		{"another size", other(1000, false)},
		{"another layout", other(100, true)},
		{"foreign", func(t *testing.T, l *lossy, _ Layout) {
			require.NoError(t, l.near.Set(t.Context(), l.key, "somebody's", 0).Err())
		}},
	}
	s := redistest.Start(t)
	for _, layout := range []Layout{Classic, Blocked} {
		for _, c := range changes() {
			for _, w := range worlds {
				t.Run(layout.String()+"/"+c.name+"/"+w.name, func(t *testing.T) {
					l := newLossy(t, s)
					if !c.empty {
						l.filled(t, 100, layout, []string{"old"})
					}
					f := l.filter(t, l.far, 100, layout)
					l.once(c.script, redistest.HoldFirst(0))
					require.NoError(t, c.call(t, f))
					w.move(t, l, layout)
					before := l.value(t)
					l.late(t)
					if before == "" {
						l.requireNoFilter(t)
						return
					}
					require.Equal(t, before, l.value(t), "the late copy wrote")
				})
			}
		}
	}
}

// The late copy meets what its own call made, used since.
func TestLateIntoUse(t *testing.T) {
	s := redistest.Shared(t)
	items := numberedItems("item", 50)
	for _, layout := range []Layout{Classic, Blocked} {
		for _, c := range changes() {
			t.Run(layout.String()+"/"+c.name, func(t *testing.T) {
				l := newLossy(t, s)
				if !c.empty {
					l.filled(t, 100, layout, []string{"old"})
				}
				l.once(c.script, redistest.HoldFirst(0))
				require.NoError(t, c.call(t, l.filter(t, l.far, 100, layout)))
				f := l.filter(t, l.near, 100, layout)
				require.NoError(t, f.CreateEmpty(t.Context())) // Drop's next life
				_, err := f.AddMulti(t.Context(), items)
				require.NoError(t, err)
				l.late(t)
				got, err := f.ExistsMulti(t.Context(), items)
				requireAll(t, true, got, err)
			})
		}
	}
}

// A late Reset of a filter that was reset by others since, and filled again: its
// token is not the one that the late copy names.
func TestLateAfterOtherResets(t *testing.T) {
	s := redistest.Shared(t)
	l := newLossy(t, s)
	l.filled(t, 100, Blocked, []string{"old"})
	l.once(resetScript, redistest.HoldFirst(0))
	require.NoError(t, l.filter(t, l.far, 100, Blocked).Reset(t.Context()))
	f := l.filter(t, l.near, 100, Blocked)
	require.NoError(t, f.Reset(t.Context()))
	_, err := f.Add(t.Context(), "new")
	require.NoError(t, err)
	require.Contains(t, l.late(t), "changed")
	got, err := f.ExistsMulti(t.Context(), []string{"new"})
	requireAll(t, true, got, err)
}

// A late claim plants a marker that nobody completes unasked: readers and adders
// find no filter, the next creator is not in its way, and it goes by itself.
func TestLateClaim(t *testing.T) {
	s := redistest.Shared(t)
	l := newLossy(t, s)
	l.once(claimScript, redistest.HoldFirst(0))
	f := l.filter(t, l.far, 100, Classic)
	require.NoError(t, f.CreateEmpty(t.Context()))
	_, err := f.Add(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, l.near.Del(t.Context(), l.key).Err())

	require.Contains(t, l.late(t), "marker")
	require.NotEmpty(t, l.value(t))
	l.requireNoFilter(t)
	require.ErrorIs(t, f.Reset(t.Context()), ErrNotReady)
	_, err = f.Info(t.Context())
	require.ErrorIs(t, err, ErrNotReady)

	require.NoError(t, l.filter(t, l.near, 200, Blocked).CreateEmpty(t.Context()), "somebody asks for one")
	require.NoError(t, f.Ready(t.Context()))
}

// A late second half meets the marker of another creator, or of its own first
// half come late: neither is its own.
func TestLateCreateMeetsAnotherMarker(t *testing.T) {
	s := redistest.Shared(t)
	for _, whose := range []string{"another's", "its own"} {
		t.Run(whose, func(t *testing.T) {
			l := newLossy(t, s)
			own := []string{} // what the first half sent
			held := false
			l.proxy.Intercept(func(args []string) redistest.Action {
				if len(args) > 1 && args[1] == claimScript.sha {
					own = args[2:]
				}
				if len(args) > 1 && args[1] == createScript.sha && !held {
					held = true
					return redistest.HoldFirst(0)
				}
				return redistest.Pass
			})
			require.NoError(t, l.filter(t, l.far, 100, Classic).CreateEmpty(t.Context()))
			l.proxy.Intercept(nil)
			require.NoError(t, l.near.Del(t.Context(), l.key).Err())

			random := string(randomToken())
			if whose == "its own" {
				require.Len(t, own, 6)
				random = own[4]
			}
			require.NoError(t, l.near.EvalSha(t.Context(), claimScript.sha, []string{l.key, companionKey(l.key, "next")},
				magicMarker, random, createWait.Milliseconds()).Err())
			marker := l.value(t)
			require.Len(t, marker, 8+tokenBytes)
			require.Contains(t, l.late(t), "lost")
			require.Equal(t, marker, l.value(t))
			l.requireNoFilter(t)
		})
	}
}

// A late Drop never removes the filter that was restored from a copy under
// another token, but it does its work on the very filter that it named.
func TestLateDropNamesItsFilter(t *testing.T) {
	s := redistest.Shared(t)
	l := newLossy(t, s)
	l.filled(t, 100, Blocked, []string{"a"})
	l.once(dropScript, redistest.HoldFirst(0))
	require.NoError(t, l.filter(t, l.far, 100, Blocked).Drop(t.Context()))
	f := l.filled(t, 100, Blocked, []string{"b"})
	l.late(t)
	got, err := f.ExistsMulti(t.Context(), []string{"b"})
	requireAll(t, true, got, err)

	// Reset gives the filter another name as well.
	live := l.value(t)[:offTokenEnd]
	require.NoError(t, f.Reset(t.Context()))
	require.NoError(t, l.near.EvalSha(t.Context(), dropScript.sha, []string{l.key, companionKey(l.key, "next")},
		live, "", offTokenEnd).Err())
	require.NoError(t, f.Ready(t.Context()))
}
