package bloom

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// moduleState is what a server tells about a RedisBloom filter.
type moduleState struct {
	unsealed   int    // sentinels that are missing
	capacity   uint64 // of all sub-filters, sentinels included
	bytes      uint64
	items      uint64 // adds that set a bit, sentinels included
	subFilters int
	expansion  int // 0: NONSCALING

	rate          float64 // as asked for; NaN where the server does not tell
	firstCapacity uint64  // of the first sub-filter
	subs          []subFilter

	// What the last rebuild of this package left, if any.
	published  string // its token
	generation uint64
	created    time.Time
	first      string // its first sentinel, which names the shard
	purpose    string // moduleEmpty or moduleRebuilt
}

// subFilter is one bitmap of a filter, by BF.SCANDUMP's header.
type subFilter struct {
	bits, items, capacity uint64
	rate                  float64
	hashes                int
}

func (s *moduleState) sealed() bool { return s.unsealed == 0 }

func (s *moduleState) rateKnown() bool { return !math.IsNaN(s.rate) }

func (s *moduleState) userCapacity() uint64 { return s.capacity - min(s.capacity, sentinelCount) }

func (s *moduleState) bits() (bits uint64) {
	for _, f := range s.subs {
		bits += f.bits
	}
	return bits
}

// hashes is that of the first sub-filter; each further one has about one more.
func (s *moduleState) hashes() int {
	if len(s.subs) == 0 {
		return 0
	}
	return s.subs[0].hashes
}

// currentRate predicts the share of absent items that one of the sub-filters
// calls present; NaN where the server does not tell what they are.
func (s *moduleState) currentRate() float64 {
	if len(s.subs) == 0 {
		return math.NaN()
	}
	none := 1.0
	for _, f := range s.subs {
		none *= 1 - Params{Bits: f.bits, Hashes: f.hashes}.FPRateAt(f.items)
	}
	return 1 - none
}

// state asks for everything about the filter. The errors are ErrNotReady where
// nothing is, and ErrCorrupt where something else is.
func (b *RedisBloom) state(ctx context.Context) (*moduleState, error) {
	s, err := b.readState(ctx)
	if err == nil && !s.fits() {
		return b.readState(ctx)
	}
	return s, err
}

// fits is false for a mixture, which is what several commands answer while the
// filter is made anew: without sentinels, or with capacities of two filters.
func (s *moduleState) fits() bool {
	var capacity uint64
	for _, f := range s.subs {
		capacity += f.capacity
	}
	return s.sealed() && (s.subs == nil || capacity == s.capacity)
}

// readState is state in one round trip.
func (b *RedisBloom) readState(ctx context.Context) (*moduleState, error) {
	sealed := redis.NewBoolSliceCmd(ctx, appendStrings([]any{"bf.mexists", b.key}, b.sentinels)...)
	info := redis.NewCmd(ctx, "bf.info", b.key)
	dump := redis.NewCmd(ctx, "bf.scandump", b.key, 0)
	left := redis.NewSliceCmd(ctx, "hmget", b.build, "published", "generation", "created", "first", "purpose")
	if err := b.conn.read(ctx, b.key, info, sealed, dump, left); err != nil {
		return nil, err
	}
	fields, err := info.Result()
	if redisErrorHas(err, "not found") {
		return nil, fmt.Errorf("no such key: %w", ErrNotReady)
	}
	if err == nil {
		err = sealed.Err()
	}
	if err != nil {
		return nil, b.keyError(err)
	}
	s, err := parseModuleInfo(fields)
	if err != nil {
		return nil, err
	}
	s.unsealed = sentinelCount
	for _, found := range sealed.Val() {
		if found {
			s.unsealed--
		}
	}
	s.readDump(dump)
	s.readLeft(left)
	return s, nil
}

