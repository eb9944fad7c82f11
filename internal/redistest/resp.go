package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Limits of what the splitter accepts. They are far above what tests send and
// keep a broken stream from looking like a request for gigabytes.
const (
	maxBulk     = 512 << 20 // bytes, as in Redis
	maxElements = 1 << 20   // of one aggregate, as in Redis for requests
	maxLine     = 1 << 20   // bytes of a line, be it a header or an error text
	maxDepth    = 32        // of nested aggregates
)

var errRESP = errors.New("redistest: not RESP")

// A splitter cuts a stream of RESP into requests or replies, keeping their
// bytes as they came, so that a proxy passes on exactly what it received.
type splitter struct {
	r   *bufio.Reader
	raw []byte // what the current request or reply has consumed so far
}

func newSplitter(r io.Reader) *splitter {
	return &splitter{r: bufio.NewReaderSize(r, 64<<10)}
}

// idle reports whether nothing more has been received than was consumed.
func (s *splitter) idle() bool { return s.r.Buffered() == 0 }

// request reads one request, an array of bulk strings or an inline command,
// and returns its bytes and its words. Its bytes are the caller's to keep. An
// inline command is split at spaces only, quotes have no meaning; an empty
// request, which gets no reply, has no words.
func (s *splitter) request() (raw []byte, args []string, err error) {
	s.raw = nil
	line, err := s.line()
	if err != nil {
		return nil, nil, err
	}
	if len(line) == 0 || line[0] != '*' {
		return s.raw, strings.Fields(string(line)), nil
	}
	n, err := length(line, maxElements)
	if err != nil {
		return nil, nil, err
	}
	for range n {
		line, err := s.line()
		if err != nil {
			return nil, nil, inside(err)
		}
		if len(line) == 0 || line[0] != '$' {
			return nil, nil, fmt.Errorf("%w: argument %.20q", errRESP, line)
		}
		size, err := length(line, maxBulk)
		if err == nil && size < 0 {
			err = fmt.Errorf("%w: null argument", errRESP)
		}
		if err != nil {
			return nil, nil, err
		}
		bulk, err := s.bulk(size)
		if err != nil {
			return nil, nil, err
		}
		args = append(args, string(bulk))
	}
	return s.raw, args, nil
}

// reply reads one reply of RESP2 or RESP3, including the attributes before it.
// A push is returned like a reply but does not answer any request.
func (s *splitter) reply() (raw []byte, push bool, err error) {
	s.raw = nil
	kind, err := s.value(0)
	if err != nil {
		if len(s.raw) > 0 {
			err = inside(err)
		}
		return nil, false, err
	}
	return s.raw, kind == '>', nil
}

// value consumes one value with all its elements and returns its type.
func (s *splitter) value(depth int) (kind byte, err error) {
	if depth > maxDepth {
		return 0, fmt.Errorf("%w: nested too deep", errRESP)
	}
	line, err := s.line()
	if err != nil {
		return 0, err
	}
	if len(line) == 0 {
		return 0, fmt.Errorf("%w: empty line", errRESP)
	}
	kind = line[0]
	perElement := 1
	switch kind {
	case '+', '-', ':', '_', '#', ',', '(':
		return kind, nil
	case '$', '=', '!':
		size, err := length(line, maxBulk)
		if err == nil && size >= 0 {
			_, err = s.bulk(size)
		}
		return kind, err
	case '%', '|':
		perElement = 2
	case '*', '~', '>':
	default:
		return 0, fmt.Errorf("%w: type %q", errRESP, kind)
	}
	n, err := length(line, maxElements)
	if err != nil {
		return 0, err
	}
	for range n * perElement {
		if _, err := s.value(depth + 1); err != nil {
			return 0, err
		}
	}
	if kind == '|' {
		return s.value(depth + 1) // what the attributes are about
	}
	return kind, nil
}

// line consumes a line and returns it without its CRLF, valid until the next
// read.
func (s *splitter) line() ([]byte, error) {
	start := len(s.raw)
	for {
		part, err := s.r.ReadSlice('\n')
		s.raw = append(s.raw, part...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, partial(err, len(s.raw) > start)
		}
		if len(s.raw)-start > maxLine {
			return nil, fmt.Errorf("%w: endless line", errRESP)
		}
	}
	line, ok := bytes.CutSuffix(s.raw[start:], []byte("\r\n"))
	if !ok {
		return nil, fmt.Errorf("%w: line without CR", errRESP)
	}
	return line, nil
}

// bulk consumes size bytes and the CRLF behind them and returns the former,
// valid until the next read. Memory grows with the bytes that arrive, not with
// the announced size.
func (s *splitter) bulk(size int) ([]byte, error) {
	start := len(s.raw)
	buf := bytes.NewBuffer(s.raw)
	_, err := io.CopyN(buf, s.r, int64(size)+2)
	s.raw = buf.Bytes()
	if err != nil {
		return nil, inside(err)
	}
	bulk, ok := bytes.CutSuffix(s.raw[start:], []byte("\r\n"))
	if !ok {
		return nil, fmt.Errorf("%w: bulk of another length than announced", errRESP)
	}
	return bulk, nil
}

// length parses the number in a header such as "$12". It returns -1 for null.
func length(line []byte, limit int) (int, error) {
	n, err := strconv.Atoi(string(line[1:]))
	if err != nil || n < -1 || n > limit {
		return 0, fmt.Errorf("%w: length %.20q", errRESP, line)
	}
	return n, nil
}

// inside turns the end of the stream into an error, since it came too early.
func inside(err error) error { return partial(err, true) }

func partial(err error, began bool) error {
	if began && errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
