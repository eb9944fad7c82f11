package bloomtest

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestExpiry(t *testing.T) {
	both(t, func(t *testing.T, m *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		require.NoError(t, rdb.BFAdd(ctx, "f", "a").Err())
		require.True(t, rdb.Expire(ctx, "f", time.Minute).Val())
		require.NoError(t, rdb.BFAdd(ctx, "f", "b").Err())
		require.Equal(t, time.Minute, rdb.TTL(ctx, "f").Val(), "an add keeps the time to live")
		m.FastForward(59 * time.Second)
		require.True(t, rdb.BFExists(ctx, "f", "b").Val())
		require.True(t, rdb.Persist(ctx, "f").Val())
		m.FastForward(time.Hour)
		require.True(t, rdb.BFExists(ctx, "f", "b").Val())
		require.True(t, rdb.PExpire(ctx, "f", time.Second).Val())
		require.Equal(t, time.Second, rdb.PTTL(ctx, "f").Val())
		m.FastForward(time.Second)
		require.False(t, rdb.BFExists(ctx, "f", "b").Val())
		require.EqualError(t, rdb.BFInfo(ctx, "f").Err(), "ERR not found")
		require.True(t, rdb.BFAdd(ctx, "f", "b").Val(), "made anew")
		require.EqualValues(t, 1, rdb.BFCard(ctx, "f").Val())
	})
}

func TestRenameAndDelete(t *testing.T) {
	both(t, func(t *testing.T, _ *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		require.NoError(t, rdb.BFAdd(ctx, "live", "old").Err())
		require.NoError(t, rdb.BFAdd(ctx, "next", "new").Err())
		require.False(t, rdb.RenameNX(ctx, "next", "live").Val())
		require.NoError(t, rdb.Rename(ctx, "next", "live").Err())
		require.Equal(t, []bool{false, true}, rdb.BFMExists(ctx, "live", "old", "new").Val())
		require.False(t, rdb.BFExists(ctx, "next", "new").Val())
		require.True(t, rdb.BFAdd(ctx, "next", "old").Val(), "a filter of its own")
		require.Equal(t, []bool{false, true}, rdb.BFMExists(ctx, "live", "old", "new").Val())

		require.EqualValues(t, 2, rdb.Del(ctx, "live", "next", "none").Val())
		require.EqualValues(t, 0, rdb.Exists(ctx, "live", "next").Val())
		require.NoError(t, rdb.BFAdd(ctx, "live", "a").Err())
		require.EqualValues(t, 1, rdb.Unlink(ctx, "live").Val())
		for _, flush := range []func() *redis.StatusCmd{
			func() *redis.StatusCmd { return rdb.FlushDB(ctx) },
			func() *redis.StatusCmd { return rdb.FlushAll(ctx) },
		} {
			require.NoError(t, rdb.BFAdd(ctx, "live", "a").Err())
			require.NoError(t, flush().Err())
			require.False(t, rdb.BFExists(ctx, "live", "a").Val())
		}
	})
}

// TestWrongType keeps filters and the other types apart, both ways.
func TestWrongType(t *testing.T) {
	both(t, func(t *testing.T, _ *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		require.NoError(t, rdb.BFAdd(ctx, "f", "a").Err())
		require.NoError(t, rdb.Rename(ctx, "f", "bloom").Err(), "a name that only RENAME gave")
		require.NoError(t, rdb.Set(ctx, "s", "1", 0).Err())
		require.NoError(t, rdb.HSet(ctx, "h", "x", "y").Err())
		for _, args := range [][]any{
			{"GET", "bloom"}, {"GETRANGE", "bloom", 0, 1}, {"GETBIT", "bloom", 1}, {"STRLEN", "bloom"},
			{"APPEND", "bloom", "x"}, {"SETBIT", "bloom", 1, 1}, {"INCR", "bloom"}, {"GETSET", "bloom", "x"},
			{"SET", "bloom", "x", "GET"}, {"BITCOUNT", "bloom"}, {"BITOP", "AND", "to", "s", "bloom"},
			{"HGET", "bloom", "x"}, {"LPUSH", "bloom", "x"}, {"SADD", "bloom", "x"}, {"ZADD", "bloom", 1, "x"}, {"PFADD", "bloom", "x"},
			{"BF.ADD", "s", "x"}, {"BF.ADD", "h", "x"}, {"BF.INFO", "h"}, {"BF.INSERT", "s", "NOCREATE", "ITEMS", "x"},
			{"BF.LOADCHUNK", "h", 1, "x"}, {"BF.CARD", "s"}, {"BF.DEBUG", "h"}, {"BF.SCANDUMP", "s", 0}, {"BF.RESERVE", "h", 0.1, 9},
		} {
			require.EqualError(t, rdb.Do(ctx, args...).Err(), errWrongType, "%v", args)
		}
		require.Equal(t, []any{nil, "1", nil, nil}, rdb.MGet(ctx, "bloom", "s", "none", "h").Val())
		require.True(t, rdb.BFExists(ctx, "bloom", "a").Val(), "unharmed")
		require.EqualError(t, rdb.Copy(ctx, "bloom", "to", 0, false).Err(), "ERR not supported for this module key")
		require.NoError(t, rdb.Set(ctx, "bloom", "x", 0).Err())
		require.Equal(t, "x", rdb.Get(ctx, "bloom").Val(), "SET takes a key of any type")
		require.Equal(t, "string", rdb.Type(ctx, "bloom").Val())
	})
}

