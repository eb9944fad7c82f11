package main

import (
	"math/rand/v2"
	"unicode/utf8"
)

// attack is a sequence of requests that the three ways answer alike.
type attack struct {
	ids        []string
	random     int // ids made up
	nearMisses int // real ids with one character changed
	real       int
}

// absent is the number of requests for ids that do not exist, no two of them
// for the same one: an attacker has no reason to repeat himself, and to repeat
// himself is all that null caching protects from.
func (a *attack) absent() int { return a.random + a.nearMisses }

// newAttack makes two fifths random ids, two fifths near misses and one fifth
// real ids, in random order. The same items, n and seed make the same attack.
func newAttack(items *catalog, n int, seed uint64) *attack {
	f := &forger{items: items, made: make(map[string]bool), rng: rand.New(rand.NewPCG(seed, 0))}
	a := &attack{ids: make([]string, 0, n), real: n / 5}
	for range n * 2 / 5 {
		id, near := f.nearMiss()
		if near {
			a.nearMisses++
		}
		a.ids = append(a.ids, id)
	}
	a.random = n - a.real - a.nearMisses
	for len(a.ids) < n-a.real {
		a.ids = append(a.ids, f.randomID())
	}
	popular := rand.NewZipf(f.rng, 1.1, 10, uint64(len(items.names)-1))
	for range a.real {
		a.ids = append(a.ids, items.names[spread(popular.Uint64(), len(items.names))])
	}
	f.rng.Shuffle(n, func(i, j int) { a.ids[i], a.ids[j] = a.ids[j], a.ids[i] })
	return a
}

// spread takes ranks of popularity to rows all over the table: a few items are
// asked for often and most hardly ever, which is what makes a cache work.
func spread(rank uint64, rows int) uint64 {
	const prime = 2_654_435_761 // above any number of rows: no two ranks share one
	return rank * prime % uint64(rows)
}

// forger makes ids that do not exist, each once.
type forger struct {
	items *catalog
	made  map[string]bool
	rng   *rand.Rand
}

const letters = "abcdefghijklmnopqrstuvwxyz0123456789"

func (f *forger) isNew(id string) bool {
	if f.items.has(id) || f.made[id] {
		return false
	}
	f.made[id] = true
	return true
}

func (f *forger) letter() byte { return letters[f.rng.IntN(len(letters))] }

func (f *forger) randomID() string {
	for {
		id := make([]byte, 8+f.rng.IntN(17))
		for i := range id {
			id[i] = f.letter()
		}
		if f.isNew(string(id)) {
			return string(id)
		}
	}
}

// nearMiss changes one character of a real id. It settles for a random id,
// and says so, where a small or dense set of items leaves no near miss over.
func (f *forger) nearMiss() (id string, near bool) {
	for range 100 {
		name := f.items.names[f.rng.IntN(len(f.items.names))]
		if id := f.changeOne(name); f.isNew(id) {
			return id, true
		}
	}
	return f.randomID(), false
}

func (f *forger) changeOne(name string) string {
	if !utf8.ValidString(name) {
		changed := []byte(name)
		changed[f.rng.IntN(len(changed))] = f.letter()
		return string(changed)
	}
	changed := []rune(name)
	changed[f.rng.IntN(len(changed))] = rune(f.letter())
	return string(changed)
}
