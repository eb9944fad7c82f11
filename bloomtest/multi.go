package bloomtest

import (
	"bytes"
	"fmt"

	"github.com/alicebob/miniredis/v2/server"
)

// A registered command can't add its reply to EXEC's array: miniredis' queue takes
// only its own commands. So a script stands in the queue, whose reply is a token,
// and the hook, which sends EXEC in the connection's place, puts the real reply
// there.

func (d *module) enqueue(p *server.Peer, j *job) {
	j.queued = true
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.queued[p]; !known {
		p.OnDisconnect(func() {
			d.forget(d.dequeue(p)...)
			d.mu.Lock()
			defer d.mu.Unlock()
			delete(d.queued, p)
		})
	}
	d.queued[p] = append(d.queued[p], j)
}

// dequeue empties the connection's list, and keeps it as a sign that OnDisconnect
// knows the connection.
func (d *module) dequeue(p *server.Peer) []*job {
	d.mu.Lock()
	defer d.mu.Unlock()
	jobs := d.queued[p]
	if jobs != nil {
		d.queued[p] = d.queued[p][:0:0]
	}
	return jobs
}

// exec is the hook's answer to EXEC. It leaves a MULTI without BF commands to
// miniredis.
func (d *module) exec(p *server.Peer) bool {
	jobs := d.dequeue(p)
	if len(jobs) == 0 {
		return false
	}
	defer d.forget(jobs...)
	for _, j := range jobs {
		j.late = true
	}
	l := newLoopback(d.srv)
	l.peer.ClientName = p.ClientName
	got := l.send(p.Ctx, p.Resp3, "EXEC")
	p.ClientName = l.peer.ClientName
	for _, j := range jobs {
		if j.result != nil {
			token := fmt.Appendf(nil, "$%d\r\n%s\r\n", len(j.token), j.token)
			got = bytes.Replace(got, token, j.result, 1)
		}
	}
	p.WriteRaw(string(got))
	return true
}
