package bloom

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What cannot work is refused at once, by a text that names it.
func TestNewGuardRefuses(t *testing.T) {
	s := memoryStore(t)
	load := rows(nil)
	type options = GuardOptions[string]
	for name, tt := range map[string]struct {
		opts options
		text []string
	}{
		"TTL in seconds":       {options{TTL: 300}, []string{"TTL 300ns", "1s"}},
		"TTL":                  {options{TTL: time.Second - 1}, []string{"TTL 999.999999ms", "1s"}},
		"negative TTL":         {options{TTL: -time.Hour}, []string{"TTL -1h0m0s", "1s"}},
		"NullTTL":              {options{NullTTL: time.Second - 1}, []string{"NullTTL 999.999999ms", "1s"}},
		"Jitter":               {options{Jitter: 1}, []string{"Jitter 1", "below 1", "negative"}},
		"Jitter in percent":    {options{Jitter: 10}, []string{"Jitter 10", "below 1"}},
		"Jitter NaN":           {options{Jitter: math.NaN()}, []string{"Jitter NaN"}},
		"Jitter +Inf":          {options{Jitter: math.Inf(1)}, []string{"Jitter +Inf"}},
		"LoadTimeout":          {options{LoadTimeout: time.Millisecond - 1}, []string{"LoadTimeout 999.999µs", "1ms"}},
		"negative LoadTimeout": {options{LoadTimeout: -1}, []string{"LoadTimeout -1ns", "1ms"}},
		"endless LoadTimeout":  {options{LoadTimeout: math.MaxInt64}, []string{"LoadTimeout 2562047h", "24h"}},
		"MaxLoads":             {options{MaxLoads: -1}, []string{"MaxLoads -1", "at least 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := NewGuard(s.filter, s.cache, load, &tt.opts)
			require.Nil(t, g)
			require.ErrorIs(t, err, ErrInvalidParams)
			for _, text := range append(tt.text, "bloom: ") {
				require.ErrorContains(t, err, text)
			}
		})
	}

	client := redis.NewClient(&redis.Options{Addr: "localhost:1"})
	defer client.Close()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "localhost:1"}})
	defer ring.Close()
	replicas := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"localhost:1"}, ReadOnly: true})
	defer replicas.Close()
	for name, tt := range map[string]struct {
		filter *Filter
		cache  Cache
		load   Loader[string]
		text   string
	}{
		"no filter":         {nil, s.cache, load, "nil Filter"},
		"no cache":          {s.filter, nil, load, "nil Cache"},
		"no loader":         {s.filter, s.cache, nil, "nil Loader"},
		"nil redis cache":   {s.filter, (*RedisCache)(nil), load, "nil *RedisCache"},
		"nil memory cache":  {s.filter, (*MemoryCache)(nil), load, "nil *MemoryCache"},
		"nil client":        {s.filter, NewRedisCache(nil, "g:"), load, "nil Redis client"},
		"typed nil client":  {s.filter, NewRedisCache((*redis.Client)(nil), "g:"), load, "nil *redis.Client"},
		"ring":              {s.filter, NewRedisCache(ring, "g:"), load, "Ring"},
		"replicas":          {s.filter, NewRedisCache(replicas, "g:"), load, "replicas"},
		"pipeline":          {s.filter, NewRedisCache(client.Pipeline(), "g:"), load, "Exec"},
		"client by value":   {s.filter, NewRedisCache(byValue{}, "g:"), load, "pointer"},
		"unusable timeouts": {nil, nil, nil, "bloom: guard with a nil"},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := NewGuard(tt.filter, tt.cache, tt.load, nil)
			require.Nil(t, g)
			require.ErrorIs(t, err, ErrInvalidParams)
			require.ErrorContains(t, err, tt.text)
		})
	}
}

// byValue is a client that == panics on.
type byValue struct {
	redis.Cmdable
	_ []int
}

func TestGuardDefaults(t *testing.T) {
	var o GuardOptions[string]
	require.NoError(t, o.complete())
	require.Equal(t, GuardOptions[string]{TTL: time.Hour, NullTTL: time.Minute, Jitter: 0.1, LoadTimeout: 5 * time.Second,
		MaxLoads: 256, Codec: jsonCodec[string]{}}, o)

	least := GuardOptions[string]{TTL: time.Second, NullTTL: time.Second, Jitter: -1, LoadTimeout: time.Millisecond, MaxLoads: 1}
	opts := least
	s := memoryStore(t)
	newTestGuard(t, s, rows(nil), &opts)
	require.Equal(t, least, opts, "the caller's options stay as they are")
}

