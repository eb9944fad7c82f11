package bloom

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Every change is a script that may run twice, and the copy late: when the
// connection breaks go-redis repeats a command, and the first try may reach the
// server whenever it likes.

// lossy is a server behind a proxy that loses, delays and repeats.
type lossy struct {
	proxy *redistest.Proxy
	near  *redis.Client // straight to the server
	far   *redis.Client // through the proxy
	key   string
}

func newLossy(t *testing.T, s *redistest.Server) *lossy {
	t.Helper()
	l := &lossy{proxy: redistest.NewProxy(t, s.Addr()), key: redistest.Key(t)}
	l.near = s.Client(t)
	l.far = s.Client(t, func(o *redis.Options) { o.Addr = l.proxy.Addr() })
	for _, script := range []*script{claimScript, createScript, addScript, resetScript, dropScript} {
		require.NoError(t, l.near.ScriptLoad(t.Context(), script.src).Err())
	}
	return l
}

// once applies a to the next call of the script through the proxy, and returns
// how often the script was called since.
func (l *lossy) once(s *script, a redistest.Action) (calls *atomic.Int64) {
	calls = new(atomic.Int64)
	l.proxy.Intercept(func(args []string) redistest.Action {
		if len(args) < 2 || !strings.EqualFold(args[0], "evalsha") || args[1] != s.sha {
			return redistest.Pass
		}
		if calls.Add(1) == 1 {
			return a
		}
		return redistest.Pass
	})
	return calls
}

// late delivers the copies that were held and returns their replies.
func (l *lossy) late(t *testing.T) string {
	t.Helper()
	replies := l.proxy.ReleaseLate()
	require.Len(t, replies, 1)
	require.NotContains(t, replies[0], "not delivered")
	require.False(t, strings.HasPrefix(replies[0], "-"), "an error: %s", replies[0])
	return replies[0]
}

func (l *lossy) value(t *testing.T) string {
	t.Helper()
	value, err := l.near.Get(t.Context(), l.key).Result()
	if err != redis.Nil {
		require.NoError(t, err)
	}
	return value
}

func (l *lossy) filter(t *testing.T, rdb redis.Cmdable, n uint64, layout Layout) *Filter {
	t.Helper()
	return bitmapAt(t, rdb, l.key, Config{Capacity: n, Layout: layout})
}

// filled makes a filter of n items straight on the server.
func (l *lossy) filled(t *testing.T, n uint64, layout Layout, items []string) *Filter {
	t.Helper()
	f := l.filter(t, l.near, n, layout)
	require.NoError(t, f.CreateEmpty(t.Context()))
	_, err := f.AddMulti(t.Context(), items)
	require.NoError(t, err)
	return f
}

// requireNoFilter requires that nothing stands at the key but, perhaps, a marker
// that goes by itself, which no handle takes for a filter.
func (l *lossy) requireNoFilter(t *testing.T) {
	t.Helper()
	if value := l.value(t); value != "" {
		require.Equal(t, magicMarker, value[:min(8, len(value))], "a filter came into being")
		ttl, err := l.near.PTTL(t.Context(), l.key).Result()
		require.NoError(t, err)
		require.Positive(t, ttl)
		require.LessOrEqual(t, ttl, createWait)
	}
	f := bitmapAt(t, l.near, l.key, Config{})
	exists, err := f.Exists(t.Context(), "a")
	require.ErrorIs(t, err, ErrNotReady)
	require.True(t, exists)
	require.ErrorIs(t, f.Ready(t.Context()), ErrNotReady)
	_, err = f.Add(t.Context(), "a")
	require.ErrorIs(t, err, ErrNotReady)
}

// change is one of the scripts, and a call that runs it.
type change struct {
	name   string
	script *script
	empty  bool // on no filter rather than on one that holds "old"
	call   func(t *testing.T, f *Filter) error
	want   func(t *testing.T, f *Filter) // how things are afterwards
}

