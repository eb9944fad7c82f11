package bloom_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/bloomtest"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Which clients are refused, which work, and what they are sent.

func TestClientsRefused(t *testing.T) {
	plain := redis.NewClient(&redis.Options{})
	defer plain.Close()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}, HeartbeatFrequency: 1 << 40})
	defer ring.Close()
	cluster := func(o redis.ClusterOptions) *redis.ClusterClient {
		o.Addrs = []string{"127.0.0.1:1"}
		c := redis.NewClusterClient(&o)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c
	}
	caching := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Protocol: 3, ClientSideCacheConfig: &redis.ClientSideCacheConfig{}})
	defer caching.Close()
	for name, c := range map[string]struct {
		rdb  redis.Cmdable
		text string
	}{
		"nil":                    {nil, "nil"},
		"nil client":             {(*redis.Client)(nil), "nil *redis.Client"},
		"nil cluster":            {(*redis.ClusterClient)(nil), "nil *redis.ClusterClient"},
		"nil autopipeliner":      {(*redis.AutoPipeliner)(nil), "nil *redis.AutoPipeliner"},
		"ring":                   {ring, "*redis.Ring"},
		"reads from replicas":    {cluster(redis.ClusterOptions{ReadOnly: true}), "ReadOnly"},
		"by latency":             {cluster(redis.ClusterOptions{RouteByLatency: true}), "RouteByLatency"},
		"randomly":               {cluster(redis.ClusterOptions{RouteRandomly: true}), "RouteRandomly"},
		"pipeline":               {plain.Pipeline(), "Exec"},
		"transaction":            {plain.TxPipeline(), "Exec"},
		"cache in the client":    {caching, "caching"},
		"client without pointer": {byValue{plain, nil}, "pointer"},
	} {
		_, err := bloom.New(bloom.NewBitmap(c.rdb, "k"), bloom.Config{Capacity: 1})
		require.ErrorIs(t, err, bloom.ErrInvalidParams, name)
		require.ErrorContains(t, err, c.text, name)
	}
	_, err := bloom.New((*bloom.Bitmap)(nil), bloom.Config{})
	require.ErrorIs(t, err, bloom.ErrInvalidParams)

	for _, rdb := range []redis.Cmdable{plain, cluster(redis.ClusterOptions{}), struct{ redis.Cmdable }{plain}} {
		_, err := bloom.New(bloom.NewBitmap(rdb, "k"), bloom.Config{Capacity: 1})
		require.NoError(t, err, "%T", rdb)
	}
}

