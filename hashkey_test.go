package bloom

import (
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// testHashKeys are two keys, and none.
var testHashKeys = [][]byte{[]byte("0123456789abcdef"), []byte("0123456789abcdeF"), nil}

func TestHashKeyLength(t *testing.T) {
	for _, n := range []int{0, 1, 15, 17, 32} {
		_, err := New(NewMemory(), Config{HashKey: make([]byte, n)})
		require.ErrorIs(t, err, ErrInvalidParams)
		require.ErrorContains(t, err, "want 16 random ones")
	}
	_, err := New(NewMemory(), Config{HashKey: make([]byte, 16)}) // zeros are a key like any other
	require.NoError(t, err)
	var none struct{ Backend }
	_, err = New(none, Config{HashKey: testHashKeys[0]})
	require.ErrorIs(t, err, ErrInvalidParams, "a backend that would ignore it")
	for _, b := range []Backend{(*Bitmap)(nil), (*Memory)(nil), (*RedisBloom)(nil), (*Sharded)(nil), NewSharded()} {
		_, err := New(b, Config{HashKey: testHashKeys[0]})
		require.ErrorIs(t, err, ErrInvalidParams)
	}
	bed := rebuildModule(t)
	_, err = New(NewRedisBloom(bed.rdb, bed.key, &RedisBloomOptions{Adopt: true}), Config{HashKey: testHashKeys[0]})
	require.ErrorContains(t, err, "Adopt")
}

// With its key a filter works as any other; with another one, or none, it is an
// error to every call, and denies nobody.
func TestHashKey(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		open := func(key []byte) *Filter {
			cfg := b.config(300)
			cfg.HashKey = key
			return b.open(t, cfg)
		}
		items := rebuildItems("row ", 100)
		for i, key := range testHashKeys {
			f := open(key)
			require.NoError(t, f.CreateEmpty(t.Context()))
			_, err := f.AddMulti(t.Context(), items[:50])
			require.NoError(t, err)
			_, err = f.Rebuild(t.Context(), rebuildSource(items), &RebuildOptions{Settle: -1, Capacity: 400})
			require.NoError(t, err)
			_, err = f.Add(t.Context(), "one more")
			require.NoError(t, err)

			again := open(key)
			require.NoError(t, again.CreateEmpty(t.Context()))
			rebuildRequireAll(t, again, append(items, "one more"))
			absent, err := again.ExistsMulti(t.Context(), rebuildItems("absent ", 100))
			require.NoError(t, err)
			require.Less(t, countTrue(absent), 15)
			report, err := again.Verify(t.Context(), rebuildSource(items), nil)
			require.NoError(t, err)
			require.Zero(t, report.Missing)
			info, err := again.Info(t.Context())
			require.NoError(t, err)
			require.InDelta(t, 101, float64(info.Items), 10)

			before := b.content(t)
			if key != nil {
				require.NotContains(t, before, string(key), "the key is not stored")
			}
			for j, other := range testHashKeys {
				if i == j {
					continue
				}
				wrong := open(other)
				exists, err := wrong.Exists(t.Context(), items[0])
				require.ErrorIs(t, err, ErrParamsMismatch)
				require.True(t, exists)
				many, err := wrong.ExistsMulti(t.Context(), items)
				require.ErrorIs(t, err, ErrParamsMismatch)
				require.Equal(t, len(items), countTrue(many))
				_, err = wrong.Add(t.Context(), "stray")
				require.ErrorIs(t, err, ErrParamsMismatch)
				_, err = wrong.Info(t.Context())
				require.ErrorIs(t, err, ErrParamsMismatch)
				require.ErrorIs(t, wrong.Ready(t.Context()), ErrParamsMismatch)
				require.ErrorIs(t, wrong.CreateEmpty(t.Context()), ErrParamsMismatch)
				require.ErrorIs(t, wrong.Reset(t.Context()), ErrParamsMismatch)
				_, err = wrong.Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
				require.ErrorIs(t, err, ErrParamsMismatch)
				_, err = wrong.Verify(t.Context(), rebuildSource(items), nil)
				require.ErrorIs(t, err, ErrParamsMismatch)
				require.ErrorIs(t, wrong.Drop(t.Context()), ErrParamsMismatch)
				require.Equal(t, before, b.content(t))
			}
			require.NoError(t, again.Drop(t.Context()))
		}
	})
}

func countTrue(bs []bool) (n int) {
	for _, b := range bs {
		if b {
			n++
		}
	}
	return n
}

