package bloomtest

import (
	"fmt"
	"strings"
)

// BF.EXISTS key item
func (c *call) exists(args []string) {
	f, _ := c.load(args[0])
	c.boolean(f != nil && f.has(hashItem(args[1])))
}

// BF.MEXISTS key item …
func (c *call) mexists(args []string) {
	// A missing key and one of another type say 0, as an item that isn't there does.
	f, _ := c.load(args[0])
	c.array(len(args) - 1)
	for _, item := range args[1:] {
		c.boolean(f != nil && f.has(hashItem(item)))
	}
}

// BF.CARD key
func (c *call) card(args []string) {
	switch f, kind := c.load(args[0]); kind {
	case missing:
		c.integer(0)
	case other:
		c.err(errWrongType)
	default:
		c.integer(f.items)
	}
}

var infoFields = []struct {
	word, name string
	value      func(*filter) uint64
}{
	{"CAPACITY", "Capacity", (*filter).capacity},
	{"SIZE", "Size", (*filter).memory},
	{"FILTERS", "Number of filters", func(f *filter) uint64 { return uint64(len(f.links)) }},
	{"ITEMS", "Number of items inserted", func(f *filter) uint64 { return f.items }},
	{"EXPANSION", "Expansion rate", func(f *filter) uint64 { return uint64(f.expansion) }},
}

// BF.INFO key [field]
func (c *call) info(args []string) {
	f := c.open(args[0])
	if f == nil {
		return
	}
	value := func(i int) {
		if infoFields[i].word == "EXPANSION" && f.nonScaling() {
			c.null()
			return
		}
		c.integer(infoFields[i].value(f))
	}
	if len(args) == 1 {
		c.mapping(len(infoFields))
		for i := range infoFields {
			c.field(infoFields[i].name)
			value(i)
		}
		return
	}
	for i := range infoFields {
		if strings.EqualFold(args[1], infoFields[i].word) {
			if c.resp3 {
				c.mapping(1)
				c.field(infoFields[i].name)
			} else {
				c.array(1)
			}
			value(i)
			return
		}
	}
	c.err("Invalid information value")
}

// BF.DEBUG key
func (c *call) debug(args []string) {
	f := c.open(args[0])
	if f == nil {
		return
	}
	c.array(1 + len(f.links))
	c.bulkString(fmt.Sprintf("size:%d", f.items))
	for i := range f.links {
		l := &f.links[i]
		c.bulkString(fmt.Sprintf("bytes:%d bits:%d hashes:%d hashwidth:64 capacity:%d size:%d ratio:%.6g",
			l.bytes, l.bits, l.hashes, l.capacity, l.items, l.rate))
	}
}

// BF.SCANDUMP key iterator
func (c *call) scanDump(args []string) {
	f := c.open(args[0])
	if f == nil {
		return
	}
	iter, ok := parseInt(args[1])
	if !ok {
		c.err("Second argument must be numeric")
		return
	}
	next, part := uint64(1), f.appendHeader(nil)
	if iter != 0 {
		next, part = f.chunk(iter)
	}
	c.array(2)
	c.integer(next)
	c.bulk(part)
}

// BF.LOADCHUNK key iterator data
func (c *call) loadChunk(args []string) {
	key, part := args[0], args[2]
	iter, ok := parseInt(args[1])
	if !ok {
		c.err("ERR Second argument must be numeric")
		return
	}
	f, kind := c.load(key)
	switch {
	case kind == other:
		c.err(errWrongType)
		return
	case kind == missing && iter != 1:
		c.err(errNotFound)
		return
	case kind == missing:
		var rest []byte
		if f, rest, ok = parseHeader([]byte(part)); !ok || len(rest) > 0 {
			c.err(errBadData)
			return
		}
	default:
		if problem := f.load(iter, part); problem != "" {
			c.err(problem)
			return
		}
	}
	c.store(key, f)
	c.ok()
}
