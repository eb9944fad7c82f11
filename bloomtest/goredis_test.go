package bloomtest

import (
	"fmt"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// both runs f with a go-redis client in either protocol.
func both(t *testing.T, f func(t *testing.T, m *miniredis.Miniredis, rdb *redis.Client)) {
	for _, resp := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", resp), func(t *testing.T) {
			m := miniredis.RunT(t)
			RedisBloom(m)
			rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), Protocol: resp})
			t.Cleanup(func() { rdb.Close() })
			f(t, m, rdb)
		})
	}
}

func numbered(prefix string, from, to int) []any {
	var items []any
	for i := from; i < to; i++ {
		items = append(items, fmt.Sprint(prefix, i))
	}
	return items
}

// TestGoRedis calls go-redis' own methods, each of which parses replies in its way.
func TestGoRedis(t *testing.T) {
	both(t, func(t *testing.T, _ *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		require.NoError(t, rdb.BFReserve(ctx, "plain", 0.01, 1000).Err())
		require.NoError(t, rdb.BFReserveNonScaling(ctx, "fixed", 0.01, 2).Err())
		require.NoError(t, rdb.BFReserveExpansion(ctx, "four", 0.01, 100, 4).Err())
		require.NoError(t, rdb.BFReserveWithArgs(ctx, "args", &redis.BFReserveOptions{Error: 0.01, Capacity: 100, Expansion: 3}).Err())
		require.EqualError(t, rdb.BFReserve(ctx, "plain", 0.01, 1000).Err(), "ERR item exists")

		added, err := rdb.BFAdd(ctx, "plain", "a").Result()
		require.NoError(t, err)
		require.True(t, added)
		several, err := rdb.BFMAdd(ctx, "plain", "a", "b", "b").Result()
		require.NoError(t, err)
		require.Equal(t, []bool{false, true, false}, several)
		several, err = rdb.BFInsert(ctx, "made", &redis.BFInsertOptions{Capacity: 500, Error: 0.001, NonScaling: true}, "a", "b").Result()
		require.NoError(t, err)
		require.Equal(t, []bool{true, true}, several)
		require.EqualError(t, rdb.BFInsert(ctx, "missing", &redis.BFInsertOptions{NoCreate: true}, "a").Err(), "ERR not found")

		there, err := rdb.BFExists(ctx, "plain", "a").Result()
		require.NoError(t, err)
		require.True(t, there)
		several, err = rdb.BFMExists(ctx, "plain", "a", "zz").Result()
		require.NoError(t, err)
		require.Equal(t, []bool{true, false}, several)

		card, err := rdb.BFCard(ctx, "plain").Result()
		require.NoError(t, err)
		require.EqualValues(t, 2, card)
		info, err := rdb.BFInfo(ctx, "plain").Result()
		require.NoError(t, err)
		require.Equal(t, redis.BFInfo{Capacity: 1000, Size: 1480, Filters: 1, ItemsInserted: 2, ExpansionRate: 2}, info)
		info, err = rdb.BFInfoExpansion(ctx, "four").Result()
		require.NoError(t, err)
		require.EqualValues(t, 4, info.ExpansionRate)
	})
}

// TestGoRedisDump copies a filter of several sub-filters as BF.SCANDUMP's callers do.
func TestGoRedisDump(t *testing.T) {
	both(t, func(t *testing.T, _ *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		require.NoError(t, rdb.BFReserve(ctx, "from", 0.01, 100).Err())
		require.NoError(t, rdb.BFMAdd(ctx, "from", numbered("i", 0, 1000)...).Err())
		chunks := 0
		for iter := int64(0); ; chunks++ {
			dump, err := rdb.BFScanDump(ctx, "from", iter).Result()
			require.NoError(t, err)
			if dump.Iter == 0 {
				break
			}
			require.NoError(t, rdb.BFLoadChunk(ctx, "to", dump.Iter, dump.Data).Err())
			iter = dump.Iter
		}
		require.Equal(t, 5, chunks, "a header and four sub-filters")
		want, err := rdb.BFInfo(ctx, "from").Result()
		require.NoError(t, err)
		got, err := rdb.BFInfo(ctx, "to").Result()
		require.NoError(t, err)
		require.Equal(t, want, got)
		there, err := rdb.BFMExists(ctx, "to", numbered("i", 0, 1000)...).Result()
		require.NoError(t, err)
		require.NotContains(t, there, false)
	})
}
