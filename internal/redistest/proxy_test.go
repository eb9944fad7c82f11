package redistest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// proxied returns a proxy and a client that uses it.
func proxied(t *testing.T, s Target, mutate ...func(*redis.Options)) (*Proxy, *redis.Client) {
	p := NewProxy(t, s.Addr)
	via := func(o *redis.Options) { o.Addr = p.Addr() }
	return p, s.Client(t, append(mutate, via)...)
}

func noRetries(o *redis.Options) { o.MaxRetries = -1 }

func TestProxyPasses(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", protocol), func(t *testing.T) {
			Each(t, func(t *testing.T, s Target) {
				_, c := proxied(t, s, func(o *redis.Options) { o.Protocol = protocol; o.DB = 2 })
				key := Key(t)
				big := strings.Repeat("\r\n$5", 1<<18)
				require.NoError(t, c.Set(ctx, key, big, 0).Err())
				require.Equal(t, big, c.Get(ctx, key).Val())
				assert.ErrorIs(t, c.Get(ctx, key+"none").Err(), redis.Nil)
				assert.Error(t, c.Incr(ctx, key).Err())

				cmds, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
					p.HSet(ctx, key+"h", "a", "1", "b", "2")
					p.HGetAll(ctx, key+"h")
					for range 500 {
						p.Incr(ctx, key+"n")
					}
					return nil
				})
				require.NoError(t, err)
				assert.Equal(t, map[string]string{"a": "1", "b": "2"}, cmds[1].(*redis.MapStringStringCmd).Val())
				assert.EqualValues(t, 500, cmds[501].(*redis.IntCmd).Val())

				nested, err := c.Eval(ctx, `return {1, {ARGV[1], {}}, false}`, nil, "x").Slice()
				require.NoError(t, err)
				assert.Equal(t, []any{int64(1), []any{"x", []any{}}, nil}, nested)
			})
		})
	}
}

func TestProxyPassesPushes(t *testing.T) {
	Each(t, func(t *testing.T, s Target) {
		p, c := proxied(t, s)
		channel := Key(t)
		sub := c.Subscribe(ctx, channel)
		defer sub.Close()
		_, err := sub.Receive(ctx)
		require.NoError(t, err)
		p.SetLatency(time.Millisecond)
		require.NoError(t, c.Publish(ctx, channel, "hi").Err())
		msg, err := sub.ReceiveMessage(ctx)
		require.NoError(t, err)
		assert.Equal(t, "hi", msg.Payload)
	})
}

func TestProxyCutReply(t *testing.T) {
	Each(t, func(t *testing.T, s Target) {
		p, c := proxied(t, s)
		key := Key(t)
		p.Intercept(First(CutReply, "INCR"))
		assert.EqualValues(t, 2, c.Incr(ctx, key).Val(), "executed, lost, and executed again")
		assert.EqualValues(t, 3, c.Incr(ctx, key).Val())
	})
}

func TestProxyResetReply(t *testing.T) {
	Each(t, func(t *testing.T, s Target) {
		p, c := proxied(t, s)
		_, direct := proxied(t, s)
		key := Key(t)
		p.Intercept(First(ResetReply, "INCR"))
		assert.EqualValues(t, 2, c.Incr(ctx, key).Val(), "executed, lost, and executed again")
		assert.EqualValues(t, 3, c.Incr(ctx, key).Val())

		p, c = proxied(t, s, noRetries)
		p.Intercept(First(ResetReply, "GET"))
		require.NoError(t, direct.Set(ctx, key, strings.Repeat("x", 1000), 0).Err())
		got, err := c.Get(ctx, key).Result()
		assert.Error(t, err)
		assert.Empty(t, got)
	})
}

// Wherever the cut is, the whole pipeline was executed before the client
// learns of it.
func TestProxyCutReplyInPipeline(t *testing.T) {
	Each(t, func(t *testing.T, s Target) {
		const n = 200
		for _, at := range []int{0, n / 2, n - 1} {
			p, c := proxied(t, s, noRetries)
			key := Key(t)
			name := func(i int) string { return fmt.Sprint(key, ":", i) }
			p.Intercept(func(args []string) Action {
				if len(args) > 1 && args[1] == name(at) {
					return CutReply
				}
				return Pass
			})
			cmds, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
				for i := range n {
					p.Incr(ctx, name(i))
				}
				return nil
			})
			require.Error(t, err)
			for i, cmd := range cmds {
				// go-redis marks all commands failed, but keeps the values it got.
				assert.Equal(t, i < at, cmd.(*redis.IntCmd).Val() == 1, "reply %d, cut at %d", i, at)
			}
			direct := s.Client(t)
			assert.Equal(t, "1", direct.Get(ctx, name(0)).Val())
			assert.Equal(t, "1", direct.Get(ctx, name(n-1)).Val())
		}
	})
}

