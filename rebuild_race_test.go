package bloom

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What happens between two steps of one call, put there exactly.

// rebuildHook calls f in front of a script's first uses by a client.
type rebuildHook struct {
	script *script
	times  *int // left
	f      func()
}

func (h rebuildHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h rebuildHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 1 && args[1] == h.script.sha && *h.times > 0 {
			*h.times--
			h.f()
		}
		return next(ctx, cmd)
	}
}

func (h rebuildHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// What a builder decided by must still be so when staging is opened: another one
// may publish between the two steps.
func TestRebuildDecidesAgain(t *testing.T) {
	items := rebuildItems("row ", 50)
	for name, c := range map[string]struct {
		before, meanwhile uint64 // capacities; 0: none
		opts              *RebuildOptions
		skipped           bool
		capacity          uint64
	}{
		"there was none":   {0, 500, rebuildDaily(), true, 500},
		"it was smaller":   {100, 500, rebuildDaily(), true, 500},
		"it grew":          {100, 900, rebuildQuick(), false, 900},
		"it is still less": {100, 200, rebuildDaily(), false, 400},
	} {
		t.Run(name, func(t *testing.T) {
			rebuildReal(t, func(t *testing.T, b rebuildBed) {
				if c.before != 0 {
					b.built(t, c.before, items)
				}
				rdb, open := b.target.Client(t), openScript
				backend := Backend(NewBitmap(rdb, b.key))
				if b.module {
					backend, open = NewRedisBloom(rdb, b.key, nil), moduleOpenScript
				}
				met := false
				once := 1
				rdb.AddHook(rebuildHook{open, &once, func() {
					met = true
					b.built(t, c.meanwhile, items)
				}})
				cfg := b.config(400)
				f, err := New(backend, cfg)
				require.NoError(t, err)
				report, err := f.Rebuild(t.Context(), rebuildSource(items), c.opts)
				require.NoError(t, err)
				require.True(t, met)
				require.Equal(t, c.skipped, report.Skipped)
				require.Equal(t, c.capacity, report.Params.Capacity)
				b.requireClean(t)
			})
		})
	}
}

// hooked returns a handle that calls f in front of the first uses of a script.
func (b rebuildBed) hooked(t *testing.T, cfg Config, s *script, times int, f func()) *Filter {
	t.Helper()
	rdb := b.target.Client(t)
	rdb.AddHook(rebuildHook{s, &times, f})
	filter, err := New(NewBitmap(rdb, b.key), cfg)
	require.NoError(t, err)
	return filter
}

// A rebuild comes between the two steps of CreateEmpty, when the marker of the
// first stands at the filter's key.
func TestRebuildMeetsMarker(t *testing.T) {
	rebuildBitmaps(t, func(t *testing.T, b rebuildBed) {
		items := rebuildItems("row ", 50)
		met := false
		creator := b.hooked(t, b.config(100), createScript, 1, func() {
			met = true
			require.NotEmpty(t, b.content(t), "the marker")
			b.built(t, 200, items)
		})
		require.NoError(t, creator.CreateEmpty(t.Context()), "there is a filter by now")
		require.True(t, met)
		rebuildRequireAll(t, creator, items)
		require.NoError(t, creator.Drop(t.Context()))

		var next build
		creator = b.hooked(t, b.config(100), createScript, 1, func() {
			var err error
			next, _, err = b.backend().(rebuilder).openBuild(t.Context(), wish{config: Config{Capacity: 200, FPRate: 0.01}, lease: defaultLease})
			require.NoError(t, err)
			_, err = b.open(t, Config{}).Add(t.Context(), "meanwhile")
			require.ErrorIs(t, err, ErrNotReady)
		})
		require.ErrorIs(t, creator.CreateEmpty(t.Context()), ErrRebuilding)
		require.NoError(t, next.merge(t.Context(), func(uint64, uint64) {}))
		generation, err := next.publish(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, generation)
		rebuildRequireAll(t, creator, []string{"meanwhile"})
		b.requireClean(t)
	})
}

// Staging is opened, published or replaced by one of another geometry between what
// an adder knows and what it does.
func TestRebuildMeetsAdder(t *testing.T) {
	open := func(t *testing.T, b rebuildBed, capacity uint64) build {
		next, _, err := b.backend().(rebuilder).openBuild(t.Context(),
			wish{config: Config{Capacity: capacity, FPRate: 0.01, Layout: b.layout}, lease: defaultLease})
		require.NoError(t, err)
		return next
	}
	publish := func(t *testing.T, next build) {
		require.NoError(t, next.merge(t.Context(), func(uint64, uint64) {}))
		_, err := next.publish(t.Context())
		require.NoError(t, err)
	}
	for name, meanwhile := range map[string]func(t *testing.T, b rebuildBed, next *build, n uint64){
		"opened": func(t *testing.T, b rebuildBed, next *build, n uint64) {
			*next = open(t, b, 300)
		},
		"opened, of the same geometry": func(t *testing.T, b rebuildBed, next *build, n uint64) {
			*next = open(t, b, 200)
		},
		"opened and published": func(t *testing.T, b rebuildBed, next *build, n uint64) {
			publish(t, open(t, b, 300))
		},
		"published and opened again": func(t *testing.T, b rebuildBed, next *build, n uint64) {
			publish(t, open(t, b, 300))
			*next = open(t, b, 400)
		},
		"opened and lost and opened": func(t *testing.T, b rebuildBed, next *build, n uint64) {
			require.NoError(t, open(t, b, 300).abort(t.Context()))
			*next = open(t, b, 400)
		},
		"opened anew at each try": func(t *testing.T, b rebuildBed, next *build, n uint64) {
			if *next != nil {
				require.NoError(t, (*next).abort(t.Context()))
			}
			*next = open(t, b, 300+n)
		},
		"replaced at each try": func(t *testing.T, b rebuildBed, next *build, n uint64) {
			if *next != nil {
				publish(t, *next)
			}
			*next = open(t, b, 300+n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			rebuildBitmaps(t, func(t *testing.T, b rebuildBed) {
				b.built(t, 200, rebuildItems("row ", 20))
				var next build
				tries := uint64(0)
				times := 1
				switch name {
				case "replaced at each try": // the filter too, which an adder follows three times
					times = 2
				case "opened anew at each try": // it goes on until its context ends
					times = 5
				}
				adder := b.hooked(t, Config{}, addScript, times, func() {
					tries++
					meanwhile(t, b, &next, tries)
				})
				require.NoError(t, adder.Ready(t.Context()), "it knows the filter")
				_, err := adder.Add(t.Context(), "item")
				require.NoError(t, err)
				rebuildRequireAll(t, b.open(t, Config{}), []string{"item"})
				if next != nil {
					publish(t, next)
				}
				rebuildRequireAll(t, b.open(t, Config{}), []string{"item"})
				b.requireClean(t)
				_, err = adder.AddMulti(t.Context(), rebuildItems(fmt.Sprint(name, " "), 10))
				require.NoError(t, err)
				rebuildRequireAll(t, adder, rebuildItems(fmt.Sprint(name, " "), 10))
			})
		})
	}
}
