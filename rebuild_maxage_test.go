package bloom

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

// Several builders, and the age below which nobody builds.

func rebuildDaily() *RebuildOptions { return &RebuildOptions{Settle: -1, MaxAge: time.Hour} }

// rebuildUnread is a source that must not be read.
func rebuildUnread(t *testing.T) iter.Seq2[string, error] {
	return func(func(string, error) bool) { t.Error("source is read") }
}

// A young generation of the wanted size is left alone, and reported.
func TestRebuildSkips(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		f := b.open(t, b.config(500))
		items := rebuildItems("row ", 100)
		built, err := f.Rebuild(t.Context(), rebuildSource(items), rebuildDaily())
		require.NoError(t, err)
		require.False(t, built.Skipped, "there was none")
		before := b.content(t)
		for _, cfg := range []Config{b.config(500), b.config(400), {}, {Capacity: 500, FPRate: 0.02, Layout: b.layout}} {
			report, err := b.open(t, cfg).Rebuild(t.Context(), rebuildUnread(t), rebuildDaily())
			require.NoError(t, err)
			require.True(t, report.Skipped)
			require.Equal(t, built.Params, report.Params)
			require.Equal(t, built.Generation, report.Generation)
			require.Equal(t, built.Bytes, report.Bytes)
			require.Zero(t, report.Items)
			require.Positive(t, report.Elapsed)
			b.requireUntouched(t, before)
		}
	})
}

// Nothing else is a reason to skip.
func TestRebuildDoesNotSkip(t *testing.T) {
	items := rebuildItems("row ", 100)
	for name, prepare := range map[string]func(*testing.T, rebuildBed) (Config, *RebuildOptions){
		"created empty": func(t *testing.T, b rebuildBed) (Config, *RebuildOptions) {
			require.NoError(t, b.open(t, b.config(500)).CreateEmpty(t.Context()))
			return b.config(500), rebuildDaily()
		},
		"reset": func(t *testing.T, b rebuildBed) (Config, *RebuildOptions) {
			require.NoError(t, b.built(t, 500, items).Reset(t.Context()))
			return b.config(500), rebuildDaily()
		},
		"dropped": func(t *testing.T, b rebuildBed) (Config, *RebuildOptions) {
			require.NoError(t, b.built(t, 500, items).Drop(t.Context()))
			return b.config(500), rebuildDaily()
		},
		"created empty where one was dropped": func(t *testing.T, b rebuildBed) (Config, *RebuildOptions) {
			f := b.built(t, 500, items)
			require.NoError(t, f.Drop(t.Context()))
			require.NoError(t, f.CreateEmpty(t.Context()))
			return b.config(500), rebuildDaily()
		},
		"too small": func(t *testing.T, b rebuildBed) (Config, *RebuildOptions) {
			b.built(t, 500, items)
			return b.config(501), rebuildDaily()
		},
		"smaller than the options": func(t *testing.T, b rebuildBed) (Config, *RebuildOptions) {
			b.built(t, 500, items)
			return b.config(400), &RebuildOptions{Settle: -1, MaxAge: time.Hour, Capacity: 600}
		},
		"too loose": func(t *testing.T, b rebuildBed) (Config, *RebuildOptions) {
			b.built(t, 500, items)
			return Config{Capacity: 500, FPRate: 0.009, Layout: b.layout}, rebuildDaily()
		},
		"of another layout": func(t *testing.T, b rebuildBed) (Config, *RebuildOptions) {
			if b.module {
				t.Skip("it has one")
			}
			b.built(t, 500, items)
			return Config{Capacity: 500, Layout: b.otherLayout()}, rebuildDaily()
		},
		"too old": func(t *testing.T, b rebuildBed) (Config, *RebuildOptions) {
			b.built(t, 500, items)
			time.Sleep(12 * time.Millisecond)
			return b.config(500), &RebuildOptions{Settle: -1, MaxAge: 10 * time.Millisecond}
		},
		"without MaxAge": func(t *testing.T, b rebuildBed) (Config, *RebuildOptions) {
			b.built(t, 500, items)
			return b.config(500), rebuildQuick()
		},
	} {
		t.Run(name, func(t *testing.T) {
			rebuildBeds(t, func(t *testing.T, b rebuildBed) {
				cfg, opts := prepare(t, b)
				report, err := b.open(t, cfg).Rebuild(t.Context(), rebuildSource(items), opts)
				require.NoError(t, err)
				require.False(t, report.Skipped)
				require.EqualValues(t, len(items), report.Items)
				rebuildRequireAll(t, b.open(t, Config{}), items)
			})
		})
	}
}

