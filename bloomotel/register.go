package bloomotel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bloomguard/bloom"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Guard is what a [bloom.Guard] of any type of values offers.
type Guard interface {
	Stats() bloom.GuardStats
}

// Filter is what a [bloom.Filter] offers.
type Filter interface {
	Info(ctx context.Context) (bloom.Info, error)
}

// Options are the knobs of [Register]. The zero value, or nil, is the default.
type Options struct {
	// Interval is the least time between two reads of a filter, each of which costs
	// its server about a millisecond per 4 MiB. Collections in between report what
	// the last read came to, a failure too. 0 means 1 min.
	Interval time.Duration
	// Timeout ends a read of a filter, and is the longest that a collection waits for
	// it. 0 means 3 s.
	Timeout time.Duration
}

const (
	defaultInterval = time.Minute
	defaultTimeout  = 3 * time.Second
)

// Register lets meter observe guards and filters, by the names that their
// attributes shall have, until the Registration is unregistered. Either map may be
// nil. Between collections nothing runs.
//
// It does no I/O. A name must not be registered twice with meters of one provider
// and scope. What makes no sense is [bloom.ErrInvalidParams]: a nil guard or
// filter, a negative duration. Other errors are the meter's.
func Register(meter metric.Meter, guards map[string]Guard, filters map[string]Filter, opts *Options) (metric.Registration, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Interval < 0 || o.Timeout < 0 {
		return nil, refused("Interval %v, Timeout %v: want 0 (the default) or more", o.Interval, o.Timeout)
	}
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	var e exporter
	for name, g := range guards {
		if g == nil {
			return nil, refused("guard %q is nil", name)
		}
		e.guards = append(e.guards, guard{source: g, name: attributes(attribute.String("guard", name))})
	}
	for name, f := range filters {
		if f == nil {
			return nil, refused("filter %q is nil", name)
		}
		e.filters = append(e.filters, newFilter(name, f, o))
	}
	instruments, err := e.instruments(meter)
	if err != nil {
		return nil, fmt.Errorf("bloomotel: make instruments: %w", err)
	}
	return meter.RegisterCallback(e.observe, instruments...)
}

func refused(format string, args ...any) error {
	return fmt.Errorf("bloomotel: %s: %w", fmt.Sprintf(format, args...), bloom.ErrInvalidParams)
}

func attributes(kv ...attribute.KeyValue) metric.ObserveOption {
	return metric.WithAttributeSet(attribute.NewSet(kv...))
}

type exporter struct {
	guards  []guard
	filters []filter

	counters []metric.Int64ObservableCounter // of guardCounters
	up       metric.Int64ObservableGauge
	errors   metric.Int64ObservableCounter
	about    metric.Int64ObservableGauge
	gauges   []metric.Float64ObservableGauge // of filterGauges
}

type guard struct {
	source Guard
	name   metric.ObserveOption
}

type filter struct {
	probe   *probe
	label   attribute.KeyValue
	name    metric.ObserveOption
	reasons []metric.ObserveOption // name and one of reasons
}

func newFilter(name string, source Filter, o Options) filter {
	label := attribute.String("filter", name)
	f := filter{
		probe: &probe{source: source, interval: o.Interval, timeout: o.Timeout},
		label: label,
		name:  attributes(label),
	}
	for _, reason := range reasons {
		f.reasons = append(f.reasons, attributes(label, attribute.String("reason", reason)))
	}
	return f
}

// instruments makes them all.
func (e *exporter) instruments(meter metric.Meter) (all []metric.Observable, err error) {
	keep := func(i metric.Observable, failed error) {
		all, err = append(all, i), errors.Join(err, failed)
	}
	counter := func(name, unit, help string) metric.Int64ObservableCounter {
		c, failed := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
		keep(c, failed)
		return c
	}
	gauge := func(name, help string) metric.Int64ObservableGauge {
		g, failed := meter.Int64ObservableGauge(name, metric.WithDescription(help))
		keep(g, failed)
		return g
	}
	for _, m := range guardCounters {
		e.counters = append(e.counters, counter("bloom.guard."+m.name, m.unit, m.help))
	}
	e.up = gauge("bloom.filter.up", "1 if the latest read of the filter succeeded, else 0: "+
		"then its other gauges are left out.")
	e.errors = counter("bloom.filter.info_errors", "{error}", "Reads of the filter that failed, by reason: "+
		"not_ready (there is none: never built, evicted, expired), corrupt, timeout or other.")
	e.about = gauge("bloom.filter.info", "Always 1. The attributes say how the filter is stored.")
	for _, m := range filterGauges {
		g, failed := meter.Float64ObservableGauge("bloom.filter."+m.name,
			metric.WithUnit(m.unit), metric.WithDescription(m.help))
		keep(g, failed)
		e.gauges = append(e.gauges, g)
	}
	return all, err
}

// observe is called once per collection.
func (e *exporter) observe(ctx context.Context, o metric.Observer) error {
	// All reads run at once, and the guards do not wait for them.
	readings := make([]*reading, len(e.filters))
	for i := range e.filters {
		readings[i] = e.filters[i].probe.latest()
	}
	for _, g := range e.guards {
		stats := g.source.Stats()
		for i, m := range guardCounters {
			o.ObserveInt64(e.counters[i], int64(m.value(&stats)), g.name)
		}
	}
	for i, r := range readings {
		select {
		case <-r.done:
			e.observeFilter(o, &e.filters[i], r)
		case <-ctx.Done():
			return fmt.Errorf("bloomotel: read filters: %w", ctx.Err())
		}
	}
	return nil
}

// observeFilter reports a reading that is done.
func (e *exporter) observeFilter(o metric.Observer, f *filter, r *reading) {
	for i, reason := range f.reasons {
		o.ObserveInt64(e.errors, int64(f.probe.failed[i].Load()), reason)
	}
	if r.err != nil {
		o.ObserveInt64(e.up, 0, f.name)
		return
	}
	o.ObserveInt64(e.up, 1, f.name)
	o.ObserveInt64(e.about, 1, attributes(f.label,
		attribute.String("backend", r.info.Backend),
		attribute.String("layout", r.info.Params.Layout.String())))
	for i, m := range filterGauges {
		if v := m.value(&r.info); v == v { // not NaN
			o.ObserveFloat64(e.gauges[i], v, f.name)
		}
	}
}
