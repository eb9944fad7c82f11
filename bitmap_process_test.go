package bloom_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// errand is what one process asks of another that shares its filter.
type errand struct {
	Addr, Key string
	Create    bloom.Config // nothing in it: attach only
	Members   []string     // which it must find
	Add       []string
}

const errandEnv = "BLOOM_TEST_ERRAND"

// TestErrand is the other process of TestTwoProcesses.
func TestErrand(t *testing.T) {
	var e errand
	text := os.Getenv(errandEnv)
	if text == "" {
		t.Skip("for TestTwoProcesses")
	}
	require.NoError(t, json.Unmarshal([]byte(text), &e))
	rdb := redis.NewClient(&redis.Options{Addr: e.Addr})
	defer rdb.Close()
	f := mustNew(t, bloom.NewBitmap(rdb, e.Key), e.Create)
	if e.Create.Capacity > 0 {
		require.NoError(t, f.CreateEmpty(t.Context()))
	}
	requireMembers(t, f, e.Members)
	_, err := f.AddMulti(t.Context(), e.Add)
	require.NoError(t, err)
	requireMembers(t, f, e.Add)
}

// Two processes share a filter, whoever made it, and neither disturbs the other
// (case F24).
func TestTwoProcesses(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
			rdb, key := s.Client(t), redistest.Key(t)
			send := func(e errand) {
				t.Helper()
				e.Addr, e.Key = s.Addr, key
				text, err := json.Marshal(e)
				require.NoError(t, err)
				cmd := exec.Command(self, "-test.run=^TestErrand$", "-test.v")
				cmd.Env = append(os.Environ(), errandEnv+"="+string(text), "GORACE=atexit_sleep_ms=0")
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%s", out)
				require.Contains(t, string(out), "--- PASS: TestErrand")
			}
			theirs, ours := numbered("theirs", 50), numbered("ours", 50)
			send(errand{Create: bloom.Config{Capacity: 200, FPRate: 1e-6, Layout: layout}, Add: theirs})

			f := mustNew(t, bloom.NewBitmap(rdb, key), bloom.Config{Capacity: 10, Layout: layout})
			require.NoError(t, f.CreateEmpty(t.Context()))
			requireMembers(t, f, theirs)
			added, err := f.AddMulti(t.Context(), ours)
			require.NoError(t, err)
			require.NotContains(t, added, false)

			send(errand{Members: append(ours, theirs...), Add: []string{"more"}})
			requireMembers(t, f, append(ours, append(theirs, "more")...))
			absent, err := f.Exists(t.Context(), "never added")
			require.NoError(t, err)
			require.False(t, absent)
		})
	})
}
