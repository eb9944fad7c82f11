package bloom

import "math"

// sizeBlocked returns the fewest blocks that keep the rate at capacity within
// fpRate for some k, and the k that serves so many blocks best.
func sizeBlocked(capacity uint64, fpRate float64) (blocks uint64, k int) {
	n := float64(capacity)
	// Blocks never do better than a classic filter of the same bits, so that is
	// where the search begins; the rate falls as blocks are added.
	low := max(1, uint64(classicBits(capacity, fpRate)/blockBits))
	fits := func(blocks uint64) bool {
		rate, _ := bestBlockedRate(n / float64(blocks))
		return rate <= fpRate
	}
	high := low
	for !fits(high) {
		low, high = high, high+high/4+1
	}
	for low+1 < high {
		if mid := low + (high-low)/2; fits(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	if fits(low) {
		high = low
	}
	_, k = bestBlockedRate(n / float64(high))
	return high, k
}

// bestBlockedRate returns the lowest rate that any k reaches at a mean load of a
// block, and that k. The rate has one minimum over k.
func bestBlockedRate(load float64) (rate float64, k int) {
	k = min(max(1, int(blockBits/load*math.Ln2*0.7)), maxHashes)
	rate = blockedRate(load, k)
	for _, step := range []int{1, -1} {
		for next := k + step; next >= 1 && next <= maxHashes; next += step {
			r := blockedRate(load, next)
			if r >= rate {
				break
			}
			rate, k = r, next
		}
	}
	return rate, k
}

// blockedRate is the rate of a filter whose blocks hold Poisson(load) items.
func blockedRate(load float64, k int) float64 {
	if load > 64*blockBits {
		return 1 // every bit of every block is set, to within 10⁻²⁷
	}
	// Beyond twelve standard deviations either side a load is rarer than 10⁻³⁰.
	spread := 12*math.Sqrt(load) + 40
	first, last := math.Max(1, math.Floor(load-spread)), math.Ceil(load+spread)
	lgamma, _ := math.Lgamma(first + 1)
	weight := math.Exp(first*math.Log(load) - load - lgamma)
	sum := 0.0
	for items := first; items <= last; items++ {
		sum += weight * blockRate(items, k)
		weight *= load / (items + 1)
	}
	return math.Min(sum, 1)
}

// blockRate is the rate of one block into which k bits of each of so many items
// were thrown: E[(X/s)^k] for X of s bits set, by its mean and variance (the
// occupancy problem's), to second order.
func blockRate(items float64, k int) float64 {
	const s = blockBits
	throws := items * float64(k)
	empty1 := math.Exp(throws * log1mInvS)  // a bit is still 0
	empty2 := math.Exp(throws * log1m2InvS) // two given bits are both still 0
	mean := 1 - empty1
	variance := empty1/s + (1-1./s)*empty2 - empty1*empty1
	kk := float64(k)
	rate := math.Pow(mean, kk) * (1 + kk*(kk-1)/2*variance/(mean*mean))
	return math.Min(rate, 1)
}

var (
	log1mInvS  = math.Log1p(-1. / blockBits)
	log1m2InvS = math.Log1p(-2. / blockBits)
)
