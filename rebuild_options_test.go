package bloom

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The options of a rebuild, and what follows from them and from the live filter.

// Capacity and rate are the options', Config's or the live filter's.
func TestRebuildSizes(t *testing.T) {
	items := rebuildItems("row ", 30)
	for name, c := range map[string]struct {
		live     Config // Capacity 0: there is none
		cfg      Config
		opts     RebuildOptions
		capacity uint64 // 0: refused
		rate     float64
	}{
		"Config alone":               {cfg: Config{Capacity: 100, FPRate: 0.02}, capacity: 100, rate: 0.02},
		"Config without a rate":      {cfg: Config{Capacity: 100}, capacity: 100, rate: 0.01},
		"options alone":              {opts: RebuildOptions{Capacity: 70, FPRate: 0.03}, capacity: 70, rate: 0.03},
		"options without a rate":     {opts: RebuildOptions{Capacity: 70}, capacity: 70, rate: 0.01},
		"nothing":                    {},
		"a rate alone":               {cfg: Config{FPRate: 0.02}, opts: RebuildOptions{FPRate: 0.03}},
		"live alone":                 {live: Config{Capacity: 90, FPRate: 0.04}, capacity: 90, rate: 0.04},
		"live is larger":             {live: Config{Capacity: 90, FPRate: 0.04}, cfg: Config{Capacity: 80, FPRate: 0.02}, capacity: 90, rate: 0.02},
		"live is smaller":            {live: Config{Capacity: 90, FPRate: 0.001}, cfg: Config{Capacity: 100}, capacity: 100, rate: 0.01},
		"Config's rate, live's size": {live: Config{Capacity: 90, FPRate: 0.04}, cfg: Config{FPRate: 0.02}, capacity: 90, rate: 0.02},
		"options win":                {live: Config{Capacity: 90, FPRate: 0.04}, cfg: Config{Capacity: 200, FPRate: 0.02}, opts: RebuildOptions{Capacity: 70, FPRate: 0.03}, capacity: 70, rate: 0.03},
		"options' rate alone":        {live: Config{Capacity: 90, FPRate: 0.04}, opts: RebuildOptions{FPRate: 0.03}, capacity: 90, rate: 0.03},
	} {
		t.Run(name, func(t *testing.T) {
			rebuildBeds(t, func(t *testing.T, b rebuildBed) {
				if c.live.Capacity != 0 {
					live := c.live
					live.Layout = b.layout
					_, err := b.open(t, live).Rebuild(t.Context(), rebuildSource(items), rebuildQuick())
					require.NoError(t, err)
				}
				cfg, opts := c.cfg, c.opts
				if cfg.Capacity != 0 {
					cfg.Layout = b.layout // otherwise it is live's
				}
				opts.Settle = -1
				before := b.content(t)
				report, err := b.open(t, cfg).Rebuild(t.Context(), rebuildSource(items), &opts)
				if c.capacity == 0 {
					require.ErrorIs(t, err, ErrInvalidParams)
					require.ErrorContains(t, err, "Capacity")
					b.requireUntouched(t, before)
					return
				}
				require.NoError(t, err)
				require.Equal(t, c.capacity, report.Params.Capacity)
				require.Equal(t, c.rate, report.Params.FPRate)
				if c.live.Capacity != 0 {
					require.Equal(t, b.layout, report.Params.Layout)
				}
				info, err := b.open(t, Config{}).Info(t.Context())
				require.NoError(t, err)
				require.Equal(t, report.Params, info.Params)
			})
		})
	}
}

// The layout is Config's, or the live filter's where Config says nothing at all.
func TestRebuildLayouts(t *testing.T) {
	for _, c := range []struct {
		live Layout
		cfg  Config
		want Layout
	}{
		{Classic, Config{}, Classic}, {Blocked, Config{}, Blocked}, {Blocked, Config{FPRate: 0.02}, Blocked},
		{Classic, Config{Layout: Blocked}, Blocked}, {Blocked, Config{Capacity: 100}, Classic},
		{Classic, Config{Capacity: 100, Layout: Blocked}, Blocked},
	} {
		rebuildBitmaps(t, func(t *testing.T, b rebuildBed) {
			if b.layout != c.live {
				return
			}
			b.built(t, 100, []string{"row"})
			report, err := b.open(t, c.cfg).Rebuild(t.Context(), rebuildSource([]string{"row"}), rebuildQuick())
			require.NoError(t, err)
			require.Equal(t, c.want, report.Params.Layout, "%+v over %v", c.cfg, c.live)
			require.EqualValues(t, 100, report.Params.Capacity)
			rebuildRequireAll(t, b.open(t, Config{}), []string{"row"})
		})
	}
}

