package bloomtest

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"
)

// TestHookReplaced breaks what needs the hook, and mends it with a second call.
func TestHookReplaced(t *testing.T) {
	m := miniredis.RunT(t)
	RedisBloom(m)
	w := dial(t, m, 2)
	w.do("BF.ADD", "f", "a")
	m.SetError("LOADING")
	require.Equal(t, "-LOADING\r\n", w.do("BF.EXISTS", "f", "a"))
	m.SetError("")
	require.Equal(t, ":1\r\n", w.do("BF.EXISTS", "f", "a"), "needs no hook")
	require.Equal(t, "+string\r\n", w.do("TYPE", "f"))
	w.do("MULTI")
	w.do("BF.ADD", "f", "b")
	require.Contains(t, w.do("EXEC"), "call RedisBloom again")
	m.SetError("LOADING")
	RedisBloom(m)
	require.Equal(t, "+MBbloom--\r\n", w.do("TYPE", "f"))
	require.Equal(t, "*2\r\n:1\r\n:0\r\n", w.do("BF.MEXISTS", "f", "a", "b"))
}

func TestRestart(t *testing.T) {
	m := miniredis.RunT(t)
	RedisBloom(m)
	dial(t, m, 2).do("BF.ADD", "f", "a")
	m.Close()
	require.NoError(t, m.Restart())
	RedisBloom(m)
	w := dial(t, m, 2)
	require.Equal(t, ":1\r\n", w.do("BF.EXISTS", "f", "a"))
	require.Equal(t, "+MBbloom--\r\n", w.do("TYPE", "f"))
	require.Equal(t, "-"+errWrongType+"\r\n", w.do("GET", "f"))
}

func TestPassword(t *testing.T) {
	m := miniredis.RunT(t)
	m.RequireAuth("secret")
	RedisBloom(m)
	w := dial(t, m, 2)
	require.Contains(t, w.do("BF.ADD", "f", "a"), "-NOAUTH")
	require.Contains(t, w.do("AUTH", "bloomtest", ""), "-WRONGPASS", "no way in is left")
	require.Equal(t, "+OK\r\n", w.do("AUTH", "secret"))
	require.Equal(t, ":1\r\n", w.do("BF.ADD", "f", "a"))
}

func TestMisuse(t *testing.T) {
	require.Panics(t, func() { RedisBloom(miniredis.NewMiniRedis()) }, "not started")
	m := miniredis.RunT(t)
	require.NoError(t, m.Server().Register("BF.ADD", func(*server.Peer, string, []string) {}))
	require.Panics(t, func() { RedisBloom(m) }, "somebody's own BF.ADD")
}

// TestInternalCommands must not let clients into what only scripts may do.
func TestInternalCommands(t *testing.T) {
	m := miniredis.RunT(t)
	RedisBloom(m)
	w := dial(t, m, 2)
	require.Contains(t, w.do(cmdJob, "x"), "-ERR")
	require.Contains(t, w.do(cmdJob), "-ERR")
	require.Contains(t, w.do(cmdWrapped, "3"), "-ERR")
	w.do(cmdGrab)
	require.Equal(t, ":1\r\n", w.do("BF.ADD", "f", "a"))
}
