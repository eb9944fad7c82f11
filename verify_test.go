package bloom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Verify finds each item that the filter denies, and no other.

func TestVerifyFindsMissing(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		items, missing := rebuildItems("row ", 400), rebuildItems("missing ", 30)
		f := b.built(t, 2000, items)
		got, err := f.ExistsMulti(t.Context(), missing)
		require.NoError(t, err)
		missing = slices.DeleteFunc(missing, func(item string) bool { return got[slices.Index(missing, item)] })
		require.Greater(t, len(missing), 20, "false positives are rare")
		mixed := slices.Concat(items[:200], missing, items[200:])

		for _, c := range []struct {
			opts     *VerifyOptions
			examples int
		}{
			{nil, 10}, {&VerifyOptions{}, 10}, {&VerifyOptions{Examples: 3}, 3}, {&VerifyOptions{Examples: 1000}, len(missing)},
			{&VerifyOptions{Examples: -1}, 0},
		} {
			report, err := b.open(t, Config{}).Verify(t.Context(), rebuildSource(mixed), c.opts)
			require.NoError(t, err, "it is no error, it is the answer")
			require.EqualValues(t, len(mixed), report.Checked)
			require.EqualValues(t, len(missing), report.Missing)
			require.Len(t, report.Examples, c.examples)
			require.Equal(t, slices.Concat(missing[:0], missing[:c.examples]), slices.Concat(missing[:0], report.Examples))
			require.Positive(t, report.Elapsed)
		}
		report, err := f.Verify(t.Context(), rebuildSource(items), nil)
		require.NoError(t, err)
		require.EqualValues(t, len(items), report.Checked)
		require.Zero(t, report.Missing)
		require.Empty(t, report.Examples)
		report, err = f.Verify(t.Context(), rebuildEmpty, nil)
		require.NoError(t, err)
		require.Zero(t, report.Checked)
	})
}

// A filter without most of what it should hold, more than fits into one batch of
// questions.
func TestVerifyFindsManyMissing(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		f := b.open(t, b.config(2000))
		require.NoError(t, f.CreateEmpty(t.Context()))
		_, err := f.Add(t.Context(), "row 7")
		require.NoError(t, err)
		report, err := f.Verify(t.Context(), rebuildSource(rebuildItems("row ", 2*suspects+500)), nil)
		require.NoError(t, err)
		require.EqualValues(t, 2*suspects+500, report.Checked)
		require.EqualValues(t, 2*suspects+499, report.Missing)
	})
}

// What is added while Verify runs is no miss: it asks the server again.
func TestVerifySeesAdds(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		items := rebuildItems("row ", 200)
		f, other := b.built(t, 1000, items), b.open(t, Config{})
		report, err := f.Verify(t.Context(), func(yield func(string, error) bool) {
			for i, item := range items {
				fresh := fmt.Sprint("new ", i)
				if i%20 == 0 {
					_, err := other.Add(t.Context(), fresh)
					require.NoError(t, err)
					if !yield(fresh, nil) {
						return
					}
				}
				if !yield(item, nil) {
					return
				}
			}
		}, nil)
		require.NoError(t, err)
		require.EqualValues(t, 210, report.Checked)
		require.Zero(t, report.Missing)
	})
}

// Where the filter was made anew meanwhile, what was found so far says nothing:
// Verify starts again, with source as well, and in the end gives up.
func TestVerifyStartsAgain(t *testing.T) {
	change := map[string]func(*testing.T, rebuildBed, []string){
		"rebuilt": func(t *testing.T, b rebuildBed, items []string) { b.built(t, 1000, items) },
		"resized": func(t *testing.T, b rebuildBed, items []string) {
			_, err := b.open(t, b.config(1000)).Rebuild(t.Context(), rebuildSource(items), &RebuildOptions{Settle: -1, Capacity: 1500})
			require.NoError(t, err)
		},
		"reset": func(t *testing.T, b rebuildBed, items []string) {
			f := b.open(t, Config{})
			require.NoError(t, f.Reset(t.Context()))
			_, err := f.AddMulti(t.Context(), items)
			require.NoError(t, err)
		},
	}
	for name, change := range change {
		t.Run(name, func(t *testing.T) {
			rebuildBeds(t, func(t *testing.T, b rebuildBed) {
				items, old := rebuildItems("row ", 200), rebuildItems("old ", 50)
				f := b.built(t, 1000, slices.Concat(items, old))
				passes := 0
				changing := func(times int) iter.Seq2[string, error] {
					passes = 0
					return func(yield func(string, error) bool) {
						passes++
						rebuildMidway(slices.Concat(old, items), func() {
							if passes <= times {
								change(t, b, items)
							}
						})(yield)
					}
				}
				report, err := f.Verify(t.Context(), changing(1), nil)
				require.NoError(t, err)
				require.Equal(t, 2, passes)
				require.EqualValues(t, 250, report.Checked, "of the last pass alone")
				require.Greater(t, report.Missing, uint64(40), "the old ones are not in the new generation")

				if b.module && name == "reset" {
					return // which it does not count
				}
				_, err = f.Verify(t.Context(), changing(100), nil)
				require.ErrorContains(t, err, "made anew")
				require.Equal(t, 1+maxRestarts, passes)
			})
		})
	}
}

