package bloomtest

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// table returns the cells of a table of the recording, headings left out.
func table(t *testing.T, heading string) [][]string {
	t.Helper()
	text, err := os.ReadFile("testdata/redisbloom-replies.md")
	require.NoError(t, err)
	_, text2, found := strings.Cut(string(text), heading)
	require.True(t, found)
	var rows [][]string
	for _, line := range strings.Split(text2, "\n")[1:] {
		if strings.HasPrefix(line, "#") {
			break
		}
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for i := range cells {
				cells[i] = strings.Trim(cells[i], " `")
			}
			rows = append(rows, cells[1:len(cells)-1])
		}
	}
	return rows[2:]
}

func TestHash(t *testing.T) {
	f, ok := newFilter(defaults{rate: 0.01, capacity: 100})
	require.True(t, ok)
	rows := table(t, "### Hashes and indexes")
	require.Len(t, rows, 10)
	for _, row := range rows {
		item, err := strconv.Unquote(row[0])
		if err != nil {
			item = row[0]
		}
		if item == "1000 times x" {
			item = strings.Repeat("x", 1000)
		}
		h := hashItem(item)
		require.Equal(t, row[1], fmt.Sprintf("%016x", h.a), "%q", item)
		require.Equal(t, row[2], fmt.Sprintf("%016x", h.b), "%q", item)
		var bits []string
		for i := range f.links[0].hashes {
			bits = append(bits, fmt.Sprint(h.bit(i, f.links[0].bits)))
		}
		require.Equal(t, row[3], strings.Join(bits, " "), "%q", item)
	}
}

func TestSizes(t *testing.T) {
	rows := table(t, "### Sizes for 1000 items")
	require.Len(t, rows, 7)
	for _, row := range rows {
		rate, err := strconv.ParseFloat(row[0], 64)
		require.NoError(t, err)
		for i, expansion := range []int64{2, 0} {
			f, ok := newFilter(defaults{rate, 1000, expansion})
			require.True(t, ok)
			l := f.links[0]
			want := row[1+3*i : 4+3*i]
			require.Equal(t, want, []string{fmt.Sprintf("%.4f", l.perItem), fmt.Sprint(l.hashes), fmt.Sprint(l.bytes)}, "%v", row)
		}
	}
}

// TestDebugSizes pins what BF.DEBUG said of single sub-filters.
func TestDebugSizes(t *testing.T) {
	text, err := os.ReadFile("testdata/redisbloom-replies.md")
	require.NoError(t, err)
	debug := regexp.MustCompile(`bytes:(\d+) bits:(\d+) hashes:(\d+) hashwidth:64 capacity:(\d+) size:\d+ ratio:([0-9.e-]+)`)
	found := debug.FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(found), 10)
	for _, m := range found {
		rate, _ := strconv.ParseFloat(m[5], 64)
		capacity, _ := strconv.ParseUint(m[4], 10, 64)
		l, ok := newLink(rate, capacity)
		require.True(t, ok)
		require.Equal(t, m[1:4], []string{fmt.Sprint(l.bytes), fmt.Sprint(l.bits), fmt.Sprint(l.hashes)}, "%v", m[0])
	}
}

func TestLn(t *testing.T) {
	require.Equal(t, uint64(0xc0126bb1bbb55515), math.Float64bits(ln(0.01)), "glibc's log(0.01)")
	require.InDelta(t, 0, ln(1), 1e-30)
	require.InEpsilon(t, -744.4400719213812, ln(5e-324), 1e-15)
	for _, x := range []float64{1e-300, 1e-9, 0.25, 0.3, 0.5, 0.999999, 2, 1e300} {
		require.InEpsilon(t, math.Log(x), ln(x), 1e-15, "%g", x)
	}
}
