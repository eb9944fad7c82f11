package shop

import (
	"context"
	"net"
	"time"
)

// distant makes the connections of dial as slow as those to a server that is one
// round trip of rtt away. Both drivers write a statement at once and then wait, so
// a delayed write delays the answer.
func distant(rtt time.Duration, dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if rtt == 0 {
		return dial
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return slowConn{conn, rtt}, nil
	}
}

type slowConn struct {
	net.Conn
	rtt time.Duration
}

func (c slowConn) Write(b []byte) (int, error) {
	time.Sleep(c.rtt)
	return c.Conn.Write(b)
}
