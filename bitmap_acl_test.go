package bloom_test

import (
	"iter"
	"testing"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The least that each role needs of an ACL. A server's operator can copy the
// rules; what is missing from one is missing for a reason, which the tests check
// by taking away any one of the commands.

// aclServer is a server on which users are made.
type aclServer struct {
	*redistest.Server
	admin *redis.Client
}

func newACLServer(t *testing.T) aclServer {
	s := redistest.Start(t)
	return aclServer{s, s.Client(t)}
}

// user makes a user by rules and returns a client of his.
func (s aclServer) user(t *testing.T, rules ...string) *redis.Client {
	t.Helper()
	name := "u" + redistest.Key(t)[len(t.Name())+1:]
	all := []any{"acl", "setuser", name, "reset", "on", ">secret", "+ping", "+hello", "+client"}
	for _, rule := range rules {
		all = append(all, rule)
	}
	require.NoError(t, s.admin.Do(t.Context(), all...).Err())
	return s.Client(t, func(o *redis.Options) { o.Username, o.Password = name, "secret" })
}

// without returns the rules but one.
func without(rules []string, i int) []string {
	return append(append([]string{}, rules[:i]...), rules[i+1:]...)
}

// A reader needs two commands, and reading is all he can do.
func TestACLReader(t *testing.T) {
	s := newACLServer(t)
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		key := redistest.Key(t)
		members := numbered("member", 50)
		filled(t, s.admin, key, 100, layout, members)
		rdb := s.user(t, "%R~"+key, "+bitfield_ro", "+getrange")
		trips := &redistest.Trips{Record: true}
		rdb.AddHook(trips)
		f := attached(t, rdb, key)
		requireMembers(t, f, members)
		require.NoError(t, f.Ready(t.Context()))
		require.NotContains(t, commandNames(trips), "evalsha_ro", "nothing had to be worked around")

		for _, op := range append(mutations(t, f)[:2],
			func() error { return f.Reset(t.Context()) }, func() error { return f.Drop(t.Context()) }) {
			requireDenied(t, op(), "any of what writes")
		}
		requireMembers(t, f, members)
	})
}

// Where BITFIELD_RO is not allowed, Classic reads through the script.
func TestACLScriptReader(t *testing.T) {
	s := newACLServer(t)
	key := redistest.Key(t)
	members := numbered("member", 50)
	filled(t, s.admin, key, 100, bloom.Classic, members)
	rules := []string{"+eval_ro", "+evalsha_ro", "+getbit", "+strlen", "+getrange"}
	f := attached(t, s.user(t, append(rules, "%R~"+key)...), key)
	requireMembers(t, f, members)
	require.NoError(t, f.Ready(t.Context()))

	for i := range rules {
		// Each on a server that has forgotten the script, as it is after a restart.
		require.NoError(t, s.admin.ScriptFlush(t.Context()).Err())
		g := attached(t, s.user(t, append(without(rules, i), "%R~"+key)...), key)
		require.Error(t, neverDenies(t, g, members), "without %s", rules[i])
	}
	require.Error(t, neverDenies(t, attached(t, s.user(t, append(rules, "%R~another")...), key), members))
}

// Before Redis 7 there was no EVAL_RO: then the script is an EVAL.
func TestACLOldScriptReader(t *testing.T) {
	s := newACLServer(t)
	key := redistest.Key(t)
	members := numbered("member", 50)
	filled(t, s.admin, key, 100, bloom.Classic, members)
	require.NoError(t, s.admin.ScriptFlush(t.Context()).Err())
	f := attached(t, s.user(t, "~"+key, "+eval", "+evalsha", "+getbit", "+strlen", "+getrange"), key)
	requireMembers(t, f, members)
}

