package bloom

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// rawCodec stores bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v []byte) ([]byte, error)   { return v, nil }
func (rawCodec) Unmarshal(b []byte) ([]byte, error) { return bytes.Clone(b), nil }

// requireRoundTrip gets v from the loader, and again from the cache.
func requireRoundTrip[V any](t *testing.T, s guardStore, id string, v V, codec Codec[V]) {
	t.Helper()
	g := newTestGuard(t, s, func(context.Context, string) (V, error) { return v, nil }, &GuardOptions[V]{Codec: codec})
	require.NoError(t, g.Register(t.Context(), id))
	for range 2 {
		out, err := g.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, v, out)
	}
	require.Equal(t, GuardStats{Gets: 2, Hits: 1, Loads: 1, Fills: 1}, g.Stats())
}

// A value is a value, whatever its bytes are: ours begin with a tag.
func TestGuardValuesThatLookLikeMarkers(t *testing.T) {
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		for i, v := range [][]byte{{}, []byte("N"), []byte("V"), []byte("VV"), []byte("L"), []byte("NULL"),
			append([]byte("L"), make([]byte, tokenBytes)...), {0}, []byte("\r\n$-1\r\n"), []byte(magicLive)} {
			requireRoundTrip(t, s, fmt.Sprint("id ", i), v, rawCodec{})
		}
	})
}

func TestGuardLargeValue(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		requireRoundTrip(t, redisStore(t, target, Classic), "large", bytes.Repeat([]byte("0123456789abcdef"), 1<<16), rawCodec{})
	})
}

// The zero value of a type is a row like any other, and so is an empty list.
func TestGuardZeroValues(t *testing.T) {
	type row struct {
		ID   string
		Tags []string
		Next *row
	}
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		requireRoundTrip(t, s, "string", "", nil)
		requireRoundTrip(t, s, "int", 0, nil)
		requireRoundTrip(t, s, "bool", false, nil)
		requireRoundTrip(t, s, "struct", row{}, nil)
		requireRoundTrip(t, s, "pointer", &row{}, nil)
		requireRoundTrip[[]string](t, s, "nil slice", nil, nil)
		requireRoundTrip(t, s, "empty slice", []string{}, nil)
		requireRoundTrip[map[string]int](t, s, "nil map", nil, nil)
		requireRoundTrip[any](t, s, "empty string as any", "", nil)
		requireRoundTrip(t, s, "unit", struct{}{}, nil)
	})
}

// "nil, nil" is a mistake of the loader's that would be cached as a row and crash
// whoever gets it (G6).
func TestGuardNilPointer(t *testing.T) {
	type row struct{ ID string }
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a")
		g := newTestGuard(t, s, func(context.Context, string) (*row, error) { return nil, nil }, nil)
		for n := uint64(1); n <= 2; n++ {
			v, err := g.Get(t.Context(), "a")
			require.Nil(t, v)
			require.ErrorContains(t, err, "nil *bloom.row")
			require.ErrorContains(t, err, "ErrNotFound")
			require.NotErrorIs(t, err, ErrNotFound)
			require.Equal(t, GuardStats{Gets: n, Loads: n, LoadErrors: n}, g.Stats())
		}
		s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)

		// Cached bytes that say so were not ours, since the type was another then.
		s.raw.set("a", []byte("Vnull"), time.Minute)
		g = newTestGuard(t, s, func(context.Context, string) (*row, error) { return &row{"a"}, nil }, nil)
		v, err := g.Get(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, &row{"a"}, v)
	})

	s := memoryStore(t)
	s.known(t, "a")
	for _, nilError := range []error{nil, (*testError)(nil)} {
		g := newTestGuard(t, s, func(context.Context, string) (error, error) { return nilError, nil }, nil)
		_, err := g.Get(t.Context(), "a")
		require.ErrorContains(t, err, "nil error")
	}
}

type testError struct{}

func (*testError) Error() string { return "test" }

