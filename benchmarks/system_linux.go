package main

import (
	"syscall"
	"time"
)

// sleepUntil sleeps in the kernel: Go's timers wake an idle program only at the next
// millisecond, which would double a delay of half of one.
func sleepUntil(t time.Time) {
	for d := time.Until(t); d > 0; d = time.Until(t) {
		ts := syscall.NsecToTimespec(d.Nanoseconds())
		_ = syscall.Nanosleep(&ts, nil)
	}
}

// endWithUs makes the kernel end a child process when the thread that started it does,
// so when this program does, however it ends.
func endWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
