package bloom_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// pipelineHook stands around every pipeline of a client.
type pipelineHook struct {
	redistest.Trips
	before func(cmds []redis.Cmder)
	after  func()
}

func (h *pipelineHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.before != nil {
			h.before(cmds)
		}
		if h.after != nil {
			defer h.after()
		}
		return next(ctx, cmds)
	}
}

// readThrough returns a filter over ap, which its calls have met already, and its
// members.
func readThrough(t *testing.T, ap *redis.AutoPipeliner) (*bloom.Filter, []string) {
	t.Helper()
	members := numbered("member", 50)
	f := filled(t, ap, redistest.Key(t), 100, bloom.Blocked, members)
	requireMembers(t, f, members)
	return f, members
}

// A pipeline that hangs holds up its own calls alone.
func TestCoalescerGoesPastAHang(t *testing.T) {
	bothFaces(t, redistest.Shared(t).Addr(), func(t *testing.T, client *redis.Client, ap *redis.AutoPipeliner) {
		f, members := readThrough(t, ap)

		var hung atomic.Int64
		hanging, release := make(chan struct{}), make(chan struct{})
		client.AddHook(&pipelineHook{before: func([]redis.Cmder) {
			if hung.Add(1) == 1 {
				close(hanging)
				<-release
			}
		}})
		first := make(chan error, 1)
		go func() { first <- neverDenies(t, f, members[:1]) }()
		<-hanging
		time.Sleep(2 * time.Millisecond) // more than the others' patience
		requireMembers(t, f, members)
		require.Empty(t, first)
		close(release)
		require.NoError(t, <-first)
	})
}

// A hook that panics, or ends the goroutine, fails the calls that it was asked
// about, and no others.
func TestCoalescerSurvivesHooks(t *testing.T) {
	for want, fault := range map[string]func(){
		"a hook's own fault":  func() { panic("a hook's own fault") },
		"ended its goroutine": runtime.Goexit,
	} {
		t.Run(want, func(t *testing.T) { survivesHook(t, fault, want) })
	}
}

func survivesHook(t *testing.T, fault func(), want string) {
	bothFaces(t, redistest.Shared(t).Addr(), func(t *testing.T, client *redis.Client, ap *redis.AutoPipeliner) {
		f, members := readThrough(t, ap)

		var faulty atomic.Bool
		client.AddHook(&pipelineHook{before: func([]redis.Cmder) {
			if faulty.Load() {
				fault()
			}
		}})
		faulty.Store(true)
		require.ErrorContains(t, neverDenies(t, f, members), want)
		_, err := f.Add(t.Context(), "new")
		require.ErrorContains(t, err, want)
		faulty.Store(false)
		requireMembers(t, f, members)
	})
}

// Callers that leave at random moments leave nothing that another call could take
// for its own answer.
func TestCoalescerLeavers(t *testing.T) {
	bothFaces(t, redistest.Shared(t).Addr(), func(t *testing.T, _ *redis.Client, ap *redis.AutoPipeliner) {
		bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
			members := numbered("member", 1000)
			f := filled(t, ap, redistest.Key(t), 5000, layout, members)
			others := numbered("absent", 1000)
			absent, err := f.ExistsMulti(t.Context(), others)
			require.NoError(t, err)
			var left, stayed atomic.Int64
			var wg sync.WaitGroup
			for g := range 32 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for range 300 {
						i := rand.N(1000)
						ctx, cancel := context.WithTimeout(t.Context(), rand.N(4*time.Millisecond))
						isMember, err := f.Exists(ctx, members[i])
						isAbsent, err2 := f.Exists(ctx, others[i])
						cancel()
						switch {
						case !isMember || err2 == nil && isAbsent != absent[i]:
							t.Errorf("goroutine %d: member %v, absent item %v instead of %v", g, isMember, isAbsent, absent[i])
							return
						case err == nil && err2 == nil:
							stayed.Add(1)
						case errors.Is(errors.Join(err, err2), context.DeadlineExceeded):
							left.Add(1)
						default:
							t.Error(err, err2)
							return
						}
					}
				}()
			}
			wg.Wait()
			t.Logf("%d stayed, %d left", stayed.Load(), left.Load())
			require.NotZero(t, left.Load())
		})
	})
}

// Where all pipelines hang, calls wait no longer than their contexts, and what they
// left is not sent any more.
func TestCoalescerLeftIsNotSent(t *testing.T) {
	bothFaces(t, redistest.Shared(t).Addr(), func(t *testing.T, client *redis.Client, ap *redis.AutoPipeliner) {
		f, members := readThrough(t, ap)

		var sent atomic.Int64
		release := make(chan struct{})
		client.AddHook(&pipelineHook{before: func(cmds []redis.Cmder) {
			sent.Add(int64(len(cmds)))
			<-release
		}})
		call := func(within time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			ok, err := f.Exists(ctx, members[0])
			if !ok || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, %v", ok, err)
			}
		}
		for range 20 { // one after the other, so each is in a pipeline of its own
			call(5 * time.Millisecond)
		}
		hung := sent.Load()
		require.Less(t, hung, int64(20), "the number of pipelines is bounded")
		var all sync.WaitGroup
		for range 100 {
			all.Add(1)
			go func() { defer all.Done(); call(50 * time.Millisecond) }()
		}
		all.Wait()
		close(release)
		exists, err := f.Exists(t.Context(), members[0])
		require.NoError(t, err)
		require.True(t, exists)
		require.Equal(t, hung+1, sent.Load(), "what was left was sent")
		requireMembers(t, f, members)
	})
}

// A pipeline ends when nobody can be there any more, also on a client without
// time-outs.
func TestCoalescerPipelinesEnd(t *testing.T) {
	s := redistest.Start(t)
	client := s.Client(t, func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout, o.MaxRetries = -1, -1, -1 })
	ap, err := client.AutoPipeline()
	require.NoError(t, err)
	defer ap.Close()
	members := numbered("member", 10)
	f := filled(t, ap, redistest.Key(t), 100, bloom.Blocked, members)
	requireMembers(t, f, members)
	var begun, ended atomic.Int64
	client.AddHook(&pipelineHook{before: func([]redis.Cmder) { begun.Add(1) }, after: func() { ended.Add(1) }})

	s.Freeze()
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := f.Exists(ctx, members[0])
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
	}
	require.Eventually(t, func() bool { return ended.Load() == begun.Load() }, 2*time.Second, 5*time.Millisecond)
	require.Positive(t, begun.Load())
	s.Thaw()
	requireMembers(t, f, members)
}

// What is more than goes into one pipeline goes into the next.
func TestCoalescerSplits(t *testing.T) {
	bothFaces(t, redistest.Shared(t).Addr(), func(t *testing.T, client *redis.Client, ap *redis.AutoPipeliner) {
		members := numbered("member", 1000)
		f := filled(t, ap, redistest.Key(t), 1000, bloom.Blocked, members)
		requireMembers(t, f, members)
		var most atomic.Int64
		hanging, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		client.AddHook(&pipelineHook{before: func(cmds []redis.Cmder) {
			if n := int64(len(cmds)); n > most.Load() {
				most.Store(n)
			}
			once.Do(func() { close(hanging); <-release })
		}})
		var all sync.WaitGroup
		ask := func() {
			defer all.Done()
			if err := neverDenies(t, f, members); err != nil {
				t.Error(err)
			}
		}
		all.Add(1)
		go ask()
		<-hanging
		for range 40 { // a thousand commands each
			all.Add(1)
			go ask()
		}
		close(release)
		all.Wait()
		require.LessOrEqual(t, most.Load(), int64(11_000))
	})
}
