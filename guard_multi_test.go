package bloom

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/stretchr/testify/require"
)

type loadMulti = func(context.Context, []string) (map[string]string, error)

// multiRows is a LoadMulti of what load finds.
func multiRows(load Loader[string]) loadMulti {
	return func(ctx context.Context, ids []string) (map[string]string, error) {
		found := map[string]string{}
		for _, id := range ids {
			v, err := load(ctx, id)
			if err != nil && !errors.Is(err, ErrNotFound) {
				return found, err
			}
			if err == nil {
				found[id] = v
			}
		}
		return found, nil
	}
}

// eachMulti runs f with options whose LoadMulti is nil, and with one of load's rows.
func eachMulti(t *testing.T, load Loader[string], f func(t *testing.T, opts GuardOptions[string])) {
	t.Run("Loader", func(t *testing.T) { f(t, GuardOptions[string]{}) })
	t.Run("LoadMulti", func(t *testing.T) { f(t, GuardOptions[string]{LoadMulti: multiRows(load)}) })
}

// failures are the errors of a GetMulti by id.
func failures(t *testing.T, err error) map[string]error {
	t.Helper()
	if err == nil {
		return nil
	}
	var all interface{ Unwrap() []error }
	require.ErrorAs(t, err, &all)
	byID := map[string]error{}
	for _, err := range all.Unwrap() {
		one, ok := err.(*IDError) //nolint:errorlint // exactly that
		require.True(t, ok, "%T", err)
		if _, twice := byID[one.ID]; twice {
			t.Errorf("two errors of %q", one.ID)
		}
		byID[one.ID] = one.Err
	}
	return byID
}

// Values, nulls, denied and duplicate ids, from the loader and then from the cache.
func TestGuardMultiAnswers(t *testing.T) {
	table := map[string]string{"a": "row of a", "b": "", "c": "row of c", "": "row of nothing"}
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		eachMulti(t, rows(table), func(t *testing.T, opts GuardOptions[string]) {
			for id := range table {
				s.raw.del(id)
			}
			s.raw.del("no row")
			s.known(t, "a", "b", "c", "", "no row")
			g := newTestGuard(t, s, rows(table), &opts)
			ids := []string{"c", "a", "denied", "a", "no row", "b", "c", "", "a"}
			for range 2 {
				found, err := g.GetMulti(t.Context(), ids)
				require.NoError(t, err)
				require.Equal(t, table, found)
			}
			require.Equal(t, []string{"c", "a", "denied", "a", "no row", "b", "c", "", "a"}, ids, "left as it was")
			require.Equal(t, GuardStats{
				Gets: 12, Rejected: 2, Hits: 4, NullHits: 1, Loads: 5, LoadsNotFound: 1, Fills: 5,
			}, g.Stats())
			for id := range table {
				s.requireTag(t, id, tagValue, defaultTTL)
			}
			s.requireTag(t, "no row", tagNull, defaultNullTTL)
			s.requireTag(t, "denied", tagNone, 0)

			// A Get finds the same.
			v, err := g.Get(t.Context(), "c")
			require.NoError(t, err)
			require.Equal(t, "row of c", v)

			// After an Invalidate nothing of before is left, of those ids.
			require.NoError(t, g.Invalidate(t.Context(), "a", "no row"))
			loads := g.Stats().Loads
			found, err := g.GetMulti(t.Context(), ids)
			require.NoError(t, err)
			require.Equal(t, table, found)
			require.Equal(t, loads+2, g.Stats().Loads)
		})
	})
}

// No ids are no work, and never a nil map.
func TestGuardMultiOfNothing(t *testing.T) {
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		g := newTestGuard(t, s, rows(nil), nil)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, ids := range [][]string{nil, {}} {
			for _, ctx := range []context.Context{t.Context(), ended} {
				found, err := g.GetMulti(ctx, ids)
				require.NoError(t, err)
				require.NotNil(t, found)
				require.Empty(t, found)
			}
		}
		require.Zero(t, g.Stats())
		found, err := g.GetMulti(t.Context(), []string{"denied"})
		require.NoError(t, err)
		require.NotNil(t, found)
		require.Empty(t, found)
	})
}

