package bloom_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every Go block of the README is part of an example, so it compiles and runs,
// and every example has an output that is compared.
func TestReadmeBlocksAreExamples(t *testing.T) {
	readme := readFile(t, "README.md")
	var examples string
	for _, name := range []string{"example_test.go", "example_guard_test.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, e := range doc.Examples([]*ast.File{file}...) {
			require.True(t, e.Output != "" || e.EmptyOutput, "Example%s has no // Output:, so it never runs", e.Name)
		}
		examples += flush(readFile(t, name))
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(readme, -1)
	require.NotEmpty(t, blocks)
	for _, b := range blocks {
		require.Contains(t, examples, flush(b[1]), "not in example_test.go")
	}
}

// What the README links to is there.
func TestReadmeLinks(t *testing.T) {
	for _, m := range regexp.MustCompile(`\]\(([^)#]+)\)`).FindAllStringSubmatch(readFile(t, "README.md"), -1) {
		if !strings.Contains(m[1], "://") {
			_, err := os.Stat(m[1])
			require.NoError(t, err)
		}
	}
}

// flush drops indentation and blank lines, in which a block may differ.
func flush(s string) string {
	var lines []string
	for _, line := range strings.Split(s, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}