// An adder needs the companion key as well, whether or not it exists.
func TestACLAdder(t *testing.T) {
	s := newACLServer(t)
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		key := redistest.Key(t)
		rules := []string{"+eval", "+evalsha", "+getrange", "+strlen", "+setbit", "~" + key, "~{" + key + "}:next"}
		filled(t, s.admin, key, 100, layout, nil)
		f := attached(t, s.user(t, rules...), key)
		_, err := f.Add(t.Context(), "one")
		require.NoError(t, err)
		_, err = f.AddMulti(t.Context(), numbered("member", 50))
		require.NoError(t, err)
		requireMembers(t, attached(t, s.admin, key), append(numbered("member", 50), "one"))

		for i := range rules {
			require.NoError(t, s.admin.ScriptFlush(t.Context()).Err())
			f := attached(t, s.user(t, without(rules, i)...), key)
			_, err := f.Add(t.Context(), "another")
			requireDenied(t, err, rules[i])
		}
	})
}

// Whoever makes and removes filters.
func TestACLCreator(t *testing.T) {
	s := newACLServer(t)
	key := redistest.Key(t)
	rules := []string{"+eval", "+evalsha", "+getrange", "+exists", "+set", "+del", "+setrange", "+time", "+pexpire",
		"+strlen", "~" + key, "~{" + key + "}:next"}
	try := func(rules []string) error {
		require.NoError(t, s.admin.ScriptFlush(t.Context()).Err())
		require.NoError(t, s.admin.FlushAll(t.Context()).Err())
		f := mustNew(t, bloom.NewBitmap(s.user(t, rules...), key), bloom.Config{Capacity: 100, Layout: bloom.Blocked, TTL: 1e12})
		for _, op := range []func() error{
			func() error { return f.CreateEmpty(t.Context()) },
			func() error { return f.Reset(t.Context()) },
			func() error { return f.Drop(t.Context()) },
		} {
			if err := op(); err != nil {
				return err
			}
		}
		return nil
	}
	require.NoError(t, try(rules))
	for i := range rules {
		requireDenied(t, try(without(rules, i)), rules[i])
	}
}

// Whoever rebuilds and verifies.
func TestACLRebuilder(t *testing.T) {
	s := newACLServer(t)
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		key := redistest.Key(t)
		rules := []string{"+eval", "+evalsha", "+getrange", "+exists", "+pttl", "+setrange", "+set", "+get", "+del", "+bitop",
			"+bitcount", "+time", "+pexpire", "+rename", "+persist", "+strlen",
			"~" + key, "~{" + key + "}:next", "~{" + key + "}:next-a", "~{" + key + "}:next-b"}
		if layout == bloom.Classic {
			rules = append(rules, "+bitfield_ro")
		}
		members := numbered("member", 50)
		filled(t, s.admin, key, 100, layout, members)
		try := func(rules []string) error {
			require.NoError(t, s.admin.ScriptFlush(t.Context()).Err())
			f := attached(t, s.user(t, rules...), key)
			_, err := f.Rebuild(t.Context(), sourceOf(members), &bloom.RebuildOptions{Settle: -1})
			if err != nil {
				return err
			}
			_, err = f.Verify(t.Context(), sourceOf(members), nil)
			return err
		}
		require.NoError(t, try(rules))
		for i := range rules {
			requireDenied(t, try(without(rules, i)), rules[i])
			requireMembers(t, attached(t, s.admin, key), members)
			for _, left := range []string{"next", "next-a", "next-b"} {
				left = "{" + key + "}:" + left
				switch ttl := s.admin.PTTL(t.Context(), left).Val(); {
				case ttl == -2: // gone
				case rules[i] == "+del" && ttl == -1: // it could not be removed, nor could what its TTL was taken from
				default:
					require.Positive(t, ttl, "%s is left without a TTL, without %s", left, rules[i])
					require.NotEqual(t, "+rename", rules[i], "what was undone is removed")
				}
				require.NoError(t, s.admin.Del(t.Context(), left).Err())
			}
		}
	})
}

func sourceOf(items []string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// requireDenied requires the error of a user whom a rule is missing: of the
// command itself, or of one that a script runs.
func requireDenied(t *testing.T, err error, rule string) {
	t.Helper()
	require.Error(t, err, "without %s", rule)
	require.Regexp(t, "NOPERM|can't run this command|can't access", err.Error(), "without %s", rule)
}
