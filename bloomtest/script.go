package bloomtest

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/alicebob/miniredis/v2/server"
)

//go:embed script.lua
var scriptSource string

// wrapping is what stands before and behind a script.
var wrapping = func() (w struct{ head, tail string }) {
	var lines []string
	for line := range strings.Lines(scriptSource) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "--") {
			lines = append(lines, line)
		}
	}
	names := "{"
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		names += "['" + name + "'] = true, "
	}
	source := strings.NewReplacer("@NAMES@", names+"}", "@WRAPPED@", cmdWrapped).Replace(strings.Join(lines, " "))
	w.head, w.tail, _ = strings.Cut(source, "@SCRIPT@")
	w.tail = "\n" + w.tail // the script may end in a comment
	return w
}()

// What a wrapped script begins with.
const wrappedMark = "local redis = (function(redis) local names = {['BF."

// wrap returns what is run in the place of a script that names a BF command, and
// the SHA-1 of both.
func wrap(script string) (wrapped, sha, wrappedSHA string, ok bool) {
	if strings.HasPrefix(script, wrappedMark) || !strings.Contains(strings.ToUpper(script), "BF.") {
		return "", "", "", false
	}
	sha = sha1Hex(script)
	wrapped = strings.ReplaceAll(wrapping.head, "@SHA@", sha) + script + wrapping.tail
	return wrapped, sha, sha1Hex(wrapped), true
}

func sha1Hex(s string) string {
	sum := sha1.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

// wrapScript is the hook's answer to the commands that bring or name scripts. It
// sends them on with the wrapped script, or with its SHA-1: so miniredis still
// knows which scripts are loaded, and queues them in a MULTI.
func (d *module) wrapScript(p *server.Peer, cmd string, args []string) bool {
	if len(args) == 0 {
		return false
	}
	if cmd == "SCRIPT" {
		return d.scriptCommand(p, args)
	}
	if strings.HasPrefix(cmd, "EVALSHA") {
		wrapped := d.wrappedSHA(args[0])
		if wrapped == "" {
			return false
		}
		d.srv.Dispatch(p, append([]string{cmd, wrapped}, args[1:]...))
		return true
	}
	wrapped, sha, wrappedSHA, ok := wrap(args[0])
	if !ok {
		return false
	}
	d.noteScript(sha, wrappedSHA)
	d.srv.Dispatch(p, append([]string{cmd, wrapped}, args[1:]...))
	return true
}

func (d *module) scriptCommand(p *server.Peer, args []string) bool {
	switch sub := strings.ToUpper(args[0]); {
	case sub == "LOAD" && len(args) == 2:
		wrapped, sha, wrappedSHA, ok := wrap(args[1])
		if !ok {
			return false
		}
		d.noteScript(sha, wrappedSHA)
		l := newLoopback(d.srv)
		got := l.send(p.Ctx, p.Resp3, "SCRIPT", "LOAD", wrapped)
		p.Ctx = l.peer.Ctx
		p.WriteRaw(strings.Replace(string(got), wrappedSHA, sha, 1))
		return true
	case sub == "EXISTS":
		known := false
		sent := append([]string{"SCRIPT"}, args...)
		for i := range sent[2:] {
			if wrapped := d.wrappedSHA(sent[2+i]); wrapped != "" {
				sent[2+i], known = wrapped, true
			}
		}
		if known {
			d.srv.Dispatch(p, sent)
		}
		return known
	}
	return false
}

func (d *module) noteScript(sha, wrappedSHA string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.scripts[sha] = wrappedSHA
}

func (d *module) wrappedSHA(sha string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.scripts[strings.ToLower(sha)]
}

// serveWrapped notes that the script which sends it wants raw replies, in the
// protocol given.
func (d *module) serveWrapped(p *server.Peer, _ string, args []string) {
	if d.state(newLoopback(d.srv), p) != inScript || len(args) != 1 {
		p.WriteError("ERR bloomtest: not for clients")
		return
	}
	d.wrapped, d.wrappedResp3 = p.Ctx, args[0] == "3"
	p.WriteOK()
}
