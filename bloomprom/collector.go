package bloomprom

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/prometheus/client_golang/prometheus"
)

// Guard is what a [bloom.Guard] of any type of values offers.
type Guard interface {
	Stats() bloom.GuardStats
}

// Filter is what a [bloom.Filter] offers.
type Filter interface {
	Info(ctx context.Context) (bloom.Info, error)
}

// Options are the knobs of a [Collector]. The zero value, or nil, is the default.
type Options struct {
	// Interval is the least time between two reads of a filter, each of which costs
	// its server about a millisecond per 4 MiB. Scrapes in between report what the
	// last read came to, a failure too. 0 means 1 min.
	Interval time.Duration
	// Timeout ends a read of a filter, and is the longest that Collect takes. Keep it
	// below the scrape_timeout of Prometheus. 0 means 3 s.
	Timeout time.Duration
}

const (
	defaultInterval = time.Minute
	defaultTimeout  = 3 * time.Second
)

// Collector exports guards and filters. It is safe for concurrent use and needs no
// closing: between scrapes it does nothing.
type Collector struct {
	guards  []guard
	filters []filter
	err     error // reported by Register
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector returns a collector of guards and filters, by the names that their
// labels shall have. Either map may be nil.
//
// It does no I/O. Register fails for what makes no sense, wrapping
// [bloom.ErrInvalidParams]: a nil guard or filter, a negative duration.
func NewCollector(guards map[string]Guard, filters map[string]Filter, opts *Options) *Collector {
	var o Options
	if opts != nil {
		o = *opts
	}
	c := new(Collector)
	if o.Interval < 0 || o.Timeout < 0 {
		c.refuse("Interval %v, Timeout %v: want 0 (the default) or more", o.Interval, o.Timeout)
	}
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	for name, g := range guards {
		if g == nil {
			c.refuse("guard %q is nil", name)
			continue
		}
		c.guards = append(c.guards, newGuard(name, g))
	}
	for name, f := range filters {
		if f == nil {
			c.refuse("filter %q is nil", name)
			continue
		}
		c.filters = append(c.filters, newFilter(name, f, o))
	}
	return c
}

func (c *Collector) refuse(format string, args ...any) {
	err := fmt.Errorf("bloomprom: %s: %w", fmt.Sprintf(format, args...), bloom.ErrInvalidParams)
	c.err = errors.Join(c.err, err)
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	if c.err != nil {
		ch <- prometheus.NewInvalidDesc(c.err)
	}
	for _, g := range c.guards {
		for _, desc := range g.descs {
			ch <- desc
		}
	}
	for i := range c.filters {
		f := &c.filters[i]
		ch <- f.up
		ch <- f.errors
		ch <- f.about
		for _, desc := range f.gauges {
			ch <- desc
		}
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	// All reads run at once, and the guards do not wait for them.
	readings := make([]*reading, len(c.filters))
	for i := range c.filters {
		readings[i] = c.filters[i].probe.latest()
	}
	for _, g := range c.guards {
		g.collect(ch)
	}
	for i, r := range readings {
		<-r.done
		c.filters[i].collect(ch, r)
	}
}

type guard struct {
	source Guard
	descs  []*prometheus.Desc // of guardCounters
}

func newGuard(name string, source Guard) guard {
	g := guard{source: source}
	label := prometheus.Labels{"guard": name}
	for _, m := range guardCounters {
		g.descs = append(g.descs, prometheus.NewDesc("bloom_guard_"+m.name+"_total", m.help, nil, label))
	}
	return g
}

func (g *guard) collect(ch chan<- prometheus.Metric) {
	stats := g.source.Stats()
	for i, m := range guardCounters {
		send(ch, g.descs[i], prometheus.CounterValue, float64(m.value(&stats)))
	}
}

type filter struct {
	probe  *probe
	up     *prometheus.Desc
	errors *prometheus.Desc
	about  *prometheus.Desc
	gauges []*prometheus.Desc // of filterGauges
}

func newFilter(name string, source Filter, o Options) filter {
	label := prometheus.Labels{"filter": name}
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("bloom_filter_"+name, help, variable, label)
	}
	f := filter{
		probe: &probe{source: source, interval: o.Interval, timeout: o.Timeout},
		up: desc("up", "1 if the latest read of the filter succeeded, else 0: "+
			"then its other gauges are left out."),
		errors: desc("info_errors_total", "Reads of the filter that failed, by reason: "+
			"not_ready (there is none: never built, evicted, expired), corrupt, timeout or other.", "reason"),
		about: desc("info", "Always 1. The labels say how the filter is stored.", "backend", "layout"),
	}
	for _, m := range filterGauges {
		f.gauges = append(f.gauges, desc(m.name, m.help))
	}
	return f
}

// collect reports a reading that is done.
func (f *filter) collect(ch chan<- prometheus.Metric, r *reading) {
	for i, reason := range reasons {
		send(ch, f.errors, prometheus.CounterValue, float64(f.probe.failed[i].Load()), reason)
	}
	if r.err != nil {
		send(ch, f.up, prometheus.GaugeValue, 0)
		return
	}
	send(ch, f.up, prometheus.GaugeValue, 1)
	send(ch, f.about, prometheus.GaugeValue, 1, r.info.Backend, r.info.Params.Layout.String())
	for i, m := range filterGauges {
		if v := m.value(&r.info); v == v { // not NaN
			send(ch, f.gauges[i], prometheus.GaugeValue, v)
		}
	}
}

// send turns what cannot be exported, such as a label that is not UTF-8, into an
// error of the scrape: a panic would end the process.
func send(ch chan<- prometheus.Metric, desc *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
	m, err := prometheus.NewConstMetric(desc, kind, v, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(desc, err)
	}
	ch <- m
}