func changes() []change {
	has := func(items ...string) func(*testing.T, *Filter) {
		return func(t *testing.T, f *Filter) {
			t.Helper()
			got, err := f.ExistsMulti(t.Context(), items)
			requireAll(t, true, got, err)
			absent, err := f.Exists(t.Context(), "absent")
			require.NoError(t, err)
			require.False(t, absent)
		}
	}
	empty := func(generation uint64) func(*testing.T, *Filter) {
		return func(t *testing.T, f *Filter) {
			t.Helper()
			info, err := f.Info(t.Context())
			require.NoError(t, err)
			require.Zero(t, info.Items)
			require.Equal(t, generation, info.Generation)
		}
	}
	return []change{
		{"CreateEmpty, claim", claimScript, true, func(t *testing.T, f *Filter) error {
			return f.CreateEmpty(t.Context())
		}, empty(1)},
		{"CreateEmpty, create", createScript, true, func(t *testing.T, f *Filter) error {
			return f.CreateEmpty(t.Context())
		}, empty(1)},
		{"Add", addScript, false, func(t *testing.T, f *Filter) error {
			_, err := f.Add(t.Context(), "new")
			return err
		}, has("old", "new")},
		{"AddMulti", addScript, false, func(t *testing.T, f *Filter) error {
			_, err := f.AddMulti(t.Context(), []string{"new", "newer"})
			return err
		}, has("old", "new", "newer")},
		{"Reset", resetScript, false, func(t *testing.T, f *Filter) error {
			return f.Reset(t.Context())
		}, empty(2)},
		{"Drop", dropScript, false, func(t *testing.T, f *Filter) error {
			return f.Drop(t.Context())
		}, func(t *testing.T, f *Filter) {
			require.ErrorIs(t, f.Ready(t.Context()), ErrNotReady)
		}},
	}
}

// A command that runs twice, because its reply or the command itself was lost,
// or at once or late for no reason, ends where one that runs once does, and its
// caller sees no error.
func TestRepeatedChanges(t *testing.T) {
	s := redistest.Shared(t)
	for _, layout := range []Layout{Classic, Blocked} {
		for _, c := range changes() {
			for how, a := range map[string]redistest.Action{
				"reply cut":    redistest.CutReply,
				"request cut":  redistest.CutRequest,
				"held":         redistest.HoldFirst(0),
				"repeated":     redistest.RepeatLate(0),
				"first slower": redistest.HoldFirst(30 * time.Millisecond),
			} {
				t.Run(fmt.Sprintf("%v/%s/%s", layout, c.name, how), func(t *testing.T) {
					l := newLossy(t, s)
					if !c.empty {
						l.filled(t, 100, layout, []string{"old"})
					}
					f := l.filter(t, l.far, 100, layout)
					calls := l.once(c.script, a)
					require.NoError(t, c.call(t, f))
					require.Equal(t, map[bool]int64{true: 1, false: 2}[how == "repeated"], calls.Load())
					c.want(t, f)
					before := l.value(t)

					// The copy adds nothing, whenever it comes.
					if how == "held" || how == "repeated" {
						l.late(t)
					} else if how == "first slower" {
						time.Sleep(60 * time.Millisecond)
					}
					require.Equal(t, before, l.value(t))
					c.want(t, f)
				})
			}
		}
	}
}

// A connection that breaks at every command, until go-redis gives up, is an
// error, and calling again is all it takes.
func TestAlwaysCut(t *testing.T) {
	s := redistest.Shared(t)
	for _, c := range changes() {
		t.Run(c.name, func(t *testing.T) {
			l := newLossy(t, s)
			if !c.empty {
				l.filled(t, 100, Blocked, []string{"old"})
			}
			f := l.filter(t, l.far, 100, Blocked)
			l.proxy.Intercept(func(args []string) redistest.Action {
				if len(args) > 1 && args[1] == c.script.sha {
					return redistest.CutReply
				}
				return redistest.Pass
			})
			require.Error(t, c.call(t, f))
			l.proxy.Intercept(nil)
			if c.name == "Reset" {
				// It did happen, and a call of its own is another one.
				c.want(t, f)
				return
			}
			require.NoError(t, c.call(t, f))
			c.want(t, f)
		})
	}
}
