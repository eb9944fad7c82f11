package bloomtest

import "strings"

// Commands whose effect the recording takes as given.
var preparations = []string{"BF.ADD repl a"}

// skip is a reply that the double cannot give. TestTranscript fails if it does, and
// if there is nothing to skip.
type skip struct {
	section, command string // the command's beginning
	only             string // version or protocol or both, as "A", "3", "B2"; "" stands for all
	reason           string
	as               string // sent in its place, so that later replies are as recorded
	then             string // sent after it, for the effect that it should have had
}

const (
	sectionACL    = "Memory limit and ACL"
	sectionRights = "ACL: key permissions and categories"
)

const (
	noCuckoo  = "cuckoo filters are another part of the module"
	noMemory  = "miniredis has no memory limit"
	noACL     = "miniredis has no ACL rules"
	noInfo    = "miniredis' COMMAND takes no arguments"
	noReplica = "miniredis has no replicas"
)

var skips = []skip{
	{"BF.RESERVE", "CF.RESERVE cuckoo 100", "", noCuckoo, "", "HSET cuckoo another type"},
	{"BF.ADD, BF.MADD, BF.EXISTS, BF.MEXISTS", "CF.EXISTS f a", "", noCuckoo, "", ""},

	{"Generic key commands on a filter", "DUMP d", "", "an RDB payload; the double's own is a value of miniredis", "", ""},

	{"Lua", `EVAL "redis.setresp(3) return redis.call('BF.EXISTS',KEYS[1],'a')" 1 m`, "3",
		"miniredis turns what a script returns into replies, and has no booleans there", "", ""},
	{"Lua", `EVAL "redis.setresp(3) return redis.call('BF.EXISTS',KEYS[1],'nope')" 1 m`, "3",
		"miniredis turns what a script returns into replies, and has no booleans there", "", ""},

	{sectionACL, "CONFIG SET maxmemory", "", noMemory, "", ""},
	{sectionACL, "BF.ADD m new", "", noMemory, "BF.ADD oom new", ""},
	{sectionACL, "BF.MADD m new", "", noMemory, "BF.MADD oom new", ""},
	{sectionACL, "BF.INSERT m ITEMS new", "", noMemory, "BF.INSERT oom ITEMS new", ""},
	{sectionACL, "BF.RESERVE oom 0.01 100", "", noMemory, "", ""},
	{sectionACL, "ACL SETUSER", "", noACL, "", ""},
	{sectionACL, "AUTH", "", noACL, "", ""},
	{sectionACL, "BF.EXISTS other a", "", noACL, "", ""},
	{sectionACL, "BF.ADD m a", "", noACL, "", ""},

	{"COMMAND INFO and configuration", "COMMAND INFO", "", noInfo, "", ""},
	{"COMMAND INFO and configuration", "COMMAND GETKEYS", "", noInfo, "", ""},

	{sectionRights, "ACL", "", noACL, "", ""},
	{sectionRights, "AUTH", "", noACL, "", ""},
	{sectionRights, "BF.EXISTS m a", "A", noACL, "", ""},
	{sectionRights, "BF.MEXISTS m a", "A", noACL, "", ""},
	{sectionRights, "BF.INFO m ITEMS", "A", noACL, "", ""},

	{"Read-only replica", "BF.ADD", "", noReplica, "", ""},
	{"Read-only replica", "BF.MADD", "", noReplica, "", ""},
	{"Read-only replica", "BF.INSERT", "", noReplica, "", ""},
	{"Read-only replica", "BF.RESERVE", "", noReplica, "", ""},
	{"Read-only replica", "BF.LOADCHUNK", "", noReplica, "", ""},
	{"Read-only replica", `EVAL "return redis.call('BF.ADD'`, "", noReplica, "", ""},
}

// findSkip returns the skip of a reply in a version and protocol, as "A2", or nil.
func findSkip(r recorded, as string) *skip {
	for i := range skips {
		s := &skips[i]
		if s.section == r.section && strings.HasPrefix(r.command, s.command) && strings.Contains(as, s.only) {
			return s
		}
	}
	return nil
}
