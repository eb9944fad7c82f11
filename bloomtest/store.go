package bloomtest

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"
)

// A filter is the string value of its key: this prefix, a stamp, the header of
// BF.SCANDUMP, the bitmaps. So whatever miniredis does to keys it does to filters,
// at any time and in any database: expire, rename, move, flush, watch. Filters kept
// beside miniredis, under an id in the value, would save the copying of every add;
// but nothing tells when a key is gone, or that two keys have come to the same value.
const magic = "\x00bloomtest.MBbloom--\x00"

// Every value written has a stamp of its own, random bytes and a number. Two values
// with the same stamp are equal, so a filter parsed once need not be copied and
// parsed again.
const stampBytes = 24 + 8

// The most filters kept parsed.
const maxParsed = 16

// What a key holds.
type kind int

const (
	missing kind = iota
	isFilter
	other
)

// load returns the filter at a key, the caller's until it returns. Who changes it
// must store it.
func (c *call) load(key string) (*filter, kind) {
	got := c.do("GETRANGE", key, "0", strconv.Itoa(len(magic)+stampBytes-1))
	_, value, _ := bytes.Cut(got, []byte("\r\n"))
	if len(value) < len(magic)+stampBytes || !bytes.HasPrefix(value, []byte(magic)) {
		if bytes.HasPrefix(c.do("EXISTS", key), []byte(":0")) {
			return nil, missing
		}
		return nil, other
	}
	stamp := string(value[len(magic) : len(magic)+stampBytes])
	if f := c.parsed[stamp]; f != nil {
		return f, isFilter
	}
	_, value, _ = bytes.Cut(c.do("GET", key), []byte("\r\n"))
	f, data, ok := parseHeader(value[len(magic)+stampBytes:])
	if !ok {
		return nil, other // somebody's own string
	}
	f.stamp, f.data = stamp, bytes.Clone(bytes.TrimSuffix(data, []byte("\r\n")))
	c.keep(f)
	return f, isFilter
}

func (d *module) keep(f *filter) {
	if len(d.parsed) >= maxParsed {
		clear(d.parsed)
	}
	d.parsed[f.stamp] = f
}

// holds tells whether a key holds a filter, without copying it.
func (c *call) holds(key string) bool {
	got := c.do("GETRANGE", key, "0", strconv.Itoa(len(magic)-1))
	_, value, _ := bytes.Cut(got, []byte("\r\n"))
	return bytes.HasPrefix(value, []byte(magic))
}

// store writes a filter, and so touches the key even if nothing changed, as the
// module does for every add (WATCH notices).
func (c *call) store(key string, f *filter) {
	delete(c.parsed, f.stamp) // another key may still have that value
	c.stores++
	f.stamp = string(binary.LittleEndian.AppendUint64([]byte(c.tokens), c.stores))
	c.keep(f)
	head := f.appendHeader([]byte(magic + f.stamp))
	var b strings.Builder
	b.Grow(len(head) + len(f.data))
	b.Write(head)
	b.Write(f.data)
	c.do("SET", key, b.String(), "KEEPTTL")
	c.remember(key)
}

// remember notes that a key may hold a filter. The hook lets commands pass at once
// that touch no such key.
func (d *module) remember(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names[key] = true
}

// anyFilter tells whether any of the keys may hold a filter.
func (d *module) anyFilter(keys []string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range keys {
		if d.names[key] {
			return true
		}
	}
	return false
}

// findNames remembers filters that are there already, after Miniredis.Restart.
func (d *module) findNames() {
	for i := range databases {
		db := d.m.DB(i)
		for _, key := range db.Keys() {
			if value, err := db.Get(key); err == nil && strings.HasPrefix(value, magic) {
				d.remember(key)
			}
		}
	}
}
