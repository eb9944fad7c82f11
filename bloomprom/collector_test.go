package bloomprom

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The real types offer what is asked for.
var (
	_ Guard  = (*bloom.Guard[struct{}])(nil)
	_ Filter = (*bloom.Filter)(nil)
)

type fakeGuard bloom.GuardStats

func (g fakeGuard) Stats() bloom.GuardStats { return bloom.GuardStats(g) }

// fakeFilter answers Info by a function, and counts how often it was asked.
type fakeFilter struct {
	reads atomic.Int64
	info  func(context.Context) (bloom.Info, error)
}

func (f *fakeFilter) Info(ctx context.Context) (bloom.Info, error) {
	f.reads.Add(1)
	return f.info(ctx)
}

func answering(info bloom.Info, err error) *fakeFilter {
	return &fakeFilter{info: func(context.Context) (bloom.Info, error) { return info, err }}
}

func fullInfo() bloom.Info {
	return bloom.Info{
		Backend:    "bitmap",
		Params:     bloom.Params{Capacity: 1000, FPRate: 0.01, Layout: bloom.Blocked},
		Items:      500,
		Fill:       0.25,
		FPRate:     0.001,
		Bytes:      4096,
		Shards:     2,
		SubFilters: 3,
		Generation: 7,
		Created:    time.UnixMicro(1_700_000_000_500_000),
	}
}

func oneFilter(f Filter, opts *Options) *Collector {
	return NewCollector(nil, map[string]Filter{"orders": f}, opts)
}

// gather returns every sample by its name and labels, as in `name{filter=orders}`.
func gather(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(c))
	families, err := reg.Gather()
	require.NoError(t, err)
	samples := map[string]float64{}
	for _, family := range families {
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			samples[fmt.Sprintf("%s{%s}", family.GetName(), strings.Join(labels, ","))] =
				m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return samples
}

// A field that is added to GuardStats and forgotten here fails this test.
func TestEveryGuardStatIsExported(t *testing.T) {
	var stats bloom.GuardStats
	want := map[string]float64{}
	v := reflect.ValueOf(&stats).Elem()
	for i := range v.NumField() {
		v.Field(i).SetUint(uint64(i + 1))
		snake := regexp.MustCompile(`\B[A-Z]`).ReplaceAllString(v.Type().Field(i).Name, "_$0")
		want["bloom_guard_"+strings.ToLower(snake)+"_total{guard=orders}"] = float64(i + 1)
	}
	require.Equal(t, want, gather(t, NewCollector(map[string]Guard{"orders": fakeGuard(stats)}, nil, nil)))
}

func TestFilterIsExported(t *testing.T) {
	require.Equal(t, map[string]float64{
		"bloom_filter_up{filter=orders}":                                 1,
		"bloom_filter_info{backend=bitmap,filter=orders,layout=blocked}": 1,
		"bloom_filter_fill_ratio{filter=orders}":                         0.25,
		"bloom_filter_items{filter=orders}":                              500,
		"bloom_filter_capacity_items{filter=orders}":                     1000,
		"bloom_filter_false_positive_rate{filter=orders}":                0.001,
		"bloom_filter_false_positive_rate_target{filter=orders}":         0.01,
		"bloom_filter_bytes{filter=orders}":                              4096,
		"bloom_filter_shards{filter=orders}":                             2,
		"bloom_filter_sub_filters{filter=orders}":                        3,
		"bloom_filter_generation{filter=orders}":                         7,
		"bloom_filter_created_timestamp_seconds{filter=orders}":          1_700_000_000.5,
		"bloom_filter_info_errors_total{filter=orders,reason=not_ready}": 0,
		"bloom_filter_info_errors_total{filter=orders,reason=corrupt}":   0,
		"bloom_filter_info_errors_total{filter=orders,reason=timeout}":   0,
		"bloom_filter_info_errors_total{filter=orders,reason=other}":     0,
	}, gather(t, oneFilter(answering(fullInfo(), nil), nil)))
}

func TestUnknownIsLeftOut(t *testing.T) {
	info := fullInfo()
	info.Fill, info.FPRate, info.Params.FPRate = math.NaN(), math.NaN(), math.NaN()
	info.Generation, info.Created = 0, time.Time{}
	got := gather(t, oneFilter(answering(info, nil), nil))
	for _, name := range []string{"fill_ratio", "false_positive_rate", "false_positive_rate_target",
		"generation", "created_timestamp_seconds"} {
		require.NotContains(t, got, "bloom_filter_"+name+"{filter=orders}")
	}
	require.Equal(t, 1.0, got["bloom_filter_up{filter=orders}"])
	require.Equal(t, 500.0, got["bloom_filter_items{filter=orders}"])
}

func TestFailedRead(t *testing.T) {
	for reason, err := range map[string]error{
		"not_ready": fmt.Errorf("describe: %w", bloom.ErrNotReady),
		"corrupt":   fmt.Errorf("describe: %w", bloom.ErrCorrupt),
		"timeout":   fmt.Errorf("read tcp: %w", os.ErrDeadlineExceeded),
		"other":     errors.New("connection refused"),
	} {
		t.Run(reason, func(t *testing.T) {
			c := oneFilter(answering(bloom.Info{}, err), &Options{Interval: time.Nanosecond})
			for n := 1.0; n <= 2; n++ {
				settled(t, c)
				got := gather(t, c)
				require.Len(t, got, 1+len(reasons), "up and errors only")
				require.Zero(t, got["bloom_filter_up{filter=orders}"])
				for _, r := range reasons {
					want := 0.0
					if r == reason {
						want = n
					}
					require.Equal(t, want, got["bloom_filter_info_errors_total{filter=orders,reason="+r+"}"], r)
				}
			}
		})
	}
}

