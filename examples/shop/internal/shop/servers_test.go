package shop

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The same on other databases, which the environment names. Each must be empty,
// and is left so.
func TestServers(t *testing.T) {
	for name, variable := range map[string]string{"MySQL": "SHOP_MYSQL", "PostgreSQL": "SHOP_POSTGRES"} {
		t.Run(name, func(t *testing.T) {
			dsn := os.Getenv(variable)
			if dsn == "" {
				t.Skipf("%s names no server", variable)
			}
			db, err := OpenDatabase(t.Context(), dsn, 1, 0)
			require.NoError(t, err)
			defer db.Close()
			n, err := db.Count(t.Context())
			require.NoError(t, err)
			require.Zero(t, n, "%s has products", variable)
			defer func() {
				for _, table := range []string{"products", "prices", "stock"} {
					_, err := db.ExecContext(context.Background(), "DROP TABLE "+table)
					require.NoError(t, err)
				}
			}()
			t.Run("shop", func(t *testing.T) {
				b := newBed(t, func(c *Config) { c.DSN = dsn })
				require.NoError(t, b.warm(t.Context()))
				lifeOfAProduct(t, b)
			})
			t.Run("far away", func(t *testing.T) {
				b := newBed(t, func(c *Config) { c.DSN = dsn; c.RTT = 20 * time.Millisecond })
				began := time.Now()
				_, err := b.DB.Lookup(t.Context(), "8")
				require.NoError(t, err)
				require.GreaterOrEqual(t, time.Since(began), 4*b.cfg.RTT, "BEGIN, two queries, COMMIT")
			})
		})
	}
}
