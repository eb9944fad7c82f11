package bloom

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Many see the bytes that do not decode: they share one load (G12).
func TestGuardUndecodableLoadedOnce(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a")
		s.raw.set("a", []byte("V{"), time.Minute)
		l := newStepLoader(t)
		here, elsewhere := newTestGuard(t, s, l.load, nil), newTestGuard(t, s, l.load, nil)
		first := goGet(t.Context(), here, "a")
		load := l.next()
		s.requireTag(t, "a", tagLease, 2*defaultLoadTimeout)
		second := goGet(t.Context(), here, "a")
		joined(t, here, 1)
		l.none()
		load.found("v")
		requireAnswer(t, got[string]{"v", nil}, first)
		requireAnswer(t, got[string]{"v", nil}, second)
		requireState(t, s, got[string]{"v", nil}, here, elsewhere)
	})
}

// They are replaced by compare-and-set: what has taken their place meanwhile
// stays.
func TestGuardUndecodableReplacedMeanwhile(t *testing.T) {
	for name, tt := range map[string]struct {
		meanwhile string
		loads     uint64
		want      got[string]
		left      string
	}{
		"by a value":              {`V"theirs"`, 0, got[string]{"theirs", nil}, `V"theirs"`},
		"by a null":               {"N", 0, got[string]{"", ErrNotFound}, "N"},
		"by a foreign entry":      {"foreign", 1, got[string]{"ours", nil}, "foreign"},
		"by others that are none": {"V[", 1, got[string]{"ours", nil}, "V["},
	} {
		t.Run(name, func(t *testing.T) {
			eachSharedStore(t, func(t *testing.T, s guardStore) {
				s.known(t, "a")
				s.raw.set("a", []byte("V{"), time.Minute)
				s.cache = &hookedCache{Cache: s.cache, beforeLease: func() {
					s.raw.set("a", []byte(tt.meanwhile), time.Minute)
				}}
				g := newTestGuard(t, s, rows(map[string]string{"a": "ours"}), nil)
				requireAnswer(t, tt.want, goGet(t.Context(), g, "a"))
				require.Equal(t, tt.loads, g.Stats().Loads)
				left, _ := s.raw.get("a")
				require.Equal(t, tt.left, string(left))
			})
		})
	}
}

// Nothing was there, and when the lease was asked for, bytes that do not decode
// were: those are replaced as well.
func TestGuardUndecodableCameMeanwhile(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a")
		s.cache = &hookedCache{Cache: s.cache, beforeLease: func() { s.raw.set("a", []byte("V{"), time.Minute) }}
		g := newTestGuard(t, s, rows(map[string]string{"a": "ours"}), nil)
		requireAnswer(t, got[string]{"ours", nil}, goGet(t.Context(), g, "a"))
		require.EqualValues(t, 1, g.Stats().Loads)
		left, _ := s.raw.get("a")
		require.Equal(t, `V"ours"`, string(left))
	})
}

// Bytes of others are no lease, though they stay the same: they may have been
// removed by an Invalidate and written again. Who sees them joins no load that
// has begun.
func TestGuardForeignBytesAreNoLease(t *testing.T) {
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a")
		s.raw.set("a", []byte("foreign"), time.Minute)
		l := newStepLoader(t)
		g, elsewhere := newTestGuard(t, s, l.load, nil), newTestGuard(t, s, l.load, nil)
		first := goGet(t.Context(), g, "a")
		load := l.next() // reads the old row
		require.NoError(t, elsewhere.Invalidate(t.Context(), "a"))
		s.raw.set("a", []byte("foreign"), time.Minute)
		second := goGet(t.Context(), g, "a")
		third := goGet(t.Context(), g, "a")
		joined(t, g, 1)
		l.none() // one at a time
		load.found("old")
		requireAnswer(t, got[string]{"old", nil}, first)
		l.next().found("new")
		requireAnswer(t, got[string]{"new", nil}, second)
		requireAnswer(t, got[string]{"new", nil}, third)
		left, _ := s.raw.get("a")
		require.Equal(t, "foreign", string(left))
	})
}