func TestProxyCutRequest(t *testing.T) {
	Each(t, func(t *testing.T, s Target) {
		p, c := proxied(t, s)
		key := Key(t)
		p.Intercept(First(CutRequest, "incr"))
		assert.EqualValues(t, 1, c.Incr(ctx, key).Val())

		p, c = proxied(t, s, noRetries)
		p.Intercept(First(CutRequest, "decr"))
		cmds, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Incr(ctx, key)
			p.Decr(ctx, key)
			p.IncrBy(ctx, key, 10)
			return nil
		})
		require.Error(t, err)
		assert.EqualValues(t, 2, cmds[0].(*redis.IntCmd).Val(), "what was before the cut is answered")
		assert.Zero(t, cmds[1].(*redis.IntCmd).Val())
		assert.Equal(t, "2", s.Client(t).Get(ctx, key).Val(), "what was behind it is lost")
	})
}

func TestProxyDelay(t *testing.T) {
	Each(t, func(t *testing.T, s Target) {
		const d = 30 * time.Millisecond
		p, c := proxied(t, s)
		key := Key(t)
		p.Intercept(First(Delay(d), "incr"))
		start := time.Now()
		require.NoError(t, c.Incr(ctx, key).Err())
		assert.GreaterOrEqual(t, time.Since(start), d)

		p.Intercept(First(Delay(d), "incr"))
		short, cancel := context.WithTimeout(ctx, d/3)
		defer cancel()
		require.ErrorIs(t, c.Incr(short, key).Err(), context.DeadlineExceeded)
		assert.Equal(t, "1", c.Get(ctx, key).Val())
		assert.Eventually(t, func() bool { return c.Get(ctx, key).Val() == "2" },
			5*time.Second, time.Millisecond, "delivered although nobody waits for it")
	})
}

func TestProxyRepeatLate(t *testing.T) {
	Each(t, func(t *testing.T, s Target) {
		p, c := proxied(t, s, func(o *redis.Options) { o.DB = 3 })
		key := Key(t)
		p.Intercept(First(RepeatLate(0), "incr"))
		assert.EqualValues(t, 1, c.Incr(ctx, key).Val())
		assert.EqualValues(t, 2, c.Incr(ctx, key).Val())
		assert.Equal(t, []string{":3\r\n"}, p.ReleaseLate())
		assert.Equal(t, "3", c.Get(ctx, key).Val(), "in the database of the client")
		assert.Empty(t, p.ReleaseLate())

		p.Intercept(First(RepeatLate(5*time.Millisecond), "incr"))
		assert.EqualValues(t, 4, c.Incr(ctx, key).Val())
		assert.Eventually(t, func() bool { return c.Get(ctx, key).Val() == "5" }, 5*time.Second, time.Millisecond)
		assert.Equal(t, []string{":5\r\n"}, p.ReleaseLate(), "delivered on time, reported now")
	})
}

func TestProxyHoldFirst(t *testing.T) {
	Each(t, func(t *testing.T, s Target) {
		p, c := proxied(t, s, func(o *redis.Options) { o.DB = 3 })
		key := Key(t)
		p.Intercept(First(HoldFirst(0), "set"))
		require.NoError(t, c.Set(ctx, key, "old", 0).Err(), "the repetition succeeds")
		require.NoError(t, c.Set(ctx, key, "new", 0).Err())
		p.Sever() // does not touch what is held
		assert.Equal(t, "new", c.Get(ctx, key).Val())
		assert.Equal(t, []string{"+OK\r\n"}, p.ReleaseLate())
		assert.Equal(t, "old", c.Get(ctx, key).Val(), "the first copy came last")
	})
}

func TestProxyLateCopiesAreAuthenticated(t *testing.T) {
	s := Start(t, "--requirepass", "secret")
	p := NewProxy(t, s.Addr())
	c := s.Client(t, func(o *redis.Options) { o.Addr, o.Password = p.Addr(), "secret" })
	p.Intercept(First(RepeatLate(0), "incr"))
	require.NoError(t, c.Incr(ctx, "n").Err())
	assert.Equal(t, []string{":2\r\n"}, p.ReleaseLate())

	p.Intercept(First(RepeatLate(0), "incr"))
	require.NoError(t, c.Incr(ctx, "n").Err())
	s.Stop()
	late := p.ReleaseLate()
	require.Len(t, late, 1)
	assert.Contains(t, late[0], "not delivered")
}

