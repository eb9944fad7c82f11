package main

import (
	"math/rand/v2"
	"strconv"

	"github.com/bloomguard/bloom/examples/shop/internal/shop"
)

// shot is one request of the plan.
type shot struct {
	id   int64
	real bool // such a product exists
}

// traffic chooses who is asked for: real products by a Zipf distribution, and
// absent ones as an attacker would find them.
type traffic struct {
	rows    int
	deleted []int64
	last    int64 // highest id that was ever given

	rng  *rand.Rand
	rank *rand.Zipf
}

func newTraffic(rows int, deleted []int64, last int64, exponent float64, seed uint64) *traffic {
	rng := rand.New(rand.NewPCG(seed, 0))
	return &traffic{
		rows: rows, deleted: deleted, last: last, rng: rng,
		rank: rand.NewZipf(rng, exponent, 1, uint64(rows-1)),
	}
}

// scatter is prime, and larger than any number of rows: it makes a permutation of
// them, so that popular products do not lie side by side on the database's pages.
const scatter = 2_654_435_761

// existing is a product that exists, popular ones more often.
func (t *traffic) existing() int64 {
	i := t.rank.Uint64() * scatter % uint64(t.rows)
	return shop.SeededID(int(i) + 1)
}

// aboveLast is how far above the highest id an attacker looks.
const aboveLast = 1000

// absent is the id of no product: half are random numbers among the real ones,
// the others near misses, each kind as often: just above the highest, deleted, or
// a real id with one digit changed.
func (t *traffic) absent() int64 {
	if t.rng.IntN(2) == 0 {
		return t.random()
	}
	switch kind := t.rng.IntN(3); {
	case kind == 0 && len(t.deleted) > 0:
		return t.deleted[t.rng.IntN(len(t.deleted))]
	case kind == 1:
		return t.last + 1 + t.rng.Int64N(aboveLast)
	}
	return t.misspelled()
}

func (t *traffic) random() int64 {
	for {
		if id := 1 + t.rng.Int64N(shop.SeededID(t.rows)); !shop.Seeded(id, t.rows) {
			return id
		}
	}
}

// misspelled changes one digit of a real id, and not the number of digits.
func (t *traffic) misspelled() int64 {
	for {
		digits := []byte(strconv.FormatInt(shop.SeededID(1+t.rng.IntN(t.rows)), 10))
		at := t.rng.IntN(len(digits))
		digits[at] = '0' + byte(t.rng.IntN(10))
		id, err := strconv.ParseInt(string(digits), 10, 64)
		if err == nil && digits[0] != '0' && !shop.Seeded(id, t.rows) {
			return id
		}
	}
}

// plan is n requests, of which about share percent are the attack's.
func (t *traffic) plan(n, share int) []shot {
	shots := make([]shot, n)
	for i := range shots {
		if t.rng.IntN(100) < share {
			shots[i].id = t.absent()
		} else {
			shots[i] = shot{id: t.existing(), real: true}
		}
	}
	return shots
}
