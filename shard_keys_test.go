package bloom

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The keys are frozen: under others the filter is not found.
func TestShardKeysVectors(t *testing.T) {
	require.Equal(t, []string{"orders:0/8:0", "orders:1/8:2", "orders:2/8:1", "orders:3/8:3", "orders:4/8:13",
		"orders:5/8:40", "orders:6/8:41", "orders:7/8:12"}, ShardKeys("orders", 8))
	require.Equal(t, []string{"x:0/1:0"}, ShardKeys("x", 1))
	many := ShardKeys("orders", 1024)
	require.Equal(t, []string{"orders:1000/1024:1", "orders:1001/1024:414", "orders:1002/1024:207"}, many[1000:1003])
}

// Each range of slots has one key, whatever the name, and every key may be a
// filter's.
func TestShardKeysAreEven(t *testing.T) {
	require.EqualValues(t, 0x31c3, crc16(0, "123456789"), "of the specification of Redis Cluster")
	for _, name := range []string{"orders", "a", " ", "日本\x00", strings.Repeat("long ", 100), "orders:0/8:0"} {
		for _, n := range []int{1, 2, 3, 6, 7, 8, 16, 100, 300} {
			keys := ShardKeys(name, n)
			require.Len(t, keys, n)
			seen := map[string]bool{}
			for i, key := range keys {
				slot := int(crc16(0, key)) % clusterSlots
				require.GreaterOrEqual(t, slot, i*clusterSlots/n)
				require.Less(t, slot, (i+1)*clusterSlots/n)
				require.NoError(t, checkKey(key))
				require.True(t, strings.HasPrefix(key, fmt.Sprintf("%s:%d/%d:", name, i, n)))
				require.False(t, seen[key])
				seen[key] = true
			}
			require.Equal(t, keys, ShardKeys(name, n))
		}
	}
}

// What has no such keys gets none, which New refuses.
func TestShardKeysRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		n    int
	}{{"orders", 0}, {"orders", -1}, {"orders", 1025}, {"", 8}, {"{orders}", 8}, {"a{", 2}, {"a}b", 2}} {
		require.Nil(t, ShardKeys(c.name, c.n), "%q, %d", c.name, c.n)
	}
	_, err := New(NewSharded(), Config{Capacity: 10})
	require.ErrorIs(t, err, ErrInvalidParams)
	require.ErrorContains(t, err, "no shards")
	require.ErrorContains(t, err, "1 to 1024")
}
