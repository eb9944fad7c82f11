package bloom

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What servers tell about a filter, in all its shapes.

func TestModuleInfoShapes(t *testing.T) {
	type m = map[any]any
	one := func(v any) []any { return []any{v} }
	for name, c := range map[string]struct {
		reply any
		want  moduleState // rate 0: unknown
	}{
		"RESP2": {
			[]any{"Capacity", int64(100), "Size", int64(240), "Number of filters", int64(1), "Number of items inserted", int64(7), "Expansion rate", int64(2)},
			moduleState{capacity: 100, bytes: 240, subFilters: 1, items: 7, expansion: 2},
		},
		"RESP3": {
			m{"Capacity": int64(300), "Size": int64(616), "Number of filters": int64(2), "Number of items inserted": int64(300), "Expansion rate": int64(4)},
			moduleState{capacity: 300, bytes: 616, subFilters: 2, items: 300, expansion: 4},
		},
		"RESP2, NONSCALING": {
			[]any{"Capacity", int64(100), "Size", int64(216), "Number of filters", int64(1), "Number of items inserted", int64(1), "Expansion rate", nil},
			moduleState{capacity: 100, bytes: 216, subFilters: 1, items: 1},
		},
		"RESP3, NONSCALING": {
			m{"Capacity": int64(100), "Size": int64(216), "Number of filters": int64(1), "Number of items inserted": int64(1), "Expansion rate": nil},
			moduleState{capacity: 100, bytes: 216, subFilters: 1, items: 1},
		},
		"2.4, expansion below 0": {
			[]any{"Capacity", int64(100), "Number of items inserted", int64(0), "Expansion rate", int64(-1)},
			moduleState{capacity: 100, subFilters: 1},
		},
		"Valkey, RESP2": {
			[]any{"Capacity", int64(100), "Size", int64(384), "Number of filters", int64(1), "Number of items inserted", int64(3), "Error rate", "0.01",
				"Expansion rate", int64(2), "Tightening ratio", "0.5", "Max scaled capacity", int64(26214300)},
			moduleState{capacity: 100, bytes: 384, subFilters: 1, items: 3, expansion: 2, rate: 0.01},
		},
		"Valkey, RESP3": {
			m{"Capacity": int64(100), "Size": int64(384), "Number of filters": int64(1), "Number of items inserted": int64(3), "Error rate": 0.001,
				"Expansion rate": nil, "Tightening ratio": 0.5},
			moduleState{capacity: 100, bytes: 384, subFilters: 1, items: 3, rate: 0.001},
		},
		"arrays of one": {
			[]any{"Capacity", one(int64(100)), "Size", one(int64(240)), "Number of filters", one(int64(1)), "Number of items inserted", one(int64(7)), "Expansion rate", one(int64(2))},
			moduleState{capacity: 100, bytes: 240, subFilters: 1, items: 7, expansion: 2},
		},
		"texts": {
			m{"capacity": "100", "SIZE": "240", "number of filters": "1", "Number Of Items Inserted": "7", "expansion rate": "2"},
			moduleState{capacity: 100, bytes: 240, subFilters: 1, items: 7, expansion: 2},
		},
		"unknown fields, any order": {
			[]any{"Mood", "good", "Number of items inserted", int64(7), "Nested", []any{int64(1), m{}}, "Capacity", int64(100), int64(5), int64(6), "odd one"},
			moduleState{capacity: 100, subFilters: 1, items: 7},
		},
		"rates that are none": {
			m{"Capacity": int64(1), "Number of items inserted": int64(0), "Error rate": "2"}, moduleState{capacity: 1, subFilters: 1},
		},
		"rate NaN": {
			m{"Capacity": int64(1), "Number of items inserted": int64(0), "Error rate": "nan"}, moduleState{capacity: 1, subFilters: 1},
		},
		"rate 0": {
			m{"Capacity": int64(1), "Number of items inserted": int64(0), "Error rate": int64(0)}, moduleState{capacity: 1, subFilters: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseModuleInfo(c.reply)
			require.NoError(t, err)
			require.Equal(t, c.want.rate != 0, got.rateKnown())
			if !got.rateKnown() {
				got.rate = 0
			}
			c.want.firstCapacity = c.want.capacity
			require.Equal(t, c.want, *got)
		})
	}
}

