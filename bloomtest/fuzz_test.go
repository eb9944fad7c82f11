package bloomtest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzLoad loads whatever comes as a header and a chunk. What is accepted must dump
// as the same bytes again, and must serve adds.
func FuzzLoad(f *testing.F) {
	for _, d := range []defaults{{0.01, 10, 0}, {0.01, 10, 2}, {1e-20, 1, 1}} {
		made, _ := newFilter(d)
		for _, item := range []string{"", "a", "b"} {
			made.add(hashItem(item))
		}
		_, data := made.chunk(1)
		f.Add(made.appendHeader(nil), int64(1+len(data)), string(data), "a")
	}
	f.Fuzz(func(t *testing.T, header []byte, iter int64, data, item string) {
		made, rest, ok := parseHeader(header)
		if !ok {
			return
		}
		require.Equal(t, header[:len(header)-len(rest)], made.appendHeader(nil))
		if made.size() > 1<<20 {
			return // correct, but slow
		}
		before := made.items
		if made.load(iter, data) == "" && len(data) > 0 {
			// The chunk comes back, if it lies as BF.SCANDUMP cuts it.
			next, got := made.chunk(iter - int64(len(data)))
			require.GreaterOrEqual(t, len(got), len(data))
			require.Equal(t, data, string(got[:len(data)]))
			require.EqualValues(t, iter+int64(len(got)-len(data)), next)
		}
		added, problem := made.add(hashItem(item))
		require.False(t, added && problem != "")
		if problem == "" {
			require.True(t, made.has(hashItem(item)))
		}
		if added {
			require.Equal(t, before+1, made.items)
		}
		again, rest, ok := parseHeader(made.appendHeader(nil))
		require.True(t, ok)
		require.Empty(t, rest)
		require.Equal(t, made.links, again.links)
	})
}
