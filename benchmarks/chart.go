package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A chart is one SVG of the documentation.
type chart struct {
	name          string // of the file
	width, height vg.Length
	plot          *plot.Plot
	legend        *plot.Legend // on the right; nil: none
}

// hues are the colours of what is compared: strong ones for ours, pale ones for peers.
var hues = map[string]color.Color{
	nameClassic: blue, nameBlocked: red, nameModule: green,
	"Classic": blue, "Blocked": red, nameScaling: lime,
	nameGuardClassic: blue, nameGuardBlocked: red, nameGuardModule: green, nameGuard: purple,
	nameZero: orange, nameZeroCache: orange, nameZeroBoth: brown, nameTextbook: grey, nameLua: brown, nameSet: teal,
	nameBare: lime, namePing: silver, nameGet: silver, nameRange: silver, nameCacheV9: teal, nameRocks: grey,
}

var (
	blue   = color.RGBA{0x1f, 0x5f, 0xbf, 0xff}
	red    = color.RGBA{0xd0, 0x3a, 0x3a, 0xff}
	green  = color.RGBA{0x2c, 0x8a, 0x4a, 0xff}
	purple = color.RGBA{0x80, 0x50, 0xb0, 0xff}
	orange = color.RGBA{0xe0, 0xa0, 0x50, 0xff}
	brown  = color.RGBA{0xa8, 0x90, 0x70, 0xff}
	teal   = color.RGBA{0x70, 0xb0, 0xb0, 0xff}
	lime   = color.RGBA{0x9c, 0xc8, 0x80, 0xff}
	grey   = color.RGBA{0x90, 0x90, 0x90, 0xff}
	silver = color.RGBA{0xc4, 0xc4, 0xc4, 0xff}
	paper  = color.RGBA{0xe8, 0xe8, 0xe8, 0xff}
)

func hue(subject string) color.Color {
	if c, ok := hues[subject]; ok {
		return c
	}
	return grey
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.TextStyle.Font.Size = 13
	p.Title.Padding = 6
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font.Size = 11
		a.Tick.Label.Font.Size = 10
		a.LineStyle.Color = grey
		a.Tick.LineStyle.Color = grey
	}
	return p
}

// A series is a line, its points with the range of their rounds.
type series struct {
	name   string
	x, y   []float64
	low    []float64 // nil: no ranges
	high   []float64
	dashed bool
}

// lineChart has logarithmic axes where asked for.
// There is none of nothing.
func lineChart(name, title, x, y string, all []series, logX, logY bool) ([]chart, error) {
	if len(all) == 0 {
		return nil, nil
	}
	p := newPlot(title, x, y)
	p.Add(grid())
	legend := plot.NewLegend()
	legend.Top, legend.Left = true, true
	legend.TextStyle.Font.Size = 10
	legend.Padding = 3
	named := map[string]bool{}
	for _, s := range all {
		points := make(plotter.XYs, len(s.x))
		for i := range points {
			points[i] = plotter.XY{X: s.x[i], Y: s.y[i]}
		}
		if s.low != nil {
			band := make(plotter.XYs, 0, 2*len(s.x))
			for i := range s.x {
				band = append(band, plotter.XY{X: s.x[i], Y: s.low[i]})
			}
			for i := len(s.x) - 1; i >= 0; i-- {
				band = append(band, plotter.XY{X: s.x[i], Y: s.high[i]})
			}
			area, err := plotter.NewPolygon(band)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", name, s.name, err)
			}
			r, g, b, _ := hue(s.name).RGBA()
			area.Color = color.NRGBA{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8), 0x30}
			area.LineStyle.Width = 0
			p.Add(area)
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", name, s.name, err)
		}
		line.Color, line.Width = hue(s.name), 1.6
		marks.Color, marks.Radius, marks.Shape = hue(s.name), 2.2, draw.CircleGlyph{}
		if s.dashed {
			line.Dashes, line.Width = []vg.Length{3, 3}, 1
			p.Add(line)
			continue
		}
		p.Add(line, marks)
		if !named[s.name] {
			named[s.name] = true
			legend.Add(s.name, line)
		}
	}
	if logX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, powers{}
	}
	if logY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, powers{}
	} else {
		p.Y.Min = 0
	}
	return []chart{{name: name, width: 720, height: 340, plot: p, legend: &legend}}, nil
}