func TestModuleInfoGarbage(t *testing.T) {
	for name, reply := range map[string]any{
		"nothing": nil, "text": "OK", "number": int64(5), "empty": []any{}, "empty map": map[any]any{},
		"no capacity":       []any{"Number of items inserted", int64(7), "Size", int64(3)},
		"no items":          []any{"Capacity", int64(7), "Size", int64(3)},
		"null capacity":     []any{"Capacity", nil, "Number of items inserted", int64(7)},
		"capacity no count": []any{"Capacity", "many", "Number of items inserted", int64(7)},
		"items no count":    map[any]any{"Capacity": int64(1), "Number of items inserted": []any{}},
		"a single value":    []any{int64(100)},
		"values only":       []any{int64(100), int64(240), int64(1), int64(7), int64(2)},
		"array of two":      []any{"Capacity", []any{int64(1), int64(2)}, "Number of items inserted", int64(7)},
	} {
		_, err := parseModuleInfo(reply)
		require.Error(t, err, name)
		require.ErrorContains(t, err, "BF.INFO", name)
	}
}

// moduleHeader writes BF.SCANDUMP's header as the module does.
func moduleHeader(subs ...subFilter) []byte {
	le := binary.LittleEndian
	b := le.AppendUint64(nil, 7)
	b = le.AppendUint32(b, uint32(len(subs)))
	b = le.AppendUint32(b, 5)
	b = le.AppendUint32(b, 2)
	for _, f := range subs {
		for _, n := range []uint64{f.bits / 8, f.bits, f.items, math.Float64bits(f.rate), math.Float64bits(9.6)} {
			b = le.AppendUint64(b, n)
		}
		b = le.AppendUint32(b, uint32(f.hashes))
		b = le.AppendUint64(b, f.capacity)
		b = append(b, 0)
	}
	return b
}

// The header that the real module gave for BF.RESERVE d 0.01 10 NONSCALING and two
// items.
const moduleRecorded = "\x02\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\r\x00\x00\x00\x02\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00" +
	"\x80\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00{\x14\xaeG\xe1z\x84?\x88\x16\x8a\xc5\x8c+#@\x07\x00\x00\x00" +
	"\n\x00\x00\x00\x00\x00\x00\x00\x00"

func TestModuleDumpHeader(t *testing.T) {
	got, ok := parseDumpHeader([]byte(moduleRecorded))
	require.True(t, ok)
	require.Equal(t, []subFilter{{bits: 128, items: 2, capacity: 10, rate: 0.01, hashes: 7}}, got)

	good := subFilter{bits: 1152, items: 100, capacity: 100, rate: 0.005, hashes: 8}
	larger := subFilter{bits: 1 << 40, items: 1 << 35, capacity: 1 << 36, rate: 1e-300, hashes: 1074}
	got, ok = parseDumpHeader(moduleHeader(good, larger))
	require.True(t, ok)
	require.Equal(t, []subFilter{good, larger}, got)

	with := func(change func(*subFilter)) []byte {
		f := good
		change(&f)
		return moduleHeader(good, f)
	}
	whole := moduleHeader(good, larger)
	many := append([]byte(nil), whole...)
	binary.LittleEndian.PutUint32(many[8:], math.MaxUint32)
	for name, b := range map[string][]byte{
		"nothing": nil, "cut head": whole[:19], "head only": whole[:20], "no sub-filters": moduleHeader(),
		"cut": whole[:len(whole)-1], "longer": append(whole[:len(whole):len(whole)], 0), "one more than counted": moduleHeader(good, good)[:20+53],
		"counts more than there are": many,
		"rate 0":                     with(func(f *subFilter) { f.rate = 0 }),
		"rate 1":                     with(func(f *subFilter) { f.rate = 1 }),
		"rate NaN":                   with(func(f *subFilter) { f.rate = math.NaN() }),
		"rate below 0":               with(func(f *subFilter) { f.rate = -0.01 }),
		"no bits":                    with(func(f *subFilter) { f.bits = 0 }),
		"no hashes":                  with(func(f *subFilter) { f.hashes = 0 }),
		"no capacity":                with(func(f *subFilter) { f.capacity = 0 }),
	} {
		got, ok := parseDumpHeader(b)
		require.False(t, ok, name)
		require.Nil(t, got, name)
	}
}

// What is taken for a header has the length of one and only sound numbers, and no
// byte of it is lost.
func FuzzModuleDumpHeader(f *testing.F) {
	good := subFilter{bits: 1152, items: 100, capacity: 100, rate: 0.005, hashes: 8}
	f.Add([]byte(moduleRecorded))
	f.Add(moduleHeader(good, good))
	f.Add(moduleHeader(good)[:50])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		subs, ok := parseDumpHeader(b)
		if !ok {
			require.Nil(t, subs)
			return
		}
		require.Len(t, b, dumpHeadBytes+len(subs)*dumpSubBytes)
		for i, s := range subs {
			require.True(t, s.rate > 0 && s.rate < 1 && s.bits > 0 && s.capacity > 0 && s.hashes > 0)
			part := b[dumpHeadBytes+i*dumpSubBytes:]
			require.Equal(t, s.bits, binary.LittleEndian.Uint64(part[8:]))
			require.Equal(t, s.capacity, binary.LittleEndian.Uint64(part[44:]))
		}
		s := moduleState{subs: subs, items: 1}
		rate := s.currentRate()
		require.True(t, rate >= 0 && rate <= 1, "%v of %+v", rate, subs)
	})
}