// Refused ids are errors, each once, and the others are answered.
func TestGuardMultiInvalidIDs(t *testing.T) {
	invalid := errors.New("not an id")
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "row", "007", "+7")
		g := newTestGuard(t, s, rows(map[string]string{"row": "v", "007": "w"}), &GuardOptions[string]{
			Validate: func(id string) error {
				switch id {
				case "007":
					return invalid
				case "+7":
					return fmt.Errorf("canonically 7: %w", ErrNotFound) // no reason to leave it out in silence
				}
				return nil
			},
		})
		found, err := g.GetMulti(t.Context(), []string{"007", "row", "+7", "007", "denied"})
		require.Equal(t, map[string]string{"row": "v"}, found)
		require.EqualError(t, err, `bloom: get 5 ids, 2 failed: "007": not an id; "+7": canonically 7: `+ErrNotFound.Error())
		require.ErrorIs(t, err, invalid)
		var first *IDError
		require.ErrorAs(t, err, &first)
		require.Equal(t, &IDError{"007", invalid}, first)
		require.ErrorIs(t, first, invalid)
		require.Len(t, failures(t, errors.Unwrap(err)), 2)
		require.Equal(t, GuardStats{Gets: 4, Invalid: 2, Rejected: 1, Loads: 1, Fills: 1}, g.Stats())
		s.requireTag(t, "007", tagNone, 0)
	})
}

// However many ids fail, the text names three.
func TestGuardMultiErrorText(t *testing.T) {
	s := memoryStore(t)
	ids := numberedIDs(10_000)
	g := newTestGuard(t, s, rows(nil), &GuardOptions[string]{Validate: func(id string) error { return errInjected }})
	found, err := g.GetMulti(t.Context(), ids)
	require.Empty(t, found)
	require.EqualError(t, err, `bloom: get 10000 ids, 10000 failed: "id 0": injected; "id 1": injected; "id 2": injected; and 9997 more`)
	require.Len(t, failures(t, errors.Unwrap(err)), len(ids))
	for n, text := range map[int]string{
		1: `bloom: get 1 id, 1 failed: "id 0": injected`,
		3: `bloom: get 3 ids, 3 failed: "id 0": injected; "id 1": injected; "id 2": injected`,
		4: `bloom: get 4 ids, 4 failed: "id 0": injected; "id 1": injected; "id 2": injected; and 1 more`,
	} {
		_, err := g.GetMulti(t.Context(), ids[:n])
		require.EqualError(t, err, text)
	}
}

// One id that fails leaves the rows of the others, with a Loader id by id.
func TestGuardMultiSomeFail(t *testing.T) {
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		s.known(t, "a", "b", "c", "d", "e", "f")
		g := newTestGuard(t, s, func(_ context.Context, id string) (string, error) {
			switch id {
			case "b":
				return "w", errInjected
			case "d":
				panic("boom")
			case "e":
				return "w", fmt.Errorf("no such row: %w", ErrNotFound)
			}
			return "row of " + id, nil
		}, nil)
		found, err := g.GetMulti(t.Context(), []string{"a", "b", "c", "d", "e", "f", "denied"})
		require.Equal(t, map[string]string{"a": "row of a", "c": "row of c", "f": "row of f"}, found)
		byID := failures(t, errors.Unwrap(err))
		require.Len(t, byID, 2)
		require.Equal(t, errInjected, byID["b"])
		require.ErrorContains(t, byID["d"], "panic: boom")
		require.Equal(t, GuardStats{Gets: 7, Rejected: 1, Loads: 6, LoadsNotFound: 1, LoadErrors: 2, Fills: 4}, g.Stats())
		s.requireTag(t, "b", tagLease, 2*defaultLoadTimeout)
		s.requireTag(t, "e", tagNull, defaultNullTTL)
	})
}