// What Config asks of replicas is refused where it cannot be had, or be seen to.
func TestReplicaOptionsRefused(t *testing.T) {
	const longRead = 3 * time.Second
	plain := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: longRead})
	defer plain.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ReadTimeout: longRead})
	defer cluster.Close()
	reads := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ReadOnly: true})
	defer reads.Close()
	ap, err := plain.AutoPipeline()
	require.NoError(t, err)
	conn := plain.Conn()
	defer conn.Close()
	for name, c := range map[string]struct {
		rdb   redis.Cmdable
		cfg   bloom.Config
		texts []string
	}{
		"negative":             {plain, bloom.Config{WaitReplicas: -1}, []string{"WaitReplicas -1", "0 (none) or more"}},
		"negative time":        {plain, bloom.Config{WaitReplicas: 1, WaitTimeout: -time.Second}, []string{"WaitTimeout -1s", "at least 1ms"}},
		"too short":            {plain, bloom.Config{WaitReplicas: 1, WaitTimeout: time.Microsecond}, []string{"WaitTimeout 1µs", "at least 1ms"}},
		"time without number":  {plain, bloom.Config{WaitTimeout: time.Second}, []string{"WaitTimeout 1s without WaitReplicas"}},
		"as long as a read":    {plain, bloom.Config{WaitReplicas: 1, WaitTimeout: longRead}, []string{"WaitTimeout 3s", "ReadTimeout of 3s"}},
		"longer, in a cluster": {cluster, bloom.Config{WaitReplicas: 1, WaitTimeout: time.Minute}, []string{"WaitTimeout 1m0s", "ReadTimeout of 3s"}},
		"autopipeliner":        {ap, bloom.Config{WaitReplicas: 2}, []string{"WaitReplicas 2", "*redis.AutoPipeliner"}},
		"one connection":       {conn, bloom.Config{WaitReplicas: 2}, []string{"WaitReplicas 2", "*redis.Conn"}},
		"interface only":       {struct{ redis.Cmdable }{plain}, bloom.Config{WaitReplicas: 2}, []string{"WaitReplicas 2"}},
		"reads, autopipeliner": {ap, bloom.Config{ReplicaReads: true}, []string{"ReplicaReads", "*redis.AutoPipeliner"}},
		"reads, not allowed":   {reads, bloom.Config{WaitReplicas: 1}, []string{"ReadOnly", "Config.ReplicaReads"}},
	} {
		for _, b := range []bloom.Backend{bloom.NewBitmap(c.rdb, "k"), bloom.NewRedisBloom(c.rdb, "k", nil)} {
			_, err := bloom.New(b, c.cfg)
			require.ErrorIs(t, err, bloom.ErrInvalidParams, name)
			for _, text := range c.texts {
				require.ErrorContains(t, err, text, name)
			}
		}
	}
	_, err = bloom.New(bloom.NewMemory(), bloom.Config{WaitReplicas: 1})
	require.ErrorIs(t, err, bloom.ErrInvalidParams)
	require.ErrorContains(t, err, "WaitReplicas 1")
	require.ErrorContains(t, err, "*bloom.Memory")
	_, err = bloom.New(bloom.NewSharded(bloom.NewBitmap(plain, "a"), bloom.NewMemory()), bloom.Config{WaitReplicas: 1})
	require.ErrorIs(t, err, bloom.ErrInvalidParams, "no shard may be without replicas")
	_, err = bloom.New(bloom.NewSharded(bloom.NewBitmap(reads, "a"), bloom.NewBitmap(plain, "b")), bloom.Config{})
	require.ErrorContains(t, err, "Config.ReplicaReads")
	_, err = bloom.New(struct{ bloom.Backend }{bloom.NewBitmap(plain, "k")}, bloom.Config{WaitReplicas: 1})
	require.ErrorContains(t, err, "WaitReplicas 1", "a backend that is not this package's")

	for _, rdb := range []redis.Cmdable{plain, cluster, reads} {
		_, err := bloom.New(bloom.NewBitmap(rdb, "k"), bloom.Config{ReplicaReads: true, WaitReplicas: 1, WaitTimeout: time.Millisecond})
		require.NoError(t, err, "%T", rdb)
	}
	_, err = bloom.New(bloom.NewMemory(), bloom.Config{ReplicaReads: true})
	require.NoError(t, err)
}

// A handle that knows of replicas is one on the same filter: of the same place,
// options and hash key.
func TestReplicaOptionsChangeNoFilter(t *testing.T) {
	m := redistest.Mini(t)
	bloomtest.RedisBloom(m)
	rdb := redistest.MiniClient(t, m)
	for name, backend := range map[string]func() bloom.Backend{
		"bitmap":     func() bloom.Backend { return bloom.NewBitmap(rdb, "b") },
		"redisbloom": func() bloom.Backend { return bloom.NewRedisBloom(rdb, "r", &bloom.RedisBloomOptions{Scaling: 2}) },
		"sharded": func() bloom.Backend {
			return bloom.NewSharded(bloom.NewBitmap(rdb, "s0"), bloom.NewRedisBloom(rdb, "s1", nil), bloom.NewBitmap(rdb, "s2"))
		},
	} {
		for _, key := range [][]byte{nil, []byte("sixteen bytes...")} {
			cfg := bloom.Config{Capacity: 1000, HashKey: key}
			plain := mustNew(t, backend(), cfg)
			cfg.ReplicaReads = true
			replicas := mustNew(t, backend(), cfg)
			require.NoError(t, replicas.CreateEmpty(t.Context()), name)
			_, err := plain.AddMulti(t.Context(), numbered("plain", 100))
			require.NoError(t, err, name)
			_, err = replicas.AddMulti(t.Context(), numbered("replicas", 100))
			require.NoError(t, err, name)
			for _, f := range []*bloom.Filter{plain, replicas} {
				requireMembers(t, f, append(numbered("plain", 100), numbered("replicas", 100)...))
				info, err := f.Info(t.Context())
				require.NoError(t, err)
				require.Equal(t, name, info.Backend)
			}
			require.NoError(t, replicas.Drop(t.Context()))
			requireNotReady(t, plain)
		}
	}
}

