package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// keyFaults happen to the keys of a filter, on servers of any kind.
var keyFaults = []fault{
	{"UNLINK", func(d *driver, n *node) {
		d.lose(n, "unlinked", func(ctx context.Context) error { return n.admin.Unlink(ctx, n.key).Err() })
	}},
	{"UNLINK of staging", func(d *driver, n *node) {
		d.admin(func(ctx context.Context) error { return n.admin.Unlink(ctx, n.companion("next")).Err() })
	}},
	{"Drop", func(d *driver, n *node) {
		d.lose(n, "dropped", d.handles[d.rnd.IntN(len(d.handles))].Drop)
	}},
	{"EXPIRE", func(d *driver, n *node) {
		soon := time.Duration(20+d.rnd.IntN(150)) * time.Millisecond
		d.admin(func(ctx context.Context) error { return n.admin.PExpire(ctx, n.key, soon).Err() })
		time.Sleep(soon + 5*time.Millisecond) // unless a rebuild publishes meanwhile
		d.count(n, "expired")
	}},
	{"RENAME away", func(d *driver, n *node) {
		away := n.companion("away")
		d.lose(n, "renamed away", func(ctx context.Context) error { return n.rename(ctx, n.key, away) })
		d.admin(func(ctx context.Context) error { return n.admin.Unlink(ctx, away).Err() })
	}},
	{"RENAME away and back", func(d *driver, n *node) {
		away := n.companion("away")
		d.away.Add(1)
		d.lose(n, "renamed away", func(ctx context.Context) error { return n.rename(ctx, n.key, away) })
		d.pause(100)
		d.admin(func(ctx context.Context) error {
			// Not over one that a rebuild has published meanwhile: that would be an
			// old state brought back, which loses what was acknowledged since.
			err := n.admin.RenameNX(ctx, away, n.key).Err()
			if isNoSuchKey(err) {
				return nil
			}
			return err
		})
		d.away.Add(1)
		d.admin(func(ctx context.Context) error { return n.admin.Unlink(ctx, away).Err() })
	}},
	{"SET over it", func(d *driver, n *node) {
		d.lose(n, "set over", func(ctx context.Context) error { return n.admin.Set(ctx, n.key, "something else", 0).Err() })
		d.pause(60)
		d.unlinkForeign(n)
	}},
	{"another type over it", func(d *driver, n *node) {
		d.lose(n, "of another type", func(ctx context.Context) error {
			_, err := n.admin.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Del(ctx, n.key)
				p.LPush(ctx, n.key, "something", "else")
				return nil
			})
			return err
		})
		d.pause(60)
		d.unlinkForeign(n)
	}},
	{"SCRIPT FLUSH", func(d *driver, n *node) {
		d.admin(func(ctx context.Context) error { return n.admin.ScriptFlush(ctx).Err() })
	}},
	{"FLUSHALL", func(d *driver, n *node) {
		d.lose(n, "flushed", func(ctx context.Context) error {
			if n.cluster != nil {
				return n.primary(d.t).FlushAll(ctx).Err()
			}
			return n.admin.FlushAll(ctx).Err()
		})
	}},
}

// bitmapFaults need to know that the filter is a string.
var bitmapFaults = []fault{
	{"truncated", func(d *driver, n *node) {
		cut := redis.NewScript(`local s = redis.call('GET', KEYS[1])
			return s and redis.call('SET', KEYS[1], string.sub(s, 1, math.floor(#s * ARGV[1])))`)
		part := d.rnd.Float64()
		// Whole blocks of Blocked still answer, rightly.
		d.damage(n, "truncated", func(ctx context.Context) error { return cut.Run(ctx, n.admin, []string{n.key}, part).Err() })
	}},
}

// serverFaults happen to a redis-server of its own.
var serverFaults = []fault{
	{"kill -9 and restart", func(d *driver, n *node) {
		if n.keeps {
			n.server.Stop()
			d.pause(100)
			n.server.Restart(d.t)
			return
		}
		d.lose(n, "restarted empty", func(context.Context) error {
			n.server.Stop()
			d.pause(100)
			n.server.Restart(d.t)
			return nil
		})
	}},
	{"SIGSTOP", func(d *driver, n *node) {
		n.server.Freeze()
		d.pause(1000) // beyond what calls have, and slack
		n.server.Thaw()
	}},
	{"CLIENT KILL", func(d *driver, n *node) {
		d.admin(func(ctx context.Context) error { return n.admin.Do(ctx, "client", "kill", "type", "normal").Err() })
	}},
	{"DEBUG SLEEP", func(d *driver, n *node) {
		d.admin(func(ctx context.Context) error {
			return n.admin.Do(ctx, "debug", "sleep", fmt.Sprintf("%.3f", d.rnd.Float64()/4)).Err()
		})
	}},
	{"CONFIG SET timeout", func(d *driver, n *node) {
		n.setTimeout(d, map[bool]int{true: 0, false: 1}[n.slow])
		n.slow = !n.slow
	}},
	evict("allkeys-lru"),
	evict("allkeys-lfu"),
	evict("allkeys-random"),
	evict("volatile-ttl"),
}