// moduleError is an error reply.
type moduleError string

func (e moduleError) Error() string { return string(e) }
func (moduleError) RedisError()     {}

// moduleAnswers is a hook that puts other replies in the place of a server's.
type moduleAnswers func(name string, cmd redis.Cmder)

func (moduleAnswers) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (moduleAnswers) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h moduleAnswers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			h(cmd.Name(), cmd)
			err = errors.Join(err, cmd.Err())
		}
		return err
	}
}

// A server without BF.SCANDUMP (Valkey) tells the rate in BF.INFO, or not at all.
func TestModuleWithoutScanDump(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		for _, tellsRate := range []bool{true, false} {
			key := b.key(t)
			b.made(t, key, 100, "a")
			rdb := b.client(t)
			rdb.AddHook(moduleAnswers(func(name string, cmd redis.Cmder) {
				if name == "bf.scandump" {
					cmd.SetErr(moduleError("ERR unknown command 'bf.scandump', with args beginning with: 'f' '0' "))
				}
				if info, ok := cmd.(*redis.Cmd); ok && name == "bf.info" && tellsRate {
					fields, err := infoFields(info.Val())
					require.NoError(t, err)
					reply := []any{"Error rate", "0.01"}
					for k, v := range fields {
						reply = append(reply, k, v)
					}
					info.SetVal(append(reply, "Tightening ratio", "0.5"))
				}
			}))
			f := moduleFilter(t, rdb, key, Config{Capacity: 100}, nil)
			moduleRequire(t, f, true, "a")
			info, err := f.Info(t.Context())
			require.NoError(t, err)
			require.Equal(t, uint64(100), info.Params.Capacity)
			require.EqualValues(t, 1, info.Items)
			require.True(t, math.IsNaN(info.FPRate), "nobody knows the bits")
			require.Zero(t, info.Params.Bits)
			require.NoError(t, f.CreateEmpty(t.Context()))
			require.ErrorIs(t, moduleFilter(t, rdb, key, Config{Capacity: 101}, nil).CreateEmpty(t.Context()), ErrParamsMismatch)

			tighter := moduleFilter(t, rdb, key, Config{Capacity: 100, FPRate: 0.005}, nil).CreateEmpty(t.Context())
			if tellsRate {
				require.ErrorIs(t, tighter, ErrParamsMismatch)
				require.Equal(t, 0.01, info.Params.FPRate)
				require.NoError(t, f.Reset(t.Context()))
				moduleRequire(t, f, false, "a")
			} else {
				require.NoError(t, tighter, "no reason to refuse")
				require.True(t, math.IsNaN(info.Params.FPRate))
				require.ErrorContains(t, f.Reset(t.Context()), "does not tell the rate")
				moduleRequire(t, f, true, "a")
			}
			report, err := f.Rebuild(t.Context(), rebuildSource([]string{"row"}), rebuildQuick())
			require.NoError(t, err)
			require.EqualValues(t, 1, report.Distinct)
			moduleRequire(t, f, true, "row")
		}
	})
}

// The commands that tell of a filter are several. One that is made anew between them
// is no mixture and no other program's.
func TestModuleStateBetweenTwo(t *testing.T) {
	moduleBeds(t, func(t *testing.T, b *moduleBed) {
		key := b.key(t)
		b.made(t, key, 100, "a")
		other := b.key(t)
		b.made(t, other, 500)
		larger := b.content(t, other)[:dumpHeadBytes+dumpSubBytes]
		for _, name := range []string{"bf.mexists", "bf.scandump"} {
			first := true
			rdb := b.client(t)
			rdb.AddHook(moduleAnswers(func(cmd string, c redis.Cmder) {
				if cmd != name || !first {
					return
				}
				first = false
				if found, ok := c.(*redis.BoolSliceCmd); ok {
					found.SetVal(make([]bool, sentinelCount))
				} else {
					c.(*redis.Cmd).SetVal([]any{int64(1), larger})
				}
			}))
			s, err := NewRedisBloom(rdb, key, nil).state(t.Context())
			require.NoError(t, err)
			require.False(t, first)
			require.True(t, s.sealed())
			require.EqualValues(t, 103, s.firstCapacity)
		}
	})
}
