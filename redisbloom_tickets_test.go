package bloom

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Changes that come twice, late, or from many instances at once.

// moduleLossy reaches a server through a proxy that loses, repeats and delays.
type moduleLossy struct {
	*moduleBed
	proxy *redistest.Proxy
	far   *redis.Client
}

func (b *moduleBed) lossy(t *testing.T) *moduleLossy {
	t.Helper()
	l := &moduleLossy{moduleBed: b, proxy: redistest.NewProxy(t, b.addr)}
	l.far = b.client(t, func(o *redis.Options) { o.Addr, o.MinRetryBackoff, o.MaxRetryBackoff = l.proxy.Addr(), -1, -1 })
	for _, s := range []*script{ticketScript, changeScript, moduleAddScript, moduleOpenScript, moduleBatchScript, moduleRenewScript, modulePublishScript} {
		require.NoError(t, b.rdb.ScriptLoad(t.Context(), s.src).Err())
	}
	return l
}

// at applies a to the first call of a script, and calls between before the second.
func (l *moduleLossy) at(s *script, a redistest.Action, between func()) (calls *atomic.Int64) {
	calls = new(atomic.Int64)
	l.proxy.Intercept(func(args []string) redistest.Action {
		if len(args) < 2 || !strings.EqualFold(args[0], "evalsha") || args[1] != s.sha {
			return redistest.Pass
		}
		switch calls.Add(1) {
		case 1:
			return a
		case 2:
			if between != nil {
				between()
			}
		}
		return redistest.Pass
	})
	return calls
}

// late has the copy executed that was held, and requires its reply.
func (l *moduleLossy) late(t *testing.T, want string) {
	t.Helper()
	replies := l.proxy.ReleaseLate()
	require.Len(t, replies, 1)
	require.Contains(t, replies[0], want)
	require.NotContains(t, replies[0], "-ERR")
}

// moduleChanges are the changes that take a ticket. Each begins with the filter that
// before makes.
var moduleChanges = []struct {
	name   string
	before func(t *testing.T, b *moduleBed, key string)
	change func(ctx context.Context, f *Filter) error
	opts   *RedisBloomOptions
	late   string // what a second copy is told
}{
	{"create", func(*testing.T, *moduleBed, string) {}, func(ctx context.Context, f *Filter) error { return f.CreateEmpty(ctx) }, nil, "lost"},
	{"reset", func(t *testing.T, b *moduleBed, key string) { b.made(t, key, 100, "old") },
		func(ctx context.Context, f *Filter) error { return f.Reset(ctx) }, nil, "done"},
	{"drop", func(t *testing.T, b *moduleBed, key string) { b.made(t, key, 100, "old") },
		func(ctx context.Context, f *Filter) error { return f.Drop(ctx) }, nil, "done"},
	{"adopt", func(t *testing.T, b *moduleBed, key string) { b.foreign(t, key, 0.01, 200, nil, "old") },
		func(ctx context.Context, f *Filter) error { return f.CreateEmpty(ctx) }, moduleAdopt, "lost"},
}

// A change whose reply is lost is made once: what others do before go-redis asks
// again stays.
func TestModuleChangeRepeated(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		l := b.lossy(t)
		for _, c := range moduleChanges {
			for _, s := range []*script{ticketScript, changeScript} {
				key := b.key(t)
				c.before(t, b, key)
				between := func() {
					if s == ticketScript {
						return
					}
					if f := b.filter(t, key, Config{Capacity: 100}, nil); c.name == "drop" {
						require.NoError(t, f.CreateEmpty(t.Context()))
					}
					_, err := b.filter(t, key, Config{}, nil).Add(t.Context(), "new")
					require.NoError(t, err)
				}
				calls := l.at(s, redistest.CutReply, between)
				require.NoError(t, c.change(t.Context(), moduleFilter(t, l.far, key, Config{Capacity: 100}, c.opts)), c.name)
				require.EqualValues(t, 2, calls.Load(), "the reply was not lost, or the change was made twice")
				if s == changeScript {
					moduleRequire(t, b.filter(t, key, Config{}, nil), true, "new")
				}
			}
		}
	})
}

