package bloomtest

import (
	"bufio"
	"bytes"
	"slices"
	"strings"

	"github.com/alicebob/miniredis/v2/server"
)

// scanType answers a SCAN that asks for strings, or for filters: miniredis takes
// both for strings.
func (d *module) scanType(p *server.Peer, args []string) bool {
	at := slices.IndexFunc(args, func(a string) bool { return strings.EqualFold(a, "TYPE") })
	if at < 1 || at == len(args)-1 {
		return false
	}
	filters := strings.EqualFold(args[at+1], typeName)
	if !filters && !strings.EqualFold(args[at+1], "string") {
		return false
	}
	args = slices.Clone(args)
	args[at+1] = "string"
	d.run(p, func(c *call) {
		got := c.do(append([]string{"SCAN"}, args...)...)
		parsed, err := server.ParseReply(bufio.NewReader(bytes.NewReader(got)))
		page, ok := parsed.([]any)
		if err != nil || !ok || len(page) != 2 {
			c.raw(got)
			return
		}
		var keys []string
		all, _ := page[1].([]any)
		for _, key := range all {
			if key, ok := key.(string); ok && c.holds(key) == filters {
				keys = append(keys, key)
			}
		}
		cursor, _ := page[0].(string)
		c.array(2)
		c.bulkString(cursor)
		c.array(len(keys))
		for _, key := range keys {
			c.bulkString(key)
		}
	})
	return true
}
