//go:build unix

package redistest

import (
	"syscall"
	"time"
)

func (p *process) freeze() {
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	for !stopped(p.pid()) {
		time.Sleep(100 * time.Microsecond)
	}
}

func (p *process) thaw() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }
