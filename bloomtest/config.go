package bloomtest

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/alicebob/miniredis/v2/server"
)

// setting is one of the module's names in CONFIG.
type setting struct {
	name  string
	value func(defaults) string
	// set changes the defaults; problem is "", or what the server says, without the name.
	set func(d *defaults, value string) (problem string)
}

// In the order in which a server was seen to list them.
var settings = []setting{
	{
		"bf-expansion-factor",
		func(d defaults) string { return strconv.FormatInt(d.expansion, 10) },
		func(d *defaults, s string) string { return setInt(&d.expansion, s, 0, 1<<15, "[0, 32768]") },
	},
	{
		"bf-initial-size",
		func(d defaults) string { return strconv.FormatInt(d.capacity, 10) },
		func(d *defaults, s string) string { return setInt(&d.capacity, s, 1, 1<<30, "[1, 1073741824]") },
	},
	{
		"bf-error-rate",
		func(d defaults) string { return strconv.FormatFloat(d.rate, 'g', -1, 64) },
		func(d *defaults, s string) string {
			rate, ok := parseFloat(s)
			if !ok {
				return invalidValue
			}
			if rate <= 0 || rate >= 1 {
				return outOfRange + "(0.000000, 1.000000)"
			}
			d.rate = min(rate, newest.maxRate)
			return ""
		},
	},
}

const (
	invalidValue = "Invalid value for `%`"
	outOfRange   = "Value for `%` must be in the range "
)

func setInt(to *int64, s string, low, high int64, interval string) (problem string) {
	n, ok := parseInt(s)
	if !ok {
		return invalidValue
	}
	if n < low || n > high {
		return outOfRange + interval
	}
	*to = n
	return ""
}

// config is the hook's answer to CONFIG GET and CONFIG SET of names that begin with
// bf-; miniredis has no CONFIG for the rest.
func (d *module) config(p *server.Peer, args []string) bool {
	if len(args) < 2 || !strings.HasPrefix(strings.ToLower(args[1]), "bf-") {
		return false
	}
	var w work
	switch sub := strings.ToUpper(args[0]); {
	case sub == "GET":
		w = func(c *call) { c.configGet(args[1:]) }
	case sub == "SET" && len(args)%2 == 1:
		w = func(c *call) { c.configSet(args[1:]) }
	default:
		return false
	}
	d.run(p, w)
	return true
}

func (c *call) configGet(patterns []string) {
	var found []setting
	if c.rules.settings {
		found = slices.DeleteFunc(slices.Clone(settings), func(s setting) bool {
			return !slices.ContainsFunc(patterns, func(p string) bool {
				ok, err := path.Match(strings.ToLower(p), s.name)
				return ok && err == nil
			})
		})
	}
	c.mapping(len(found))
	for _, s := range found {
		c.bulkString(s.name)
		c.bulkString(s.value(c.defaults))
	}
}

// configSet sets all names or, where it answers with an error, none.
func (c *call) configSet(pairs []string) {
	d := c.defaults
	for i := 0; i < len(pairs); i += 2 {
		at := slices.IndexFunc(settings, func(s setting) bool { return strings.EqualFold(s.name, pairs[i]) })
		if at < 0 || !c.rules.settings {
			c.err("ERR Unknown option or number of arguments for CONFIG SET - '" + pairs[i] + "'")
			return
		}
		name := settings[at].name
		if problem := settings[at].set(&d, pairs[i+1]); problem != "" {
			c.err("ERR CONFIG SET failed (possibly related to argument '" + name + "') - " +
				strings.Replace(problem, "%", name, 1))
			return
		}
	}
	c.module.defaults = d
	c.ok()
}