// Ids whose cache keys are the filter's own are looked up without the cache, which
// an attacker would otherwise read the filter by, or a rebuild's staging.
func TestGuardMultiReservedIDs(t *testing.T) {
	redistest.Each(t, func(t *testing.T, target redistest.Target) {
		for _, clients := range []int{1, 2} {
			t.Run(fmt.Sprint(clients, " clients"), func(t *testing.T) {
				client := redistest.MiniClient(t, redistest.Mini(t)) // these keys are not unique
				if target.Real {
					client = redistest.Start(t).Client(t)
				}
				s := guardStore{filter: testFilter(t, NewBitmap(client, "filter"), Classic), cache: NewRedisCache(client, "")}
				if clients == 2 {
					addr := client.Options().Addr
					other := redistest.Target{Addr: addr}.Client(t)
					s.cache = NewRedisCache(other, "")
					client = other
				}
				s.known(t, "filter", "row")
				reserved := []string{"filter", "{filter}:next", "{filter}:next-a", "{filter}:build"}
				for _, key := range reserved[1:] {
					require.NoError(t, client.Set(t.Context(), key, `V"a rebuild's"`, time.Minute).Err())
				}
				table := map[string]string{"filter": "v", "row": "w"}
				for _, opts := range []GuardOptions[string]{{}, {LoadMulti: multiRows(rows(table))}} {
					g := newTestGuard(t, s, rows(table), &opts)
					require.Equal(t, clients == 1, g.rides.sharesTrip(&g.remote.conn, []string{"row"}))
					trips := &redistest.Trips{Record: true}
					client.AddHook(trips)
					found, err := g.GetMulti(t.Context(), append([]string{"row", "denied"}, reserved...))
					require.NoError(t, err)
					require.Equal(t, table, found)
					found, err = g.GetMulti(t.Context(), reserved[:1]) // and nothing else
					require.NoError(t, err)
					require.Equal(t, map[string]string{"filter": "v"}, found)
					requireNoneNamed(t, trips, reserved...)
					require.NoError(t, s.filter.Ready(t.Context()))
				}
			})
		}
	})
}

// Undecodable values are replaced, all in the round trips of the others.
func TestGuardMultiUndecodable(t *testing.T) {
	ids := numberedIDs(40)
	load := func(_ context.Context, id string) (string, error) { return "row of " + id, nil }
	eachGuardStore(t, func(t *testing.T, s guardStore) {
		eachMulti(t, load, func(t *testing.T, opts GuardOptions[string]) {
			s.known(t, ids...)
			for _, id := range ids[:30] {
				s.raw.set(id, []byte("V{"), time.Minute)
			}
			s.raw.set(ids[39], []byte("foreign"), time.Minute)
			g := newTestGuard(t, s, load, &opts)
			for range 2 {
				found, err := g.GetMulti(t.Context(), ids)
				require.NoError(t, err)
				require.Len(t, found, len(ids))
			}
			stats := g.Stats()
			require.EqualValues(t, len(ids)+1, stats.Loads, "what is not ours is neither filled nor dropped")
			require.EqualValues(t, len(ids)-1, stats.Fills)
			left, _ := s.raw.get(ids[39])
			require.Equal(t, "foreign", string(left))
			for _, id := range ids {
				s.raw.del(id)
			}
		})
	})
	t.Run("by LoadMulti", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, target redistest.Target) {
			s := redisStore(t, target, Classic)
			s.known(t, ids...)
			for _, id := range ids {
				s.raw.set(id, []byte("V{"), time.Minute)
			}
			g := newTestGuard(t, s, func(context.Context, string) (string, error) {
				return "", errors.New("not by Loader")
			}, &GuardOptions[string]{LoadMulti: multiRows(load)})
			found, err := g.GetMulti(t.Context(), ids)
			require.NoError(t, err)
			require.Len(t, found, len(ids))
		})
	})
}

// GetMulti is safe for concurrent use, with its ids shared by all.
func TestGuardMultiConcurrent(t *testing.T) {
	ids := numberedIDs(50)
	load := func(_ context.Context, id string) (string, error) { return "row of " + id, nil }
	eachSharedStore(t, func(t *testing.T, s guardStore) {
		eachMulti(t, load, func(t *testing.T, opts GuardOptions[string]) {
			s.known(t, ids...)
			g := newTestGuard(t, s, load, &opts)
			var all sync.WaitGroup
			for range 8 {
				all.Add(1)
				go func() {
					defer all.Done()
					found, err := g.GetMulti(t.Context(), ids)
					if err != nil || len(found) != len(ids) {
						t.Error(len(found), err)
					}
					for id, v := range found {
						if v != "row of "+id {
							t.Error(id, v)
						}
					}
				}()
			}
			all.Wait()
			for _, id := range ids {
				s.raw.del(id)
			}
		})
	})
}

// A crowd of failures prints little, whatever each says of itself.
func TestGuardMultiPanicsPrintOnce(t *testing.T) {
	s := memoryStore(t)
	ids := numberedIDs(100)
	s.known(t, ids...)
	g := newTestGuard(t, s, rows(nil), &GuardOptions[string]{LoadMulti: func(context.Context, []string) (map[string]string, error) {
		panic("boom")
	}})
	_, err := g.GetMulti(t.Context(), ids)
	require.LessOrEqual(t, strings.Count(err.Error(), "boom"), maxPrintedErrors)
	require.Len(t, failures(t, errors.Unwrap(err)), len(ids))
}
