package bloom

import (
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/spaolacci/murmur3"
)

const (
	// routingVersion names how items are given to shards. It stands in every shard's
	// header and fingerprint: the vectors in testdata freeze it, and another scheme
	// needs another number.
	routingVersion = 1

	// routingSeed is the routing's own. No filter has it for its positions, or items
	// of one shard would lie in one part of it.
	routingSeed = 0x73686172

	// maxShards bounds what one filter is split into: some 4·10¹¹ items at 1 %.
	maxShards = 1024
)

// shardPlace says which part of a sharded filter a filter is. It is stored with
// the filter, so that one is never read for another.
type shardPlace struct{ index, count uint32 }

// alone is the place of a filter that is not sharded, and of the only shard.
var alone = shardPlace{0, 1}

// routing is the version that the header names, 0 when alone.
func (p shardPlace) routing() uint8 {
	if p.count == 1 {
		return 0
	}
	return routingVersion
}

func (p shardPlace) String() string {
	if p == alone {
		return "a filter that is alone"
	}
	return fmt.Sprintf("shard %d of %d", p.index, p.count)
}

// mismatch is the error of a filter that is stored as another part than p.
func (p shardPlace) mismatch(stored any) error {
	return fmt.Errorf("stored is %v, wanted is %v: %w", stored, p, ErrParamsMismatch)
}

// route returns the shard of an item, the high bits of its hash scaled to the
// number of shards.
func route(item string, shards int) int {
	h, _ := murmur3.Sum128WithSeed(unsafe.Slice(unsafe.StringData(item), len(item)), routingSeed)
	hi, _ := bits.Mul64(h, uint64(shards))
	return int(hi)
}
