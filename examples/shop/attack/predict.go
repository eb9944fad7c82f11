package main

import "time"

// prediction says how many lookups of absent products a way must cost the
// database, from the requests and the filter's own rate alone.
type prediction struct {
	way     *way
	rate    float64 // of absent ids that the filter calls present
	deleted map[int64]bool
	asked   map[int64]time.Time // absent ids, when a lookup was last expected
}

func newPrediction(w *way, rate float64, deleted []int64) *prediction {
	p := &prediction{way: w, rate: rate, deleted: make(map[int64]bool), asked: make(map[int64]time.Time)}
	for _, id := range deleted {
		p.deleted[id] = true
	}
	return p
}

// lookups expected of a plan that was fired at began.
func (p *prediction) lookups(shots []shot, began time.Time, interval time.Duration) float64 {
	sum := 0.0
	for i, s := range shots {
		if s.real {
			continue
		}
		at := began.Add(time.Duration(i) * interval)
		if p.way.nulls {
			if last, ok := p.asked[s.id]; ok && at.Sub(last) < nullTTL {
				continue // its "no such product" is cached
			}
			p.asked[s.id] = at
		}
		if p.way.filter && !p.deleted[s.id] {
			sum += p.rate
		} else {
			sum++ // unfiltered, or still in the filter
		}
	}
	return sum
}
