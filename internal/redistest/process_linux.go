package redistest

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// sysProcAttr makes the child die with the thread that starts it; see spawn.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// stopped reports whether the process has stopped; the signal only asks it to.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true // it has ended, which is as stopped as can be
	}
	// "pid (name) state ...", where the name may hold parentheses.
	return bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" T"))
}
