package bloom

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/spaolacci/murmur3"
	"github.com/stretchr/testify/require"
)

// sameMurmur compares what is hashed here with the library, which only little-endian
// machines can.
func sameMurmur(t *testing.T, item string, seed uint32) {
	t.Helper()
	if !littleEndian {
		t.Skip("the library reads words in the machine's order")
	}
	h1, h2 := murmur3.Sum128WithSeed([]byte(item), seed)
	require.Equal(t, itemHash{h1, h2}, murmur(item, seed), "%q with seed %d", item, seed)
	require.Equal(t, itemHash{h1, h2}, hashItem(item, seed), "%q with seed %d", item, seed)
}

// Every length, so every way through it, with bytes of all kinds.
func TestMurmur(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for n := range 3*shortItem + 1 {
		for range 50 {
			item := make([]byte, n)
			for i := range item {
				item[i] = byte(rnd.Uint32())
			}
			sameMurmur(t, string(item), rnd.Uint32())
		}
		sameMurmur(t, strings.Repeat("\x00", n), 0)
		sameMurmur(t, strings.Repeat("\xff", n), 1<<32-1)
	}
}

func FuzzMurmur(f *testing.F) {
	f.Add("", uint32(0))
	f.Add("order:1234567", uint32(1))
	f.Add("0123456789abcdef", uint32(2))
	f.Fuzz(func(t *testing.T, item string, seed uint32) { sameMurmur(t, item, seed) })
}
