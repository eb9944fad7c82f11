// Package clustertest tries the library on what one server is not: a real Redis
// Cluster, replicas, Sentinels, and the failovers of each.
package clustertest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func bothLayouts(t *testing.T, f func(*testing.T, bloom.Layout)) {
	t.Helper()
	for _, layout := range []bloom.Layout{bloom.Classic, bloom.Blocked} {
		t.Run(layout.String(), func(t *testing.T) { f(t, layout) })
	}
}

func mustNew(t testing.TB, rdb redis.Cmdable, key string, cfg bloom.Config) *bloom.Filter {
	t.Helper()
	f, err := bloom.New(bloom.NewBitmap(rdb, key), cfg)
	require.NoError(t, err)
	return f
}

// filled makes a filter that holds members.
func filled(t testing.TB, rdb redis.Cmdable, key string, cfg bloom.Config, members []string) *bloom.Filter {
	t.Helper()
	f := mustNew(t, rdb, key, cfg)
	require.NoError(t, f.CreateEmpty(t.Context()))
	_, err := f.AddMulti(t.Context(), members)
	require.NoError(t, err)
	return f
}

func numbered(prefix string, n int) []string {
	items := make([]string, n)
	for i := range items {
		items[i] = prefix + " " + strconv.Itoa(i)
	}
	return items
}

func source(items []string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// requireMembers requires an undisturbed yes for each.
func requireMembers(t testing.TB, f *bloom.Filter, members []string) {
	t.Helper()
	got, err := f.ExistsMulti(t.Context(), members)
	require.NoError(t, err)
	require.Len(t, got, len(members))
	if at := slices.Index(got, false); at >= 0 {
		t.Fatalf("false negative: %q is denied", members[at])
	}
	exists, err := f.Exists(t.Context(), members[len(members)-1])
	require.NoError(t, err)
	require.True(t, exists)
}

// requireFew requires that a filter denies nearly all of items: then a yes means
// something.
func requireFew(t testing.TB, f *bloom.Filter, items []string) {
	t.Helper()
	got, err := f.ExistsMulti(t.Context(), items)
	require.NoError(t, err)
	found := 0
	for _, exists := range got {
		if exists {
			found++
		}
	}
	require.LessOrEqual(t, found, len(items)/10+2, "of %d items that nobody added", len(items))
}

// requireErrors requires that lookups and adds fail with an error that holds text,
// and deny nothing.
func requireErrors(t testing.TB, f *bloom.Filter, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	one, err := f.Exists(ctx, "a")
	require.ErrorContains(t, err, text)
	require.True(t, one)
	many, err := f.ExistsMulti(ctx, []string{"a", "b"})
	require.ErrorContains(t, err, text)
	require.Equal(t, []bool{true, true}, many)
}

func requireAddErrors(t testing.TB, f *bloom.Filter, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	one, err := f.Add(ctx, "a")
	require.ErrorContains(t, err, text)
	require.True(t, one)
	many, err := f.AddMulti(ctx, []string{"a", "b"})
	require.ErrorContains(t, err, text)
	require.Equal(t, []bool{true, true}, many)
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("did not happen: %s", what)
		}
	}
}

// traffic are readers and writers of one filter. Every item whose Add returned nil
// must be found by every lookup that begins later; errors are counted.
type traffic struct {
	t      *testing.T
	stop   context.CancelFunc
	ctx    context.Context
	all    sync.WaitGroup
	mu     sync.RWMutex
	begun  []string // their Adds have begun
	known  []string // their Adds have returned nil
	reads  atomic.Int64
	failed struct{ reads, adds atomic.Int64 }
	errs   sync.Map // error text → true
}

const (
	readers = 4
	writers = 2
	perCall = 4 * time.Second // what a caller gives a call
)

// startTraffic lets readers look up and writers add until end.
func startTraffic(t *testing.T, known []string, read, write *bloom.Filter) *traffic {
	t.Helper()
	tr := &traffic{t: t, begun: slices.Clone(known), known: slices.Clone(known)}
	tr.ctx, tr.stop = context.WithCancel(context.Background())
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BLOOM_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("BLOOM_SEED=%d", seed)
	for i := range readers {
		tr.all.Add(1)
		go tr.read(read, rand.New(rand.NewPCG(seed, uint64(i))))
	}
	for i := range writers {
		tr.all.Add(1)
		go tr.write(write, i)
	}
	t.Cleanup(func() { tr.stop(); tr.all.Wait() })
	return tr
}