// Bytes of a Memory with a key are those of a Bitmap with it.
func TestHashKeyBetweenBackends(t *testing.T) {
	for _, layout := range []Layout{Classic, Blocked} {
		m := NewMemory()
		f, err := New(m, Config{Capacity: 200, Layout: layout, HashKey: testHashKeys[0]})
		require.NoError(t, err)
		require.NoError(t, f.CreateEmpty(t.Context()))
		items := rebuildItems("row ", 100)
		_, err = f.AddMulti(t.Context(), items)
		require.NoError(t, err)
		b := rebuildBitmap(t, sharedTarget(t), layout)
		var stored strings.Builder
		_, err = m.WriteTo(&stored)
		require.NoError(t, err)
		require.NoError(t, b.rdb.Set(t.Context(), b.key, stored.String(), 0).Err())
		rebuildRequireAll(t, b.open(t, Config{HashKey: testHashKeys[0]}), items)

		_, err = NewMemory().ReadFrom(strings.NewReader(stored.String()))
		require.ErrorIs(t, err, ErrParamsMismatch)
		other := NewMemory()
		g, err := New(other, Config{HashKey: testHashKeys[0]})
		require.NoError(t, err)
		_, err = other.ReadFrom(strings.NewReader(stored.String()))
		require.NoError(t, err)
		rebuildRequireAll(t, g, items)
	}
}

// sipHash128 is SipHash-2-4 with 128 bits of output, written from its description
// (Aumasson & Bernstein 2012, and the reference's double-length variant).
func sipHash128(k0, k1 uint64, p []byte) (h1, h2 uint64) {
	v0, v1, v2, v3 := k0^0x736f6d6570736575, k1^0x646f72616e646f6d^0xee, k0^0x6c7967656e657261, k1^0x7465646279746573
	rounds := func(n int) {
		for range n {
			v0 += v1
			v2 += v3
			v1 = bits.RotateLeft64(v1, 13) ^ v0
			v3 = bits.RotateLeft64(v3, 16) ^ v2
			v0 = bits.RotateLeft64(v0, 32)
			v2 += v1
			v0 += v3
			v1 = bits.RotateLeft64(v1, 17) ^ v2
			v3 = bits.RotateLeft64(v3, 21) ^ v0
			v2 = bits.RotateLeft64(v2, 32)
		}
	}
	last := make([]byte, (len(p)/8+1)*8)
	copy(last, p)
	last[len(last)-1] = byte(len(p))
	for ; len(last) > 0; last = last[8:] {
		m := binary.LittleEndian.Uint64(last)
		v3 ^= m
		rounds(2)
		v0 ^= m
	}
	v2 ^= 0xee
	rounds(4)
	h1 = v0 ^ v1 ^ v2 ^ v3
	v1 ^= 0xdd
	rounds(4)
	return h1, v0 ^ v1 ^ v2 ^ v3
}

// The hash is the published one, by two implementations, and what is stored because
// of it is frozen.
func TestHashKeyVectors(t *testing.T) {
	key, err := hex.DecodeString("000102030405060708090a0b0c0d0e0f")
	require.NoError(t, err)
	k, err := newHashKey(key)
	require.NoError(t, err)

	h1, h2 := keyedHash(k.k0, k.k1, "") // first vector of the reference implementation
	out := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, h1), h2)
	require.Equal(t, "a3817f04ba25a8e66df67214c7550293", hex.EncodeToString(out))
	for n := range 70 {
		item := strings.Repeat("xy", 40)[:n]
		h1, h2 := keyedHash(k.k0, k.k1, item)
		w1, w2 := sipHash128(k.k0, k.k1, []byte(item))
		require.Equal(t, [2]uint64{w1, w2}, [2]uint64{h1, h2}, n)
	}

	require.EqualValues(t, frozenFingerprint, k.fingerprint)
	require.Equal(t, frozenItem, hex.EncodeToString([]byte(keyedItem(k.k0, k.k1, "order:1234567"))))
	r0, r1 := k.forRouting()
	require.Equal(t, frozenShards, []int{keyedRoute(r0, r1, "a", 1000), keyedRoute(r0, r1, "b", 1000), keyedRoute(r0, r1, "", 1000)})
	for layout, want := range frozenPositions {
		p, err := NewParams(1000, 0.01, layout)
		require.NoError(t, err)
		g := newGeometry(p, 0xdeadbeef, keyedPlace(k))
		require.Equal(t, want, g.appendPositions(nil, "order:1234567"))
		require.NotEqual(t, want, newGeometry(p, 0xdeadbef0, keyedPlace(k)).appendPositions(nil, "order:1234567"))
	}
}

// Of the key 00 01 … 0f, the seed deadbeef and a filter of 1000 items at 1 %.
var (
	frozenFingerprint = uint64(0x3510e71db8b707e1)
	frozenItem        = "af639e417d621cc1de6cdcde3375f086"
	frozenShards      = []int{871, 44, 568}
	frozenPositions   = map[Layout][]uint64{
		Classic: {1353, 2013, 7841, 4083, 325, 6153, 2395},
		Blocked: {148, 256, 308, 380, 245, 411},
	}
)