// Any bytes are an id, the empty string among them. (JSON would lose those that
// are no UTF-8 from the value.)
func TestGuardIDs(t *testing.T) {
	ids := []string{"", " ", "\x00", "\xff\xfe", "{", "}", "{}", "{tag}", "a\r\nb", "日本語", "*", "N", "L", "V", "%s%d%!",
		strings.Repeat("long", 1<<14)}
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		load := func(_ context.Context, id string) ([]byte, error) { return []byte("row of " + id), nil }
		g := newTestGuard(t, s, load, &GuardOptions[[]byte]{Codec: rawCodec{}})
		for _, id := range ids {
			_, err := g.Get(t.Context(), id)
			require.ErrorIs(t, err, ErrNotFound)
		}
		require.NoError(t, g.Register(t.Context(), ids...))
		for range 2 {
			for _, id := range ids {
				v, err := g.Get(t.Context(), id)
				require.NoError(t, err)
				require.Equal(t, "row of "+id, string(v))
			}
		}
		n := uint64(len(ids))
		require.Equal(t, GuardStats{Gets: 3 * n, Rejected: n, Hits: n, Loads: n, Fills: n}, g.Stats())
	})
}

type gobCodec[V any] struct{}

func (gobCodec[V]) Marshal(v V) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func (gobCodec[V]) Unmarshal(b []byte) (v V, err error) {
	err = gob.NewDecoder(bytes.NewReader(b)).Decode(&v)
	return v, err
}

func TestGuardCodec(t *testing.T) {
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		requireRoundTrip(t, s, "complex", 1+2i, Codec[complex128](gobCodec[complex128]{}))

		// A value that cannot be encoded is returned, and counted.
		g := newTestGuard(t, s, func(context.Context, string) (complex128, error) { return 1i, nil }, nil)
		s.known(t, "no JSON")
		for n := uint64(1); n <= 2; n++ {
			v, err := g.Get(t.Context(), "no JSON")
			require.NoError(t, err)
			require.Equal(t, 1i, v)
			require.Equal(t, GuardStats{Gets: n, Loads: n, FillErrors: n}, g.Stats())
		}
	})
}

// Cached bytes that do not decode are replaced, after one load (G12).
func TestGuardUndecodable(t *testing.T) {
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		for i, entry := range []string{"V", "V{", "Vnot JSON", `V"v" and more`, "V\x00"} {
			t.Run(fmt.Sprintf("%q", entry), func(t *testing.T) {
				id := fmt.Sprint(i)
				s.known(t, id)
				s.raw.set(id, []byte(entry), time.Minute)
				g := newTestGuard(t, s, rows(map[string]string{id: "new"}), nil)
				for range 3 {
					v, err := g.Get(t.Context(), id)
					require.NoError(t, err)
					require.Equal(t, "new", v)
				}
				require.Equal(t, GuardStats{Gets: 3, Hits: 2, Loads: 1, Fills: 1}, g.Stats())
				entryNow, _ := s.raw.get(id)
				require.Equal(t, `V"new"`, string(entryNow))
			})
		}

		// A row that went meanwhile leaves a null in their place.
		s.raw.set("0", []byte("V{"), time.Minute)
		g := newTestGuard(t, s, rows(nil), nil)
		_, err := g.Get(t.Context(), "0")
		require.ErrorIs(t, err, ErrNotFound)
		s.requireTag(t, "0", tagNull, defaultNullTTL)

		// While the database is down they are not lost for nothing, nor served.
		s.raw.set("1", []byte("V{"), time.Minute)
		down := errors.New("database down")
		g = newTestGuard(t, s, func(context.Context, string) (string, error) { return "", down }, nil)
		_, err = g.Get(t.Context(), "1")
		require.ErrorIs(t, err, down)
	})
}

// An entry that is not ours is a miss, and stays: another program lives there.
func TestGuardUnknownTags(t *testing.T) {
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		for i, entry := range []string{"", "foreign", "NN", "L", "Lshort", "L" + strings.Repeat("x", tokenBytes+1), "v", "?", "\x00"} {
			t.Run(fmt.Sprintf("%q", entry), func(t *testing.T) {
				id := fmt.Sprint(i)
				s.known(t, id)
				s.raw.set(id, []byte(entry), time.Minute)
				g := newTestGuard(t, s, rows(map[string]string{id: "new"}), nil)
				for range 2 {
					v, err := g.Get(t.Context(), id)
					require.NoError(t, err)
					require.Equal(t, "new", v)
				}
				require.Equal(t, GuardStats{Gets: 2, Loads: 2}, g.Stats())
				left, _ := s.raw.get(id)
				require.Equal(t, entry, string(left))
			})
		}
	})
}
