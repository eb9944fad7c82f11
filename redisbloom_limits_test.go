package bloom

import (
	"math"
	"strings"
	"testing"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What New refuses, since the module takes it in another sense or not at all (cases
// F6, F7), and servers without the module (case F18).

func TestModuleRefusals(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for name, c := range map[string]struct {
		key  string
		opts RedisBloomOptions
		cfg  Config
		err  error
		text []string
	}{
		"rate above the module's":  {cfg: Config{Capacity: 100, FPRate: 0.2501}, err: ErrInvalidParams, text: []string{"0.2501", "at most 0.25"}},
		"rate of a half":           {cfg: Config{Capacity: 100, FPRate: 0.5}, err: ErrInvalidParams, text: []string{"0.5", "at most 0.25"}},
		"rate 1":                   {cfg: Config{Capacity: 100, FPRate: 1}, err: ErrInvalidParams, text: []string{"1"}},
		"rate 5, meaning percent":  {cfg: Config{Capacity: 100, FPRate: 5}, err: ErrInvalidParams, text: []string{"5"}},
		"rate below 0":             {cfg: Config{Capacity: 100, FPRate: -0.01}, err: ErrInvalidParams, text: []string{"-0.01"}},
		"rate NaN":                 {cfg: Config{Capacity: 100, FPRate: math.NaN()}, err: ErrInvalidParams, text: []string{"NaN"}},
		"rate Inf":                 {cfg: Config{Capacity: 100, FPRate: math.Inf(1)}, err: ErrInvalidParams, text: []string{"Inf"}},
		"rate NaN, attach only":    {cfg: Config{FPRate: math.NaN()}, err: ErrInvalidParams, text: []string{"NaN"}},
		"one item too many":        {cfg: Config{Capacity: 1<<30 - 2}, err: ErrTooLarge, text: []string{"1073741822", "1073741821", "3 sentinels"}},
		"capacity beyond 64 bits":  {cfg: Config{Capacity: math.MaxUint64}, err: ErrTooLarge, text: []string{"18446744073709551615"}},
		"scaling below 0":          {opts: RedisBloomOptions{Scaling: -1}, err: ErrInvalidParams, text: []string{"-1", "32768"}},
		"scaling above the most":   {opts: RedisBloomOptions{Scaling: 32769}, err: ErrInvalidParams, text: []string{"32769", "32768"}},
		"blocked":                  {cfg: Config{Capacity: 100, Layout: Blocked}, err: ErrInvalidParams, text: []string{"blocked", "Classic"}},
		"blocked, attach only":     {cfg: Config{Layout: Blocked}, err: ErrInvalidParams, text: []string{"blocked"}},
		"key nonscaling":           {key: "nonscaling", err: ErrInvalidParams, text: []string{"nonscaling", "BF.RESERVE"}},
		"key NonScaling":           {key: "NonScaling", err: ErrInvalidParams, text: []string{"NonScaling", "BF.RESERVE"}},
		"key EXPANSION":            {key: "EXPANSION", err: ErrInvalidParams, text: []string{"EXPANSION", "BF.RESERVE"}},
		"key expansion":            {key: "expansion", err: ErrInvalidParams, text: []string{"expansion", "BF.RESERVE"}},
		"key of a build's tickets": {key: NewRedisBloom(nil, "a{t}b", nil).ticket, err: ErrInvalidParams, text: []string{"{t}:build"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.key == "" {
				c.key = "orders"
			}
			f, err := New(NewRedisBloom(rdb, c.key, &c.opts), c.cfg)
			require.ErrorIs(t, err, c.err)
			require.Nil(t, f)
			for _, text := range c.text {
				require.ErrorContains(t, err, text)
			}
		})
	}
	for name, b := range map[string]*RedisBloom{
		"nil backend": nil, "nil client": NewRedisBloom(nil, "orders", nil), "nil pointer": NewRedisBloom((*redis.Client)(nil), "orders", nil),
		"no key": NewRedisBloom(rdb, "", nil),
	} {
		_, err := New(b, Config{Capacity: 100})
		require.ErrorIs(t, err, ErrInvalidParams, name)
	}
}

// The limits themselves are taken: nothing is sent before CreateEmpty.
func TestModuleLimits(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for _, cfg := range []Config{{Capacity: 1<<30 - 3}, {Capacity: 1, FPRate: 0.25}, {Capacity: 1, FPRate: minFPRate}, {}} {
		for _, scaling := range []int{0, 1, 32768} {
			_, err := New(NewRedisBloom(rdb, "orders", &RedisBloomOptions{Scaling: scaling}), cfg)
			require.NoError(t, err, "%+v, %d", cfg, scaling)
		}
	}
}

// A rebuild's options are within the same limits.
func TestModuleRebuildRefusals(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		key := b.key(t)
		f := b.filter(t, key, Config{Capacity: 100}, nil)
		_, err := f.Rebuild(t.Context(), rebuildUnread(t), &RebuildOptions{FPRate: 0.3})
		require.ErrorIs(t, err, ErrInvalidParams)
		require.ErrorContains(t, err, "at most 0.25")
		_, err = f.Rebuild(t.Context(), rebuildUnread(t), &RebuildOptions{Capacity: 1 << 30})
		require.ErrorIs(t, err, ErrTooLarge)
		b.requireNone(t, key)
	})
}

