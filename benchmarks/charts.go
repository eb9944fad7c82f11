package main

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"
)

// bySubject colours bars by what they are of, paler in the first group of two.
func bySubject(bars []bar, groups int) func(bar, group int) color.Color {
	return func(bar, group int) color.Color {
		r, g, b, _ := hue(bars[bar].label).RGBA()
		c := color.NRGBA{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8), 0xff}
		if group < groups-1 {
			c.A = uint8(0x50 + 0x50*group/groups)
		}
		return c
	}
}

// value is a median, or NaN.
func (s *section) value(subject, circumstance, metric string) float64 {
	if r := s.find(subject, circumstance, metric); r != nil {
		return r.spread().median
	}
	return math.NaN()
}

func latencyCharts(s *section) ([]chart, error) {
	var bars []bar
	for _, subject := range s.subjects() {
		bars = append(bars, bar{subject, []float64{s.value(subject, "", "p50")}})
	}
	return barChart("latency", "One look-up, one caller, p50", "µs", bars, []string{""}, bySubject(bars, 1))
}

func throughputCharts(s *section) ([]chart, error) {
	var bars []bar
	for _, subject := range s.subjects() {
		b := bar{subject, []float64{s.value(subject, "plain, 128", "look-ups"), s.value(subject, "AutoPipeliner, 128", "look-ups")}}
		if subject != namePing && subject != nameRange && !(math.IsNaN(b.values[0]) && math.IsNaN(b.values[1])) {
			bars = append(bars, b)
		}
	}
	charts, err := barChart("throughput", "Look-ups a second, 128 callers: ordinary client (pale), AutoPipeliner (full)", "look-ups a second",
		bars, []string{"plain", "AutoPipeliner"}, bySubject(bars, 2))
	if err != nil {
		return nil, err
	}
	var all []series
	for _, subject := range s.subjects() {
		if subject == namePing || subject == nameRange || subject == nameBare {
			continue
		}
		via := "AutoPipeliner, "
		if subject == nameZero {
			via = "plain, "
		}
		all = append(all, s.series(subject, "look-ups", via))
	}
	c, err := lineChart("callers", "Look-ups a second through AutoPipeliner (go-zero: its own client)", "callers", "look-ups a second", nonEmpty(all), true, true)
	return append(charts, c...), err
}

// series are a subject's values of a metric over the number in the circumstances that
// begin so.
func (s *section) series(subject, metric, prefix string) series {
	out := series{name: subject}
	for _, r := range s.Rows {
		if r.Subject == subject && r.Metric == metric && strings.HasPrefix(r.Case, prefix) && r.X > 0 {
			v := r.spread()
			if v.low <= 0 {
				continue
			}
			out.x, out.y = append(out.x, r.X), append(out.y, v.median)
			out.low, out.high = append(out.low, v.low), append(out.high, v.high)
		}
	}
	return out
}

func nonEmpty(all []series) []series {
	return slices.DeleteFunc(all, func(s series) bool { return len(s.x) < 2 })
}

func batchCharts(s *section) ([]chart, error) {
	var all []series
	for _, subject := range s.subjects() {
		if subject != nameBare && subject != nameRange {
			all = append(all, s.series(subject, "server CPU", "batch of "))
		}
	}
	return lineChart("batch", "Server CPU per item of a batch", "items in a batch", "µs", nonEmpty(all), true, true)
}

func growthCharts(s *section) ([]chart, error) {
	var charts []chart
	for _, x := range []struct{ name, title, label, prefix string }{
		{"growth-size", "Server CPU per item of a batch of 1000, filters for 1 %", "capacity", "n = "},
		{"growth-rate", "Server CPU per item of a batch of 1000", "false-positive rate", "p = "},
	} {
		var all []series
		for _, subject := range s.subjects() {
			all = append(all, s.series(subject, "server CPU, batch of 1000", x.prefix))
		}
		c, err := lineChart(x.name, x.title, x.label, "µs", nonEmpty(all), true, true)
		if err != nil {
			return nil, err
		}
		charts = append(charts, c...)
	}
	return charts, nil
}

func loadCharts(s *section) ([]chart, error) {
	var bars []bar
	for _, subject := range s.subjects() {
		if v := s.value(subject, "", "items"); !math.IsNaN(v) && !strings.HasPrefix(subject, nameVerifies) {
			bars = append(bars, bar{subject, []float64{v}})
		}
	}
	shade := func(i, _ int) color.Color {
		for _, ours := range []string{nameClassic, nameBlocked, nameModule} {
			if strings.HasSuffix(bars[i].label, ours) {
				return hue(ours)
			}
		}
		return grey
	}
	return barChart("load", "Loading a filter", "items a second", bars, []string{""}, shade)
}

func guardCharts(s *section) ([]chart, error) {
	var charts []chart
	for _, what := range []string{caseHit, caseRejected} {
		var bars []bar
		for _, subject := range s.subjects() {
			b := bar{label: subject}
			for _, d := range delays {
				b.values = append(b.values, s.value(subject, what+", "+delayName(d), "p50"))
			}
			bars = append(bars, b)
		}
		name := "guard-" + strings.ReplaceAll(what, " ", "-")
		title := fmt.Sprintf("%s, p50: network of no, half a, two milliseconds", strings.ToUpper(what[:1])+what[1:])
		c, err := barChart(name, title, "µs", bars, []string{"0", "0.5", "2"}, bySubject(bars, len(delays)))
		if err != nil {
			return nil, err
		}
		charts = append(charts, c...)
	}
	return charts, nil
}

// accuracyCharts draw what was measured, with two standard deviations of counting, and
// what was predicted, dashed.
func accuracyCharts(s *section) ([]chart, error) {
	var all []series
	for _, subject := range []string{"Classic", "Blocked", nameModule} {
		for _, p := range full().rates {
			measured, predicted := series{name: subject}, series{name: subject, dashed: true}
			for _, r := range s.Rows {
				if r.Subject != subject || !strings.HasPrefix(r.Case, fmt.Sprintf("p = %g,", p)) || r.Metric != "measured rate" || r.Values[0] == 0 {
					continue
				}
				v, q, n := r.Values[0], s.value(subject, r.Case, "predicted rate"), s.value(subject, r.Case, "look-ups")
				sigma := math.Sqrt(v * (1 - v) / n)
				measured.x, measured.y = append(measured.x, r.X), append(measured.y, v)
				measured.low, measured.high = append(measured.low, max(v-2*sigma, v/20)), append(measured.high, v+2*sigma)
				predicted.x, predicted.y = append(predicted.x, r.X), append(predicted.y, q)
			}
			all = append(all, measured, predicted)
		}
	}
	charts, err := lineChart("accuracy", "False positives: measured (band: ± 2 σ), predicted (dashed)",
		"items in, over capacity", "rate", nonEmpty(all), false, true)
	for i := range charts {
		charts[i].height, charts[i].plot.X.Tick.Marker = 460, halves{}
	}
	return charts, err
}
