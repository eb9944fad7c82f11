package bloom

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// MurmurHash3 is no secret: who knows a filter's parameters, its seed and its bits
// (any reader of the key does) finds absent ids that pass, as many as he likes. The
// seed is random, so they pass that one filter, until it is rebuilt in another size
// or made anew. A hash key keeps them from being found at all.
func TestCraftedIDsPass(t *testing.T) {
	const members, wanted = 2000, 1000
	made := func(t *testing.T, key []byte) (*Filter, *Memory) {
		m := NewMemory()
		f, err := New(m, Config{Capacity: members, FPRate: 0.01, HashKey: key})
		require.NoError(t, err)
		require.NoError(t, f.CreateEmpty(t.Context()))
		for i := range members {
			_, err := f.Add(t.Context(), "member "+strconv.Itoa(i))
			require.NoError(t, err)
		}
		return f, m
	}
	// craft tests ids against a copy of the bits, offline, hashing as the header says
	// as far as that is known.
	craft := func(m *Memory) (ids []string) {
		copied := *m.live.Load()
		copied.geom = newGeometry(copied.geom.params, copied.geom.seed, alone)
		for i := 0; len(ids) < wanted; i++ {
			if id := "crafted " + strconv.Itoa(i); copied.exists(id) {
				ids = append(ids, id)
			}
		}
		return ids
	}
	passing := func(f *Filter, ids []string) int {
		exists, err := f.ExistsMulti(t.Context(), ids)
		require.NoError(t, err)
		return countTrue(exists)
	}

	f, m := made(t, nil)
	ids := craft(m)
	require.Equal(t, wanted, passing(f, ids), "each of them reaches the database")
	other, _ := made(t, nil) // the same members, another seed
	require.Less(t, passing(other, ids), wanted/20, "about 1 in 100")

	keyed, m := made(t, testHashKeys[0])
	require.Less(t, passing(keyed, craft(m)), wanted/20, "without the key the bits tell nothing")
}

// The hash of the RedisBloom module has a seed that everybody knows, so ids crafted
// for one filter pass every other one of the same size and members, unless a key
// hashes them first.
func TestCraftedIDsPassTheModule(t *testing.T) {
	ids := func(f *Filter) (passing []string) {
		for i := range 20_000 {
			id := "crafted " + strconv.Itoa(i)
			exists, err := f.Exists(t.Context(), id)
			require.NoError(t, err)
			if exists {
				passing = append(passing, id)
			}
		}
		return passing
	}
	made := func(key []byte) *Filter {
		b := rebuildModule(t)
		cfg := b.config(200)
		cfg.HashKey = key
		f := b.open(t, cfg)
		require.NoError(t, f.CreateEmpty(t.Context()))
		_, err := f.AddMulti(t.Context(), rebuildItems("member ", 200))
		require.NoError(t, err)
		return f
	}
	crafted := ids(made(nil))
	require.NotEmpty(t, crafted)
	exists, err := made(nil).ExistsMulti(t.Context(), crafted)
	require.NoError(t, err)
	require.Equal(t, len(crafted), countTrue(exists))
	exists, err = made(testHashKeys[0]).ExistsMulti(t.Context(), crafted)
	require.NoError(t, err)
	require.Less(t, countTrue(exists), len(crafted)/4)
}
