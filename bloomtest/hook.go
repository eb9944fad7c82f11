package bloomtest

import (
	"slices"
	"strings"

	"github.com/alicebob/miniredis/v2/server"
)

// hook sees every command before miniredis does, those of scripts included, and
// answers the ones that must know filters from strings.
func (d *module) hook(p *server.Peer, cmd string, args ...string) bool {
	if p == d.inner.peer {
		return false
	}
	switch cmd {
	case "EXEC":
		return len(args) == 0 && d.exec(p)
	case "DISCARD":
		d.forget(d.dequeue(p)...)
		return false
	case "EVAL", "EVAL_RO", "EVALSHA", "EVALSHA_RO", "SCRIPT":
		return d.wrapScript(p, cmd, args)
	case "CONFIG":
		return d.config(p, args)
	case "SCAN":
		return d.scanType(p, args)
	case "RENAME", "RENAMENX":
		if len(args) == 2 && d.anyFilter(args[:1]) {
			d.remember(args[1])
		}
		return false
	case "RESTORE":
		if len(args) > 2 && strings.HasPrefix(args[2], magic) {
			d.remember(args[0])
		}
		return false
	}
	g, ok := guards[cmd]
	if !ok || len(args) == 0 {
		return false
	}
	keys := g.keys(args)
	if !d.anyFilter(keys) {
		return false
	}
	d.run(p, func(c *call) { g.exec(c, cmd, args, keys) })
	return true
}

// guard is a command of miniredis that goes wrong on a key that holds a filter.
type guard struct {
	keys func(args []string) []string
	exec func(c *call, cmd string, args, keys []string)
}

func firstKey(args []string) []string { return args[:1] }
func allKeys(args []string) []string  { return args }

// subKey is the key behind a subcommand.
func subKey(args []string) []string { return args[1:min(2, len(args))] }

// sources leaves out the operation of BITOP and the key that it overwrites.
func sources(args []string) []string { return args[min(2, len(args)):] }

// setGet is SET's key if SET has to return what the key held.
func setGet(args []string) []string {
	if slices.ContainsFunc(args[min(2, len(args)):], func(a string) bool { return strings.EqualFold(a, "GET") }) {
		return args[:1]
	}
	return nil
}

var guards = func() map[string]guard {
	m := map[string]guard{
		"TYPE":   {firstKey, typeOf},
		"MGET":   {allKeys, mget},
		"COPY":   {firstKey, refuseCopy},
		"OBJECT": {subKey, object},
		"MEMORY": {subKey, memory},
		"SET":    {setGet, wrongType},
		"BITOP":  {sources, wrongType},
	}
	for _, cmd := range strings.Fields(`GET GETRANGE GETSET GETDEL GETEX GETBIT STRLEN APPEND SETRANGE SETBIT
		BITCOUNT BITPOS INCR INCRBY INCRBYFLOAT DECR DECRBY DELEX`) {
		m[cmd] = guard{firstKey, wrongType}
	}
	// A HyperLogLog is a string on a real server.
	for _, cmd := range []string{"PFADD", "PFCOUNT", "PFMERGE"} {
		m[cmd] = guard{allKeys, wrongType}
	}
	return m
}()

func wrongType(c *call, cmd string, args, keys []string) {
	if slices.ContainsFunc(keys, c.holds) {
		c.err(errWrongType)
		return
	}
	c.pass(cmd, args...)
}

func typeOf(c *call, cmd string, args, keys []string) {
	if c.holds(keys[0]) {
		c.line("+" + typeName)
		return
	}
	c.pass(cmd, args...)
}

const typeName = "MBbloom--"

func mget(c *call, cmd string, args, _ []string) {
	c.array(len(args))
	for _, key := range args {
		if c.holds(key) {
			c.null()
			continue
		}
		one := c.inner.send(c.ctx, c.resp3, cmd, key)
		c.raw(one[len("*1\r\n"):])
	}
}

func refuseCopy(c *call, cmd string, args, keys []string) {
	if c.holds(keys[0]) {
		c.err("ERR not supported for this module key")
		return
	}
	c.pass(cmd, args...)
}

func object(c *call, cmd string, args, keys []string) {
	sub := strings.ToUpper(args[0])
	switch {
	case sub == "ENCODING" && c.holds(keys[0]):
		c.bulkString("raw")
	case sub == "REFCOUNT" && c.holds(keys[0]):
		c.integer(1)
	default:
		c.pass(cmd, args...)
	}
}

func memory(c *call, cmd string, args, keys []string) {
	if f, kind := c.load(keys[0]); kind == isFilter && strings.EqualFold(args[0], "USAGE") {
		// The server adds its dictionary's entry and the name, as the allocator rounds it.
		c.integer(f.memory() + 24 + uint64(len(keys[0])+2+7)/8*8)
		return
	}
	c.pass(cmd, args...)
}
