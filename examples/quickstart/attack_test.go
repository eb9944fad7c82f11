package main

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func catalogOf(t *testing.T, names ...string) *catalog {
	c, err := readCatalog("test", strings.NewReader(strings.Join(names, "\n")))
	require.NoError(t, err)
	return c
}

func TestAttack(t *testing.T) {
	shipped, err := openCatalog("")
	require.NoError(t, err)
	everyLetter := strings.Split(letters, "")
	for name, items := range map[string]*catalog{
		"shipped":                shipped,
		"one item":               catalogOf(t, "only"),
		"no near miss possible":  catalogOf(t, everyLetter...),
		"names that are no text": catalogOf(t, "\xff\xfe", "日本語"),
	} {
		for _, n := range []int{1, 4, 5, 999} {
			a := newAttack(items, n, 42)
			require.Len(t, a.ids, n, name)
			require.Equal(t, n, a.random+a.nearMisses+a.real, name)

			absent := make(map[string]bool)
			for _, id := range a.ids {
				if !items.has(id) {
					require.False(t, absent[id], "%s: %q twice", name, id)
					absent[id] = true
				}
			}
			require.Len(t, absent, a.absent(), name)
		}
	}
}

func TestAttackFollowsItsSeed(t *testing.T) {
	items := catalogOf(t, "one", "two", "three", "four")
	require.Equal(t, newAttack(items, 500, 1).ids, newAttack(items, 500, 1).ids)
	require.NotEqual(t, newAttack(items, 500, 1).ids, newAttack(items, 500, 2).ids)
}

func TestNearMissDiffersInOneCharacter(t *testing.T) {
	items := catalogOf(t, "alpha", "beta-日本", "gamma.delta")
	a := newAttack(items, 1000, 3)
	near := 0
	for _, id := range a.ids {
		if !items.has(id) && slices.ContainsFunc(items.names, func(name string) bool { return oneApart(name, id) }) {
			near++
		}
	}
	require.Equal(t, a.nearMisses, near)
	require.Greater(t, near, 300)
}

func oneApart(a, b string) bool {
	x, y := []rune(a), []rune(b)
	if len(x) != len(y) || !utf8.ValidString(b) {
		return false
	}
	apart := 0
	for i := range x {
		if x[i] != y[i] {
			apart++
		}
	}
	return apart == 1
}

func TestSpreadReachesEveryRow(t *testing.T) {
	for _, rows := range []int{1, 2, 36, 997} {
		seen := make(map[uint64]bool)
		for rank := range uint64(rows) {
			seen[spread(rank, rows)] = true
		}
		require.Len(t, seen, rows)
	}
}
