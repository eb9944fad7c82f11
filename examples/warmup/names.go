package main

import (
	"regexp"
	"strings"
)

// plainName is what a table or column may be called. Names come from a command
// line, perhaps from a pipeline's variables, and end up in SQL, which has no
// parameters for them: they are quoted as well (see quoted), and this keeps
// whatever could end a quote from getting there.
var plainName = regexp.MustCompile(`^[\p{L}_][\p{L}\p{N}_$]*$`)

const maxName = 64 // bytes: MySQL's limit; PostgreSQL cuts at 63 and SQLite never

func checkNames(table, column string) error {
	parts := strings.Split(table, ".")
	if len(parts) > 2 {
		return usage("-table %q: want a table, or schema.table", table)
	}
	for _, part := range parts {
		if table != "" && !isPlainName(part) {
			return usage("-table %q: want letters, digits, _ and $ (at most %d bytes), or schema.table", table, maxName)
		}
	}
	if !isPlainName(column) {
		return usage("-column %q: want letters, digits, _ and $, at most %d bytes", column, maxName)
	}
	return nil
}

func isPlainName(name string) bool { return len(name) <= maxName && plainName.MatchString(name) }

// quoted makes a checked name an identifier, also where it is a word of SQL.
func (d dialect) quoted(name string) string {
	parts := strings.Split(name, ".")
	for i, part := range parts {
		parts[i] = d.quote + strings.ReplaceAll(part, d.quote, d.quote+d.quote) + d.quote
	}
	return strings.Join(parts, ".")
}
