package bloom

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// proxiedStore is a store whose guard reaches Redis through a proxy, and what
// looks at the keys does not.
func proxiedStore(t *testing.T, target redistest.Target, mutate ...func(*redis.Options)) (guardStore, *redistest.Proxy) {
	t.Helper()
	proxy := redistest.NewProxy(t, target.Addr)
	s := redisStore(t, target, Classic)
	via := func(o *redis.Options) { o.Addr = proxy.Addr() }
	client := target.Client(t, append(mutate, via)...)
	var err error
	s.filter, err = New(NewBitmap(client, s.filter.backend.Key()), Config{})
	require.NoError(t, err)
	s.cache = NewRedisCache(client, s.prefix)
	s.known(t, "a", "warm")
	_, _ = newTestGuard(t, s, rows(nil), nil).Get(t.Context(), "warm") // header and scripts are known from now on
	return s, proxy
}

func withoutRetries(o *redis.Options) { o.MaxRetries = -1 }

// firstRun applies an action to the first run of a script, and firstOf to the
// first command of a name.
func firstRun(s *script, a redistest.Action) func([]string) redistest.Action {
	var done atomic.Bool
	return func(args []string) redistest.Action {
		if len(args) > 1 && (args[1] == s.sha || args[1] == s.src) && done.CompareAndSwap(false, true) {
			return a
		}
		return redistest.Pass
	}
}

// load makes a Get that loads v.
func (l *stepLoader) get(g *Guard[string], v string) {
	l.t.Helper()
	c := goGet(l.t.Context(), g, "a")
	l.next().found(v)
	requireAnswer(l.t, got[string]{v, nil}, c)
}

// A lease that is planted a second time, late, is one that nobody fills: not who
// held the first, and who adopts it loads then.
func TestGuardLeaseRepeatedLate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		for _, action := range []redistest.Action{redistest.RepeatLate(0), redistest.HoldFirst(0)} {
			s, proxy := proxiedStore(t, target)
			l := newStepLoader(t)
			g := newTestGuard(t, s, l.load, nil)
			elsewhere := newTestGuard(t, s, l.load, nil) // of whose Invalidates g knows only by the cache
			proxy.Intercept(firstRun(leaseScript, action))
			first := goGet(t.Context(), g, "a")
			load := l.next() // reads the old row
			require.NoError(t, elsewhere.Invalidate(t.Context(), "a"))
			s.requireTag(t, "a", tagNone, 0)
			replies := proxy.ReleaseLate()
			require.Len(t, replies, 1)
			require.Contains(t, replies[0], "\r\nL", "the late copy planted a lease")
			s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)
			load.found("old")
			requireAnswer(t, got[string]{"old", nil}, first)
			s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)
			l.get(g, "new")
			requireState(t, s, got[string]{"new", nil}, g)
			require.EqualValues(t, 1, g.Stats().Fills)

			// Later still it finds an entry, and leaves it.
			require.NoError(t, g.Invalidate(t.Context(), "a"))
			proxy.Intercept(firstRun(leaseScript, redistest.RepeatLate(0)))
			l.get(g, "newer")
			require.Equal(t, []string{"$8\r\nV\"newer\"\r\n"}, proxy.ReleaseLate())
			requireState(t, s, got[string]{"newer", nil}, g)
		}
	})
}

// A fill that comes a second time, late, finds its lease gone, whatever is there
// instead.
func TestGuardFillRepeatedLate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		for _, action := range []redistest.Action{redistest.RepeatLate(0), redistest.HoldFirst(0)} {
			s, proxy := proxiedStore(t, target)
			l := newStepLoader(t)
			g := newTestGuard(t, s, l.load, nil)
			old := func() {
				require.NoError(t, g.Invalidate(t.Context(), "a"))
				proxy.Intercept(firstRun(fillScript, action))
				l.get(g, "old")
				s.requireTag(t, "a", tagValue, defaultTTL)
			}
			old()
			require.NoError(t, g.Invalidate(t.Context(), "a"))
			require.Equal(t, []string{":0\r\n"}, proxy.ReleaseLate())
			s.requireTag(t, "a", tagNone, 0)

			old()
			require.NoError(t, g.Invalidate(t.Context(), "a"))
			next := goGet(t.Context(), g, "a")
			load := l.next()
			require.Equal(t, []string{":0\r\n"}, proxy.ReleaseLate(), "another's lease is there")
			s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)
			load.found("new")
			requireAnswer(t, got[string]{"new", nil}, next)
			requireState(t, s, got[string]{"new", nil}, g)

			old()
			require.NoError(t, g.Invalidate(t.Context(), "a"))
			l.get(g, "new")
			require.Equal(t, []string{":0\r\n"}, proxy.ReleaseLate(), "another's value is there")
			requireState(t, s, got[string]{"new", nil}, g)

			old()
			_, before := s.raw.get("a")
			require.Equal(t, []string{":1\r\n"}, proxy.ReleaseLate(), "its own value is there")
			_, after := s.raw.get("a")
			require.LessOrEqual(t, after, before, "which lives no longer for it")
		}
	})
}