// The first copy of a change, or of its ticket, arrives last, when the world has
// moved on: nothing happens.
func TestModuleChangeLate(t *testing.T) {
	worlds := map[string]func(t *testing.T, b *moduleBed, key string){
		"used": func(t *testing.T, b *moduleBed, key string) {
			f := b.filter(t, key, Config{Capacity: 100}, nil)
			require.NoError(t, f.CreateEmpty(t.Context()))
			_, err := f.AddMulti(t.Context(), moduleItems("new", 30))
			require.NoError(t, err)
		},
		"dropped": func(t *testing.T, b *moduleBed, key string) {
			require.NoError(t, b.filter(t, key, Config{}, nil).Drop(t.Context()))
		},
		"lost": func(t *testing.T, b *moduleBed, key string) { require.NoError(t, b.rdb.Del(t.Context(), key).Err()) },
		"made anew": func(t *testing.T, b *moduleBed, key string) {
			require.NoError(t, b.filter(t, key, Config{}, nil).Drop(t.Context()))
			b.made(t, key, 300, "new")
		},
		"reset and used": func(t *testing.T, b *moduleBed, key string) {
			f := b.filter(t, key, Config{Capacity: 100}, nil)
			require.NoError(t, f.CreateEmpty(t.Context()))
			require.NoError(t, f.Reset(t.Context()))
			_, err := f.Add(t.Context(), "new")
			require.NoError(t, err)
		},
		"another program's": func(t *testing.T, b *moduleBed, key string) {
			require.NoError(t, b.rdb.Del(t.Context(), key).Err())
			b.foreign(t, key, 0.01, 200, nil, "theirs")
		},
		"foreign": func(t *testing.T, b *moduleBed, key string) {
			require.NoError(t, b.rdb.Set(t.Context(), key, "somebody's", 0).Err())
		},
	}
	for name, move := range worlds {
		t.Run(name, func(t *testing.T) {
			moduleBeds(t, func(t *testing.T, b *moduleBed) {
				l := b.lossy(t)
				for _, c := range moduleChanges {
					for _, s := range []*script{changeScript, ticketScript} {
						key := b.key(t)
						c.before(t, b, key)
						l.at(s, redistest.HoldFirst(0), nil)
						require.NoError(t, c.change(t.Context(), moduleFilter(t, l.far, key, Config{Capacity: 100}, c.opts)), c.name)
						move(t, b, key)
						snapshot := func() string {
							kind := b.rdb.Type(t.Context(), key).Val()
							if kind == "string" {
								return b.rdb.Get(t.Context(), key).Val()
							}
							return kind + b.content(t, key)
						}
						before := snapshot()
						reply := c.late
						if s == ticketScript {
							reply = "$32" // another one, which nobody uses
						}
						l.late(t, reply)
						require.True(t, before == snapshot(), "%s: the late copy did something", c.name)
					}
				}
			})
		})
	}
}

// A ticket that nobody used is good for the next change, whichever, and expires.
func TestModuleTicketLeft(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for _, c := range moduleChanges {
			key := b.key(t)
			c.before(t, b, key)
			r := NewRedisBloom(b.rdb, key, c.opts)
			left, err := r.conn.evalStrings(t.Context(), ticketScript, []string{r.ticket}, randomToken(), createWait.Milliseconds(), "create")
			require.NoError(t, err)
			require.LessOrEqual(t, b.pttl(t, r.ticket), createWait)
			require.Positive(t, b.pttl(t, r.ticket))
			require.NoError(t, c.change(t.Context(), b.filter(t, key, Config{Capacity: 100}, c.opts)))
			args := appendStrings([]any{left[0], 1000, "create", "0.01", 103, 0, 0, 0}, sentinels)
			status, err := r.conn.evalStrings(t.Context(), changeScript, []string{r.key, r.next, r.ticket, r.build}, args...)
			require.NoError(t, err)
			require.Equal(t, "lost", status[0], "it was spent")
			ttl := b.pttl(t, r.ticket)
			require.NotEqualValues(t, -1, ttl, "%s: a key without a TTL is left", c.name)
			require.LessOrEqual(t, ttl, createWait)
		}
	})
}

