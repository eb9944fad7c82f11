package redistest

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var replies = []string{
	"+OK\r\n", "-ERR no\r\n", ":-12\r\n", "$3\r\nfoo\r\n", "$0\r\n\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n",
	"*2\r\n*1\r\n:1\r\n$4\r\n\r\n\r\n\r\n",
	"_\r\n", "#t\r\n", ",-inf\r\n", "(34928903284\r\n", "!5\r\nERR x\r\n", "=7\r\ntxt:abc\r\n",
	"%2\r\n+a\r\n:1\r\n+b\r\n~1\r\n+c\r\n", "~0\r\n",
	"|1\r\n+ttl\r\n:3\r\n*1\r\n|1\r\n+a\r\n+b\r\n:5\r\n",
	"+" + strings.Repeat("x", 100<<10) + "\r\n",
	"$131072\r\n" + strings.Repeat("\n", 128<<10) + "\r\n",
}

func TestSplitReplies(t *testing.T) {
	const push = ">2\r\n+message\r\n+hi\r\n"
	stream := push + strings.Join(replies, push)
	for name, r := range map[string]io.Reader{
		"at once":    strings.NewReader(stream),
		"byte-wise":  iotest.OneByteReader(strings.NewReader(stream)),
		"with error": iotest.DataErrReader(strings.NewReader(stream)),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSplitter(r)
			for _, want := range replies {
				raw, isPush, err := s.reply()
				require.NoError(t, err)
				require.True(t, isPush)
				require.Equal(t, push, string(raw))

				raw, isPush, err = s.reply()
				require.NoError(t, err, "%.40q", want)
				require.False(t, isPush)
				require.Equal(t, want, string(raw))
			}
			_, _, err := s.reply()
			assert.Equal(t, io.EOF, err)
		})
	}
}

func TestSplitBrokenReplies(t *testing.T) {
	for _, reply := range replies {
		for _, n := range []int{1, len(reply) / 2, len(reply) - 1} {
			_, _, err := newSplitter(strings.NewReader(reply[:n])).reply()
			assert.ErrorIs(t, err, io.ErrUnexpectedEOF, "%.40q", reply[:n])
		}
	}
	for _, broken := range []string{
		"\r\n", "OK\r\n", "+OK\n", "$x\r\n", "$\r\n", "$-2\r\n", "$9999999999\r\n", "*1048577\r\n", "$?\r\n",
		"$3\r\nfoobar\r\n", "*1\r\n\r\n",
		strings.Repeat("*1\r\n", 100), strings.Repeat("|0\r\n", 100),
		"+" + strings.Repeat("x", 2<<20),
	} {
		_, _, err := newSplitter(strings.NewReader(broken)).reply()
		assert.ErrorIs(t, err, errRESP, "%.40q", broken)
	}
}

func TestSplitRequests(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	var want [][]string
	var stream bytes.Buffer
	for range 100 {
		args := make([]string, 1+rnd.IntN(4))
		for i := range args {
			arg := make([]byte, rnd.IntN(40))
			for j := range arg {
				arg[j] = "\r\n$*ab\x00\xff"[rnd.IntN(8)]
			}
			args[i] = string(arg)
		}
		want = append(want, args)
		stream.Write(encode(args))
	}
	s := newSplitter(iotest.HalfReader(&stream))
	for _, want := range want {
		raw, args, err := s.request()
		require.NoError(t, err)
		require.Equal(t, want, args)
		require.Equal(t, encode(args), raw)
	}
	assert.True(t, s.idle())
	_, _, err := s.request()
	assert.Equal(t, io.EOF, err)
}

func TestSplitOddRequests(t *testing.T) {
	for request, want := range map[string][]string{
		"PING\r\n":         {"PING"},
		" get  k \r\n":     {"get", "k"},
		"\r\n":             nil,
		"*0\r\n":           nil,
		"*-1\r\n":          nil,
		"*1\r\n$0\r\n\r\n": {""},
	} {
		raw, args, err := newSplitter(strings.NewReader(request)).request()
		require.NoError(t, err, "%q", request)
		assert.Equal(t, request, string(raw))
		assert.Equal(t, len(want), len(args))
		assert.ElementsMatch(t, want, args)
	}
	for _, broken := range []string{
		"*x\r\n", "*9999999\r\n", "*1\r\n:1\r\n", "*1\r\n\r\n", "*1\r\n$-1\r\n", "*1\r\n$x\r\n", "*1\r\n$1\r\nab\r\n", "PING\n",
	} {
		_, _, err := newSplitter(strings.NewReader(broken)).request()
		assert.ErrorIs(t, err, errRESP, "%q", broken)
	}
}

// FuzzRESP checks on any stream that the pieces add up to what was consumed,
// that they do not depend on how the network chops the stream, and that each
// piece is a piece by itself.
func FuzzRESP(f *testing.F) {
	for _, reply := range replies[:len(replies)-2] {
		f.Add([]byte(reply))
	}
	f.Add([]byte(">1\r\n+x\r\n%1\r\n+a\r\n$-1\r\n"))
	f.Add([]byte("*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING a\r\n*0\r\n"))

	type piece struct {
		raw, meaning string
	}
	next := map[string]func(*splitter) (piece, error){
		"request": func(s *splitter) (piece, error) {
			raw, args, err := s.request()
			return piece{string(raw), fmt.Sprintf("%q", args)}, err
		},
		"reply": func(s *splitter) (piece, error) {
			raw, push, err := s.reply()
			return piece{string(raw), fmt.Sprint(push)}, err
		},
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		for name, next := range next {
			s := newSplitter(bytes.NewReader(stream))
			chopped := newSplitter(iotest.OneByteReader(bytes.NewReader(stream)))
			consumed := 0
			for {
				p, err := next(s)
				q, errChopped := next(chopped)
				require.Equal(t, p, q, name)
				require.Equal(t, fmt.Sprint(err), fmt.Sprint(errChopped), name)
				if err != nil {
					require.Empty(t, p.raw, name)
					if err == io.EOF {
						require.Equal(t, len(stream), consumed, name)
					}
					break
				}
				require.NotEmpty(t, p.raw, name)
				require.True(t, bytes.HasPrefix(stream[consumed:], []byte(p.raw)), name)
				consumed += len(p.raw)

				alone, err := next(newSplitter(strings.NewReader(p.raw)))
				require.NoError(t, err, name)
				require.Equal(t, p, alone, name)
			}
		}
	})
}

// encode returns a request as go-redis sends it.
func encode(args []string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, arg := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b
}
