package bloom

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const routingPath = "testdata/routing.jsonl"

// routingRecord is one golden vector: the shard of an item for each count.
type routingRecord struct {
	Item   []byte      `json:"item"` // base64
	Shards map[int]int `json:"shards"`
}

var (
	routingCounts = []int{1, 2, 3, 7, 8, 16, 100, 1000, 1024}
	routingItems  = []string{"", "0", "1", "42", "a", "A", "\x00", "\xff\xfe", "user:1", "user:2", "日本",
		"0123456789abcdef", "0123456789abcdefg", strings.Repeat("x", 1000)}
)

// The shard of an item is frozen: whoever routes otherwise looks for it where it is
// not. The vectors come from the published algorithm, not from the code under test.
func TestRoutingVectors(t *testing.T) {
	if *updateGolden {
		var out bytes.Buffer
		for _, item := range routingItems {
			r := routingRecord{[]byte(item), map[int]int{}}
			h1, _ := vecReference([]byte(item), routingSeed)
			for _, n := range routingCounts {
				at := new(big.Int).Mul(new(big.Int).SetUint64(h1), big.NewInt(int64(n)))
				r.Shards[n] = int(at.Rsh(at, 64).Int64())
			}
			line, err := json.Marshal(r)
			require.NoError(t, err)
			fmt.Fprintf(&out, "%s\n", line)
		}
		require.NoError(t, os.WriteFile(routingPath, out.Bytes(), 0o644))
	}
	golden, err := os.ReadFile(routingPath)
	require.NoError(t, err)
	seen := 0
	for lines := bufio.NewScanner(bytes.NewReader(golden)); lines.Scan(); seen++ {
		var r routingRecord
		require.NoError(t, json.Unmarshal(lines.Bytes(), &r))
		require.Len(t, r.Shards, len(routingCounts))
		for n, want := range r.Shards {
			require.Equal(t, want, route(string(r.Item), n), "%.20q of %d", r.Item, n)
		}
	}
	require.Equal(t, len(routingItems), seen)
	require.EqualValues(t, 1, routingVersion, "the vectors are of version 1")
}

// chiSquareLimit is five standard deviations above the mean of a χ² of so many
// degrees of freedom.
func chiSquareLimit(freedom int) float64 { return float64(freedom) + 5*math.Sqrt(2*float64(freedom)) }

func chiSquare(counts []int, n int) (sum float64) {
	want := float64(n) / float64(len(counts))
	for _, c := range counts {
		sum += (float64(c) - want) * (float64(c) - want) / want
	}
	return sum
}

// Shards get equal parts of items of every kind, and the items of one shard lie
// evenly in it: routing and positions share no bits.
func TestRoutingIsEven(t *testing.T) {
	seed := rebuildSeed(t)
	rnd := rand.New(rand.NewPCG(seed, 0))
	kinds := map[string]func(i int) string{
		"numbers": strconv.Itoa,
		"names":   func(i int) string { return fmt.Sprintf("user:%08d@example.com", i) },
		"bytes":   func(i int) string { return string([]byte{byte(i), byte(i >> 8), byte(i >> 16)}) },
		"random": func(int) string {
			return string(fmt.Appendf(nil, "%x", rnd.Uint64()))
		},
	}
	const items, parts = 50_000, 20
	for kind, item := range kinds {
		for _, n := range []int{2, 3, 8, 1000} {
			shards, blocks, bits := make([]int, n), make([]int, parts), make([]int, parts)
			in := 0
			g := newGeometry(Params{Capacity: 1, FPRate: 0.01, Layout: Classic, Bits: parts * 1000, Hashes: 1}, randomSeed(), alone)
			for i := range items {
				x := item(i)
				at := route(x, n)
				shards[at]++
				if at == n/2 {
					in++
					h := hashItem(x, g.seed)
					blocks[h.block(parts)]++
					bits[h.classicPosition(0, parts*1000)/1000]++
				}
			}
			require.Less(t, chiSquare(shards, items), chiSquareLimit(n-1), "%s over %d shards", kind, n)
			if in > 10*parts {
				require.Less(t, chiSquare(blocks, in), chiSquareLimit(parts-1), "blocks of %s in one of %d shards", kind, n)
				require.Less(t, chiSquare(bits, in), chiSquareLimit(parts-1), "bits of %s in one of %d shards", kind, n)
			}
		}
	}
}

// No filter has the routing's seed for its positions.
func TestRoutingSeedIsItsOwn(t *testing.T) {
	for range 1000 {
		require.NotEqualValues(t, routingSeed, randomSeed())
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { route("item", 8) }))
}