// evict fills the server beyond its memory, under a policy, until the filter is
// gone; with some luck other keys go first.
func evict(policy string) fault {
	return fault{"evicted by " + policy, func(d *driver, n *node) {
		volatile := strings.HasPrefix(policy, "volatile")
		set := func(name, value string) {
			d.admin(func(ctx context.Context) error { return n.admin.ConfigSet(ctx, name, value).Err() })
		}
		set("maxmemory-policy", policy)
		filler, ttl := strings.Repeat("x", 20_000), time.Duration(0)
		if volatile {
			ttl = time.Hour
			d.admin(func(ctx context.Context) error { return n.admin.PExpire(ctx, n.key, time.Minute).Err() })
		}
		fill := func(i int) {
			ctx, cancel := context.WithTimeout(d.t.Context(), 100*time.Millisecond)
			defer cancel()
			_ = n.admin.Set(ctx, fmt.Sprint(n.companion("filler"), i), filler, ttl).Err() // refused when only the filter is left
		}
		for i := range 20 {
			fill(i)
		}
		used := n.usedMemory(d)
		set("maxmemory", fmt.Sprint(used+100_000))
		for i := range 60 {
			fill(20 + i%20)
		}
		if n.there(d) { // whoever reads it keeps it in memory; then there is less
			set("maxmemory", fmt.Sprint(max(used/4, 1)))
			fill(0)
		}
		d.count(n, "evicted")
		set("maxmemory", "0")
		d.admin(func(ctx context.Context) error {
			keys := make([]string, 40)
			for i := range keys {
				keys[i] = fmt.Sprint(n.companion("filler"), i)
			}
			return n.admin.Unlink(ctx, keys...).Err()
		})
		d.admin(func(ctx context.Context) error { return n.admin.Persist(ctx, n.key).Err() })
	}}
}

func (n *node) usedMemory(d *driver) (used int) {
	d.admin(func(ctx context.Context) error {
		info, err := n.admin.Info(ctx, "memory").Result()
		if err == nil {
			_, rest, _ := strings.Cut(info, "used_memory:")
			_, err = fmt.Sscan(rest, &used)
		}
		return err
	})
	return used
}

func (n *node) there(d *driver) (is bool) {
	d.admin(func(ctx context.Context) error {
		count, err := n.admin.Exists(ctx, n.key).Result()
		is = count > 0
		return err
	})
	return is
}

// count counts a loss if the filter is not there.
func (d *driver) count(n *node, name string) {
	if !n.there(d) {
		d.add("losses", name, 1)
	}
}

// unlinkForeign removes what is not a filter, which no rebuild would replace.
func (d *driver) unlinkForeign(n *node) {
	d.admin(func(ctx context.Context) error { return n.admin.Unlink(ctx, n.key).Err() })
}

// companion names a key of the same slot.
func (n *node) companion(name string) string {
	if open, rest, ok := strings.Cut(n.key, "{"); ok {
		tag, after, _ := strings.Cut(rest, "}")
		return "{" + tag + "}:" + name + ":" + open + "{" + tag + "}" + after
	}
	return "{" + n.key + "}:" + name
}

// rename is harmless where the key is gone.
func (n *node) rename(ctx context.Context, from, to string) error {
	if err := n.admin.Rename(ctx, from, to).Err(); !isNoSuchKey(err) {
		return err
	}
	return nil
}

func isNoSuchKey(err error) bool {
	return err != nil && strings.Contains(err.Error(), "no such key")
}

func (n *node) setTimeout(d *driver, seconds int) {
	d.admin(func(ctx context.Context) error { return n.admin.ConfigSet(ctx, "timeout", fmt.Sprint(seconds)).Err() })
}

// startNode starts a server with a filter's key, and proxies in front of it.
func startNode(t *testing.T, key string, keeps bool, args ...string) *node {
	args = append(args, debugArgs(t)...)
	if keeps {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	}
	n := &node{key: key, keeps: keeps, server: redistest.Start(t, args...)}
	n.addr = n.server.Addr()
	n.admin = n.server.Client(t)
	for range 3 {
		n.proxies = append(n.proxies, redistest.NewProxy(t, n.addr))
	}
	return n
}

// debugArgs allow DEBUG, which Redis before 7 always did.
func debugArgs(t *testing.T) []string {
	info, err := redistest.Shared(t).Client(t).Info(t.Context(), "server").Result()
	require.NoError(t, err)
	_, version, _ := strings.Cut(info, "redis_version:")
	var major int
	_, err = fmt.Sscanf(version, "%d.", &major)
	require.NoError(t, err)
	if major < 7 {
		return nil
	}
	return []string{"--enable-debug-command", "yes"}
}
