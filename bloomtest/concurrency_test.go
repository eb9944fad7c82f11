package bloomtest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestConcurrency lets sixteen connections add the same items in different ways: if
// adds are atomic, each is new once.
func TestConcurrency(t *testing.T) {
	const workers, items = 16, 60
	both(t, func(t *testing.T, _ *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		require.NoError(t, rdb.BFReserveNonScaling(ctx, "f", 1e-6, 1000).Err())
		script := redis.NewScript("return redis.call('BF.ADD', KEYS[1], ARGV[1])")
		var news atomic.Int64
		var wg sync.WaitGroup
		for w := range workers {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for i := range items {
					item := fmt.Sprint("item", i)
					var added bool
					var err error
					switch w % 4 {
					case 0:
						added, err = rdb.BFAdd(ctx, "f", item).Result()
					case 1:
						added, err = script.Run(ctx, rdb, []string{"f"}, item).Bool()
					case 2:
						var got *redis.BoolCmd
						_, err = rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
							got = p.BFAdd(ctx, "f", item)
							return nil
						})
						added = got.Val()
					case 3:
						// A reader, and one who keeps the hook busy.
						if err = rdb.Type(ctx, "f").Err(); err == nil {
							err = rdb.BFMExists(ctx, "f", item, "none").Err()
						}
					}
					if err != nil {
						t.Errorf("worker %d: %v", w, err)
						return
					}
					if added {
						news.Add(1)
					}
				}
			}()
		}
		wg.Wait()
		require.EqualValues(t, items, news.Load())
		require.EqualValues(t, items, rdb.BFCard(ctx, "f").Val())
	})
}
