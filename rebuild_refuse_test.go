package bloom

import (
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// After any error the live filter is as it was, and what was being built is gone.

var errRebuildBroken = errors.New("the table is gone")

// rebuildFailing is a source that yields some items and then an error.
func rebuildFailing(items []string, err error) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
		yield("", err)
	}
}

// rebuildForgetful is a build that loses each item that lose names.
type rebuildForgetful struct {
	build
	lose func(string) bool
}

func (f rebuildForgetful) add(ctx context.Context, item string) error {
	if f.lose(item) {
		return nil
	}
	return f.build.add(ctx, item)
}

// rebuildMergeless is a build that merges nothing, and says so to nobody.
type rebuildMergeless struct{ build }

func (rebuildMergeless) merge(context.Context, func(done, total uint64)) error { return nil }

func TestRebuildRefuses(t *testing.T) {
	items := rebuildItems("row ", 200)
	for name, c := range map[string]struct {
		source iter.Seq2[string, error]
		opts   RebuildOptions
		seam   func(build) build
		target error
		reason string
	}{
		"source error": {source: rebuildFailing(items[:50], errRebuildBroken), target: errRebuildBroken, reason: "after 50 items"},
		"source error at once": {source: rebuildFailing(nil, errRebuildBroken), target: errRebuildBroken,
			reason: "after 0 items"},
		"empty source":              {source: rebuildEmpty, target: ErrRebuildRefused, reason: "empty"},
		"empty source, no MinItems": {source: rebuildEmpty, opts: RebuildOptions{MinItems: 1}, target: ErrRebuildRefused, reason: "empty"},
		"half the rows missing": {source: rebuildSource(items[:80]), target: ErrRebuildRefused,
			reason: "that the source yielded, want at least"},
		"the same rows over and over": {source: rebuildFailing(append(append(items[:60:60], items[:60]...), items[:60]...), nil),
			target: ErrRebuildRefused, reason: "that the source yielded, want at least"},
		"MinItems": {source: rebuildSource(items), opts: RebuildOptions{MinItems: 201}, target: ErrRebuildRefused,
			reason: "want at least 201"},
		"an item is lost": {source: rebuildSource(items), target: ErrRebuildRefused, reason: `item "row 7" of the source is not`,
			seam: func(b build) build { return rebuildForgetful{b, func(item string) bool { return item == "row 7" }} }},
	} {
		t.Run(name, func(t *testing.T) {
			rebuildBeds(t, func(t *testing.T, b rebuildBed) {
				b.built(t, 500, items)
				before := b.content(t)
				seam := c.seam
				if seam == nil {
					seam = func(b build) build { return b }
				}
				f, err := New(rebuildSeam{b.backend(), seam}, b.config(500))
				require.NoError(t, err)
				c.opts.Settle = -1
				report, err := f.Rebuild(t.Context(), c.source, &c.opts)
				require.ErrorIs(t, err, c.target)
				require.ErrorContains(t, err, c.reason)
				require.ErrorContains(t, err, "rebuild")
				require.Zero(t, report.Generation)
				require.False(t, report.Skipped)
				b.requireUntouched(t, before)

				_, err = f.Add(t.Context(), "afterwards")
				require.NoError(t, err)
				b.built(t, 500, items)
			})
		})
	}
}

// A merge that loses what it was given is found out.
func TestRebuildRefusesBrokenMerge(t *testing.T) {
	rebuildBitmaps(t, func(t *testing.T, b rebuildBed) {
		items := rebuildItems("row ", 200)
		b.built(t, 500, items)
		before := b.content(t)
		f, err := New(rebuildSeam{b.backend(), func(b build) build { return rebuildMergeless{b} }}, b.config(500))
		require.NoError(t, err)
		_, err = f.Rebuild(t.Context(), rebuildSource(items), &RebuildOptions{Settle: -1, VerifySample: 3})
		require.ErrorIs(t, err, ErrRebuildRefused)
		if b.layout == Classic {
			require.ErrorContains(t, err, "is not in what was built")
		} else {
			require.ErrorContains(t, err, "what was built so far is gone") // tags come with the merge
		}
		b.requireUntouched(t, before)
	})
}

// A context that ends ends the rebuild, at every step.
func TestRebuildEndsWithContext(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		items := rebuildItems("row ", 200)
		b.built(t, 500, items)
		before := b.content(t)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := b.open(t, b.config(500)).Rebuild(ended, rebuildUnread(t), rebuildQuick())
		require.ErrorIs(t, err, context.Canceled)
		b.requireUntouched(t, before)

		for _, step := range []string{"add", "merge", "check"} {
			ctx, cancel := context.WithCancelCause(t.Context())
			f := b.stepwise(t, b.config(500), func(at string) error {
				if at == step {
					cancel(errors.New("nobody waits any more"))
				}
				return nil
			})
			_, err := f.Rebuild(ctx, rebuildSource(items), rebuildQuick())
			require.ErrorIs(t, err, context.Canceled, step)
			require.NotErrorIs(t, err, ErrRebuildRefused, step)
			b.requireUntouched(t, before)
		}

		// From publishing on it is too late: the outcome must be known.
		ctx, cancel := context.WithCancel(t.Context())
		f := b.stepwise(t, b.config(500), func(at string) error {
			if at == "publish" {
				cancel()
			}
			return nil
		})
		report, err := f.Rebuild(ctx, rebuildSource(items), rebuildQuick())
		require.NoError(t, err)
		require.EqualValues(t, 2, report.Generation)
		rebuildRequireAll(t, f, items)
	})
}

