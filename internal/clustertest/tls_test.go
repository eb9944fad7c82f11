package clustertest

import (
	"crypto/tls"
	"testing"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TLS and AUTH are the client's: everything works through them, and without them
// nothing is denied.
func TestTLSAndPassword(t *testing.T) {
	t.Parallel()
	s, addr, trust := redistest.StartTLS(t, "--requirepass", "secret")
	client := func(config *tls.Config, password string) *redis.Client {
		return s.Client(t, func(o *redis.Options) {
			o.Addr, o.TLSConfig, o.Password = addr, config, password
			o.MaxRetries, o.DialerRetries = -1, 1
		})
	}
	rdb := client(trust, "secret")
	bothLayouts(t, func(t *testing.T, layout bloom.Layout) {
		key := redistest.Key(t)
		f := filled(t, rdb, key, bloom.Config{Capacity: 1000, Layout: layout}, numbered("a", 100))
		requireMembers(t, f, numbered("a", 100))
		requireFew(t, f, numbered("absent", 200))
		_, err := f.Rebuild(t.Context(), source(numbered("b", 200)), &bloom.RebuildOptions{Settle: -1})
		require.NoError(t, err)
		requireMembers(t, f, numbered("b", 200))
		db := &table{}
		db.rows.Store("b 1", true)
		g := newGuard(t, f, rdb, key+":", db)
		v, err := g.Get(t.Context(), "b 1")
		require.NoError(t, err)
		require.Equal(t, "row b 1", v)

		for text, rdb := range map[string]*redis.Client{
			"WRONGPASS":     client(trust, "wrong"),
			"NOAUTH":        client(trust, ""),
			"unknown auth":  client(&tls.Config{ServerName: "127.0.0.1"}, "secret"),
			"not 127.0.0.2": client(&tls.Config{RootCAs: trust.RootCAs, ServerName: "127.0.0.2"}, "secret"),
		} {
			requireErrors(t, mustNew(t, rdb, key, bloom.Config{}), text)
			requireAddErrors(t, mustNew(t, rdb, key, bloom.Config{}), text)
		}
	})
}