// Without a whole filter there is no answer.
func TestVerifyNeedsFilter(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		items := rebuildItems("row ", 200)
		f := b.open(t, b.config(1000))
		_, err := f.Verify(t.Context(), nil, nil)
		require.ErrorIs(t, err, ErrInvalidParams)
		_, err = f.Verify(t.Context(), rebuildSource(items), nil)
		require.ErrorIs(t, err, ErrNotReady)
		require.ErrorContains(t, err, "verify")

		b.built(t, 1000, items)
		_, err = f.Verify(t.Context(), rebuildMidway(items, func() { require.NoError(t, f.Drop(t.Context())) }), nil)
		require.ErrorIs(t, err, ErrNotReady)
		_, err = f.Verify(t.Context(), rebuildUnread(t), nil)
		require.ErrorIs(t, err, ErrNotReady, "source is not read for nothing")

		b.built(t, 1000, items)
		report, err := f.Verify(t.Context(), rebuildFailing(items[:70], errRebuildBroken), nil)
		require.ErrorIs(t, err, errRebuildBroken)
		require.ErrorContains(t, err, "after 70 items")
		require.EqualValues(t, 70, report.Checked)
	})
}

// A damaged filter is no filter, wherever the damage is.
func TestVerifyFindsDamage(t *testing.T) {
	rebuildBitmaps(t, func(t *testing.T, b rebuildBed) {
		items := rebuildItems("row ", 200)
		f := b.built(t, 1000, items)
		whole := b.content(t)
		put := func(value string) {
			require.NoError(t, b.rdb.Set(t.Context(), b.key, value, 0).Err())
		}
		for _, value := range []string{whole[:len(whole)-1], whole[:headerBytes], whole + "x", "x" + whole[1:],
			strings.Repeat("\x00", len(whole)), whole[:len(whole)-8] + "12345678"} {
			put(value)
			_, err := f.Verify(t.Context(), rebuildUnread(t), nil)
			require.ErrorIs(t, err, ErrCorrupt)
		}
		if b.layout == Blocked { // each block has its proof
			put(whole[:headerBytes+5*blockBytes+62] + "\x00\x00" + whole[headerBytes+5*blockBytes+64:])
			_, err := f.Verify(t.Context(), rebuildUnread(t), nil)
			require.ErrorIs(t, err, ErrCorrupt)
		}
		put(whole)
		_, err := f.Verify(t.Context(), rebuildMidway(items, func() { put(whole[:len(whole)-100]) }), nil)
		require.ErrorIs(t, err, ErrCorrupt, "it lost its end meanwhile")

		// Bits that are lost are what Verify is for.
		put(whole)
		require.NoError(t, b.rdb.SetRange(t.Context(), b.key, headerBytes, "\x00\x00\x00\x00\x00\x00\x00\x00").Err())
		report, err := f.Verify(t.Context(), rebuildSource(items), nil)
		require.NoError(t, err)
		require.Positive(t, report.Missing)
	})
}

// The context ends it, at every step and with the same error.
func TestVerifyEndsWithContext(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		items := rebuildItems("row ", 200)
		f := b.built(t, 1000, items)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := f.Verify(ended, rebuildUnread(t), nil)
		require.ErrorIs(t, err, context.Canceled)
		ctx, cancelCause := context.WithCancelCause(t.Context())
		n := 0
		_, err = f.Verify(ctx, func(yield func(string, error) bool) {
			for yield("row 1", nil) {
				if n++; n == 10 {
					cancelCause(errors.New("enough"))
				}
			}
		}, nil)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 10, n)
	})
}

// Progress is told a few times a second at most.
func TestVerifyTellsProgress(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		if b.layout == Blocked {
			return // it takes its time
		}
		f := b.built(t, 5000, rebuildItems("row ", 1024))
		var told []Progress
		_, err := f.Verify(t.Context(), func(yield func(string, error) bool) {
			for i := range 8 {
				for _, item := range rebuildItems("row ", 1024) {
					if !yield(item, nil) {
						return
					}
				}
				if i%2 == 0 {
					time.Sleep(130 * time.Millisecond)
				}
			}
		}, &VerifyOptions{Progress: func(p Progress) { told = append(told, p) }})
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(told), 2)
		for i, p := range told {
			require.Contains(t, []string{"download", "read"}, p.Phase)
			if i > 0 {
				require.GreaterOrEqual(t, p.Elapsed-told[i-1].Elapsed, progressEvery-50*time.Millisecond)
				require.GreaterOrEqual(t, p.Items, told[i-1].Items)
			}
		}
	})
}
