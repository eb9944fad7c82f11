package bloom

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// A filter with every bit set says so: it calls everything present.
func TestInfoOfAFullFilter(t *testing.T) {
	for _, layout := range []Layout{Classic, Blocked} {
		f, err := New(NewMemory(), Config{Capacity: 1, Layout: layout})
		require.NoError(t, err)
		require.NoError(t, f.CreateEmpty(t.Context()))
		for i := range 2000 {
			_, err := f.Add(t.Context(), strconv.Itoa(i))
			require.NoError(t, err)
		}
		info, err := f.Info(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, info.Fill)
		require.EqualValues(t, 1, info.FPRate)
		require.EqualValues(t, 2, info.Items)
		exists, err := f.Exists(t.Context(), "never added")
		require.NoError(t, err)
		require.True(t, exists)
	}
}
