package bloom

import (
	"strings"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// An attacker chooses ids. With the cache at "g:" and the filter at "g:filter" he
// could name the filter's own keys, so they are neither read, written nor deleted
// by what the Guard does with its cache.
func TestGuardReservedIDs(t *testing.T) {
	for name, tt := range map[string]struct {
		prefix, filter string
		ids            []string // whose cache keys are the filter's
	}{
		"prefix":    {"g:", "g:filter", []string{"filter"}},
		"no prefix": {"", "filter", []string{"filter", "{filter}:next", "{filter}:next-a", "{filter}:next-b", "{filter}:build"}},
		"tag":       {"{g}:", "{g}:filter", []string{"filter", "next:{g}:filter", "next-a:{g}:filter", "next-b:{g}:filter", "build:{g}:filter"}},
		"same key":  {"filter", "filter", []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, target redistest.Target) {
				client := target.Client(t)
				if target.Real { // these keys are not unique, so they need a server of their own
					client = redistest.Start(t).Client(t)
				}
				s := guardStore{
					filter: testFilter(t, NewBitmap(client, tt.filter), Classic),
					cache:  NewRedisCache(client, tt.prefix),
				}
				s.known(t, append(tt.ids, "row")...)
				g := newTestGuard(t, s, rows(map[string]string{tt.ids[0]: "v", "row": "w"}), nil)

				// The companion keys stand for a rebuild's; any bytes that must survive.
				var keep []string
				for _, id := range tt.ids {
					key := tt.prefix + id
					keep = append(keep, key)
					if key != tt.filter {
						require.NoError(t, client.Set(t.Context(), key, `V"a rebuild's"`, time.Minute).Err())
					}
				}
				before := client.MGet(t.Context(), keep...).Val()
				require.Len(t, before, len(tt.ids))

				trips := &redistest.Trips{Record: true}
				client.AddHook(trips)
				for range 2 {
					v, err := g.Get(t.Context(), tt.ids[0])
					require.NoError(t, err)
					require.Equal(t, "v", v, "a row may be named like that all the same")
					for _, id := range tt.ids[1:] {
						_, err := g.Get(t.Context(), id)
						require.ErrorIs(t, err, ErrNotFound)
					}
					require.NoError(t, g.Invalidate(t.Context(), tt.ids...))
				}
				requireNoneNamed(t, trips, keep...)

				trips.Reset()
				require.NoError(t, g.Invalidate(t.Context(), append(tt.ids, "row")...))
				require.EqualValues(t, 1, trips.N(), "the rest is dropped as usual")
				require.Equal(t, [][]string{{"del", tt.prefix + "row"}}, trips.Commands())
				requireNoneNamed(t, trips, keep...)

				if name == "prefix" || name == "same key" { // no companion key stands in Add's way
					require.NoError(t, g.Register(t.Context(), tt.ids...))
				}
				require.Equal(t, before[1:], client.MGet(t.Context(), keep...).Val()[1:])
				require.NoError(t, s.filter.Ready(t.Context()))
				exists, err := s.filter.Exists(t.Context(), tt.ids[0])
				require.NoError(t, err)
				require.True(t, exists)
				require.Equal(t, uint64(2*len(tt.ids)), g.Stats().Loads, "uncached, so loaded each time")
			})
		})
	}
}

// requireNoneNamed checks that no command of the cache (GET, DEL, a script that
// is not the filter's) has named a key.
func requireNoneNamed(t *testing.T, trips *redistest.Trips, keys ...string) {
	t.Helper()
	for _, cmd := range trips.Commands() {
		touches := strings.EqualFold(cmd[0], "get") || strings.EqualFold(cmd[0], "del") ||
			strings.HasPrefix(cmd[0], "eval") && (cmd[1] == leaseScript.sha || cmd[1] == leaseScript.src ||
				cmd[1] == fillScript.sha || cmd[1] == fillScript.src)
		for _, key := range keys {
			for _, arg := range cmd[1:] {
				require.False(t, touches && arg == key, "%q", cmd)
			}
		}
	}
}

// A RedisBloom filter's keys are of other types, which GET refuses, but not DEL.
// No server with the module is needed to see what is sent.
func TestGuardReservedIDsOfRedisBloom(t *testing.T) {
	client := redistest.MiniClient(t, redistest.Mini(t))
	b := NewRedisBloom(client, "g:filter", nil)
	f, err := New(b, Config{})
	require.NoError(t, err)
	for prefix, ids := range map[string][]string{
		"g:": {"filter"},
		"":   {"g:filter", "{g:filter}:next", "{g:filter}:build", b.ticket},
	} {
		g := newTestGuard(t, guardStore{filter: f, cache: NewRedisCache(client, prefix)}, rows(nil), nil)
		for _, id := range ids {
			require.NoError(t, client.Set(t.Context(), prefix+id, "N", time.Minute).Err())
			require.NoError(t, g.Invalidate(t.Context(), id))
			require.Equal(t, "N", client.Get(t.Context(), prefix+id).Val())
			_, err := g.Get(t.Context(), id)
			require.ErrorIs(t, err, ErrNotFound)
		}
		require.Zero(t, g.Stats().NullHits)
	}
}

// The same holds where the two have different clients, which may be of one server.
func TestGuardReservedIDsOfAnotherClient(t *testing.T) {
	m := redistest.Mini(t)
	a, b := redistest.MiniClient(t, m), redistest.MiniClient(t, m, func(o *redis.Options) { o.MaxRetries = 1 })
	s := guardStore{filter: testFilter(t, NewBitmap(a, "g:filter"), Classic), cache: NewRedisCache(b, "g:")}
	s.known(t, "filter")
	g := newTestGuard(t, s, rows(map[string]string{"filter": "v"}), nil)
	trips := &redistest.Trips{Record: true}
	b.AddHook(trips)
	v, err := g.Get(t.Context(), "filter")
	require.NoError(t, err)
	require.Equal(t, "v", v)
	require.NoError(t, g.Register(t.Context(), "filter"))
	require.Zero(t, trips.N(), "%q", trips.Commands())
	require.NoError(t, s.filter.Ready(t.Context()))
}

// What the filter denies is denied without the loader, reserved or not.
func TestGuardReservedIDIsDenied(t *testing.T) {
	client := redistest.MiniClient(t, redistest.Mini(t))
	s := guardStore{filter: testFilter(t, NewBitmap(client, "g:filter"), Blocked), cache: NewRedisCache(client, "g:")}
	g := newTestGuard(t, s, rows(nil), nil)
	_, err := g.Get(t.Context(), "filter")
	require.ErrorIs(t, err, ErrNotFound)
	require.Equal(t, GuardStats{Gets: 1, Rejected: 1}, g.Stats())
}
