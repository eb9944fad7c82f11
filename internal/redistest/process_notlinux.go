//go:build !linux

package redistest

import "syscall"

func sysProcAttr() *syscall.SysProcAttr { return nil }

// stopped takes the signal at its word where there is no /proc to look at.
func stopped(int) bool { return true }
