package bloom

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each field of GuardStats in turn: what its comment says makes it grow does, by Get
// and by GetMulti, and by nothing else than what is listed with it.
func TestGuardStatsFields(t *testing.T) {
	invalid := errors.New("not an id")
	load := func(_ context.Context, id string) (string, error) {
		switch id {
		case "row", "unregistered":
			return "v", nil
		case "broken":
			return "", errInjected
		case "unencodable":
			return "unencodable", nil
		}
		return "", ErrNotFound
	}
	steps := []struct {
		field string
		id    string
		audit bool // its "no" is audited
		want  GuardStats
		err   error
	}{
		{"Invalid", "007", false, GuardStats{Gets: 1, Invalid: 1}, invalid},
		{"Rejected", "absent", false, GuardStats{Gets: 1, Rejected: 1}, ErrNotFound},
		{"Hits", "cached", false, GuardStats{Gets: 1, Hits: 1}, nil},
		{"NullHits", "null", false, GuardStats{Gets: 1, NullHits: 1}, ErrNotFound},
		{"Loads, Fills", "row", false, GuardStats{Gets: 1, Loads: 1, Fills: 1}, nil},
		{"LoadsNotFound", "no row", false, GuardStats{Gets: 1, Loads: 1, LoadsNotFound: 1, Fills: 1}, ErrNotFound},
		{"LoadErrors", "broken", false, GuardStats{Gets: 1, Loads: 1, LoadErrors: 1}, errInjected},
		{"FillErrors", "unencodable", false, GuardStats{Gets: 1, Loads: 1, FillErrors: 1}, nil},
		{"Audits", "absent", true, GuardStats{Gets: 1, Loads: 1, Fills: 1, Audits: 1}, ErrNotFound},
		{"Anomalies, Heals", "unregistered", true,
			GuardStats{Gets: 1, Loads: 1, Fills: 1, Audits: 1, Anomalies: 1, Heals: 1}, nil},
		{"Anomalies of the cache", "cached, denied", false, GuardStats{Gets: 1, Hits: 1, Anomalies: 1, Heals: 1}, nil},
	}
	covered := map[string]bool{}
	for _, step := range steps {
		t.Run(step.field, func(t *testing.T) {
			eachLookup(t, load, func(t *testing.T, get lookup, opts GuardOptions[string]) {
				s := memoryStore(t)
				s.known(t, "cached", "null", "row", "no row", "broken", "unencodable")
				for _, id := range []string{"cached", "cached, denied"} {
					s.raw.set(id, []byte("Vv"), time.Minute)
				}
				s.raw.set("null", []byte("N"), time.Minute)
				opts.Codec = pickyCodec{}
				opts.Validate = func(id string) error {
					if id == "007" {
						return invalid
					}
					return nil
				}
				if step.audit {
					opts.AuditRate = 1
				}
				g := newTestGuard(t, s, load, &opts)
				_, err := get(t.Context(), g, step.id)
				require.ErrorIs(t, err, step.err)
				require.NoError(t, g.Close(t.Context()))
				require.Equal(t, step.want, g.Stats())
			})
		})
		v := reflect.ValueOf(step.want)
		for i := range v.NumField() {
			covered[v.Type().Field(i).Name] = covered[v.Type().Field(i).Name] || !v.Field(i).IsZero()
		}
	}

	covered["SharedLoads"] = true
	t.Run("SharedLoads", func(t *testing.T) {
		eachLookup(t, load, func(t *testing.T, get lookup, opts GuardOptions[string]) {
			s := memoryStore(t)
			s.known(t, "row")
			l := newStepLoader(t)
			opts.LoadMulti = nil
			g := newTestGuard(t, s, l.load, &opts)
			first := goGet(t.Context(), g, "row")
			call := l.next()
			second := make(chan error, 1)
			go func() {
				_, err := get(t.Context(), g, "row")
				second <- err
			}()
			joined(t, g, 1)
			call.found("v")
			require.NoError(t, receive(t, first).err)
			require.NoError(t, receive(t, second))
			require.Equal(t, GuardStats{Gets: 2, Loads: 1, SharedLoads: 1, Fills: 1}, g.Stats())
		})
	})

	covered["FailOpens"] = true
	t.Run("FailOpens", func(t *testing.T) {
		for _, closed := range []bool{false, true} {
			eachLookup(t, load, func(t *testing.T, get lookup, opts GuardOptions[string]) {
				s := memoryStore(t)
				s.known(t, "row")
				cache := &failingCache{Cache: s.cache}
				cache.read.Store(true)
				s.cache = cache
				opts.FailClosed = closed
				g := newTestGuard(t, s, load, &opts)
				_, err := get(t.Context(), g, "row")
				if closed {
					require.ErrorIs(t, err, errInjected)
					require.Equal(t, GuardStats{Gets: 1}, g.Stats())
				} else {
					require.NoError(t, err)
					require.Equal(t, GuardStats{Gets: 1, Loads: 1, FailOpens: 1}, g.Stats())
				}
			})
		}
	})

	covered["Overloads"] = true
	t.Run("Overloads", func(t *testing.T) {
		eachLookup(t, load, func(t *testing.T, get lookup, opts GuardOptions[string]) {
			s := memoryStore(t)
			s.known(t, "row")
			opts.MaxLoads = 1
			g := newTestGuard(t, s, load, &opts)
			g.flights.slots <- struct{}{}
			g.flights.requeue()
			_, err := get(t.Context(), g, "row")
			<-g.flights.slots
			g.flights.unqueue()
			require.ErrorIs(t, err, ErrOverloaded)
			require.Equal(t, GuardStats{Gets: 1, Overloads: 1}, g.Stats())
		})
	})

	for i := range reflect.TypeFor[GuardStats]().NumField() {
		name := reflect.TypeFor[GuardStats]().Field(i).Name
		require.True(t, covered[name], "no test of %s", name)
	}
}

// pickyCodec cannot encode one value.
type pickyCodec struct{}

func (pickyCodec) Marshal(v string) ([]byte, error) {
	if v == "unencodable" {
		return nil, errInjected
	}
	return []byte(v), nil
}

func (pickyCodec) Unmarshal(b []byte) (string, error) { return string(b), nil }