// byValue cannot be compared, so that it would panic where clients are.
type byValue struct {
	redis.Cmdable
	_ []int
}

// An oversized filter is refused at construction, without a server (case F10).
func TestTooLarge(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		_, err := bloom.New(bloom.NewBitmap(rdb, "k"), bloom.Config{Capacity: 1e9, Layout: layout})
		require.ErrorIs(t, err, bloom.ErrTooLarge)
		require.ErrorContains(t, err, "4294967296")
		require.ErrorContains(t, err, "shards")
		_, err = bloom.New(bloom.NewBitmap(rdb, "k"), bloom.Config{Capacity: 4e8, Layout: layout})
		require.NoError(t, err)
	})
}

// One round trip for whatever fits a chunk, once the handle is warm; on a real
// Redis the Classic read is native, elsewhere what was refused is not tried again.
func TestTrips(t *testing.T) {
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		redistest.Each(t, func(t *testing.T, s redistest.Target) {
			rdb := s.Client(t)
			trips := &redistest.Trips{Record: true}
			rdb.AddHook(trips)
			members := numbered("member", 200)
			f := filled(t, rdb, redistest.Key(t), 1000, layout, members)
			requireMembers(t, f, members)
			require.NoError(t, f.Ready(t.Context()))

			reads := map[bloom.Layout]string{bloom.Classic: "bitfield_ro", bloom.Blocked: "getrange"}[layout]
			if !s.Real && layout == bloom.Classic {
				reads = "evalsha_ro"
			}
			for _, c := range []struct {
				what, command string
				op            func() error
			}{
				{"Exists", reads, func() error { _, err := f.Exists(t.Context(), "a"); return err }},
				{"Exists of a member", reads, func() error { _, err := f.Exists(t.Context(), members[0]); return err }},
				{"ExistsMulti", reads, func() error { _, err := f.ExistsMulti(t.Context(), members); return err }},
				{"Add", "evalsha", func() error { _, err := f.Add(t.Context(), "b"); return err }},
				{"AddMulti", "evalsha", func() error { _, err := f.AddMulti(t.Context(), members); return err }},
				{"Ready", "getrange", func() error { return f.Ready(t.Context()) }},
			} {
				trips.Reset()
				require.NoError(t, c.op())
				require.EqualValues(t, 1, trips.N(), c.what)
				for _, cmd := range trips.Commands() {
					require.Equal(t, c.command, cmd[0], c.what)
				}
			}

			// What the server refuses is one trip more, and remembered by the handle.
			g := attached(t, rdb, redistest.Key(t))
			_, err := g.Exists(t.Context(), "a")
			require.ErrorIs(t, err, bloom.ErrNotReady)
			trips.Reset()
			require.NoError(t, f.CreateEmpty(t.Context()))
			require.LessOrEqual(t, trips.N(), int64(1), "attaching reads the header and the end at once")
		})
	})
}