// The age is by the server's clock, whatever this machine's says.
func TestRebuildAgeIsTheServers(t *testing.T) {
	m := redistest.Mini(t)
	then := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	m.SetTime(then)
	f, err := New(NewBitmap(redistest.MiniClient(t, m), redistest.Key(t)), Config{Capacity: 100})
	require.NoError(t, err)
	rebuild := func() RebuildReport {
		report, err := f.Rebuild(t.Context(), rebuildSource([]string{"row"}), rebuildDaily())
		require.NoError(t, err)
		return report
	}
	require.False(t, rebuild().Skipped)
	info, err := f.Info(t.Context())
	require.NoError(t, err)
	require.True(t, then.Equal(info.Created), "%v", info.Created)
	m.SetTime(then.Add(time.Hour - time.Microsecond))
	require.True(t, rebuild().Skipped)
	m.SetTime(then.Add(time.Hour))
	require.False(t, rebuild().Skipped)
	require.True(t, rebuild().Skipped)
}

// Twelve replicas boot at once: one rebuilds, also where the first one fails, and
// the others wait and skip.
func TestRebuildTwelveAtOnce(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]bool{"first succeeds": false, "first fails": true} {
		t.Run(name, func(t *testing.T) {
			rebuildBeds(t, func(t *testing.T, b rebuildBed) {
				items, broken := rebuildItems("row ", 100), errors.New("broken")
				var read, waiting, skipped, failed atomic.Int64
				source := func(yield func(string, error) bool) {
					n := read.Add(1)
					for n == 1 && waiting.Load() < 11 && t.Context().Err() == nil {
						time.Sleep(time.Millisecond)
					}
					if fail && n == 1 {
						yield("", broken)
						return
					}
					rebuildSource(items)(yield)
				}
				var wg sync.WaitGroup
				for range 12 {
					f := b.open(t, b.config(500))
					wg.Add(1)
					go func() {
						defer wg.Done()
						var wait sync.Once
						opts := rebuildDaily()
						opts.Progress = func(p Progress) {
							if p.Phase == "wait" {
								wait.Do(func() { waiting.Add(1) })
							}
						}
						report, err := f.Rebuild(t.Context(), source, opts)
						switch {
						case errors.Is(err, broken):
							failed.Add(1)
						case err != nil:
							t.Error(err)
						case report.Skipped:
							skipped.Add(1)
							if report.Generation != 1 {
								t.Errorf("generation %d", report.Generation)
							}
						}
					}()
				}
				wg.Wait()
				want := int64(1)
				if fail {
					want = 2
				}
				require.Equal(t, want, read.Load())
				require.Equal(t, want-1, failed.Load())
				require.EqualValues(t, 12-want, skipped.Load())
				rebuildRequireAll(t, b.open(t, Config{}), items)
				b.requireClean(t)
			})
		})
	}
}

// Without MaxAge the second builder returns at once; with it its wait ends with the
// context. Neither disturbs the first.
func TestRebuildMeetsAnother(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		items := rebuildItems("row ", 100)
		f := b.open(t, b.config(500))
		_, err := f.Rebuild(t.Context(), rebuildMidway(items, func() {
			_, err := b.open(t, b.config(500)).Rebuild(t.Context(), rebuildUnread(t), nil)
			require.ErrorIs(t, err, ErrRebuilding)
			require.NotErrorIs(t, err, ErrRebuildRefused)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			_, err = b.open(t, b.config(500)).Rebuild(ctx, rebuildUnread(t), rebuildDaily())
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.True(t, b.staged(t))
		}), rebuildQuick())
		require.NoError(t, err)
		rebuildRequireAll(t, f, items)
	})
}

// Who waits for a builder that has died goes on when its lease has ended.
func TestRebuildOutlivesDeadBuilder(t *testing.T) {
	b := rebuildBitmap(t, redistest.Target{Addr: redistest.Shared(t).Addr(), Real: true}, Classic)
	dead, _, err := b.backend().(rebuilder).openBuild(t.Context(), wish{config: Config{Capacity: 100, FPRate: 0.01}, lease: minLease})
	require.NoError(t, err)
	require.NoError(t, dead.add(t.Context(), "of the dead"))
	began := time.Now()
	f := b.open(t, b.config(100))
	report, err := f.Rebuild(t.Context(), rebuildSource([]string{"row"}), rebuildDaily())
	require.NoError(t, err)
	require.False(t, report.Skipped)
	require.Less(t, time.Since(began), 20*minLease)
	rebuildRequireAll(t, f, []string{"row"})
	_, err = dead.publish(t.Context())
	require.ErrorIs(t, err, ErrRebuildRefused)
}
