package faults

import (
	"context"
	"sync"
	"time"
)

// pulse notices when the machine does not let this process run: nobody's fault but
// the machine's, which other tests may share.
type pulse struct {
	mu   sync.Mutex
	late []stall
}

type stall struct {
	at   time.Time
	long time.Duration
}

const pulseEvery = 5 * time.Millisecond

func (p *pulse) run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		time.Sleep(pulseEvery)
		if over := time.Since(began) - pulseEvery; over > pulseEvery {
			p.mu.Lock()
			p.late = append(p.late, stall{time.Now(), over})
			if len(p.late) > 4096 {
				p.late = append([]stall(nil), p.late[2048:]...)
			}
			p.mu.Unlock()
		}
	}
}

// stalls is for how long in all the process did not run since then.
func (p *pulse) stalls(since time.Time) (sum time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.late) - 1; i >= 0 && p.late[i].at.After(since); i-- {
		sum += p.late[i].long
	}
	return sum
}