// Whatever refuses BITFIELD_RO, the script answers, and no later read tries again.
func TestFallbackIsRemembered(t *testing.T) {
	for _, text := range []string{
		"ERR unknown command `BITFIELD_RO`, with args beginning with: `k`, ", // Redis 5
		"ERR unknown command 'BITFIELD_RO', with args beginning with: 'k' ",  // Redis 7
		"ERR unsupported command", // a proxy
		"NOPERM this user has no permissions to run the 'bitfield_ro' command", // an ACL
	} {
		for _, alsoRO := range []bool{false, true} {
			rdb := redistest.Shared(t).Client(t)
			trips := &redistest.Trips{Record: true}
			members := numbered("member", 50)
			refused := answering{text, "bitfield_ro"}
			if alsoRO {
				refused = append(refused, "evalsha_ro", "eval_ro")
			}
			rdb.AddHook(trips)
			rdb.AddHook(refused)
			f := filled(t, rdb, redistest.Key(t), 100, bloom.Classic, members)
			requireMembers(t, f, members)
			trips.Reset()
			requireMembers(t, f, members)
			want := map[bool]string{false: "evalsha_ro", true: "evalsha"}[alsoRO]
			names := slices.Compact(commandNames(trips))
			require.Equal(t, []string{want}, names)
			require.EqualValues(t, 21, trips.N())
		}
	}
}

func commandNames(trips *redistest.Trips) []string {
	var names []string
	for _, cmd := range trips.Commands() {
		names = append(names, cmd[0])
	}
	return names
}

// Clients of every kind that go-redis makes, and one that only passes on the
// interface.
func TestClientKinds(t *testing.T) {
	s := redistest.Shared(t)
	client := s.Client(t)
	ap, err := client.AutoPipeline()
	require.NoError(t, err)
	async, err := client.AsyncAutoPipeline()
	require.NoError(t, err)
	conn := client.Conn()
	defer conn.Close()
	for name, rdb := range map[string]redis.Cmdable{
		"client":         client,
		"resp2":          s.Client(t, func(o *redis.Options) { o.Protocol = 2 }),
		"resp3":          s.Client(t, func(o *redis.Options) { o.Protocol = 3 }),
		"conn":           conn,
		"interface only": struct{ redis.Cmdable }{client},
		"around a pipe":  struct{ redis.Cmdable }{ap},
		"blocking face":  ap,
		"deferred face":  async,
		"universal":      redis.UniversalClient(client),
	} {
		t.Run(name, func(t *testing.T) { requireWorks(t, rdb) })
	}
}

// requireWorks uses every method.
func requireWorks(t *testing.T, rdb redis.Cmdable) {
	t.Helper()
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		key := redistest.Key(t)
		members := numbered("member", 50)
		f := mustNew(t, bloom.NewBitmap(rdb, key), bloom.Config{Capacity: 100, Layout: layout})
		requireNotReady(t, f)
		filled(t, rdb, key, 100, layout, members)
		requireMembers(t, f, members)
		got, err := f.ExistsMulti(t.Context(), append(numbered("absent", 50), members...))
		require.NoError(t, err)
		require.Contains(t, got[:50], false)
		require.NotContains(t, got[50:], false)
		require.NoError(t, f.Ready(t.Context()))
		info, err := f.Info(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 50, info.Items, 5, fmt.Sprint(info))
		require.NoError(t, f.Reset(t.Context()))
		exists, err := f.Exists(t.Context(), members[0])
		require.NoError(t, err)
		require.False(t, exists)
		require.NoError(t, f.Drop(t.Context()))
		requireNotReady(t, f)
	})
}

// A cluster of one node: every command is routed by the filter's key, and a
// script that one node forgot is repaired there.
func TestClusterClient(t *testing.T) {
	s := redistest.Start(t, "--cluster-enabled", "yes")
	node := s.Client(t)
	require.NoError(t, node.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	require.Eventually(t, func() bool {
		return node.ClusterInfo(t.Context()).Val()[:17] == "cluster_state:ok\r"
	}, 10e9, 10e6)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr()}, ContextTimeoutEnabled: true})
	defer cluster.Close()
	requireWorks(t, cluster)
	require.NoError(t, node.ScriptFlush(t.Context()).Err())
	ap, err := cluster.AutoPipeline()
	require.NoError(t, err)
	requireWorks(t, ap)
	// With a tag the slot is the tag's, for filter and companion alike.
	f := filled(t, cluster, "orders{eu}", 100, bloom.Classic, []string{"a"})
	requireMembers(t, f, []string{"a"})
	require.NoError(t, f.Drop(t.Context()))
}
