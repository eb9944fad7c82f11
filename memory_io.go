package bloom

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
)

// WriteTo writes the filter as [Bitmap] stores it: SET puts it into Redis. Only onto
// a key that nobody adds to: over a filter that is there it takes away what was added
// to that one, and its items are denied; [Filter.Rebuild] replaces one that is in
// use. Items added meanwhile may or may not be in what is written. Of a shard it writes what the [Bitmap] in the same
// place of a [Sharded] reads.
func (m *Memory) WriteTo(w io.Writer) (int64, error) {
	s, _ := m.at()
	f := s.filter()
	if f == nil {
		return 0, fmt.Errorf("bloom: write memory filter: %w", errNoMemory)
	}
	out := &countingWriter{w: w}
	if err := f.write(bufio.NewWriterSize(out, 64<<10)); err != nil {
		return out.n, fmt.Errorf("bloom: write memory filter: %w", err)
	}
	return out.n, nil
}

func (f *memoryFilter) write(w *bufio.Writer) error {
	_, _ = w.Write(f.encode(magicLive)) // the writer keeps its first error
	body := f.geom.params.bodyBytes()
	var word [8]byte
	for i := range f.words {
		binary.BigEndian.PutUint64(word[:], atomic.LoadUint64(&f.words[i]))
		if _, err := w.Write(word[:min(8, body-uint64(i)*8)]); err != nil {
			return err
		}
	}
	_, _ = w.Write(f.geom.trailer())
	return w.Flush()
}

// countingWriter counts what reached the caller's writer. It stands under the
// buffer, and keeps bufio from taking a caller's [bufio.Writer] for that buffer.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// ReadFrom replaces the filter by one that WriteTo wrote, or that GET returned
// for a [Bitmap]'s key, up to the end of r. If that is not exactly one whole
// filter it returns [ErrCorrupt] and keeps what it had. The filter read has no
// TTL. What was added to the filter before, or is meanwhile, goes with it: use it
// where nobody adds. One that was made with a hash key is read once [New] has given this Memory
// the key.
func (m *Memory) ReadFrom(r io.Reader) (int64, error) {
	s, _ := m.at()
	var key hashKey
	if k := s.key.Load(); k != nil {
		key = *k
	}
	in := &countingReader{r: r}
	f, err := readFilter(bufio.NewReaderSize(in, 64<<10), key)
	if err != nil {
		return in.n, fmt.Errorf("bloom: read memory filter: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next.Load() != nil {
		return in.n, fmt.Errorf("bloom: read memory filter: %w", ErrRebuilding)
	}
	s.live.Store(f)
	return in.n, nil
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

func readFilter(r *bufio.Reader, key hashKey) (*memoryFilter, error) {
	head := make([]byte, headerBytes)
	if n, err := io.ReadFull(r, head); err != nil {
		return nil, shortRead(err, uint64(n), headerBytes)
	}
	h, err := parseHeader(head, key)
	if isNotReady(err) { // a key may be about to become a filter, bytes are one or are not
		return nil, fmt.Errorf("no filter but a marker: %w", ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	words, err := readWords(r, h.geom.params.bodyBytes())
	if err != nil {
		return nil, err
	}
	f := memoryFilterOf(*h, words)
	if err := f.checkBody(); err != nil {
		return nil, err
	}
	var trailer [trailerBytes]byte
	if n, err := io.ReadFull(r, trailer[:]); err != nil {
		return nil, shortRead(err, uint64(n), trailerBytes)
	}
	if binary.BigEndian.Uint64(trailer[:]) != h.geom.fingerprint {
		return nil, fmt.Errorf("trailer does not fit the header: %w", ErrCorrupt)
	}
	switch _, err := r.ReadByte(); {
	case err == nil:
		return nil, fmt.Errorf("bytes behind the trailer: %w", ErrCorrupt)
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return f, nil
}

// readWords reads n bytes. It allocates as they come, since a header may claim
// half a gigabyte that never follows.
func readWords(r io.Reader, n uint64) ([]uint64, error) {
	const step = 64 << 10
	words := make([]uint64, 0, min(n/8+1, step))
	buf := make([]byte, step)
	for done := uint64(0); done < n; {
		part := buf[:min(step, n-done)]
		got, err := io.ReadFull(r, part)
		if err != nil {
			return nil, shortRead(err, done+uint64(got), n)
		}
		done += uint64(got)
		for len(part) >= 8 {
			words = append(words, binary.BigEndian.Uint64(part))
			part = part[8:]
		}
		if len(part) > 0 {
			var last [8]byte
			copy(last[:], part)
			words = append(words, binary.BigEndian.Uint64(last[:]))
		}
	}
	return words, nil
}

func shortRead(err error, got, want uint64) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("ends after %d of %d bytes: %w", got, want, ErrCorrupt)
	}
	return err
}

// checkBody proves that every block has its tag, and that no bit is set that no
// item can set.
func (f *memoryFilter) checkBody() error {
	p := f.geom.params
	if p.Layout == Blocked {
		for i := range f.blocks {
			if uint32(f.blocks[i][blockWords-1]) != f.geom.tag {
				return fmt.Errorf("block %d has another tag: %w", i, ErrCorrupt)
			}
		}
		return nil
	}
	if spare := p.Bits & 63; spare != 0 && f.words[len(f.words)-1]<<spare != 0 {
		return fmt.Errorf("bits behind the last: %w", ErrCorrupt)
	}
	return nil
}
