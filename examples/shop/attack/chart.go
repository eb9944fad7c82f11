package main

import (
	"fmt"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	chartWidth  = 17 * vg.Centimeter
	chartHeight = 16 * vg.Centimeter
)

// styles tell the ways apart by colour, by marker and by dashes. The colours are
// Okabe and Ito's, which colour-blind readers can tell apart too.
var styles = []struct {
	color  color.Color
	shape  draw.GlyphDrawer
	dashes []vg.Length
}{
	{color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff}, draw.CrossGlyph{}, nil},
	{color.RGBA{R: 0xb8, G: 0x86, B: 0x00, A: 0xff}, draw.TriangleGlyph{}, []vg.Length{vg.Points(6), vg.Points(3)}},
	{color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}, draw.SquareGlyph{}, []vg.Length{vg.Points(2), vg.Points(3)}},
	{color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff}, draw.CircleGlyph{}, nil},
}

// writeChart draws lookups and latencies against the attack's share, one above the
// other, on white.
func (r *result) writeChart(out io.Writer) error {
	lookups, err := r.plot("database lookups per second", func(p *point) float64 { return p.Lookups })
	if err != nil {
		return err
	}
	lookups.Title.Text = fmt.Sprintf("%d requests/s in all, %d products, %s", r.Rate, r.Rows, r.Database)
	lookups.Y.Min = 0
	lookups.Legend.Top, lookups.Legend.Left = true, true

	latency, err := r.plot("p99 of real products, ms (log scale)", func(p *point) float64 { return p.P99 })
	if err != nil {
		return err
	}
	latency.X.Label.Text = "share of the attack, % of all requests"
	latency.Y.Scale, latency.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	// To whole powers of ten, which is where the ticks have numbers.
	latency.Y.Min = math.Pow(10, math.Floor(math.Log10(latency.Y.Min)))
	latency.Y.Max = math.Pow(10, math.Ceil(math.Log10(latency.Y.Max)))

	canvas := vgsvg.New(chartWidth, chartHeight)
	tiles := draw.Tiles{Rows: 2, Cols: 1, PadTop: vg.Points(6), PadBottom: vg.Points(6), PadRight: vg.Points(12), PadLeft: vg.Points(6), PadY: vg.Points(14)}
	plots := [][]*plot.Plot{{lookups}, {latency}}
	for row, canvases := range plot.Align(plots, tiles, draw.New(canvas)) {
		plots[row][0].Draw(canvases[0])
	}
	_, err = canvas.WriteTo(out)
	return err
}

// plot has one line per way.
func (r *result) plot(label string, value func(*point) float64) (*plot.Plot, error) {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Y.Label.Text = label
	p.Add(plotter.NewGrid())
	for i, c := range r.Ways {
		points := make(plotter.XYs, len(c.Points))
		for j := range c.Points {
			points[j] = plotter.XY{X: float64(c.Points[j].Share), Y: max(value(&c.Points[j]), 1e-3)} // a log scale has no 0
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		style := styles[i%len(styles)]
		line.Color, line.Width, line.Dashes = style.color, vg.Points(1.8), style.dashes
		dots.Color, dots.Shape, dots.Radius = style.color, style.shape, vg.Points(3)
		p.Add(line, dots)
		p.Legend.Add(c.Name, line, dots)
	}
	p.X.Min, p.X.Max = 0, 100
	return p, nil
}
