package bloom_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What an importer links, module by module. One more is a decision, not an
// accident.
var depsAllowed = []string{
	"github.com/bloomguard/bloom",
	"github.com/redis/go-redis/v9",
	"github.com/spaolacci/murmur3",
	"golang.org/x/sync",
	"github.com/dchest/siphash", // HashKey
	// What go-redis links.
	"github.com/cespare/xxhash/v2",
	"go.uber.org/atomic",
	"golang.org/x/sys",
}

func TestDependencies(t *testing.T) {
	goCommand, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no go command to list packages: ", err)
	}
	// Packages of the standard library have no module.
	out, err := exec.CommandContext(t.Context(), goCommand, "list", "-deps",
		"-f", "{{with .Module}}{{.Path}} {{$.ImportPath}}{{end}}", ".").Output()
	require.NoError(t, err, "go list")
	var modules []string
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		module, pkg, _ := strings.Cut(line, " ")
		modules = append(modules, module)
		require.Contains(t, depsAllowed, module, "%s reaches every importer", pkg)
		if module == "golang.org/x/sys" {
			require.Equal(t, "golang.org/x/sys/cpu", pkg)
		}
		require.NotContains(t, pkg, "/internal/redistest", "the test bed")
	}
	for _, needed := range depsAllowed[:4] {
		require.True(t, slices.Contains(modules, needed), "%s is missing: does this list what is linked?", needed)
	}
	for _, tests := range []string{"github.com/stretchr/testify", "github.com/alicebob/miniredis/v2", "go.uber.org/goleak"} {
		require.NotContains(t, modules, tests, "tests need it, importers do not")
	}
}
