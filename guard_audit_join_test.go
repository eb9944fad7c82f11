package bloom

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// An audit that waits for a slot is joined by one whose id the filter does not deny
// any more: their load is no audit.
func TestGuardAuditQueuedWithAMiss(t *testing.T) {
	s := memoryStore(t)
	s.known(t, "other")
	l := newStepLoader(t)
	g := newTestGuard(t, s, l.load, &GuardOptions[string]{AuditRate: 1, MaxLoads: 1})
	running := goGet(t.Context(), g, "other")
	load := l.next()
	audit := goGet(t.Context(), g, "a")
	eventually(t, "queued", func() bool { return queueLength(g) == 1 })
	s.known(t, "a")
	miss := goGet(t.Context(), g, "a")
	joined(t, g, 1)
	load.found("v")
	require.Equal(t, got[string]{"v", nil}, receive(t, running))
	l.next().missing()
	require.ErrorIs(t, receive(t, audit).err, ErrNotFound)
	require.ErrorIs(t, receive(t, miss).err, ErrNotFound)
	require.Equal(t, GuardStats{Gets: 3, Loads: 2, LoadsNotFound: 1, SharedLoads: 1, Fills: 2, Audits: 1}, g.Stats())
}

// A flight that meets the lease of another takes over what that one loads, and what
// audits know of it: it is one outcome.
func TestGuardAuditSharedByLease(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		l := newStepLoader(t)
		hook := &hookedCache{Cache: s.cache}
		s.cache = hook
		g := newTestGuard(t, s, l.load, &GuardOptions[string]{AuditRate: 1})
		slow, release := slowRead(t, g, hook)
		first := goGet(t.Context(), g, "a")
		load := l.next()
		release()
		joined(t, g, 1)
		load.missing()
		require.ErrorIs(t, receive(t, first).err, ErrNotFound)
		require.ErrorIs(t, receive(t, slow).err, ErrNotFound)
		require.Equal(t, 1, g.audits.clean)
		require.EqualValues(t, 2, g.Stats().Audits)
	})
}

// A Cache of the caller's own that ends its goroutine has not answered.
func TestGuardCacheEndsItsGoroutine(t *testing.T) {
	s := memoryStore(t)
	s.known(t, "a")
	s.cache = goexitReads{s.cache}
	g := newTestGuard(t, s, rowOf, &GuardOptions[string]{FailClosed: true})
	for _, get := range []lookup{byGet, byMulti} {
		_, err := get(t.Context(), g, "a")
		require.ErrorContains(t, err, "cache ended its goroutine")
	}
}

type goexitReads struct{ Cache }

func (goexitReads) Read(context.Context, []string) ([][]byte, error) {
	runtime.Goexit()
	return nil, nil
}
