//go:build !linux

package bloom

// adviseHuge does nothing here, see memory_huge_linux.go.
func adviseHuge([]uint64) {}