// One second works, for values and for nulls (G5): cached until then, not longer.
func TestGuardShortestTTL(t *testing.T) {
	run := func(t *testing.T, s guardStore, advance func(time.Duration)) {
		g := newTestGuard(t, s, rows(map[string]string{"row": "v"}),
			&GuardOptions[string]{TTL: time.Second, NullTTL: time.Second, Jitter: -1})
		s.known(t, "row", "null")
		for range 2 {
			_, err := g.Get(t.Context(), "row")
			require.NoError(t, err)
			_, err = g.Get(t.Context(), "null")
			require.ErrorIs(t, err, ErrNotFound)
		}
		s.requireTag(t, "row", tagValue, time.Second)
		s.requireTag(t, "null", tagNull, time.Second)
		require.EqualValues(t, 2, g.Stats().Loads)
		advance(1050 * time.Millisecond)
		_, err := g.Get(t.Context(), "row")
		require.NoError(t, err)
		_, err = g.Get(t.Context(), "null")
		require.ErrorIs(t, err, ErrNotFound)
		require.EqualValues(t, 4, g.Stats().Loads)
	}
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		t.Parallel()
		run(t, redisStore(t, target, Classic), target.Advance)
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		run(t, memoryStore(t), time.Sleep)
	})
}

// Jitter shortens, by no more than its share, and differs from fill to fill.
func TestGuardJitter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		s := redisStore(t, target, Classic)
		s.known(t, "row", "null")
		lifetimes := func(jitter float64) (values, nulls []time.Duration) {
			g := newTestGuard(t, s, rows(map[string]string{"row": "v"}),
				&GuardOptions[string]{TTL: 1000 * time.Second, NullTTL: 100 * time.Second, Jitter: jitter})
			for range 50 {
				require.NoError(t, g.Invalidate(t.Context(), "row", "null"))
				_, err := g.Get(t.Context(), "row")
				require.NoError(t, err)
				_, err = g.Get(t.Context(), "null")
				require.ErrorIs(t, err, ErrNotFound)
				_, v := s.raw.get("row")
				_, n := s.raw.get("null")
				values, nulls = append(values, v), append(nulls, n)
			}
			return values, nulls
		}
		const slack = 5 * time.Second // between the fill and our look at it
		for name, tt := range map[string]struct{ jitter, share float64 }{
			"default": {0, 0.1}, "half": {0.5, 0.5}, "none": {-1, 0}, "-Inf": {math.Inf(-1), 0},
		} {
			values, nulls := lifetimes(tt.jitter)
			for _, x := range []struct {
				ttl time.Duration
				all []time.Duration
			}{{1000 * time.Second, values}, {100 * time.Second, nulls}} {
				shortest := time.Duration(float64(x.ttl) * (1 - tt.share))
				least, most := x.all[0], x.all[0]
				for _, ttl := range x.all {
					least, most = min(least, ttl), max(most, ttl)
				}
				require.LessOrEqual(t, most, x.ttl, name)
				require.GreaterOrEqual(t, least, shortest-slack, name)
				if spread := x.ttl - shortest; spread > 0 {
					// 50 even draws all within half the range: once in 10¹³ runs.
					require.Greater(t, most-least, spread/2, name)
				}
			}
		}
	})
}

// Redis counts milliseconds and refuses 0.
func TestGuardJitterLeavesSomething(t *testing.T) {
	g := &Guard[string]{opts: GuardOptions[string]{Jitter: math.Nextafter(1, 0)}}
	for range 10000 {
		ttl := g.jitter(time.Second)
		require.GreaterOrEqual(t, ttl, time.Millisecond)
		require.LessOrEqual(t, ttl, time.Second)
	}
}

// Validate comes before anything else, and its error is the caller's to know.
func TestGuardValidate(t *testing.T) {
	s := redisStore(t, sharedTarget(t), Classic)
	trips := &redistest.Trips{}
	s.client.AddHook(trips)
	g := newTestGuard(t, s, rows(nil), &GuardOptions[string]{Validate: func(id string) error {
		if strings.HasPrefix(id, "0") {
			return context.Canceled // any error will do
		}
		return nil
	}})
	_, err := g.Get(t.Context(), "007")
	require.ErrorIs(t, err, context.Canceled)
	require.EqualError(t, err, `bloom: get "007": context canceled`)
	require.Zero(t, trips.N())
	require.Equal(t, GuardStats{Gets: 1, Invalid: 1}, g.Stats())
}