// A source that ignores what it is told, and yields on.
func TestRebuildStopsSource(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n, stopped := 0, false
		_, err := b.open(t, b.config(500)).Rebuild(ctx, func(yield func(string, error) bool) {
			defer func() { stopped = true }()
			for yield("row", nil) {
				if n++; n == 10 {
					cancel()
				}
			}
		}, rebuildQuick())
		require.ErrorIs(t, err, context.Canceled)
		require.True(t, stopped)
		require.Equal(t, 10, n)
		b.requireClean(t)
	})
}

// A panic of the caller's own code goes through, and nothing is left of the build.
func TestRebuildPanics(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		items := rebuildItems("row ", 100)
		b.built(t, 500, items)
		before := b.content(t)
		f := b.open(t, b.config(500))
		require.PanicsWithValue(t, "source", func() {
			_, _ = f.Rebuild(t.Context(), rebuildMidway(items, func() { panic("source") }), rebuildQuick())
		})
		b.requireUntouched(t, before)
		for _, phase := range []string{"settle", "read", "merge", "check", "publish"} {
			require.PanicsWithValue(t, phase, func() {
				_, _ = f.Rebuild(t.Context(), rebuildSource(items), &RebuildOptions{Settle: 1, Progress: func(p Progress) {
					if p.Phase == phase {
						panic(phase)
					}
				}})
			})
			b.requireUntouched(t, before)
		}
		b.built(t, 500, items)
	})
}

// While a rebuild runs, what would make or empty a filter waits; Drop ends it, and
// what was added is not brought back by it.
func TestRebuildMeetsOthers(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		items := rebuildItems("row ", 100)
		f := b.built(t, 500, items)
		other := b.open(t, b.config(500))
		_, err := f.Rebuild(t.Context(), rebuildMidway(items, func() {
			require.ErrorIs(t, other.Reset(t.Context()), ErrRebuilding)
			require.NoError(t, other.CreateEmpty(t.Context()), "it attaches")
			require.ErrorIs(t, b.open(t, b.config(501)).CreateEmpty(t.Context()), ErrParamsMismatch)
		}), rebuildQuick())
		require.NoError(t, err)
		rebuildRequireAll(t, f, items)

		for _, step := range []string{"add", "merge", "check", "publish"} {
			b.built(t, 500, items)
			dropping := b.stepwise(t, b.config(500), func(at string) error {
				if at == step {
					require.NoError(t, other.Drop(t.Context()))
				}
				return nil
			})
			_, err = dropping.Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
			require.ErrorIs(t, err, ErrRebuildRefused, step)
			require.ErrorIs(t, f.Ready(t.Context()), ErrNotReady)
			b.requireUntouched(t, "")
		}
	})
}

// Where live is lost meanwhile, what comes is a first generation, and nobody can
// put an empty filter in its place.
func TestRebuildSurvivesEviction(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		if b.rdb == nil {
			t.Skip("nothing evicts it")
		}
		items := rebuildItems("row ", 100)
		f := b.built(t, 500, items)
		b.built(t, 500, items)
		other := b.open(t, b.config(500))
		report, err := f.Rebuild(t.Context(), rebuildMidway(items, func() {
			_, err := other.Add(t.Context(), "before")
			require.NoError(t, err)
			b.evict(t)
			require.ErrorIs(t, other.CreateEmpty(t.Context()), ErrRebuilding)
			_, err = other.Add(t.Context(), "after")
			require.ErrorIs(t, err, ErrNotReady)
			exists, err := f.Exists(t.Context(), "row 1")
			require.ErrorIs(t, err, ErrNotReady)
			require.True(t, exists)
		}), rebuildQuick())
		require.NoError(t, err)
		if !b.module { // its state is beside it
			require.EqualValues(t, 1, report.Generation)
		}
		rebuildRequireAll(t, other, append(items, "before", "after"))
		b.requireClean(t)
	})
}

// rebuildStops yields until it is told to stop, or for a long time.
func rebuildStops(yield func(string, error) bool) bool {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if !yield("row", nil) {
			return true
		}
	}
	return false
}

// A lease that is lost ends the rebuild, source included.
func TestRebuildLosesLease(t *testing.T) {
	t.Parallel()
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		items := rebuildItems("row ", 100)
		f := b.built(t, 500, items)
		stopped := false
		_, err := f.Rebuild(t.Context(), func(yield func(string, error) bool) {
			require.NoError(t, b.open(t, Config{}).Drop(t.Context()))
			stopped = rebuildStops(yield)
		}, &RebuildOptions{Settle: -1, Lease: 2 * minLease})
		require.True(t, stopped)
		require.ErrorIs(t, err, ErrRebuildRefused)
		require.ErrorContains(t, err, "gone, or another builder")
		b.requireUntouched(t, "")
	})
}
