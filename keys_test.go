package bloom

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestKeys(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	for key, ok := range map[string]bool{
		"orders":          true,
		" ":               true,
		"a b":             true,
		"größe":           true,
		"\x00":            true,
		"\xff\xfe":        true,
		"a\r\nb":          true,
		"next":            true,
		":next":           true,
		"orders:next":     true,
		"a{b}c":           true,
		"{orders}":        true,
		"{t}:nex":         true,
		"{t}next":         true,
		"{t}:a:next":      true,
		"a{t}:next":       true,
		"{t}:Next":        true,
		"":                false,
		"{":               false,
		"}":               false,
		"{}":              false,
		"a{}b":            false,
		"a{b":             false,
		"a}b":             false,
		"}a{":             false,
		"{a}{b}":          false,
		"{a}}":            false,
		"{{a}":            false,
		"{{a}}":           false,
		"{t}:next":        false,
		"{t}:nextx":       false,
		"{t}:next:a{t}b":  false, // two tags, besides
		"{t}:next:x":      false,
		"{t}:build":       false,
		"{t}:build:x":     false,
		"{orders}:next-a": false,
	} {
		_, err := New(NewBitmap(rdb, key), Config{Capacity: 1})
		if ok {
			require.NoError(t, err, "%q", key)
		} else {
			require.ErrorIs(t, err, ErrInvalidParams, "%q", key)
			require.ErrorContains(t, err, "key", "%q", key)
		}
	}
}

func TestCompanionKey(t *testing.T) {
	require.Equal(t, "{orders}:next", companionKey("orders", "next"))
	require.Equal(t, "{t}:next:a{t}b", companionKey("a{t}b", "next"))
	require.Equal(t, "{orders}:build", companionKey("orders", "build"))
}

// No key of a filter is another filter's, and all lie in one slot (case F12).
// The keys are made of few letters, so that near misses are frequent.
func TestFilterKeysAreItsOwn(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pieces := []string{"a", "b", ":", "{", "}", "{t}", "next", ":next", ":next:", ":a", ":b", "-a", "-b", "build", "{a}:"}
	owner := map[string]string{}
	valid := 0
	check := func(key string) {
		if checkKey(key) != nil {
			return
		}
		valid++
		for _, k := range filterKeys(key) {
			require.Equal(t, clusterSlot(key), clusterSlot(k), "%q of %q", k, key)
			if other, ok := owner[k]; ok {
				require.Equal(t, other, key, "%q belongs to both", k)
			}
			owner[k] = key
		}
	}
	for range 30_000 {
		var key strings.Builder
		for range 1 + random.IntN(6) {
			key.WriteString(pieces[random.IntN(len(pieces))])
		}
		check(key.String())
	}
	// The nearest of misses: a filter whose key ends like a companion's.
	for _, key := range []string{"a{t}b", "a{t}b:a", "a{t}b:b", "{t}b", "orders", "orders:a", "{orders}", "{orders}:a", ":a{t}b"} {
		check(key)
	}
	require.Greater(t, valid, 1000)
}

// clusterSlot is the slot of a key as the cluster specification has it.
func clusterSlot(key string) uint16 {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if end := strings.IndexByte(key[open+1:], '}'); end > 0 {
			key = key[open+1 : open+1+end]
		}
	}
	crc := uint16(0) // CRC-16/XMODEM
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % 16384
}

func TestClusterSlot(t *testing.T) {
	require.EqualValues(t, 0x31c3, clusterSlot("123456789"), "the check value of the specification")
	require.Equal(t, clusterSlot("user1000"), clusterSlot("{user1000}.following"))
	require.NotEqual(t, clusterSlot("foo{}{bar}"), clusterSlot("bar"))
}

// Keys of any bytes work, not only pass the check.
func TestOddKeysWork(t *testing.T) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer rdb.Close()
	for _, key := range []string{" ", "\x00", "größe", "\xff\xfe", "a\r\nb", "a{b}c", "{orders}", ":next"} {
		f := bitmapAt(t, rdb, key, Config{Capacity: 10})
		require.NoError(t, f.CreateEmpty(t.Context()))
		_, err := f.Add(t.Context(), "a")
		require.NoError(t, err)
		got, err := f.ExistsMulti(t.Context(), []string{"a"})
		requireAll(t, true, got, err)
	}
	require.Len(t, m.Keys(), 8)
}
