//go:build !linux

package main

import (
	"syscall"
	"time"
)

func sleepUntil(t time.Time) { time.Sleep(time.Until(t)) }

func endWithUs() *syscall.SysProcAttr { return nil }
