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

// pipelineHook stands before every pipeline of a client.
type pipelineHook struct {
	redistest.Trips
	before func(cmds []redis.Cmder)
}

func (h *pipelineHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.before != nil {
			h.before(cmds)
		}
		return next(ctx, cmds)
	}
}

// A pipeline that hangs holds up its own calls alone.
func TestCoalescerGoesPastAHang(t *testing.T) {
	bothFaces(t, redistest.Shared(t).Addr(), func(t *testing.T, client *redis.Client, ap *redis.AutoPipeliner) {
		members := numbered("member", 50)
		f := filled(t, ap, redistest.Key(t), 100, bloom.Blocked, members)
		requireMembers(t, f, members)

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
		members := numbered("member", 50)
		f := filled(t, ap, redistest.Key(t), 100, bloom.Blocked, members)
		requireMembers(t, f, members)

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