// What cannot be meant is refused before anything is done, with the value and what
// is allowed.
func TestRebuildRefusesOptions(t *testing.T) {
	for name, c := range map[string]struct {
		opts RebuildOptions
		want []string
	}{
		"rate 1":           {RebuildOptions{FPRate: 1}, []string{"rate 1:", "below 1"}},
		"rate 5":           {RebuildOptions{FPRate: 5}, []string{"rate 5"}},
		"rate NaN":         {RebuildOptions{FPRate: math.NaN()}, []string{"NaN"}},
		"negative rate":    {RebuildOptions{FPRate: -0.01}, []string{"-0.01"}},
		"tiny rate":        {RebuildOptions{FPRate: 1e-30}, []string{"1e-30", "5.5e-20"}},
		"negative MaxAge":  {RebuildOptions{MaxAge: -1}, []string{"MaxAge -1ns"}},
		"negative sample":  {RebuildOptions{VerifySample: -1}, []string{"VerifySample -1"}},
		"short lease":      {RebuildOptions{Lease: 999 * time.Millisecond}, []string{"Lease 999ms", "1s"}},
		"lease as seconds": {RebuildOptions{Lease: 300}, []string{"Lease 300ns"}},
		"negative lease":   {RebuildOptions{Lease: -time.Minute}, []string{"Lease -1m0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			rebuildBeds(t, func(t *testing.T, b rebuildBed) {
				f := b.open(t, b.config(100))
				_, err := f.Rebuild(t.Context(), func(func(string, error) bool) { t.Error("source is read") }, &c.opts)
				require.ErrorIs(t, err, ErrInvalidParams)
				for _, word := range c.want {
					require.ErrorContains(t, err, word)
				}
				b.requireUntouched(t, "")
			})
		})
	}
	t.Run("too large", func(t *testing.T) {
		rebuildBeds(t, func(t *testing.T, b rebuildBed) {
			_, err := b.open(t, b.config(100)).Rebuild(t.Context(), rebuildEmpty, &RebuildOptions{Capacity: 1 << 40})
			require.ErrorIs(t, err, ErrTooLarge)
			b.requireUntouched(t, "")
		})
	})
	t.Run("nil source", func(t *testing.T) {
		rebuildBeds(t, func(t *testing.T, b rebuildBed) {
			_, err := b.open(t, b.config(100)).Rebuild(t.Context(), nil, nil)
			require.ErrorIs(t, err, ErrInvalidParams)
			require.ErrorContains(t, err, "source")
			b.requireUntouched(t, "")
		})
	})
	t.Run("a backend that cannot", func(t *testing.T) {
		f, err := New(struct{ Backend }{NewMemory()}, Config{Capacity: 100})
		require.NoError(t, err)
		_, err = f.Rebuild(t.Context(), rebuildEmpty, nil)
		require.ErrorContains(t, err, "cannot be rebuilt")
	})
}

// Progress is told each phase in order, and within a phase a few times a second
// at most.
func TestRebuildTellsProgress(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		if b.layout == Blocked {
			return // it takes its time
		}
		var told []Progress
		opts := &RebuildOptions{Settle: time.Millisecond, MinItems: 1, Progress: func(p Progress) { told = append(told, p) }}
		report, err := b.open(t, b.config(2000)).Rebuild(t.Context(), func(yield func(string, error) bool) {
			for i := range 6 {
				for _, item := range rebuildItems("row ", 1024) {
					if !yield(item, nil) {
						return
					}
				}
				if i%2 == 0 {
					time.Sleep(130 * time.Millisecond)
				}
			}
		}, opts)
		require.NoError(t, err)

		var phases []string
		reads := 0
		for i, p := range told {
			if i == 0 || p.Phase != told[i-1].Phase {
				phases = append(phases, p.Phase)
			} else {
				require.GreaterOrEqual(t, p.Elapsed-told[i-1].Elapsed, progressEvery-50*time.Millisecond)
			}
			if i > 0 {
				require.GreaterOrEqual(t, p.Elapsed, told[i-1].Elapsed)
				require.GreaterOrEqual(t, p.Items, told[i-1].Items)
			}
			if p.Phase == "read" {
				reads++
			}
			require.LessOrEqual(t, p.Done, p.Total)
		}
		require.Equal(t, []string{"settle", "read", "merge", "check", "publish"}, phases)
		require.GreaterOrEqual(t, reads, 2, "within the phase as well")
		last := told[len(told)-1]
		require.Equal(t, report.Items, last.Items)
		require.LessOrEqual(t, last.Elapsed, report.Elapsed)
	})
}

