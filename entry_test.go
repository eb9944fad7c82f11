package bloom

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEntryTag(t *testing.T) {
	lease := append([]byte{'L'}, make([]byte, tokenBytes)...)
	for _, tt := range []struct {
		entry []byte
		tag   byte
	}{
		{nil, tagNone},
		{[]byte{}, tagOther},
		{[]byte("V"), tagValue}, {[]byte("V1"), tagValue}, {[]byte("VN"), tagValue},
		{[]byte("N"), tagNull}, {[]byte("N1"), tagOther}, {[]byte("n"), tagOther},
		{lease, tagLease}, {lease[1:], tagOther}, {append(bytes.Clone(lease), 0), tagOther}, {[]byte("L"), tagOther},
		{[]byte(magicLive), tagOther}, {[]byte(magicStaging), tagOther}, {[]byte(magicMarker), tagOther},
	} {
		require.Equal(t, tt.tag, entryTag(tt.entry), "%q", tt.entry)
	}
}

// Whatever bytes are cached under an id, a Get does not panic, and it returns
// their value, what they say is absent, or else the row.
func FuzzEntry(f *testing.F) {
	type row struct {
		ID string
		N  int
	}
	for _, seed := range []string{"", "N", "V", "Vnull", `V{"ID":"a","N":1}`, `V{"N":"no number"}`, `V[]`, "L", "NN",
		"L" + string(make([]byte, tokenBytes)), "L" + string(make([]byte, tokenBytes-1)), "foreign", magicLive} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	fresh := &row{"fresh", 7}
	f.Fuzz(func(t *testing.T, entry []byte, exists bool) {
		s := memoryStore(t)
		s.known(t, "a")
		s.raw.set("a", entry, time.Minute)
		g := newTestGuard(t, s, func(context.Context, string) (*row, error) {
			if exists {
				return fresh, nil
			}
			return nil, ErrNotFound
		}, nil)

		var cached *row
		decodes := len(entry) > 0 && entry[0] == 'V' && json.Unmarshal(entry[1:], &cached) == nil && cached != nil
		for again := range 2 {
			v, err := g.Get(t.Context(), "a")
			switch {
			case decodes:
				require.NoError(t, err)
				require.Equal(t, cached, v)
				require.Zero(t, g.Stats().Loads)
			case string(entry) == "N":
				require.Equal(t, ErrNotFound, err)
				require.Zero(t, g.Stats().Loads)
			case exists:
				require.NoError(t, err)
				require.Equal(t, fresh, v)
			default:
				require.True(t, errors.Is(err, ErrNotFound))
			}
			ours := entryTag(entry) != tagOther
			if loads := g.Stats().Loads; ours && loads > 1 {
				t.Fatalf("%d loads after %d Gets", loads, again+1)
			}
			left, _ := s.raw.get("a")
			if !ours || decodes || string(entry) == "N" {
				require.Equal(t, entry, left, "left as it was")
				require.Zero(t, g.Stats().Fills)
			} else {
				require.Contains(t, []byte{tagValue, tagNull}, entryTag(left), "replaced")
				require.NotEqual(t, entry, left)
			}
		}
	})
}