func grid() *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical.Color, g.Horizontal.Color = paper, paper
	return g
}

// A bar has one value for each group, NaN where there is none.
type bar struct {
	label  string
	values []float64
}

// barChart has horizontal bars, the first on top, their values beside them.
// There is none of nothing.
func barChart(name, title, unit string, bars []bar, groups []string, shade func(bar, group int) color.Color) ([]chart, error) {
	if len(bars) == 0 {
		return nil, nil
	}
	p := newPlot(title, unit, "")
	p.Add(grid())
	n, most := len(bars), 0.0
	const thick = 10
	labels := make([]string, n)
	for g := range groups {
		var texts plotter.XYLabels
		for i, b := range bars {
			labels[n-1-i] = b.label
			v := b.values[g]
			if math.IsNaN(v) {
				continue
			}
			one, err := plotter.NewBarChart(plotter.Values{v}, thick)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", name, b.label, err)
			}
			one.Horizontal = true
			one.XMin = float64(n - 1 - i)
			one.Offset = (vg.Length(len(groups)-1)/2 - vg.Length(g)) * thick
			one.Color, one.LineStyle.Width = shade(i, g), 0
			p.Add(one)
			most = max(most, v)
			texts.XYs = append(texts.XYs, plotter.XY{X: v, Y: float64(n - 1 - i)})
			texts.Labels = append(texts.Labels, " "+number(v))
		}
		if len(texts.XYs) == 0 {
			continue
		}
		text, err := plotter.NewLabels(texts)
		if err != nil {
			return nil, err
		}
		for i := range text.TextStyle {
			text.TextStyle[i].Font.Size = 9
			text.TextStyle[i].YAlign = draw.YCenter
		}
		text.Offset.Y = (vg.Length(len(groups)-1)/2 - vg.Length(g)) * thick
		p.Add(text)
	}
	p.NominalY(labels...)
	p.Y.Padding = 12
	p.X.Min, p.X.Max = 0, most*1.12
	p.X.Tick.Marker = rounded{}
	return []chart{{name: name, width: 720, height: vg.Length(80 + (thick*len(groups)+8)*n), plot: p}}, nil
}

// powers labels the decades of a logarithmic axis.
type powers struct{}

func (powers) Ticks(low, high float64) (ticks []plot.Tick) {
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		v := math.Pow(10, e)
		for m := 1.0; m < 10; m++ {
			if at := v * m; at >= low*0.999 && at <= high*1.001 {
				label := ""
				if m == 1 || high/low < 30 && (m == 2 || m == 5) {
					label = decade(at)
				}
				ticks = append(ticks, plot.Tick{Value: at, Label: label})
			}
		}
	}
	return ticks
}

func decade(v float64) string {
	if v >= 1e5 {
		return fmt.Sprintf("1e%d", int(math.Round(math.Log10(v))))
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// halves marks every half.
type halves struct{}

func (halves) Ticks(low, high float64) (ticks []plot.Tick) {
	for v := math.Ceil(2*low) / 2; v <= high; v += 0.5 {
		ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', -1, 64)})
	}
	return ticks
}

// rounded writes large numbers in groups.
type rounded struct{}

func (rounded) Ticks(low, high float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(low, high)
	for i, t := range ticks {
		if t.Label != "" {
			ticks[i].Label = number(t.Value)
		}
	}
	return ticks
}

// fontFamily is what the drawing library names its fonts by; a reader has others.
var fontFamily = regexp.MustCompile(`font-family:[^;"]*`)

func (c chart) save(dir string) error {
	canvas := vgsvg.New(c.width, c.height)
	canvas.SetColor(color.White)
	canvas.Fill(vg.Rectangle{Max: vg.Point{X: c.width, Y: c.height}}.Path())
	area := draw.Crop(draw.New(canvas), 4, -24, 4, -6)
	if c.legend != nil {
		right := area.Max.X - 130
		c.legend.Draw(draw.Crop(area, right-area.Min.X+12, 0, 0, -24))
		area = draw.Crop(area, 0, right-area.Max.X, 0, 0)
	}
	c.plot.BackgroundColor = color.Transparent
	c.plot.Draw(area)
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	svg := fontFamily.ReplaceAll(b.Bytes(), []byte("font-family:'Liberation Sans',Arial,Helvetica,sans-serif"))
	return os.WriteFile(filepath.Join(dir, c.name+".svg"), svg, 0o644)
}