// 50 instances at once make one filter, adopt one, reset one, drop one: all are told
// that it is done, and what one of them added at once is not lost.
func TestModuleMany(t *testing.T) {
	const instances = 50
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for _, c := range moduleChanges {
			key := b.key(t)
			c.before(t, b, key)
			var wg sync.WaitGroup
			start := make(chan struct{})
			for i := range instances {
				rdb := b.client(t, func(o *redis.Options) { o.PoolSize = 1 })
				f := moduleFilter(t, rdb, key, Config{Capacity: 200, TTL: time.Hour}, c.opts)
				wg.Add(1)
				go func() {
					defer wg.Done()
					<-start
					if err := c.change(t.Context(), f); err != nil {
						t.Errorf("%s, instance %d: %v", c.name, i, err)
					} else if _, err := f.Add(t.Context(), fmt.Sprint("by ", i)); err != nil && c.name != "drop" {
						t.Errorf("%s, instance %d adds: %v", c.name, i, err)
					}
				}()
			}
			close(start)
			wg.Wait()
			f := b.filter(t, key, Config{}, nil)
			switch c.name {
			case "drop":
				moduleFails(t, f, ErrNotReady)
				b.requireNone(t, key)
			case "reset": // some of them may have come after the adds of others
				moduleRequire(t, f, false, "old")
			default:
				moduleRequire(t, f, true, moduleItems("by", instances)...)
				info, err := f.Info(t.Context())
				require.NoError(t, err)
				require.InDelta(t, instances, info.Items, 4)
			}
		}
	})
}

// Reset keeps the size of the filter that is there when it is made, not of the one
// that it looked at.
func TestModuleResetMeanwhile(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for name, meanwhile := range map[string]func(t *testing.T, key string){
			"resized by a rebuild": func(t *testing.T, key string) {
				_, err := b.filter(t, key, Config{}, nil).Rebuild(t.Context(), rebuildSource([]string{"row"}), &RebuildOptions{Settle: -1, Capacity: 500, FPRate: 0.001})
				require.NoError(t, err)
			},
			"made anew": func(t *testing.T, key string) {
				require.NoError(t, b.filter(t, key, Config{}, nil).Drop(t.Context()))
				require.NoError(t, b.filter(t, key, Config{Capacity: 500, FPRate: 0.001}, nil).CreateEmpty(t.Context()))
			},
		} {
			key := b.key(t)
			b.made(t, key, 100, "a")
			rdb := b.client(t)
			rdb.AddHook(moduleBefore(changeScript, func() { meanwhile(t, key) }))
			f := moduleFilter(t, rdb, key, Config{}, nil)
			require.NoError(t, f.Reset(t.Context()), name)
			info, err := f.Info(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 500, info.Params.Capacity, name)
			require.InEpsilon(t, 0.001, info.Params.FPRate, 1e-12, name)
			moduleRequire(t, f, false, "a", "row")
		}
	})
}

// Drop frees memory, so it must work where there is none left. Its scripts need the
// module only for a filter that is there.
func TestModuleDropAtMaxMemory(t *testing.T) {
	rdb := redistest.Start(t, "--maxmemory", "1").Client(t)
	r := NewRedisBloom(rdb, "orders", nil)
	_, err := r.apply(t.Context(), moduleChange{name: "create", rate: 0.01, capacity: 100})
	require.ErrorContains(t, err, "OOM")
	status, err := r.apply(t.Context(), moduleChange{name: "drop"})
	require.NoError(t, err)
	require.Equal(t, "done", status)
	ttl, err := rdb.PTTL(t.Context(), r.ticket).Result()
	require.NoError(t, err)
	require.Positive(t, ttl)
}

