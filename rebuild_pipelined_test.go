package bloom

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Rebuilds through an AutoPipeliner, which goes on with a command after its caller
// has left.

// rebuildFaces are the two faces of a client's AutoPipeliner.
func rebuildFaces(t *testing.T, rdb *redis.Client, f func(*testing.T, *redis.AutoPipeliner)) {
	t.Helper()
	for name, open := range map[string]func() (*redis.AutoPipeliner, error){"blocking": rdb.AutoPipeline, "async": rdb.AsyncAutoPipeline} {
		t.Run(name, func(t *testing.T) {
			ap, err := open()
			require.NoError(t, err)
			f(t, ap)
		})
	}
}

func TestRebuildPipelined(t *testing.T) {
	for _, layout := range []Layout{Classic, Blocked} {
		t.Run(layout.String(), func(t *testing.T) {
			rebuildFaces(t, redistest.Shared(t).Client(t), func(t *testing.T, ap *redis.AutoPipeliner) {
				b := rebuildOwn(t, redistest.Shared(t), layout)
				f, err := New(NewBitmap(ap, b.key), b.config(rebuildChunks))
				require.NoError(t, err)
				items := rebuildItems("row ", 1000)
				for generation := range uint64(3) {
					report, err := f.Rebuild(t.Context(), rebuildMidway(items, func() {
						_, err := f.Add(t.Context(), "meanwhile")
						require.True(t, err == nil || generation == 0 && isNotReady(err), "%v", err)
					}), rebuildQuick())
					require.NoError(t, err)
					require.Equal(t, generation+1, report.Generation)
					rebuildRequireAll(t, f, append(items, "meanwhile"))
					b.requireClean(t)
					verified, err := f.Verify(t.Context(), rebuildSource(items), nil)
					require.NoError(t, err)
					require.Zero(t, verified.Missing)
				}
			})
		})
	}
}

// A caller that leaves at any moment leaves nothing behind that changes the live
// filter, or stays, although its commands are yet to be executed.
func TestRebuildAbandoned(t *testing.T) {
	rnd := rand.New(rand.NewPCG(rebuildSeed(t), 0))
	s := redistest.Shared(t)
	proxy := redistest.NewProxy(t, s.Addr())
	rebuildFaces(t, s.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() }), func(t *testing.T, ap *redis.AutoPipeliner) {
		b := rebuildOwn(t, s, Blocked)
		items := rebuildItems("row ", 200)
		b.built(t, rebuildChunks, items)
		before := b.content(t)
		f, err := New(NewBitmap(ap, b.key), b.config(rebuildChunks))
		require.NoError(t, err)
		proxy.SetLatency(2 * time.Millisecond)
		defer proxy.SetLatency(0)
		left := 0
		for range 40 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(30_000))*time.Microsecond)
			_, err := f.Rebuild(ctx, rebuildSource(items), rebuildQuick())
			cancel()
			if err == nil { // it was in time
				before = b.content(t)
				continue
			}
			require.True(t, errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrRebuilding), "%v", err)
			if b.staged(t) { // opened for somebody who had left already
				left++
				next := companionKey(b.key, "next")
				ttl, err := b.rdb.PTTL(t.Context(), next).Result()
				require.NoError(t, err)
				require.Positive(t, ttl)
				require.NoError(t, b.rdb.Del(t.Context(), next).Err())
			}
			require.True(t, before == b.content(t), "the live filter has changed")
		}
		t.Logf("%d times staging was opened too late", left)
		// The last one may be opened yet: its lease is what removes it.
		require.NoError(t, f.Ready(t.Context()))
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, b.rdb.Del(t.Context(), companionKey(b.key, "next")).Err())
		b.requireClean(t)
		rebuildRequireAll(t, b.open(t, Config{}), items)
	})
}
