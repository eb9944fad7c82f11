package bloom

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"runtime"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
)

// memBytes is a filter as it is written.
type memBytes struct{ bytes.Buffer }

func (b *memBytes) reader() io.Reader { return bytes.NewReader(b.Bytes()) }

// bodyOnes counts the bits between header and trailer, less those of tags.
func (b *memBytes) bodyOnes(layout Layout, tag uint32) (n int) {
	body := b.Bytes()[192 : b.Len()-8]
	for _, x := range body {
		n += bits.OnesCount8(x)
	}
	if layout == Blocked {
		n -= len(body) / 64 * bits.OnesCount32(tag)
	}
	return n
}

var errMemBroken = errors.New("disk is full")

// memLimitedWriter takes so many bytes, and then fails: with err, or without an
// error, as a writer must not.
type memLimitedWriter struct {
	limit int
	err   error
	got   bytes.Buffer
}

func (w *memLimitedWriter) Write(b []byte) (int, error) {
	n := min(len(b), w.limit-w.got.Len())
	w.got.Write(b[:n])
	if n < len(b) {
		return n, w.err
	}
	return n, nil
}

func memWritten(t testing.TB, m *Memory) []byte {
	t.Helper()
	var out bytes.Buffer
	n, err := m.WriteTo(&out)
	require.NoError(t, err)
	require.EqualValues(t, out.Len(), n)
	return out.Bytes()
}

// memCapacities give a Classic body of whole and of broken bytes and words, and
// bodies above and below the buffers in use.
var memCapacities = []uint64{1, 2, 5, 10, 20, 100, 1000, 100_000}

func TestMemoryRoundTrip(t *testing.T) {
	remainders := make(map[uint64]bool)
	for _, layout := range sizingLayouts {
		for _, capacity := range memCapacities {
			t.Run(fmt.Sprint(layout, " ", capacity), func(t *testing.T) {
				m := memMake(t, Config{Capacity: capacity, FPRate: 0.01, Layout: layout, TTL: time.Hour})
				require.NoError(t, m.Reset(t.Context())) // so that the generation is not that of any other
				memFill(t, m, 0, int(min(capacity, 2000)))
				stored := memWritten(t, m)
				require.EqualValues(t, m.live.Load().geom.params.Bytes(), len(stored))
				remainders[m.live.Load().geom.params.Bits%64/8] = true

				c := memMake(t, Config{Capacity: 7, FPRate: 0.5})
				n, err := c.ReadFrom(bytes.NewReader(stored))
				require.NoError(t, err)
				require.EqualValues(t, len(stored), n)
				require.Equal(t, m.live.Load().header, c.live.Load().header)
				require.Equal(t, m.live.Load().words, c.live.Load().words)
				require.True(t, c.live.Load().expires.IsZero())
				require.Equal(t, stored, memWritten(t, c))
				for i := range int(min(capacity, 2000)) {
					found, err := c.Exists(t.Context(), fmt.Sprint("item:", i))
					require.NoError(t, err)
					require.True(t, found)
				}
				memFill(t, c, 2000, 2100) // and it can be written like the first
			})
		}
	}
	require.Greater(t, len(remainders), 3, "memCapacities no longer differ in their last word")
}

// A position is the bit that SETBIT and GETBIT number that way, counted from the
// end of the header.
func TestMemoryBitOrder(t *testing.T) {
	for _, layout := range sizingLayouts {
		m := memMake(t, Config{Capacity: 100, FPRate: 0.01, Layout: layout})
		memFill(t, m, 0, 1)
		stored, set := memWritten(t, m), make(map[uint64]bool)
		for _, at := range m.live.Load().geom.appendPositions(nil, "item:0") {
			at += 192 * 8
			require.NotZero(t, stored[at/8]&(0x80>>(at%8)))
			set[at] = true
		}
		ones := (&memBytes{*bytes.NewBuffer(stored)}).bodyOnes(layout, m.live.Load().geom.tag)
		require.Equal(t, len(set), ones, "and no other bit is set")
	}
}

func TestMemoryWriteToFails(t *testing.T) {
	m := memMake(t, Config{Capacity: 100_000, FPRate: 0.01})
	memFill(t, m, 0, 100)
	whole := memWritten(t, m)
	require.Greater(t, len(whole), 100_000)
	for _, limit := range []int{0, 1, 191, 192, 193, 64<<10 - 1, 64 << 10, 64<<10 + 1, len(whole) - 8, len(whole) - 1} {
		for name, fails := range map[string]struct{ writer, want error }{
			"error": {errMemBroken, errMemBroken},
			"short": {nil, io.ErrShortWrite},
		} {
			t.Run(fmt.Sprint(name, " after ", limit), func(t *testing.T) {
				w := &memLimitedWriter{limit: limit, err: fails.writer}
				n, err := m.WriteTo(w)
				require.ErrorIs(t, err, fails.want)
				require.EqualValues(t, limit, n)
				require.Equal(t, string(whole[:limit]), w.got.String())
			})
		}
	}
}

