package main

import (
	"bufio"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// machine says where and of what something was measured.
type machine struct {
	Time     string            `json:"time"`
	CPU      string            `json:"cpu"`
	CPUs     int               `json:"cpus"`
	System   string            `json:"system"`
	Load     string            `json:"load"` // the load average before: a busy machine measures its other programs
	Go       string            `json:"go"`
	Redis    string            `json:"redis"`
	Module   string            `json:"module,omitempty"` // RedisBloom, and where it ran
	Versions map[string]string `json:"versions"`
}

// compared are the modules whose versions are printed.
var compared = []string{
	"github.com/redis/go-redis/v9",
	"github.com/zeromicro/go-zero",
	"github.com/bits-and-blooms/bloom/v3",
	"github.com/go-redis/cache/v9",
	"github.com/dtm-labs/rockscache",
}

func describeMachine() machine {
	m := machine{
		Time:     time.Now().UTC().Format("2006-01-02 15:04 UTC"),
		CPU:      firstField("/proc/cpuinfo", "model name"),
		CPUs:     runtime.NumCPU(),
		System:   runtime.GOOS + "/" + runtime.GOARCH,
		Go:       runtime.Version(),
		Versions: map[string]string{},
	}
	if kernel, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.System += " " + strings.TrimSpace(string(kernel))
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(load), " ")
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			for _, path := range compared {
				if dep.Path == path {
					m.Versions[path] = dep.Version
				}
			}
		}
	}
	return m
}

// firstField returns the value of the first "name : value" of a file, or "".
func firstField(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if k, v, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
