package bloomtest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
)

// wire is a connection that shows replies as the bytes they are.
type wire struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

// dial connects, in protocol 2 or 3.
func dial(t testing.TB, m *miniredis.Miniredis, resp int) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", m.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	w := &wire{t, conn, bufio.NewReader(conn)}
	if resp == 3 {
		w.do("HELLO", "3")
	}
	return w
}

// do sends a command and returns its raw reply.
func (w *wire) do(args ...string) string {
	w.t.Helper()
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	require.NoError(w.t, w.SetDeadline(time.Now().Add(time.Minute)))
	_, err := w.Write(b)
	require.NoError(w.t, err)
	var got bytes.Buffer
	require.NoError(w.t, copyReply(&got, w.r), "after %q", got.String())
	return got.String()
}

// copyReply copies one reply.
func copyReply(to *bytes.Buffer, r *bufio.Reader) error {
	line, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	to.WriteString(line)
	n, _ := strconv.Atoi(line[1 : len(line)-2])
	switch line[0] {
	case '$':
		if n >= 0 {
			_, err = io.CopyN(to, r, int64(n)+2)
		}
		return err
	case '%':
		n *= 2
	case '*', '~', '>':
	default:
		return nil
	}
	for range n {
		if err := copyReply(to, r); err != nil {
			return err
		}
	}
	return nil
}

// bulk returns the first bulk string of a raw reply.
func bulk(t testing.TB, raw string) string {
	t.Helper()
	at := bytes.IndexByte([]byte(raw), '$')
	require.GreaterOrEqual(t, at, 0, "no bulk string in %q", raw)
	var n int
	_, err := fmt.Sscanf(raw[at:], "$%d\r\n", &n)
	require.NoError(t, err)
	start := at + len(fmt.Sprintf("$%d\r\n", n))
	return raw[start : start+n]
}
