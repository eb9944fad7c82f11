package bloomtest

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorded is one command of testdata/redisbloom-replies.md, which says how it is
// to be read.
type recorded struct {
	section string
	line    int
	command string
	replies map[string]string // by version and protocol, as "B3", with escapes
	resp2   bool              // recorded in RESP2 only
}

// Sections about servers that are something else than one server with the module.
var elsewhere = map[string]bool{"Module absent": true, "Between versions": true}

var label = regexp.MustCompile(`^((?:all|RESP[23]|[AB][23]?)(?: [AB][23])*) +(.*)$`)

func recording(t *testing.T) []recorded {
	t.Helper()
	text, err := os.ReadFile("testdata/redisbloom-replies.md")
	require.NoError(t, err)
	var all []recorded
	section, prose, inBlock := "", "", false
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case strings.HasPrefix(line, "## "):
			section = line[3:]
		case strings.HasPrefix(line, "```"):
			inBlock = !inBlock
		case !inBlock:
			if line != "" {
				prose = line
			}
		case elsewhere[section]:
		case strings.HasPrefix(line, "> "):
			all = append(all, recorded{
				section: section, line: i + 1, command: line[2:], replies: map[string]string{},
				resp2: strings.HasPrefix(prose, "CONFIG SET in B (RESP2)"),
			})
		default:
			m := label.FindStringSubmatch(line)
			require.NotNil(t, m, "line %d: %s", i+1, line)
			for _, l := range strings.Fields(m[1]) {
				for _, key := range expandLabel(l) {
					all[len(all)-1].replies[key] = m[2]
				}
			}
		}
	}
	require.Greater(t, len(all), 300)
	return all
}

// expandLabel turns a label into versions with protocols.
func expandLabel(l string) []string {
	switch {
	case l == "all":
		return []string{"A2", "A3", "B2", "B3"}
	case strings.HasPrefix(l, "RESP"):
		return []string{"A" + l[4:], "B" + l[4:]}
	case len(l) == 1:
		return []string{l + "2", l + "3"}
	}
	return []string{l}
}

// unescape turns \r, \n, \\, \" and \xNN into bytes.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch s[i] {
		case 'r':
			b.WriteByte('\r')
		case 'n':
			b.WriteByte('\n')
		case 'x':
			n, _ := strconv.ParseUint(s[i+1:i+3], 16, 8)
			b.WriteByte(byte(n))
			i += 2
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

var (
	word   = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|<[^>]*>|\S+`)
	series = regexp.MustCompile(`(\w+:)(\d+) \.\.\. \w+:(\d+).*$`)
)

// args splits a command as redis-cli does. <…> stands for a string that an earlier
// reply gave, a ... b for a series.
func (r recorded) args(earlier func(what string) string) []string {
	command := r.command
	var more []string
	if m := series.FindStringSubmatch(command); m != nil {
		command = strings.TrimSuffix(command, m[0])
		from, _ := strconv.Atoi(m[2])
		to, _ := strconv.Atoi(m[3])
		for i := from; i <= to; i++ {
			more = append(more, fmt.Sprint(m[1], i))
		}
	}
	var out []string
	for _, w := range word.FindAllString(command, -1) {
		switch w[0] {
		case '"':
			w = unescape(w[1 : len(w)-1])
		case '<':
			w = earlier(w)
		}
		out = append(out, w)
	}
	return append(out, more...)
}

var counts = regexp.MustCompile(`^\(array of (\d+): (\d+) added, (\d+) already seen`)

// match tells whether a reply is the recorded one.
func match(want, got string, resp int) bool {
	m := counts.FindStringSubmatch(want)
	if m == nil {
		return got == unescape(want)
	}
	yes, no := ":1\r\n", ":0\r\n"
	if resp == 3 {
		yes, no = "#t\r\n", "#f\r\n"
	}
	return strings.HasPrefix(got, "*"+m[1]+"\r\n") &&
		strconv.Itoa(strings.Count(got, yes)) == m[2] && strconv.Itoa(strings.Count(got, no)) == m[3]
}