func TestTypeAndScan(t *testing.T) {
	both(t, func(t *testing.T, _ *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		require.NoError(t, rdb.BFAdd(ctx, "f", "a").Err())
		require.NoError(t, rdb.Set(ctx, "s", "1", 0).Err())
		require.NoError(t, rdb.SAdd(ctx, "set", "1").Err())
		require.Equal(t, "MBbloom--", rdb.Type(ctx, "f").Val())
		require.Equal(t, []string{"f", "s", "set"}, rdb.Keys(ctx, "*").Val())
		for what, want := range map[string][]string{"MBbloom--": {"f"}, "string": {"s"}, "set": {"set"}} {
			keys, _, err := rdb.ScanType(ctx, 0, "*", 10, what).Result()
			require.NoError(t, err)
			require.Equal(t, want, keys)
		}
		keys, _, err := rdb.Scan(ctx, 0, "*", 10).Result()
		require.NoError(t, err)
		require.Equal(t, []string{"f", "s", "set"}, keys)
	})
}

func TestDatabases(t *testing.T) {
	m := miniredis.RunT(t)
	RedisBloom(m)
	w := dial(t, m, 2)
	for _, db := range []string{"0", "7", "15", "99"} {
		require.Equal(t, "+OK\r\n", w.do("SELECT", db))
		require.Equal(t, ":0\r\n", w.do("BF.EXISTS", "f", "a"), "database %s", db)
		require.Equal(t, ":1\r\n", w.do("BF.ADD", "f", "a"), "database %s", db)
		require.Equal(t, "+MBbloom--\r\n", w.do("TYPE", "f"))
	}
	require.Equal(t, ":1\r\n", w.do("MOVE", "f", "3"))
	require.Equal(t, ":0\r\n", w.do("BF.EXISTS", "f", "a"))
	require.Equal(t, "+OK\r\n", w.do("SELECT", "3"))
	require.Equal(t, ":1\r\n", w.do("BF.EXISTS", "f", "a"))
	require.Equal(t, "+OK\r\n", w.do("SWAPDB", "3", "99"))
	require.Equal(t, ":0\r\n", w.do("BF.EXISTS", "f", "a"))
}

func TestDumpAndRestore(t *testing.T) {
	both(t, func(t *testing.T, _ *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		require.NoError(t, rdb.BFAdd(ctx, "f", "a").Err())
		payload := rdb.Dump(ctx, "f").Val()
		require.NoError(t, rdb.Restore(ctx, "g", time.Minute, payload).Err())
		require.Equal(t, "MBbloom--", rdb.Type(ctx, "g").Val())
		require.True(t, rdb.BFAdd(ctx, "f", "only f").Val())
		require.True(t, rdb.BFAdd(ctx, "g", "only g").Val())
		require.Equal(t, []bool{true, true, false}, rdb.BFMExists(ctx, "f", "a", "only f", "only g").Val())
		require.Equal(t, []bool{true, false, true}, rdb.BFMExists(ctx, "g", "a", "only f", "only g").Val())
		require.Equal(t, time.Minute, rdb.TTL(ctx, "g").Val())
	})
}