// A late DEL or a late Add costs a load at most.
func TestGuardInvalidateAndRegisterRepeatedLate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		s, proxy := proxiedStore(t, target)
		l := newStepLoader(t)
		g := newTestGuard(t, s, l.load, nil)
		proxy.Intercept(func(args []string) redistest.Action {
			if strings.EqualFold(args[0], "del") || len(args) > 1 && args[1] == addScript.sha {
				return redistest.RepeatLate(0)
			}
			return redistest.Pass
		})
		require.NoError(t, g.Register(t.Context(), "a"))
		proxy.Intercept(nil)
		l.get(g, "v")
		require.NotEmpty(t, proxy.ReleaseLate())
		s.requireTag(t, "a", tagNone, 0)
		l.get(g, "v")
		requireState(t, s, got[string]{"v", nil}, g)
	})
}

// The reply of each command in turn is lost. go-redis sends it again, and the Get
// answers as ever.
func TestGuardRepliesLost(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		for name, lost := range map[string]func() func([]string) redistest.Action{
			"read":  func() func([]string) redistest.Action { return redistest.First(redistest.CutReply, "get") },
			"lease": func() func([]string) redistest.Action { return firstRun(leaseScript, redistest.CutReply) },
			"fill":  func() func([]string) redistest.Action { return firstRun(fillScript, redistest.CutReply) },
			"drop":  func() func([]string) redistest.Action { return redistest.First(redistest.CutReply, "del") },
		} {
			t.Run(name, func(t *testing.T) {
				s, proxy := proxiedStore(t, target)
				l := newStepLoader(t)
				g := newTestGuard(t, s, l.load, nil)
				proxy.Intercept(lost())
				l.get(g, "v")
				requireState(t, s, got[string]{"v", nil}, g)
				require.NoError(t, g.Invalidate(t.Context(), "a"))
				s.requireTag(t, "a", tagNone, 0)
				require.Equal(t, GuardStats{Gets: 2, Hits: 1, Loads: 1, Fills: 1}, g.Stats())
			})
		}
	})
}

// The same where go-redis does not repeat: what was executed nobody knows of.
func TestGuardRepliesLostForGood(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		t.Run("read", func(t *testing.T) {
			s, proxy := proxiedStore(t, target, withoutRetries)
			l := newStepLoader(t)
			g := newTestGuard(t, s, l.load, nil)
			s.raw.set("a", []byte(`V"cached"`), time.Minute)
			proxy.Intercept(redistest.First(redistest.CutReply, "get"))
			l.get(g, "v")
			require.EqualValues(t, 1, g.Stats().FailOpens)
			requireState(t, s, got[string]{"cached", nil}, g)
		})
		t.Run("lease", func(t *testing.T) {
			s, proxy := proxiedStore(t, target, withoutRetries)
			l := newStepLoader(t)
			g := newTestGuard(t, s, l.load, nil)
			proxy.Intercept(firstRun(leaseScript, redistest.CutReply))
			l.get(g, "v")
			s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)
			require.Equal(t, GuardStats{Gets: 1, Loads: 1}, g.Stats())
			l.get(g, "v")
			requireState(t, s, got[string]{"v", nil}, g)
		})
		t.Run("fill", func(t *testing.T) {
			s, proxy := proxiedStore(t, target, withoutRetries)
			l := newStepLoader(t)
			g := newTestGuard(t, s, l.load, nil)
			proxy.Intercept(firstRun(fillScript, redistest.CutReply))
			l.get(g, "v")
			require.Equal(t, GuardStats{Gets: 1, Loads: 1, FillErrors: 1}, g.Stats())
			requireState(t, s, got[string]{"v", nil}, g)
		})
		t.Run("drop", func(t *testing.T) {
			s, proxy := proxiedStore(t, target, withoutRetries)
			l := newStepLoader(t)
			g := newTestGuard(t, s, l.load, nil)
			l.get(g, "v")
			proxy.Intercept(redistest.First(redistest.CutReply, "del"))
			require.Error(t, g.Invalidate(t.Context(), "a"), "so the caller tries again")
			require.NoError(t, g.Invalidate(t.Context(), "a"))
			s.requireTag(t, "a", tagNone, 0)
		})
	})
}

// An Invalidate that fails still keeps this process's loads from filling, and its
// Gets from joining them.
func TestGuardFailedInvalidateForgets(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		for _, oldFirst := range []bool{true, false} {
			s, proxy := proxiedStore(t, target, withoutRetries)
			l := newStepLoader(t)
			g := newTestGuard(t, s, l.load, nil)
			first := goGet(t.Context(), g, "a")
			load := l.next()
			proxy.Intercept(redistest.First(redistest.CutRequest, "del"))
			require.Error(t, g.Invalidate(t.Context(), "a"))
			s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)
			second := goGet(t.Context(), g, "a")
			next := l.next()
			if oldFirst {
				load.found("old")
				requireAnswer(t, got[string]{"old", nil}, first)
				s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)
			}
			next.found("new")
			requireAnswer(t, got[string]{"new", nil}, second)
			if !oldFirst {
				load.found("old")
				requireAnswer(t, got[string]{"old", nil}, first)
			}
			requireState(t, s, got[string]{"new", nil}, g)
		}
	})
}