// MinItems counts distinct items, and the very number of them is enough, although
// it is estimated.
func TestRebuildMinItems(t *testing.T) {
	rebuildBeds(t, func(t *testing.T, b rebuildBed) {
		for _, n := range []int{1, 10, 100, 500} {
			f := b.open(t, b.config(uint64(n)))
			for round := range 4 {
				items := rebuildItems(string(rune('a'+round)), n)
				_, err := f.Rebuild(t.Context(), rebuildSource(items), &RebuildOptions{Settle: -1, MinItems: uint64(n)})
				require.NoError(t, err)
			}
			before := b.content(t)
			items := rebuildItems("row ", n)
			_, err := f.Rebuild(t.Context(), rebuildSource(items), &RebuildOptions{Settle: -1, MinItems: uint64(n + 1)})
			require.ErrorIs(t, err, ErrRebuildRefused)
			require.ErrorContains(t, err, "want at least")
			if n >= 100 { // the same few items over and over
				_, err = f.Rebuild(t.Context(), rebuildSource(slices.Concat(items[:n/2], items[:n/2], items[:n/2])),
					&RebuildOptions{Settle: -1, MinItems: uint64(n)})
				require.ErrorIs(t, err, ErrRebuildRefused)
			}
			b.requireUntouched(t, before)
		}
	})
}

// A filter that is far too full tells nothing of how many items are in it: then
// MinItems is held against what source yielded.
func TestRebuildMinItemsTooFull(t *testing.T) {
	f, err := New(NewMemory(), Config{Capacity: 100})
	require.NoError(t, err)
	items := rebuildItems("row ", 20_000)
	report, err := f.Rebuild(t.Context(), rebuildSource(items), &RebuildOptions{Settle: -1, MinItems: 15_000})
	require.NoError(t, err)
	require.EqualValues(t, len(items), report.Items)
	_, err = f.Rebuild(t.Context(), rebuildSource(items), &RebuildOptions{Settle: -1, MinItems: 20_001})
	require.ErrorIs(t, err, ErrRebuildRefused)
	require.ErrorContains(t, err, "200 distinct items of 20000 that the source yielded, want at least 20001")
}

// The sample is drawn from all of source, not from its beginning.
func TestRebuildSamplesEverywhere(t *testing.T) {
	b := rebuildMemory(Classic)
	var asked []string
	seam := rebuildSeam{b.backend(), func(next build) build { return rebuildAsked{next, &asked} }}
	f, err := New(seam, Config{Capacity: 10_000})
	require.NoError(t, err)
	items, at := rebuildItems("row ", 10_000), map[string]int{}
	for i, item := range items {
		at[item] = i
	}
	for _, c := range []struct{ sample, want int }{{0, defaultVerifySample}, {100, 100}, {20_000, 10_000}} {
		asked = nil
		_, err = f.Rebuild(t.Context(), rebuildSource(items), &RebuildOptions{Settle: -1, VerifySample: c.sample})
		require.NoError(t, err)
		require.Len(t, asked, c.want)
		distinct := map[string]bool{}
		tail := 0
		for _, item := range asked {
			distinct[item] = true
			if at[item] >= len(items)/2 {
				tail++
			}
		}
		require.Len(t, distinct, c.want, "an item is drawn once")
		sd := math.Sqrt(float64(c.want)) / 2
		require.InDelta(t, c.want/2, tail, 6*sd+1, "from the second half")
	}
}

// rebuildAsked keeps what was looked up.
type rebuildAsked struct {
	build
	items *[]string
}

func (a rebuildAsked) lookUp(ctx context.Context, items []string) ([]bool, error) {
	*a.items = append(*a.items, items...)
	return a.build.lookUp(ctx, items)
}
