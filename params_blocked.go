package bloom

import "math"

// blockedLoad returns the highest mean number of items in a block at which some
// k keeps the rate within fpRate. It decides the size, whatever the capacity.
func blockedLoad(fpRate float64) float64 {
	fits := func(load float64) bool {
		rate, _ := bestBlockedRate(load)
		return rate <= fpRate
	}
	// Blocks never do better than a classic filter of the same bits, so that is
	// where the search begins; the rate falls with the load.
	low := blockBits * ln2Squared / -math.Log(fpRate)
	high := low / 0.8
	for !fits(low) {
		low, high = low*0.8, low
	}
	for high-low > 1e-12*low { // a block more or less is 10⁻⁷ of the largest filter
		if mid := (low + high) / 2; fits(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return low
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
// were thrown: E[(X/s)^k] for X of s bits set, from the mean and the variance of X
// (the occupancy problem's) as if X were log-normal. It errs upwards: by less
// than 0.1 % up to k = 13 and rates above 10⁻⁶, than 5 % at k = 64 and 10⁻¹⁶.
func blockRate(items float64, k int) float64 {
	const s = blockBits
	throws := items * float64(k)
	empty1 := math.Exp(throws * log1mInvS)  // a bit is still 0
	empty2 := math.Exp(throws * log1m2InvS) // two given bits are both still 0
	mean := 1 - empty1
	variance := empty1/s + (1-1./s)*empty2 - empty1*empty1
	kk := float64(k)
	return math.Min(math.Exp(kk*math.Log(mean)+kk*(kk-1)/2*variance/(mean*mean)), 1)
}

var (
	log1mInvS  = math.Log1p(-1. / blockBits)
	log1m2InvS = math.Log1p(-2. / blockBits)
)