// The extreme rates and sizes that are taken work: what was added is there.
func TestModuleExtremes(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for _, cfg := range []Config{{Capacity: 1, FPRate: 0.25}, {Capacity: 1, FPRate: minFPRate}, {Capacity: 50, FPRate: 1e-7}, {Capacity: 50, FPRate: 0.25}} {
			for _, opts := range []*RedisBloomOptions{nil, {Scaling: 1}, {Scaling: 32768}} {
				key := b.key(t)
				f := b.filter(t, key, cfg, opts)
				require.NoError(t, f.CreateEmpty(t.Context()))
				require.NoError(t, f.CreateEmpty(t.Context()), "its own filter satisfies it")
				items := moduleItems("item", int(cfg.Capacity))
				_, err := f.AddMulti(t.Context(), items)
				require.NoError(t, err)
				moduleRequire(t, f, true, items...)
				info, err := f.Info(t.Context())
				require.NoError(t, err)
				require.Equal(t, cfg.Capacity, info.Params.Capacity)
				require.InEpsilon(t, cfg.FPRate, info.Params.FPRate, 1e-12)
				require.NoError(t, f.Reset(t.Context()))
				after, err := f.Info(t.Context())
				require.NoError(t, err)
				require.Equal(t, info.Params, after.Params)
			}
		}
	})
}

// Without the module every method says so, and what to use instead (case F18).
func TestModuleAbsent(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Target) {
		for _, resp := range []int{2, 3} {
			rdb := s.Client(t, func(o *redis.Options) { o.Protocol = resp })
			for _, opts := range []*RedisBloomOptions{nil, {Adopt: true}} {
				key := redistest.Key(t)
				f := moduleFilter(t, rdb, key, Config{Capacity: 100}, opts)
				texts := moduleFails(t, f, ErrNoModule)
				_, err := f.Rebuild(t.Context(), rebuildUnread(t), nil)
				for _, err := range []error{f.CreateEmpty(t.Context()), f.Drop(t.Context()), err} {
					require.ErrorIs(t, err, ErrNoModule)
					texts = append(texts, err.Error())
				}
				_, err = f.Verify(t.Context(), rebuildSource([]string{"a"}), nil)
				require.ErrorIs(t, err, ErrNoModule)
				for _, text := range append(texts, err.Error()) {
					require.Contains(t, text, "NewBitmap")
					require.Contains(t, text, "Redis 8")
					require.Contains(t, text, key)
					require.NotContains(t, text, "\n")
					require.Equal(t, 1, strings.Count(strings.ToLower(text), "unknown"), text)
				}
				n, err := rdb.Exists(t.Context(), moduleKeys(key)...).Result()
				require.NoError(t, err)
				require.Zero(t, n)
			}
		}
	})
}
