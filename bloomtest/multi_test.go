package bloomtest

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestMulti(t *testing.T) {
	both(t, func(t *testing.T, _ *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		var kind, value *redis.StringCmd
		var there *redis.BoolSliceCmd
		var info *redis.BFInfoCmd
		_, err := rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.BFAdd(ctx, "f", "a")
			p.Set(ctx, "s", "1", 0)
			there = p.BFMExists(ctx, "f", "a", "b")
			info = p.BFInfo(ctx, "f")
			p.Rename(ctx, "f", "g")
			value = p.Get(ctx, "s")
			kind = redis.NewStringCmd(ctx, "type", "g")
			return p.Process(ctx, kind)
		})
		require.NoError(t, err)
		require.Equal(t, []bool{true, false}, there.Val())
		require.EqualValues(t, 240, info.Val().Size)
		require.Equal(t, "1", value.Val())
		require.Equal(t, "MBbloom--", kind.Val())
	})
}

func TestMultiDiscarded(t *testing.T) {
	m := miniredis.RunT(t)
	RedisBloom(m)
	w := dial(t, m, 2)
	w.do("MULTI")
	require.Equal(t, "+QUEUED\r\n", w.do("BF.ADD", "f", "a"))
	w.do("DISCARD")
	w.do("MULTI")
	require.Equal(t, "+QUEUED\r\n", w.do("BF.ADD", "f", "b"))
	require.Equal(t, "*1\r\n:1\r\n", w.do("EXEC"))
	require.Equal(t, "*2\r\n:0\r\n:1\r\n", w.do("BF.MEXISTS", "f", "a", "b"))
	w.do("MULTI")
	require.Equal(t, "+QUEUED\r\n", w.do("BF.ADD", "f", "c"))
	require.Contains(t, w.do("NOSUCH"), "-ERR unknown")
	w.do("BF.ADD", "f")
	require.Contains(t, w.do("EXEC"), "-EXECABORT")
	require.Equal(t, ":0\r\n", w.do("BF.EXISTS", "f", "c"))
}

func TestWatch(t *testing.T) {
	for _, c := range []struct {
		name  string
		other []string
		want  string
	}{
		{"add", []string{"BF.ADD", "f", "new"}, "*-1\r\n"},
		{"duplicate", []string{"BF.ADD", "f", "old"}, "*-1\r\n"},
		{"read", []string{"BF.EXISTS", "f", "old"}, "*1\r\n:0\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := miniredis.RunT(t)
			RedisBloom(m)
			w, other := dial(t, m, 2), dial(t, m, 2)
			w.do("BF.ADD", "f", "old")
			w.do("WATCH", "f")
			w.do("BF.EXISTS", "f", "old") // must not end the watch
			other.do(c.other...)
			w.do("MULTI")
			w.do("BF.ADD", "f", "old")
			require.Equal(t, c.want, w.do("EXEC"))
		})
	}
}