// A caller's own buffer is a writer like any other: what it held before is not
// counted, and it is the caller's to flush.
func TestMemoryWriteToBuffered(t *testing.T) {
	m := memMake(t, Config{Capacity: 100, FPRate: 0.01})
	whole := memWritten(t, m)
	for _, size := range []int{16, 64 << 10, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			var out bytes.Buffer
			w := bufio.NewWriterSize(&out, size)
			_, _ = w.WriteString("before")
			n, err := m.WriteTo(w)
			require.NoError(t, err)
			require.EqualValues(t, len(whole), n)
			require.NoError(t, w.Flush())
			require.Equal(t, append([]byte("before"), whole...), out.Bytes())

			w = bufio.NewWriterSize(&memLimitedWriter{limit: 3, err: errMemBroken}, size)
			_, _ = w.WriteString("before")
			n, err = m.WriteTo(w)
			require.GreaterOrEqual(t, n, int64(0))
			require.LessOrEqual(t, n, int64(len(whole)))
			require.Equal(t, err == nil, n == int64(len(whole)))
			require.ErrorIs(t, w.Flush(), errMemBroken)
		})
	}
}

// memReaders hand out the same bytes in different portions.
var memReaders = map[string]func(io.Reader) io.Reader{
	"at once":           func(r io.Reader) io.Reader { return r },
	"byte by byte":      iotest.OneByteReader,
	"halves":            iotest.HalfReader,
	"with the last EOF": iotest.DataErrReader,
}

// What is not exactly one whole filter is refused, and what was there stays.
func TestMemoryReadFromLength(t *testing.T) {
	for _, layout := range sizingLayouts {
		src := memMake(t, Config{Capacity: 20, FPRate: 0.01, Layout: layout})
		memFill(t, src, 0, 20)
		stored := memWritten(t, src)
		for name, portion := range memReaders {
			t.Run(fmt.Sprint(layout, " ", name), func(t *testing.T) {
				m := memMake(t, Config{Capacity: 10})
				memFill(t, m, 0, 10)
				before := m.live.Load()
				for n := range len(stored) {
					got, err := m.ReadFrom(portion(bytes.NewReader(stored[:n])))
					require.ErrorIs(t, err, ErrCorrupt, n)
					require.NotErrorIs(t, err, ErrNotReady, n)
					require.EqualValues(t, n, got)
					require.Same(t, before, m.live.Load())
				}
				for _, more := range []string{"\x00", "\n", string(stored)} {
					_, err := m.ReadFrom(portion(bytes.NewReader(append(bytes.Clone(stored), more...))))
					require.ErrorIs(t, err, ErrCorrupt)
					require.Same(t, before, m.live.Load())
				}
				_, err := NewMemory().ReadFrom(bytes.NewReader(nil))
				require.ErrorIs(t, err, ErrCorrupt)

				got, err := m.ReadFrom(portion(bytes.NewReader(stored)))
				require.NoError(t, err)
				require.EqualValues(t, len(stored), got)
				require.Equal(t, stored, memWritten(t, m))
			})
		}
	}
}

// An error of the reader is not a damaged filter, wherever it comes.
func TestMemoryReadFromFails(t *testing.T) {
	stored := memWritten(t, memMake(t, Config{Capacity: 20}))
	for n := 0; n <= len(stored); n += 1 + n%7 {
		m := memMake(t, Config{Capacity: 10})
		before := m.live.Load()
		got, err := m.ReadFrom(io.MultiReader(bytes.NewReader(stored[:n]), iotest.ErrReader(errMemBroken)))
		require.ErrorIs(t, err, errMemBroken, n)
		require.NotErrorIs(t, err, ErrCorrupt, n)
		require.EqualValues(t, n, got)
		require.Same(t, before, m.live.Load())
	}
	_, err := NewMemory().ReadFrom(io.MultiReader(bytes.NewReader(stored), iotest.ErrReader(errMemBroken)))
	require.ErrorIs(t, err, errMemBroken, "in the place of the end")
}