func (tr *traffic) read(f *bloom.Filter, rnd *rand.Rand) {
	defer tr.all.Done()
	for tr.ctx.Err() == nil {
		tr.mu.RLock()
		items := make([]string, 1+rnd.IntN(20))
		for i := range items {
			items[i] = tr.known[rnd.IntN(len(tr.known))]
		}
		tr.mu.RUnlock()
		ctx, cancel := context.WithTimeout(tr.ctx, perCall)
		began := time.Now()
		var got []bool
		var err error
		if len(items) == 1 {
			var one bool
			one, err = f.Exists(ctx, items[0])
			got = []bool{one}
		} else {
			got, err = f.ExistsMulti(ctx, items)
		}
		tr.inTime(began, err)
		cancel()
		for i, exists := range got {
			if !exists {
				tr.t.Errorf("FALSE NEGATIVE: %q, error %v", items[i], err)
			}
		}
		tr.reads.Add(1)
		tr.count(&tr.failed.reads, err)
	}
}

func (tr *traffic) write(f *bloom.Filter, number int) {
	defer tr.all.Done()
	for n := 0; tr.ctx.Err() == nil; n++ {
		items := numbered(fmt.Sprintf("writer %d, call %d, item", number, n), 1+n%3)
		tr.mu.Lock()
		tr.begun = append(tr.begun, items...)
		tr.mu.Unlock()
		ctx, cancel := context.WithTimeout(tr.ctx, perCall)
		began := time.Now()
		var err error
		if len(items) == 1 {
			_, err = f.Add(ctx, items[0])
		} else {
			_, err = f.AddMulti(ctx, items)
		}
		tr.inTime(began, err)
		cancel()
		if err == nil {
			tr.mu.Lock()
			tr.known = append(tr.known, items...)
			tr.mu.Unlock()
		}
		tr.count(&tr.failed.adds, err)
		time.Sleep(500 * time.Microsecond)
	}
}

func (tr *traffic) inTime(began time.Time, err error) {
	if took := time.Since(began); took > perCall+2*time.Second {
		tr.t.Errorf("a call took %v: %v", took, err)
	}
}

func (tr *traffic) count(n *atomic.Int64, err error) {
	if err != nil && tr.ctx.Err() == nil {
		n.Add(1)
		tr.errs.Store(kindOf(err), true)
		time.Sleep(time.Millisecond)
	}
}

// kindOf shortens an error to what tells it from others.
func kindOf(err error) string {
	var reply redis.Error
	if errors.As(err, &reply) {
		word, _, _ := strings.Cut(reply.Error(), " ")
		return word
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case strings.Contains(err.Error(), "reached"):
		return "replicas"
	case strings.Contains(err.Error(), "refused"), strings.Contains(err.Error(), "EOF"), strings.Contains(err.Error(), "reset"):
		return "network"
	}
	return err.Error()
}

// acknowledged is how many items are known.
func (tr *traffic) acknowledged() int {
	tr.mu.RLock()
	defer tr.mu.RUnlock()
	return len(tr.known)
}

func (tr *traffic) begunSoFar() []string {
	tr.mu.RLock()
	defer tr.mu.RUnlock()
	return slices.Clone(tr.begun)
}

// goOn waits until n more items were added and n more lookups made.
func (tr *traffic) goOn(n int) {
	tr.t.Helper()
	added, read := tr.acknowledged(), tr.reads.Load()
	eventually(tr.t, fmt.Sprintf("%d more adds and reads (errors so far: %s)", n, tr.kinds()), func() bool {
		return tr.t.Failed() || tr.acknowledged() >= added+n && tr.reads.Load() >= read+int64(n)
	})
}

// end stops the traffic and returns the items that were acknowledged.
func (tr *traffic) end() []string {
	tr.t.Helper()
	tr.stop()
	tr.all.Wait()
	tr.t.Logf("%d lookups (%d failed), %d items added (%d adds failed), errors: %s",
		tr.reads.Load(), tr.failed.reads.Load(), len(tr.known), tr.failed.adds.Load(), tr.kinds())
	return tr.known
}

func (tr *traffic) kinds() string {
	var kinds []string
	tr.errs.Range(func(kind, _ any) bool { kinds = append(kinds, kind.(string)); return true })
	slices.Sort(kinds)
	return strings.Join(kinds, ", ")
}