// parseModuleInfo reads BF.INFO's reply: an array of names and values (RESP2), a
// map (RESP3), values alone or in arrays of one, nulls, and names that it does
// not know.
func parseModuleInfo(reply any) (*moduleState, error) {
	fields, err := infoFields(reply)
	if err != nil {
		return nil, err
	}
	s := &moduleState{rate: math.NaN(), subFilters: 1}
	known := 0
	for name, v := range fields {
		n, isNumber := infoNumber(v)
		switch name = strings.ToLower(name); {
		case name == "error rate": // Valkey
			if rate, err := strconv.ParseFloat(fmt.Sprint(v), 64); err == nil && rate > 0 && rate < 1 {
				s.rate = rate
			}
		case !isNumber: // NONSCALING has no expansion
		case name == "capacity":
			s.capacity = n
			known++
		case name == "size":
			s.bytes = n
		case name == "number of filters":
			s.subFilters = int(n)
		case name == "number of items inserted":
			s.items = n
			known++
		case name == "expansion rate":
			s.expansion = int(n)
		}
	}
	if known != 2 {
		return nil, fmt.Errorf("BF.INFO answered neither capacity nor items: %.200v", reply)
	}
	s.firstCapacity = s.capacity
	return s, nil
}

func infoFields(reply any) (map[string]any, error) {
	fields := map[string]any{}
	switch r := reply.(type) {
	case map[any]any:
		for name, v := range r {
			fields[fmt.Sprint(name)] = v
		}
	case []any:
		for i := 0; i+1 < len(r); i += 2 {
			fields[fmt.Sprint(r[i])] = r[i+1]
		}
	default:
		return nil, fmt.Errorf("BF.INFO answered %T", reply)
	}
	return fields, nil
}

func infoNumber(v any) (uint64, bool) {
	switch n := v.(type) {
	case int64:
		return uint64(max(n, 0)), true
	case string:
		u, err := strconv.ParseUint(n, 10, 64)
		return u, err == nil
	case []any:
		if len(n) == 1 {
			return infoNumber(n[0])
		}
	}
	return 0, false
}

// readLeft takes what a rebuild left. It decides no answer, so it may be missing.
func (s *moduleState) readLeft(cmd *redis.SliceCmd) {
	v := cmd.Val()
	if len(v) != 5 {
		return
	}
	s.published, _ = v[0].(string)
	s.first, _ = v[3].(string)
	s.purpose, _ = v[4].(string)
	number := func(v any) uint64 {
		text, _ := v.(string)
		n, _ := strconv.ParseUint(text, 10, 63)
		return n
	}
	s.generation = number(v[1])
	if us := number(v[2]); us > 0 {
		s.created = time.UnixMicro(int64(us))
	}
}

const (
	dumpHeadBytes = 20
	dumpSubBytes  = 53
)

// readDump takes from BF.SCANDUMP's header what BF.INFO does not tell. Where the
// server has no such command or format, nothing is taken.
func (s *moduleState) readDump(cmd *redis.Cmd) {
	reply, err := cmd.Slice()
	if err != nil || len(reply) != 2 {
		return
	}
	text, _ := reply[1].(string)
	subs, ok := parseDumpHeader([]byte(text))
	if !ok {
		return
	}
	s.subs, s.firstCapacity, s.rate = subs, subs[0].capacity, subs[0].rate
	if s.expansion > 0 {
		s.rate *= 2 // the first sub-filter of a scaling one gets half of what was asked
	}
}

// parseDumpHeader reads the header: items, sub-filters, options and expansion,
// then bytes, bits, items, rate, bits per item, hashes and capacity of each.
func parseDumpHeader(b []byte) ([]subFilter, bool) {
	if len(b) < dumpHeadBytes {
		return nil, false
	}
	le := binary.LittleEndian
	count := le.Uint32(b[8:])
	if b = b[dumpHeadBytes:]; count == 0 || uint64(len(b)) != uint64(count)*dumpSubBytes {
		return nil, false
	}
	subs := make([]subFilter, count)
	for i := range subs {
		subs[i] = subFilter{
			bits:     le.Uint64(b[8:]),
			items:    le.Uint64(b[16:]),
			rate:     math.Float64frombits(le.Uint64(b[24:])),
			hashes:   int(le.Uint32(b[40:])),
			capacity: le.Uint64(b[44:]),
		}
		if f := subs[i]; !(f.rate > 0 && f.rate < 1) || f.bits == 0 || f.hashes <= 0 || f.capacity == 0 {
			return nil, false
		}
		b = b[dumpSubBytes:]
	}
	return subs, true
}

func isUnknownCommand(err error) bool {
	return redisErrorHas(err, "unknown command") || redisErrorHas(err, "Unknown Redis command") ||
		redisErrorHas(err, "unknown redis command")
}

// isFullText recognizes the error of a NONSCALING filter that is full.
func isFullText(text string) bool {
	return strings.Contains(text, "full") || strings.Contains(text, "non scaling")
}
