package bloomtest

import (
	"fmt"
	"strconv"
)

// reply builds the raw bytes of one reply.
type reply struct {
	buf   []byte
	resp3 bool
	plain bool // for miniredis' Lua: RESP2, whose arrays can hold no status
}

func (r *reply) raw(b []byte)        { r.buf = append(r.buf, b...) }
func (r *reply) line(s string)       { r.buf = append(append(r.buf, s...), '\r', '\n') }
func (r *reply) ok()                 { r.line("+OK") }
func (r *reply) err(text string)     { r.line("-" + text) }
func (r *reply) integer(n uint64)    { r.line(":" + strconv.FormatUint(n, 10)) }
func (r *reply) array(n int)         { r.line("*" + strconv.Itoa(n)) }
func (r *reply) bulk(s []byte)       { r.line(fmt.Sprintf("$%d\r\n%s", len(s), s)) }
func (r *reply) bulkString(s string) { r.bulk([]byte(s)) }

// mapping begins n pairs.
func (r *reply) mapping(n int) {
	if r.resp3 {
		r.line("%" + strconv.Itoa(n))
	} else {
		r.array(2 * n)
	}
}

// null is the null of a missing value.
func (r *reply) null() {
	if r.resp3 {
		r.line("_")
	} else {
		r.line("$-1")
	}
}

// boolean is 1 or 0 in RESP2.
func (r *reply) boolean(b bool) {
	switch {
	case r.resp3 && b:
		r.line("#t")
	case r.resp3:
		r.line("#f")
	case b:
		r.integer(1)
	default:
		r.integer(0)
	}
}

// field is a name within BF.INFO.
func (r *reply) field(name string) {
	if r.plain {
		r.bulkString(name)
	} else {
		r.line("+" + name)
	}
}
