package redistest

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"
)

const slots = 16384

// Slot returns the cluster slot of a key: CRC-16/XMODEM of the hash tag, or of all
// of it.
func Slot(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	crc := uint16(0)
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slots
}

// keyIn returns a key whose slot is in [first, end).
func keyIn(first, end int) string {
	for i := 0; ; i++ {
		key := "up:" + strconv.Itoa(i)
		if slot := Slot(key); slot >= first && slot < end {
			return key
		}
	}
}

// SlotMove is a slot on its way from one primary to another. Between its steps
// the cluster answers ASK for keys that have gone, and TRYAGAIN for commands over
// several keys of which only some are there.
type SlotMove struct {
	c        *Cluster
	slot     int
	from, to *Server
}

// MoveSlot begins to move the slot of key to another primary.
func (c *Cluster) MoveSlot(t testing.TB, key string) *SlotMove {
	t.Helper()
	c.mustOwn("MoveSlot")
	m := &SlotMove{c: c, slot: Slot(key), from: c.Primary(t, key), to: c.Other(t, key)}
	m.do(t, m.to, "cluster", "setslot", m.slot, "importing", m.id(t, m.from))
	m.do(t, m.from, "cluster", "setslot", m.slot, "migrating", m.id(t, m.to))
	return m
}

// Keys moves some keys of the slot, or with none all that are there.
func (m *SlotMove) Keys(t testing.TB, keys ...string) {
	t.Helper()
	all := len(keys) == 0
	for {
		if all {
			if keys = m.left(t); len(keys) == 0 {
				return
			}
		}
		args := []any{"migrate", "127.0.0.1", m.to.port, "", 0, 5000, "keys"}
		for _, key := range keys {
			args = append(args, key)
		}
		m.do(t, m.from, args...)
		if !all {
			return
		}
	}
}

func (m *SlotMove) left(t testing.TB) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	rdb := m.from.plainClient()
	defer rdb.Close()
	keys, err := rdb.ClusterGetKeysInSlot(ctx, m.slot, 100).Result()
	if err != nil {
		t.Fatal("redistest: keys in slot:", err)
	}
	return keys
}

// End moves what is left and makes the slot the other primary's.
func (m *SlotMove) End(t testing.TB) {
	t.Helper()
	m.Keys(t)
	to := m.id(t, m.to)
	m.do(t, m.to, "cluster", "setslot", m.slot, "node", to) // first, so that the slot always is somebody's
	m.Keys(t)                                               // made meanwhile
	m.do(t, m.from, "cluster", "setslot", m.slot, "node", to)
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	for _, s := range m.c.nodes {
		if !s.running() {
			continue
		}
		err := poll(ctx, func() error {
			owners, err := m.c.ownersBy(s, m.slot)
			if err == nil && (len(owners) == 0 || owners[0] != m.to) {
				err = errNotYet
			}
			return err
		})
		if err != nil {
			t.Fatal("redistest: slot not taken over:", err)
		}
	}
}

func (m *SlotMove) id(t testing.TB, s *Server) string {
	t.Helper()
	rdb := s.plainClient()
	defer rdb.Close()
	id, err := rdb.ClusterMyID(context.Background()).Result()
	if err != nil {
		t.Fatal("redistest: id of a node:", err)
	}
	return id
}

func (m *SlotMove) do(t testing.TB, s *Server, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	rdb := s.plainClient()
	defer rdb.Close()
	if err := rdb.Do(ctx, args...).Err(); err != nil {
		t.Fatalf("redistest: %v at %s: %v", args, s.Addr(), err)
	}
}
