package bloomotel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
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

// harness is a meter that is read by hand.
type harness struct {
	reader *sdk.ManualReader
	meter  metric.Meter
}

func newHarness(t *testing.T) *harness {
	h := &harness{reader: sdk.NewManualReader()}
	provider := sdk.NewMeterProvider(sdk.WithReader(h.reader))
	h.meter = provider.Meter("test")
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	return h
}

// register starts to observe a guard and a filter.
func (h *harness) register(t *testing.T, guards map[string]Guard, filters map[string]Filter, opts *Options) metric.Registration {
	t.Helper()
	r, err := Register(h.meter, guards, filters, opts)
	require.NoError(t, err)
	return r
}

// collect returns every sample by its name and attributes, as in
// `name{filter=orders}`, after it checked how the instrument is declared.
func (h *harness) collect(t *testing.T) map[string]float64 {
	t.Helper()
	var collected metricdata.ResourceMetrics
	require.NoError(t, h.reader.Collect(t.Context(), &collected))
	samples := map[string]float64{}
	put := func(name string, set attribute.Set, v float64) {
		var kv []string
		for _, a := range set.ToSlice() {
			kv = append(kv, string(a.Key)+"="+a.Value.Emit())
		}
		samples[fmt.Sprintf("%s{%s}", name, strings.Join(kv, ","))] = v
	}
	for _, scope := range collected.ScopeMetrics {
		for _, m := range scope.Metrics {
			require.NotEmpty(t, m.Description, m.Name)
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				require.True(t, data.IsMonotonic, m.Name)
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, p.Value)
				}
			default:
				require.Fail(t, "kind of instrument", "%s: %T", m.Name, data)
			}
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
		want["bloom.guard."+strings.ToLower(snake)+"{guard=orders}"] = float64(i + 1)
	}
	h := newHarness(t)
	h.register(t, map[string]Guard{"orders": fakeGuard(stats)}, nil, nil)
	require.Equal(t, want, h.collect(t))
}

var wantFull = map[string]float64{
	"bloom.filter.up{filter=orders}":                                 1,
	"bloom.filter.info{backend=bitmap,filter=orders,layout=blocked}": 1,
	"bloom.filter.fill{filter=orders}":                               0.25,
	"bloom.filter.items{filter=orders}":                              500,
	"bloom.filter.capacity_items{filter=orders}":                     1000,
	"bloom.filter.false_positive_rate{filter=orders}":                0.001,
	"bloom.filter.false_positive_rate_target{filter=orders}":         0.01,
	"bloom.filter.bytes{filter=orders}":                              4096,
	"bloom.filter.shards{filter=orders}":                             2,
	"bloom.filter.sub_filters{filter=orders}":                        3,
	"bloom.filter.generation{filter=orders}":                         7,
	"bloom.filter.created_timestamp{filter=orders}":                  1_700_000_000.5,
	"bloom.filter.info_errors{filter=orders,reason=not_ready}":       0,
	"bloom.filter.info_errors{filter=orders,reason=corrupt}":         0,
	"bloom.filter.info_errors{filter=orders,reason=timeout}":         0,
	"bloom.filter.info_errors{filter=orders,reason=other}":           0,
}

func TestFilterIsExportedUntilUnregistered(t *testing.T) {
	h := newHarness(t)
	r := h.register(t, nil, map[string]Filter{"orders": answering(fullInfo(), nil)}, nil)
	require.Equal(t, wantFull, h.collect(t))
	require.NoError(t, r.Unregister())
	require.Empty(t, h.collect(t))
}

func TestUnknownIsLeftOut(t *testing.T) {
	info := fullInfo()
	info.Fill, info.FPRate, info.Params.FPRate = math.NaN(), math.NaN(), math.NaN()
	info.Generation, info.Created = 0, time.Time{}
	h := newHarness(t)
	h.register(t, nil, map[string]Filter{"orders": answering(info, nil)}, nil)
	want := maps.Clone(wantFull)
	for _, name := range []string{"fill", "false_positive_rate", "false_positive_rate_target",
		"generation", "created_timestamp"} {
		delete(want, "bloom.filter."+name+"{filter=orders}")
	}
	require.Equal(t, want, h.collect(t))
}

