package bloomtest

import (
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
)

// TestTranscript sends every recorded command and compares the replies' bytes, in
// both protocols and as both versions of the module.
func TestTranscript(t *testing.T) {
	all := recording(t)
	used := map[*skip]bool{}
	var compared, skipped int
	for _, v := range []struct {
		name    string
		install func(*miniredis.Miniredis)
		resp    int
	}{
		{"A2", RedisBloomV2, 2},
		{"A3", RedisBloomV2, 3},
		{"B2", RedisBloom, 2},
		{"B3", RedisBloom, 3},
	} {
		ok := t.Run(v.name, func(t *testing.T) {
			m := miniredis.RunT(t)
			v.install(m)
			p := player{wire: dial(t, m, v.resp), given: map[string]string{}}
			for _, command := range preparations {
				p.do(strings.Fields(command)...)
			}
			for _, r := range all {
				want, ok := r.replies[v.name]
				if !ok || r.resp2 && v.resp == 3 {
					continue
				}
				s := findSkip(r, v.name)
				if s == nil {
					got := p.play(r)
					require.True(t, match(want, got, v.resp), "line %d: %s\nwant %s\ngot  %q", r.line, r.command, want, got)
					compared++
					continue
				}
				got := p.playSkipped(r, s)
				require.False(t, match(want, got, v.resp), "line %d: %s passes, though skipped: %s", r.line, r.command, s.reason)
				used[s] = true
				skipped++
			}
		})
		require.True(t, ok)
	}
	for i := range skips {
		require.True(t, used[&skips[i]], "%+v skips nothing", skips[i])
	}
	t.Logf("%d replies compared, %d skipped", compared, skipped)
	require.Equal(t, 1182, compared)
}

// player sends recorded commands.
type player struct {
	*wire
	given map[string]string // strings of earlier replies, by command
}

func (p *player) play(r recorded) string {
	got := p.do(r.args(p.earlier)...)
	if strings.HasPrefix(r.command, "BF.SCANDUMP d ") || r.command == "DUMP d" {
		if strings.Contains(got, "$") {
			p.given[r.command] = bulk(p.t, got)
		}
	}
	return got
}

func (p *player) playSkipped(r recorded, s *skip) string {
	if s.as != "" {
		return p.do(strings.Fields(s.as)...)
	}
	got := p.play(r)
	if s.then != "" {
		p.do(strings.Fields(s.then)...)
	}
	return got
}

// earlier is what <…> in a command stands for.
func (p *player) earlier(what string) string {
	switch {
	case strings.Contains(what, "header"):
		return p.given["BF.SCANDUMP d 0"]
	case strings.Contains(what, "data"):
		return p.given["BF.SCANDUMP d 1"]
	}
	return p.given["DUMP d"]
}
