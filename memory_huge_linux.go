package bloom

import (
	"syscall"
	"unsafe"
)

// adviseHuge asks for memory in pages of 2 MiB, before words is first written to. A
// look-up goes to any place of a filter; the processor finds a few MiB of pages of 4 KiB
// without a walk through the page tables. Where the kernel has none, or gives them to
// all anyway, nothing changes.
func adviseHuge(words []uint64) {
	const page = 2 << 20
	start := unsafe.Pointer(unsafe.SliceData(words))
	skip := int(-uintptr(start) & (page - 1))
	if n := (8*len(words) - skip) &^ (page - 1); n > 0 {
		_ = syscall.Madvise(unsafe.Slice((*byte)(start), 8*len(words))[skip:skip+n], syscall.MADV_HUGEPAGE)
	}
}