func TestProxyLatency(t *testing.T) {
	Each(t, func(t *testing.T, s Target) {
		const d, n = 20 * time.Millisecond, 100
		p, c := proxied(t, s)
		require.NoError(t, c.Ping(ctx).Err())
		p.SetLatency(d)
		start := time.Now()
		_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for range n {
				p.Ping(ctx)
			}
			return nil
		})
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Since(start), d)
		assert.Less(t, time.Since(start), n*d/2, "a pipeline is one round trip")
		p.SetLatency(0)
		require.NoError(t, c.Ping(ctx).Err())
	})
}

func TestProxySeverAndRefuse(t *testing.T) {
	Each(t, func(t *testing.T, s Target) {
		p, c := proxied(t, s, noRetries)
		blocked := make(chan error)
		go func() { blocked <- c.BLPop(ctx, 4*time.Second, Key(t)).Err() }()
		require.Eventually(t, func() bool { return c.PoolStats().TotalConns > 0 }, time.Second, time.Millisecond)
		require.NoError(t, c.Ping(ctx).Err())
		p.Refuse(true)
		require.NoError(t, c.Ping(ctx).Err(), "existing connections go on")
		start := time.Now()
		p.Sever()
		err := <-blocked
		assert.Error(t, err)
		assert.NotErrorIs(t, err, redis.Nil)
		assert.Less(t, time.Since(start), 2*time.Second)
		assert.Error(t, c.Ping(ctx).Err())
		p.Refuse(false)
		assert.NoError(t, c.Ping(ctx).Err())
	})
}

func TestProxyWithoutServer(t *testing.T) {
	m := Mini(t)
	p, c := proxied(t, Target{Addr: m.Addr()}, noRetries)
	require.NoError(t, c.Ping(ctx).Err())
	m.Close()
	assert.Error(t, c.Ping(ctx).Err())
	require.NoError(t, m.Restart())
	assert.NoError(t, c.Ping(ctx).Err())
	p.Intercept(func([]string) Action { return CutRequest })
	p.Intercept(nil)
	assert.NoError(t, c.Ping(ctx).Err())
}

// A proxy must close, and leave no goroutine (checked by TestMain), whatever
// it is in the middle of.
func TestProxyClosesAtAnyTime(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no SIGSTOP")
	}
	s := Start(t)
	var clients sync.WaitGroup
	for name, action := range map[string]Action{
		"frozen": Pass, "delayed": Delay(time.Hour), "repeat": RepeatLate(time.Hour), "held": HoldFirst(time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			p := NewProxy(t, s.Addr())
			c := s.Client(t, noRetries, func(o *redis.Options) { o.Addr = p.Addr() })
			require.NoError(t, c.Ping(ctx).Err())
			arrived := make(chan struct{})
			p.Intercept(func([]string) Action { close(arrived); return action })
			s.Freeze()
			clients.Add(1)
			go func() { defer clients.Done(); c.Incr(ctx, "n") }()
			<-arrived
			if action.kind == repeatLate {
				go p.ReleaseLate()
				time.Sleep(20 * time.Millisecond) // so that it waits for the frozen server
			}
			start := time.Now()
			p.Close()
			assert.Less(t, time.Since(start), time.Second)
			s.Thaw()
		})
	}
	clients.Wait()
}

// Whatever the proxy does to them, a client that was told so had its command
// executed, and no command is executed more often than it was sent.
func TestProxyUnderRandomFaults(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	Each(t, func(t *testing.T, s Target) {
		p, c := proxied(t, s)
		key := Key(t)
		var mu sync.Mutex
		rnd := rand.New(rand.NewPCG(seed, 1))
		var sent atomic.Int64
		p.Intercept(func(args []string) Action {
			if args[0] != "incr" {
				return Pass
			}
			mu.Lock()
			defer mu.Unlock()
			sent.Add(1)
			switch rnd.IntN(20) {
			case 0:
				return CutReply
			case 1:
				return CutRequest
			case 2:
				return Delay(time.Millisecond)
			case 3:
				sent.Add(1)
				return RepeatLate(time.Duration(rnd.IntN(3)) * time.Millisecond)
			case 4:
				return HoldFirst(time.Duration(rnd.IntN(3)) * time.Millisecond)
			}
			return Pass
		})
		var done atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for range 50 {
					if c.Incr(ctx, key).Err() == nil {
						done.Add(1)
					}
				}
			}()
		}
		wg.Wait()
		for _, reply := range p.ReleaseLate() {
			assert.True(t, strings.HasPrefix(reply, ":"), reply)
		}
		n, err := c.Get(ctx, key).Int64()
		require.NoError(t, err)
		assert.Positive(t, done.Load())
		assert.GreaterOrEqual(t, n, done.Load())
		assert.LessOrEqual(t, n, sent.Load())
	})
}
