package bloom

import "math"

// overflowChance bounds the chance that any shard of a filter that holds as many
// items as it is sized for got more than its own capacity, by the luck of hashing.
const overflowChance = 1e-6

// shareAllowance is what a shard needs beyond its even share of the items. By
// Bernstein's inequality a share of Binomial(n, 1/s) exceeds its mean by t or more
// with a chance of at most exp(−t²/2 / (σ² + t/3)); here that is overflowChance/s,
// since there are s of them.
func shareAllowance(capacity, shards float64) float64 {
	l := math.Log(shards / overflowChance)
	variance := capacity / shards * (1 - 1/shards)
	return l/3 + math.Sqrt(l*l/9+2*l*variance)
}

// shardTotal is the sum of the capacities of all shards. It grows by at least one
// with every item of capacity, so that it says what the filter is sized for. False
// means that it is beyond counting.
func shardTotal(capacity uint64, shards int) (uint64, bool) {
	if shards == 1 {
		return capacity, true
	}
	s := float64(shards)
	// s more, since a shard's part of the total is rounded down.
	extra := math.Ceil(s*shareAllowance(float64(capacity), s)) + s
	total := capacity + uint64(extra)
	return total, total >= capacity
}

// shardCapacity is what the index-th shard of a filter is sized for.
func shardCapacity(total uint64, p shardPlace) uint64 {
	n := uint64(p.count)
	return total/n + (total%n+uint64(p.index))/n
}

// wholeCapacity is the largest capacity of a filter whose shard at p is sized for
// so many items or fewer: of all shards the least is what the filter was made for.
func wholeCapacity(share uint64, p shardPlace) uint64 {
	n := uint64(p.count)
	limit := uint64(math.MaxUint64) // of the total
	if share < math.MaxUint64/n-1 {
		limit = (share+1)*n - 1 - uint64(p.index)
	}
	low, high := uint64(0), limit
	for low < high {
		mid := high - (high-low)/2
		if total, ok := shardTotal(mid, int(n)); ok && total <= limit {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low
}

// enoughShards is how many shards would do, where one holds at most so many items:
// millions, beside which the allowance is small.
func enoughShards(capacity, most float64) float64 {
	shards := math.Max(2, math.Ceil(capacity/most))
	for {
		share := capacity/shards + shareAllowance(capacity, shards) + 2
		if share <= most {
			return shards
		}
		shards = math.Max(shards+1, math.Floor(shards*share/most))
	}
}
