package faults

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
)

// networkFaults are what a proxy does for a while.
var networkFaults = []struct {
	name string
	do   func(p *redistest.Proxy, dice *dice, d time.Duration)
}{
	{"replies delayed", func(p *redistest.Proxy, dice *dice, d time.Duration) {
		p.SetLatency(time.Duration(1+dice.intN(20)) * time.Millisecond)
		time.Sleep(d)
		p.SetLatency(0)
	}},
	{"requests delayed", at(func(dice *dice) redistest.Action {
		return redistest.Delay(time.Duration(dice.intN(60)) * time.Millisecond)
	})},
	{"replies cut", at(func(*dice) redistest.Action { return redistest.CutReply })},
	{"reset in mid-reply", at(func(*dice) redistest.Action { return redistest.ResetReply })},
	{"requests cut", at(func(*dice) redistest.Action { return redistest.CutRequest })},
	{"repeated late", at(func(dice *dice) redistest.Action {
		return redistest.RepeatLate(time.Duration(1+dice.intN(400)) * time.Millisecond)
	})},
	{"first tries late", at(func(dice *dice) redistest.Action {
		return redistest.HoldFirst(time.Duration(1+dice.intN(400)) * time.Millisecond)
	})},
	{"connections closed", func(p *redistest.Proxy, dice *dice, d time.Duration) { p.Sever() }},
	{"cut off", func(p *redistest.Proxy, dice *dice, d time.Duration) {
		p.Refuse(true)
		p.Sever()
		time.Sleep(d)
		p.Refuse(false)
	}},
}

// at does something to a fifth of the requests.
func at(action func(*dice) redistest.Action) func(*redistest.Proxy, *dice, time.Duration) {
	return func(p *redistest.Proxy, dice *dice, d time.Duration) {
		p.Intercept(func([]string) redistest.Action {
			if dice.intN(5) == 0 {
				return action(dice)
			}
			return redistest.Pass
		})
		time.Sleep(d)
		p.Intercept(nil)
	}
}

// network lets the proxies of a node misbehave, one after the other.
func (r *run) network(n *node, rnd *rand.Rand) {
	dice := &dice{rnd: rnd}
	for r.going() {
		f := networkFaults[dice.intN(len(networkFaults))]
		f.do(n.proxies[dice.intN(len(n.proxies))], dice, time.Duration(20+dice.intN(200))*time.Millisecond)
		r.add("network faults", f.name, 1)
		time.Sleep(time.Duration(dice.intN(60)) * time.Millisecond)
	}
}

// dice are random numbers for several goroutines.
type dice struct {
	mu  sync.Mutex
	rnd *rand.Rand
}

func (d *dice) intN(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rnd.IntN(n)
}