// settled waits until no read runs, so that the next scrape begins one.
func settled(t *testing.T, c *Collector) {
	t.Helper()
	require.Eventually(t, func() bool {
		for i := range c.filters {
			p := c.filters[i].probe
			p.mu.Lock()
			running := p.running
			p.mu.Unlock()
			if running {
				return false
			}
		}
		return true
	}, 10*time.Second, time.Millisecond)
}

func TestReadsAtMostOncePerInterval(t *testing.T) {
	for name, err := range map[string]error{"success": nil, "failure": bloom.ErrNotReady} {
		t.Run(name, func(t *testing.T) {
			f := answering(fullInfo(), err)
			c := oneFilter(f, &Options{Interval: time.Hour})
			first := gather(t, c)
			settled(t, c)
			var scrapes sync.WaitGroup
			for range 8 {
				scrapes.Add(1)
				go func() {
					defer scrapes.Done()
					testutil.CollectAndCount(c)
				}()
			}
			scrapes.Wait()
			require.Equal(t, first, gather(t, c))
			require.EqualValues(t, 1, f.reads.Load())
		})
	}
	t.Run("again when it is over", func(t *testing.T) {
		f := answering(fullInfo(), nil)
		c := oneFilter(f, &Options{Interval: time.Nanosecond})
		for range 3 {
			gather(t, c)
			settled(t, c)
		}
		require.EqualValues(t, 3, f.reads.Load())
	})
}

func TestScrapesAtOnceShareARead(t *testing.T) {
	release := make(chan struct{})
	f := &fakeFilter{info: func(context.Context) (bloom.Info, error) {
		<-release
		return fullInfo(), nil
	}}
	c := oneFilter(f, &Options{Interval: time.Nanosecond, Timeout: time.Minute})
	begun := make(chan struct{}, 8)
	var scrapes sync.WaitGroup
	for range cap(begun) {
		scrapes.Add(1)
		go func() {
			defer scrapes.Done()
			r := c.filters[0].probe.latest()
			begun <- struct{}{}
			<-r.done
		}()
	}
	for range cap(begun) {
		<-begun
	}
	close(release)
	scrapes.Wait()
	settled(t, c)
	require.EqualValues(t, 1, f.reads.Load())
}

// A client without ContextTimeoutEnabled does not heed the context.
func TestCollectReturnsWhileAReadHangs(t *testing.T) {
	release := make(chan struct{})
	hanging := &fakeFilter{info: func(ctx context.Context) (bloom.Info, error) {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("no deadline")
		}
		<-release
		return fullInfo(), nil
	}}
	c := NewCollector(
		map[string]Guard{"orders": fakeGuard{Gets: 5}},
		map[string]Filter{"hanging": hanging, "orders": answering(fullInfo(), nil)},
		&Options{Interval: time.Nanosecond, Timeout: 20 * time.Millisecond})

	for range 3 { // no reads pile up, and the failure is counted once
		got := gather(t, c)
		require.Equal(t, 5.0, got["bloom_guard_gets_total{guard=orders}"])
		require.Equal(t, 0.0, got["bloom_filter_up{filter=hanging}"])
		require.Equal(t, 1.0, got["bloom_filter_info_errors_total{filter=hanging,reason=timeout}"])
	}
	require.EqualValues(t, 1, hanging.reads.Load())

	close(release)
	require.Eventually(t, func() bool { // as soon as the read has ended
		return gather(t, c)["bloom_filter_up{filter=hanging}"] == 1
	}, 10*time.Second, time.Millisecond)
	settled(t, c)
}

func TestLint(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(everything()))
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// everything exports every metric that there is.
func everything() *Collector {
	return NewCollector(
		map[string]Guard{"orders": fakeGuard{}, "users": fakeGuard{}},
		map[string]Filter{"orders": answering(fullInfo(), nil), "users": answering(fullInfo(), nil)},
		nil)
}

func TestCollectorsSideBySide(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	guards := func(name string) *Collector {
		return NewCollector(map[string]Guard{name: fakeGuard{}}, nil, nil)
	}
	require.NoError(t, reg.Register(guards("orders")))
	require.NoError(t, reg.Register(guards("users")))
	require.Error(t, reg.Register(guards("orders")), "name is taken")
	require.NoError(t, reg.Register(NewCollector(nil, nil, nil)), "nothing to export")
	_, err := reg.Gather()
	require.NoError(t, err)
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]*Collector{
		"guard \"a\" is nil":  NewCollector(map[string]Guard{"a": nil}, nil, nil),
		"filter \"a\" is nil": NewCollector(nil, map[string]Filter{"a": nil}, nil),
		"Interval -1s":        NewCollector(nil, nil, &Options{Interval: -time.Second}),
		"Timeout -1s":         NewCollector(nil, nil, &Options{Timeout: -time.Second}),
	} {
		t.Run(name, func(t *testing.T) {
			err := prometheus.NewRegistry().Register(c)
			require.ErrorIs(t, err, bloom.ErrInvalidParams)
			require.ErrorContains(t, err, name)
		})
	}
	require.Error(t, prometheus.NewRegistry().Register(
		NewCollector(map[string]Guard{"\xff": fakeGuard{}}, nil, nil)), "label that is not UTF-8")
}

// A foreign backend may call itself anything; no scrape may panic over it.
func TestBackendNameThatIsNotUTF8(t *testing.T) {
	info := fullInfo()
	info.Backend = "\xff"
	reg := prometheus.NewRegistry()
	require.NoError(t, reg.Register(oneFilter(answering(info, nil), nil)))
	families, err := reg.Gather()
	require.Error(t, err)
	require.NotEmpty(t, families)
}
