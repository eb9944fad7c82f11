package faults

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
)

var errSource = errors.New("faults: the query failed")

// kinds are the errors that faults may cause, in the order in which they are
// looked for. Whatever else comes is a failure of the suite.
var kinds = []struct {
	name string
	is   error
}{
	{"not ready", bloom.ErrNotReady},
	{"corrupt", bloom.ErrCorrupt},
	{"rebuilding", bloom.ErrRebuilding},
	{"rebuild refused", bloom.ErrRebuildRefused},
	{"full", bloom.ErrFull},
	{"overloaded", bloom.ErrOverloaded},
	{"query failed", errSource},
	{"builder died", errDead},
	{"context ended", context.DeadlineExceeded},
	{"context ended", context.Canceled},
	{"refused", syscall.ECONNREFUSED},
	{"connection lost", syscall.ECONNRESET},
	{"connection lost", syscall.EPIPE},
	{"connection lost", io.EOF},
	{"connection lost", io.ErrUnexpectedEOF},
	{"connection lost", net.ErrClosed},
	{"time-out", os.ErrDeadlineExceeded},
	{"time-out", redis.ErrPoolTimeout},
}

// replies are error replies of Redis, by how they begin.
var replies = []string{"LOADING", "OOM", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "READONLY", "MASTERDOWN", "UNBLOCKED"}

// kindOf names an error, or returns "".
func kindOf(err error) string {
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			return k.name
		}
	}
	if strings.Contains(err.Error(), "replicas within") { // too few have it
		return "replicas"
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "time-out"
	}
	var reply redis.Error
	if errors.As(err, &reply) {
		for _, r := range replies {
			if strings.HasPrefix(reply.Error(), r) {
				return r
			}
		}
	}
	return ""
}