func TestFailedRead(t *testing.T) {
	for reason, err := range map[string]error{
		"not_ready": fmt.Errorf("describe: %w", bloom.ErrNotReady),
		"corrupt":   fmt.Errorf("describe: %w", bloom.ErrCorrupt),
		"timeout":   fmt.Errorf("read tcp: %w", os.ErrDeadlineExceeded),
		"other":     errors.New("connection refused"),
	} {
		t.Run(reason, func(t *testing.T) {
			f := answering(bloom.Info{}, err)
			h := newHarness(t)
			h.register(t, nil, map[string]Filter{"orders": f}, &Options{Interval: time.Hour})
			want := map[string]float64{"bloom.filter.up{filter=orders}": 0}
			for _, r := range reasons {
				want["bloom.filter.info_errors{filter=orders,reason="+r+"}"] = 0
			}
			want["bloom.filter.info_errors{filter=orders,reason="+reason+"}"] = 1
			for range 3 { // of which one reads
				require.Equal(t, want, h.collect(t))
			}
			require.EqualValues(t, 1, f.reads.Load())
		})
	}
}

func TestReadsAgainAfterInterval(t *testing.T) {
	f := answering(fullInfo(), nil)
	h := newHarness(t)
	h.register(t, nil, map[string]Filter{"orders": f}, &Options{Interval: time.Nanosecond})
	require.Eventually(t, func() bool {
		require.Equal(t, wantFull, h.collect(t))
		return f.reads.Load() == 3
	}, 10*time.Second, time.Millisecond)
}

// A client without ContextTimeoutEnabled does not heed the context.
func TestCollectReturnsWhileAReadHangs(t *testing.T) {
	release := make(chan struct{})
	hanging := &fakeFilter{info: func(context.Context) (bloom.Info, error) {
		<-release
		return fullInfo(), nil
	}}
	h := newHarness(t)
	h.register(t,
		map[string]Guard{"orders": fakeGuard{Gets: 5}},
		map[string]Filter{"hanging": hanging, "orders": answering(fullInfo(), nil)},
		&Options{Interval: time.Nanosecond, Timeout: 20 * time.Millisecond})

	for range 3 { // no reads pile up, and the failure is counted once
		got := h.collect(t)
		require.Equal(t, 5.0, got["bloom.guard.gets{guard=orders}"])
		require.Equal(t, 0.0, got["bloom.filter.up{filter=hanging}"])
		require.Equal(t, 1.0, got["bloom.filter.info_errors{filter=hanging,reason=timeout}"])
	}
	require.EqualValues(t, 1, hanging.reads.Load())

	close(release)
	require.Eventually(t, func() bool { // as soon as the read has ended
		return h.collect(t)["bloom.filter.up{filter=hanging}"] == 1
	}, 10*time.Second, time.Millisecond)
}

// A collection that is given up leaves the read to those that come after it.
func TestCollectEndsWithItsContext(t *testing.T) {
	release := make(chan struct{})
	f := &fakeFilter{info: func(ctx context.Context) (bloom.Info, error) {
		<-release
		return fullInfo(), ctx.Err()
	}}
	h := newHarness(t)
	h.register(t, nil, map[string]Filter{"orders": f}, &Options{Timeout: time.Minute})

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, h.reader.Collect(ctx, new(metricdata.ResourceMetrics)), context.DeadlineExceeded)

	close(release)
	require.Equal(t, wantFull, h.collect(t))
	require.EqualValues(t, 1, f.reads.Load())
}

func TestRefused(t *testing.T) {
	for name, register := range map[string]func(metric.Meter) (metric.Registration, error){
		"guard \"a\" is nil": func(m metric.Meter) (metric.Registration, error) {
			return Register(m, map[string]Guard{"a": nil}, nil, nil)
		},
		"filter \"a\" is nil": func(m metric.Meter) (metric.Registration, error) {
			return Register(m, nil, map[string]Filter{"a": nil}, nil)
		},
		"Interval -1s": func(m metric.Meter) (metric.Registration, error) {
			return Register(m, nil, nil, &Options{Interval: -time.Second})
		},
		"Timeout -1s": func(m metric.Meter) (metric.Registration, error) {
			return Register(m, nil, nil, &Options{Timeout: -time.Second})
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := register(noop.Meter{})
			require.ErrorIs(t, err, bloom.ErrInvalidParams)
			require.ErrorContains(t, err, name)
		})
	}
}

// failingMeter makes no gauges of floats.
type failingMeter struct {
	noop.Meter
	err error
}

func (m failingMeter) Float64ObservableGauge(string, ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	return nil, m.err
}

func TestMeterFails(t *testing.T) {
	meter := failingMeter{err: errors.New("no more")}
	_, err := Register(meter, nil, nil, nil)
	require.ErrorIs(t, err, meter.err)
}
