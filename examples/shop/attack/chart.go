package main

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	chartWidth  = 22 * vg.Centimeter
	chartHeight = 17 * vg.Centimeter
	legendWidth = 4.6 * vg.Centimeter
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

// chart is two plots, one above the other, and what they have in common.
type chart struct {
	*result
	legend  plot.Legend
	entries []string // of the legend
}

// writeChart draws lookups and latencies against the attack's share, on white.
func (r *result) writeChart(out io.Writer) error {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"} // of all texts, there is no other way
	c := &chart{result: r, legend: plot.NewLegend()}
	c.legend.Top, c.legend.Left, c.legend.Padding = true, true, vg.Points(3)

	lookups, err := c.plot("database lookups/s", func(p *point) float64 { return p.Lookups })
	if err != nil {
		return err
	}
	lookups.Title.Text = fmt.Sprintf("%s requests/s in all, %s products, %s", grouped(r.Rate), grouped(r.Rows), r.Database)
	if r.RTT > 0 {
		lookups.Title.Text += fmt.Sprintf(", %g ms away", r.RTT)
	}
	lookups.Title.Padding = vg.Points(8)
	lookups.Y.Min = 0
	lookups.Y.Tick.Marker = plot.TickerFunc(linearTicks)

	latency, err := c.plot("p99 of real products, ms", func(p *point) float64 { return p.P99 })
	if err != nil {
		return err
	}
	latency.X.Label.Text = "share of the attack, % of all requests"
	latency.Y.Scale, latency.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
	latency.Y.Min = math.Pow(10, math.Floor(math.Log10(latency.Y.Min)))
	latency.Y.Max = math.Pow(10, math.Ceil(math.Log10(latency.Y.Max)))

	return c.write(out, lookups, latency)
}

// write lays the plots out beside the legend.
func (c *chart) write(out io.Writer, plots ...*plot.Plot) error {
	image := vgsvg.New(chartWidth, chartHeight)
	page := draw.New(image)
	page.SetColor(color.White)
	page.Fill(page.Rectangle.Path())

	tiles := draw.Tiles{Rows: len(plots), Cols: 1, PadTop: vg.Points(8), PadBottom: vg.Points(8), PadLeft: vg.Points(8), PadY: vg.Points(16)}
	rows := make([][]*plot.Plot, len(plots))
	for i, p := range plots {
		rows[i] = []*plot.Plot{p}
	}
	for i, canvases := range plot.Align(rows, tiles, draw.Crop(page, 0, -legendWidth, 0, 0)) {
		plots[i].Draw(canvases[0])
	}
	c.legend.Draw(draw.Crop(page, chartWidth-legendWidth+vg.Points(14), 0, 0, -vg.Points(32)))

	var svg bytes.Buffer
	if _, err := image.WriteTo(&svg); err != nil {
		return err
	}
	// Few readers have the font that the texts were measured with.
	_, err := strings.NewReplacer("font-family:Liberation Sans;", "font-family:Liberation Sans,Arial,Helvetica,sans-serif;").
		WriteString(out, svg.String())
	return err
}

// plot has one line per way.
func (c *chart) plot(label string, value func(*point) float64) (*plot.Plot, error) {
	p := plot.New()
	p.Y.Label.Text = label
	p.Y.Label.Padding, p.X.Label.Padding = vg.Points(6), vg.Points(4)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{Y: 0xdd}, color.Gray{Y: 0xdd}
	p.Add(grid)
	var shares []plot.Tick
	for i, way := range c.Ways {
		points := make(plotter.XYs, len(way.Points))
		for j := range way.Points {
			share := way.Points[j].Share
			points[j] = plotter.XY{X: float64(share), Y: max(value(&way.Points[j]), 1e-3)} // a log scale has no 0
			if i == 0 {
				shares = append(shares, plot.Tick{Value: float64(share), Label: fmt.Sprint(share)})
			}
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		style := styles[i%len(styles)]
		line.Color, line.Width, line.Dashes = style.color, vg.Points(1.8), style.dashes
		dots.Color, dots.Shape, dots.Radius = style.color, style.shape, vg.Points(3)
		p.Add(line, dots)
		if len(c.entries) < len(c.Ways) { // every plot has the same lines
			c.entries = append(c.entries, way.Name)
			c.legend.Add(way.Name, line, dots)
		}
	}
	p.X.Min, p.X.Max = 0, 100
	p.X.Tick.Marker = plot.ConstantTicks(shares)
	return p, nil
}

// linearTicks are four to eight round numbers, from 0.
func linearTicks(_, highest float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10(highest)))
	for _, part := range []float64{1, 2, 4} {
		if highest/(step/part) >= 4 {
			step /= part
			break
		}
	}
	var ticks []plot.Tick
	for v := 0.0; v <= highest; v += step {
		ticks = append(ticks, plot.Tick{Value: v, Label: short(v)})
	}
	return ticks
}

// logTicks are the powers of ten, and unlabelled ones between.
func logTicks(lowest, highest float64) []plot.Tick {
	var ticks []plot.Tick
	for v := lowest; v <= highest*1.001; v *= 10 {
		ticks = append(ticks, plot.Tick{Value: v, Label: short(v)})
		for i := 2.0; i < 10 && v*i < highest; i++ {
			ticks = append(ticks, plot.Tick{Value: v * i})
		}
	}
	return ticks
}

// short writes a round number, without the noise of its computation.
func short(v float64) string {
	if v < 1 {
		return fmt.Sprintf("%.3g", v)
	}
	return grouped(int(math.Round(v)))
}
