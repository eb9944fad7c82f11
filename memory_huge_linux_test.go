package bloom

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Whatever part of a page words begin and end with, nothing but the advice is given,
// and words shorter than a page get none.
func TestAdviseHuge(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("a kernel without huge pages: ", err)
	}
	const page = 2 << 20 / 8
	words := make([]uint64, 4*page)
	for i := range words {
		words[i] = uint64(i)
	}
	require.NotPanics(t, func() {
		adviseHuge(nil)
		adviseHuge([]uint64{})
		for _, n := range []int{1, 2, page / 2, page - 1} {
			adviseHuge(words[1 : 1+n])
		}
	})
	adviseHuge(words[3 : len(words)-5])
	for i, w := range words {
		if w != uint64(i) {
			t.Fatalf("word %d is %d", i, w)
		}
	}
	start := uintptr(unsafe.Pointer(&words[0]))
	require.Contains(t, vmFlags(t, start+2*page*8), " hg", "no advice was given")
	runtime.KeepAlive(words)
}

// vmFlags are what the kernel knows of the mapping at an address.
func vmFlags(t *testing.T, addr uintptr) string {
	smaps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	inside := false
	for lines := bufio.NewScanner(bytes.NewReader(smaps)); lines.Scan(); {
		var from, to uintptr
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &from, &to); n == 2 {
			inside = from <= addr && addr < to
		}
		if flags, ok := strings.CutPrefix(lines.Text(), "VmFlags:"); ok && inside {
			return flags
		}
	}
	t.Fatalf("no mapping at %x", addr)
	return ""
}
