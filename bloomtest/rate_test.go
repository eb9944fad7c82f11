package bloomtest

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// fill adds items until the filter counts n, and returns how many it took.
func fill(t *testing.T, rdb *redis.Client, n int) int {
	const batch = 1000
	sent := 0
	for count := 0; count < n; {
		added, err := rdb.BFMAdd(t.Context(), "f", numbered("member:", sent, sent+min(batch, n-count))...).Result()
		require.NoError(t, err)
		sent += len(added)
		count = int(rdb.BFCard(t.Context(), "f").Val())
	}
	return sent
}

// TestRate measures false positives at capacity, with items that are always the same.
func TestRate(t *testing.T) {
	const capacity, probes = 20_000, 200_000
	for _, c := range []struct {
		name      string
		reserve   []any
		low, high float64
	}{
		// 7 hashes in 9.5851 bits an item: (1 - e^(-7/9.5851))^7 = 1.004 %.
		{"NONSCALING", []any{"NONSCALING"}, 0.009, 0.011},
		// Sized for half the rate.
		{"scaling", nil, 0.0045, 0.0055},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := miniredis.RunT(t)
			RedisBloom(m)
			rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
			t.Cleanup(func() { rdb.Close() })
			require.NoError(t, rdb.Do(t.Context(), append([]any{"BF.RESERVE", "f", 0.01, capacity}, c.reserve...)...).Err())
			sent := fill(t, rdb, capacity)
			for from := 0; from < sent; from += 5000 {
				there, err := rdb.BFMExists(t.Context(), "f", numbered("member:", from, min(from+5000, sent))...).Result()
				require.NoError(t, err)
				require.NotContains(t, there, false, "a false negative")
			}
			wrong := 0
			for from := 0; from < probes; from += 5000 {
				there, err := rdb.BFMExists(t.Context(), "f", numbered("stranger:", from, from+5000)...).Result()
				require.NoError(t, err)
				for _, yes := range there {
					if yes {
						wrong++
					}
				}
			}
			rate := float64(wrong) / probes
			t.Logf("%.3f %% of %d", 100*rate, probes)
			require.Greater(t, rate, c.low)
			require.Less(t, rate, c.high)
		})
	}
}

// BenchmarkInsert sends 1000 items into a filter for 100 000 at a time.
func BenchmarkInsert(b *testing.B) {
	m := miniredis.RunT(b)
	RedisBloom(m)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	b.Cleanup(func() { rdb.Close() })
	from := 0
	for b.Loop() {
		if from%100_000 == 0 {
			rdb.Del(b.Context(), "f")
			require.NoError(b, rdb.BFReserveNonScaling(b.Context(), "f", 0.01, 100_000).Err())
		}
		require.NoError(b, rdb.BFInsert(b.Context(), "f", &redis.BFInsertOptions{NoCreate: true}, numbered("i", from, from+1000)...).Err())
		from += 1000
	}
}

func BenchmarkExists(b *testing.B) {
	m := miniredis.RunT(b)
	RedisBloom(m)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	b.Cleanup(func() { rdb.Close() })
	require.NoError(b, rdb.BFReserveNonScaling(b.Context(), "f", 0.01, 100_000).Err())
	require.NoError(b, rdb.BFAdd(b.Context(), "f", "a").Err())
	for b.Loop() {
		require.NoError(b, rdb.BFExists(b.Context(), "f", "a").Err())
	}
}
