package bloom

import (
	"bytes"
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Helpers of the tests that look inside a Bitmap.

func mustBytes(t testing.TB, m *Memory) []byte {
	t.Helper()
	var buf bytes.Buffer
	_, err := m.WriteTo(&buf)
	require.NoError(t, err)
	return buf.Bytes()
}

// beforeScript is a hook that runs a function before each call of a script.
type beforeScript struct {
	script *script
	f      func()
}

func (h beforeScript) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h beforeScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 1 && args[0] == "evalsha" && args[1] == h.script.sha {
			h.f()
		}
		return next(ctx, cmd)
	}
}

func (h beforeScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