// While a rebuild runs, what would disturb it is refused; Drop ends it.
func TestModuleChangeDuringRebuild(t *testing.T) {
	rows := moduleItems("row", 20)
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for _, live := range []bool{true, false} {
			key := b.key(t)
			if live {
				b.made(t, key, 100, "old")
			}
			f := b.filter(t, key, Config{Capacity: 100}, nil)
			report, err := f.Rebuild(t.Context(), rebuildMidway(rows, func() {
				create, reset := f.CreateEmpty(t.Context()), f.Reset(t.Context())
				if live {
					require.NoError(t, create, "it attaches")
					require.ErrorIs(t, reset, ErrRebuilding)
				} else {
					require.ErrorIs(t, create, ErrRebuilding)
					require.ErrorIs(t, reset, ErrNotReady)
				}
				_, err := f.Rebuild(t.Context(), rebuildUnread(t), rebuildQuick())
				require.ErrorIs(t, err, ErrRebuilding)
				require.ErrorContains(t, err, " ms")
				_, err = f.Add(t.Context(), "added")
				require.Equal(t, live, err == nil, "%v", err)
			}), rebuildQuick())
			require.NoError(t, err)
			require.EqualValues(t, 1, report.Generation)
			moduleRequire(t, f, true, append(rows, "added")...)

			_, err = f.Rebuild(t.Context(), rebuildMidway(rows, func() { require.NoError(t, f.Drop(t.Context())) }), rebuildQuick())
			require.ErrorIs(t, err, ErrRebuildRefused)
			moduleFails(t, f, ErrNotReady)
			b.requireNone(t, key)
		}
	})
}

// The keys of two filters never are the same.
func TestModuleTicketIsItsOwn(t *testing.T) {
	for _, key := range []string{"a{t}b", "orders", "{t}", "{t}b"} {
		own := moduleKeys(key)
		for _, other := range []string{key + ":ticket", "ticket:" + key, "build:" + key, "-ticket:" + key} {
			for _, k := range moduleKeys(other) {
				require.NotContains(t, own, k, "%q and %q", key, other)
			}
		}
	}
}

// A rebuild spends the ticket that is out: a change that began before it, and arrives
// after it, was not meant for what was published.
func TestModuleTicketSpentByRebuild(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for _, change := range []string{"reset", "drop", "create"} {
			key := b.key(t)
			f := b.made(t, key, 100, "old")
			r := NewRedisBloom(b.rdb, key, nil)
			seen, err := r.state(t.Context())
			require.NoError(t, err)
			left, err := r.conn.evalStrings(t.Context(), ticketScript, []string{r.ticket}, randomToken(), createWait.Milliseconds(), change)
			require.NoError(t, err)
			report, err := f.Rebuild(t.Context(), rebuildSource([]string{"old", "new"}), &RebuildOptions{Settle: -1})
			require.NoError(t, err)
			require.EqualValues(t, seen.bytes, report.Bytes, "it cannot be told by its size")
			if change == "create" {
				require.NoError(t, b.rdb.Del(t.Context(), key).Err())
			}
			args := appendStrings([]any{left[0], 1000, change, "0.01", 103, 0, 0, seen.bytes}, sentinels)
			status, err := r.conn.evalStrings(t.Context(), changeScript, []string{r.key, r.next, r.ticket, r.build}, args...)
			require.NoError(t, err)
			require.Equal(t, "lost", status[0])
			if change == "create" {
				require.ErrorIs(t, f.Ready(t.Context()), ErrNotReady)
				continue
			}
			moduleRequire(t, f, true, "old", "new")
		}
	})
}
