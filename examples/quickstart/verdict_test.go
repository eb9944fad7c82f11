package main

import (
	"errors"
	"testing"

	"github.com/bloomguard/bloom"
	"github.com/stretchr/testify/require"
)

func reportOf(guard outcome, absent int) *report {
	guard.name = "Guard"
	return &report{
		attack:   &attack{random: absent},
		filter:   &builtFilter{predicted: 0.01},
		outcomes: []outcome{{name: "no protection"}, {name: "null caching"}, guard},
	}
}

func TestVerdict(t *testing.T) {
	// 1 % of 10,000 is 100: 110 and 4 · 10 make 150.
	require.InDelta(t, 150, queryLimit(0.01, 10_000), 1e-9)
	require.InDelta(t, 4.011, queryLimit(0.0001, 100), 1e-9)

	require.NoError(t, reportOf(outcome{queriesAbsent: 150}, 10_000).verdict())

	err := reportOf(outcome{queriesAbsent: 151}, 10_000).verdict()
	require.ErrorContains(t, err, "the Guard let 151 of 10,000 absent ids through, want at most 150")

	err = reportOf(outcome{wrong: 2, firstWrong: `"x" exists, the answer was not found`}, 10_000).verdict()
	require.ErrorContains(t, err, `Guard: 2 wrong answers, want 0: first, "x" exists`)
}

func TestJudge(t *testing.T) {
	right := item{Row: 1, Name: "b"}
	down := errors.New("down")
	for name, c := range map[string]struct {
		id    string
		got   item
		err   error
		wrong bool
		fails error
	}{
		"right value":        {"b", right, nil, false, nil},
		"right not found":    {"x", item{}, bloom.ErrNotFound, false, nil},
		"false not found":    {"b", item{}, bloom.ErrNotFound, true, nil},
		"value for absent":   {"x", right, nil, true, nil},
		"wrong value":        {"a", right, nil, true, nil},
		"request failed":     {"b", item{}, down, false, down},
		"zero value, no row": {"x", item{}, nil, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			j := &judge{items: catalogOf(t, "a", "b")}
			require.Equal(t, c.fails, j.check(c.id, c.got, c.err))
			require.Equal(t, c.wrong, j.wrong.Load() == 1)
			require.Equal(t, c.wrong, j.first != "")
		})
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -123456: "-123,456", 4499322: "4,499,322"} {
		require.Equal(t, want, grouped(n))
	}
}

func TestComputedSetBytes(t *testing.T) {
	// Redis 7.0.15: MEMORY USAGE of a set of the shipped names is 1,326,240,
	// key and set object included.
	c, err := openCatalog("")
	require.NoError(t, err)
	require.InEpsilon(t, 1_326_240, float64(computedSetBytes(c.names)), 0.01)
}