// A byte that is damaged anywhere is noticed, or is a bit of an item.
func TestMemoryReadFromDamaged(t *testing.T) {
	for _, layout := range sizingLayouts {
		src := memMake(t, Config{Capacity: 21, FPRate: 0.01, Layout: layout})
		geom, stored := src.live.Load().geom, memWritten(t, src)
		if layout == Classic {
			require.NotZero(t, geom.params.Bits%8, "this capacity leaves no bits behind the last")
		}
		for at := range stored {
			for bit := range 8 {
				bad := bytes.Clone(stored)
				bad[at] ^= 0x80 >> bit
				m := NewMemory()
				_, err := m.ReadFrom(bytes.NewReader(bad))
				body := (at-headerBytes)*8 + bit
				name := fmt.Sprintf("%v byte %d bit %d", layout, at, bit)
				switch {
				case at < offPurpose, at >= len(stored)-trailerBytes:
					require.ErrorIs(t, err, ErrCorrupt, name)
				case at < headerBytes: // generation and the like, see TestHeaderCorruptedByte
				case layout == Classic && body >= int(geom.params.Bits), layout == Blocked && body%512 >= blockBits:
					require.ErrorIs(t, err, ErrCorrupt, name)
				default:
					require.NoError(t, err, name)
				}
				if err == nil {
					require.Equal(t, geom, m.live.Load().geom, name)
				} else {
					require.Nil(t, m.live.Load(), name)
				}
			}
		}
	}
}

func TestMemoryReadFromForeign(t *testing.T) {
	h := hdrFixed(Classic)
	for name, b := range map[string][]byte{
		"text":            bytes.Repeat([]byte("not a filter\n"), 100),
		"zeros":           make([]byte, 4096),
		"staging":         append(h.encode(magicStaging), make([]byte, 4096)...),
		"marker":          []byte(magicMarker + "sixteen random.. and time"[:tokenBytes]),
		"marker and more": append([]byte(magicMarker), make([]byte, 4096)...),
		"newer version":   bytes.Replace(memWritten(t, memMake(t, Config{Capacity: 9})), []byte(magicLive+"\x01"), []byte(magicLive+"\x02"), 1),
	} {
		t.Run(name, func(t *testing.T) {
			m := NewMemory()
			_, err := m.ReadFrom(bytes.NewReader(b))
			require.ErrorIs(t, err, ErrCorrupt)
			require.NotErrorIs(t, err, ErrNotReady)
		})
	}
}

// A header that claims half a gigabyte costs what really comes, not the claim.
func TestMemoryReadFromHostileSize(t *testing.T) {
	for _, p := range []Params{
		{Capacity: 1, FPRate: 0.01, Layout: Classic, Bits: 1<<32 - 1600, Hashes: 7},
		{Capacity: 1, FPRate: 0.01, Layout: Blocked, Bits: 480 * (1<<23 - 4), Hashes: 7},
	} {
		h := newHeader(newGeometry(p, 1, alone), 1)
		for _, follows := range []int{0, 100, 1 << 20} {
			t.Run(fmt.Sprintf("%v followed by %d", p.Layout, follows), func(t *testing.T) {
				stored := append(h.encode(magicLive), make([]byte, follows)...)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				_, err := NewMemory().ReadFrom(bytes.NewReader(stored))
				runtime.ReadMemStats(&after)
				require.ErrorIs(t, err, ErrCorrupt)
				require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20+8*follows))
			})
		}
	}
}

func FuzzReadFrom(f *testing.F) {
	for _, layout := range sizingLayouts {
		m := memMake(f, Config{Capacity: 20, Layout: layout})
		stored := memWritten(f, m)
		for _, seal := range []bool{true, false} {
			f.Add(stored, seal)
			f.Add(stored[:headerBytes], seal)
			f.Add(stored[:len(stored)-1], seal)
			f.Add(append(bytes.Clone(stored), 0), seal)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) > headerBytes+trailerBytes { // a liar's header, with a trailer that fits
			copy(b, magicLive)
			b[offVersion] = formatVersion
			hdrSeal(b)
			copy(b[len(b)-trailerBytes:], b[offFingerprint:offFingerprint+8])
		}
		m := memMake(t, Config{Capacity: 5})
		before := m.live.Load()
		n, err := m.ReadFrom(bytes.NewReader(b))
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			require.Same(t, before, m.live.Load())
			return
		}
		require.EqualValues(t, len(b), n)
		require.Equal(t, b, memWritten(t, m))
		require.Equal(t, binary.BigEndian.Uint64(b[len(b)-trailerBytes:]), m.live.Load().geom.fingerprint)
		_, err = m.Add(t.Context(), "item")
		require.NoError(t, err)
		found, err := m.Exists(t.Context(), "item")
		require.NoError(t, err)
		require.True(t, found)
		_, err = m.Info(t.Context())
		require.NoError(t, err)
		require.NoError(t, m.Reset(t.Context()))
		_, err = NewMemory().ReadFrom(bytes.NewReader(memWritten(t, m)))
		require.NoError(t, err, "what Reset leaves can be read")
	})
}
