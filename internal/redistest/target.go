package redistest

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Mini starts a miniredis, closed when the test ends. Beware that its TTLs
// stand still until FastForward is called, that its TIME is the wall clock
// (which FastForward leaves alone) unless SetTime is, and that it lacks some
// commands, BITFIELD among them.
func Mini(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	return miniredis.RunT(t)
}

// MiniClient returns a client of m with the options of [Server.Client], closed
// when the test ends.
func MiniClient(t testing.TB, m *miniredis.Miniredis, mutate ...func(*redis.Options)) *redis.Client {
	t.Helper()
	return newClient(t, m.Addr(), mutate...)
}

// Target is a server a test runs against, miniredis or a real one.
type Target struct {
	Name string // "miniredis" or "redis", as in the name of the subtest
	Addr string // host:port
	Real bool   // a redis-server, which keeps time by itself

	mini *miniredis.Miniredis // nil if Real
}

// Each runs f as the subtests "miniredis", on a fresh one, and "redis", on the
// [Shared] redis-server, where keys are to come from [Key].
func Each(t *testing.T, f func(t *testing.T, s Target)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		m := Mini(t)
		f(t, Target{Name: "miniredis", Addr: m.Addr(), mini: m})
	})
	t.Run("redis", func(t *testing.T) {
		f(t, Target{Name: "redis", Addr: Shared(t).Addr(), Real: true})
	})
}

// Client returns a client of the target as [Server.Client] does.
func (s Target) Client(t testing.TB, mutate ...func(*redis.Options)) *redis.Client {
	t.Helper()
	return newClient(t, s.Addr, mutate...)
}

// Advance lets d pass for the TTLs of the target: at once on miniredis, by
// sleeping on a real server, where d should therefore be well below a second.
func (s Target) Advance(d time.Duration) {
	if s.mini != nil {
		s.mini.FastForward(d)
		return
	}
	time.Sleep(d)
}
