package bloom

import (
	"fmt"
	"math/bits"
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
type shardPlace struct {
	index, count uint32
	key          hashKey // that its items are hashed with
}

// alone is the place of a filter that is not sharded, and of the only shard.
var alone = placeAt(0, 1)

// keyedPlace is that of a filter that is not sharded and has a hash key.
func keyedPlace(key hashKey) shardPlace {
	p := alone
	p.key = key
	return p
}

func placeAt(index, count int) shardPlace {
	return shardPlace{index: uint32(index), count: uint32(count)}
}

// routing is the version that the header names, 0 when alone.
func (p shardPlace) routing() uint8 {
	if p.count == 1 {
		return 0
	}
	return routingVersion
}

// sameStored compares what of a place is stored.
func (p shardPlace) sameStored(q shardPlace) bool {
	return p.index == q.index && p.count == q.count && p.key.fingerprint == q.key.fingerprint
}

func (p shardPlace) String() string {
	if p.count == 1 {
		return "a filter that is alone"
	}
	return fmt.Sprintf("shard %d of %d", p.index, p.count)
}

// mismatch is the error of a filter that is stored as another part than p.
func (p shardPlace) mismatch(stored shardPlace) error {
	if p.key.fingerprint != stored.key.fingerprint {
		return p.key.mismatch(stored.key.fingerprint)
	}
	return fmt.Errorf("stored is %v, wanted is %v: %w", stored, p, ErrParamsMismatch)
}

// route returns the shard of an item, the high bits of its hash scaled to the
// number of shards.
func route(item string, shards int) int {
	return scale(hashItem(item, routingSeed).h1, shards)
}

// keyedRoute is route with a hash key, see hashKey.forRouting.
func keyedRoute(k0, k1 uint64, item string, shards int) int {
	h, _ := keyedHash(k0, k1, item)
	return scale(h, shards)
}

func scale(h uint64, shards int) int {
	hi, _ := bits.Mul64(h, uint64(shards))
	return int(hi)
}
