package bloomtest

import (
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestLua(t *testing.T) {
	both(t, func(t *testing.T, _ *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		insert := redis.NewScript(`
			-- A comment, and two lines before the call.
			local r = redis.call('BF.INSERT', KEYS[1], 'NOCREATE', 'ITEMS', unpack(ARGV))
			for i, v in ipairs(r) do
				if type(v) == 'table' then
					return {i, v.err}
				end
			end
			return {#r, redis.call('BF.CARD', KEYS[1]), redis.call('bf.mexists', KEYS[1], ARGV[1], 'none')}`)
		err := insert.Run(ctx, rdb, []string{"f"}, "a").Err()
		require.ErrorContains(t, err, "ERR not found script: "+insert.Hash()+", on @user_script:3.")

		require.NoError(t, rdb.BFReserveNonScaling(ctx, "f", 0.01, 2).Err())
		got, err := insert.Run(ctx, rdb, []string{"f"}, "a", "b").Result()
		require.NoError(t, err)
		require.Equal(t, []any{int64(2), int64(2), []any{int64(1), int64(0)}}, got)
		got, err = insert.Run(ctx, rdb, []string{"f"}, "a", "c", "b").Result()
		require.NoError(t, err)
		require.Equal(t, []any{int64(2), errFull}, got)
	})
}

func TestLuaErrors(t *testing.T) {
	both(t, func(t *testing.T, _ *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		require.NoError(t, rdb.Set(ctx, "s", "v", 0).Err())
		eval := func(script string) any {
			v, err := rdb.Eval(ctx, script, []string{"s"}, "BF.ADD").Result()
			if err != nil {
				return err.Error()
			}
			return v
		}
		require.Equal(t, errWrongType, eval("return redis.pcall('BF.ADD', KEYS[1], 'x')"))
		require.Equal(t, errWrongType, eval("return redis.pcall('BF.ADD', KEYS[1], 'x').err"))
		require.Equal(t, errWrongType, eval("local ok, e = pcall(redis.call, 'BF.ADD', KEYS[1], 'x') return e.err"))
		require.Equal(t, wrongArity("bf.add"), eval("return redis.pcall('BF.ADD', KEYS[1])"))
		require.Contains(t, eval("return redis.call('BF.ADD', KEYS[1], 'x')"), errWrongType+" script: ")
		require.Contains(t, eval("return redis.call(ARGV[1], KEYS[1], 'x')"), errWrongType, "not wrapped")
		require.Contains(t, eval("error('mine') -- BF."), "mine")
		require.Contains(t, eval("return redis.call('NOSUCH') -- BF."), "Unknown Redis command")
		require.Equal(t, "ERR custom", eval("return redis.error_reply('custom') -- BF."))
	})
}

// TestLuaTypes sees filters from a script as a client does.
func TestLuaTypes(t *testing.T) {
	both(t, func(t *testing.T, _ *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		require.NoError(t, rdb.BFAdd(ctx, "f", "a").Err())
		got, err := rdb.Eval(ctx, `
			local info = redis.call('BF.INFO', KEYS[1])
			redis.setresp(3)
			local three = redis.call('BF.INFO', KEYS[1], 'ITEMS')
			local n = 0
			for k, v in pairs(three.map) do n = v end
			return {redis.call('TYPE', KEYS[1]).ok, redis.pcall('GET', KEYS[1]).err, info[1].ok, info[2], n,
				redis.call('BF.EXISTS', KEYS[1], 'a') == true}`, []string{"f"}).Result()
		require.NoError(t, err)
		require.Equal(t, []any{"MBbloom--", errWrongType, "Capacity", int64(100), int64(1), int64(1)}, got)
		require.Equal(t, "MBbloom--", rdb.Eval(ctx, "return redis.call('TYPE', KEYS[1])", []string{"f"}).Val(), "not wrapped")
	})
}

func TestScriptCommands(t *testing.T) {
	both(t, func(t *testing.T, _ *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		script := redis.NewScript("return redis.call('BF.EXISTS', KEYS[1], 'a')")
		require.True(t, redis.HasErrorPrefix(script.EvalSha(ctx, rdb, []string{"f"}).Err(), "NOSCRIPT"))
		sha, err := script.Load(ctx, rdb).Result()
		require.NoError(t, err)
		require.Equal(t, script.Hash(), sha)
		require.Equal(t, []bool{true, false}, rdb.ScriptExists(ctx, sha, strings.Repeat("0", 40)).Val())
		require.EqualValues(t, 0, script.EvalSha(ctx, rdb, []string{"f"}).Val())
		require.EqualValues(t, 0, script.EvalShaRO(ctx, rdb, []string{"f"}).Val())
		require.NoError(t, rdb.ScriptFlush(ctx).Err())
		require.Equal(t, []bool{false}, rdb.ScriptExists(ctx, sha).Val())
		require.True(t, redis.HasErrorPrefix(script.EvalSha(ctx, rdb, []string{"f"}).Err(), "NOSCRIPT"))
		require.EqualValues(t, 0, script.Run(ctx, rdb, []string{"f"}).Val())

		cmds, err := rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.BFAdd(ctx, "f", "a")
			p.EvalSha(ctx, sha, []string{"f"})
			return nil
		})
		require.NoError(t, err)
		require.EqualValues(t, 1, cmds[1].(*redis.Cmd).Val())
	})
}

// TestLuaBatch is near what fits: the stack of miniredis' Lua holds some 2 500
// arguments of a BF command, and 5 000 of another.
func TestLuaBatch(t *testing.T) {
	both(t, func(t *testing.T, _ *miniredis.Miniredis, rdb *redis.Client) {
		ctx := t.Context()
		require.NoError(t, rdb.BFReserveNonScaling(ctx, "f", 0.01, 100_000).Err())
		n, err := rdb.Eval(ctx, "return #redis.call('BF.INSERT', KEYS[1], 'NOCREATE', 'ITEMS', unpack(ARGV))",
			[]string{"f"}, numbered("i", 0, 2000)...).Int()
		require.NoError(t, err)
		require.Equal(t, 2000, n)
	})
}
