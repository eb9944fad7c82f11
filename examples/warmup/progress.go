package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// lineEvery is how often a phase says how far it is where there is no bar.
const lineEvery = 10 * time.Second

// meter shows how far a rebuild or a verification is. A phase ends as one line of
// text; on a terminal it has a bar until then, elsewhere a line now and then.
type meter struct {
	out      io.Writer
	terminal bool
	rows     *uint64 // how many there are to read; 0 until that is known

	phase string
	began time.Duration // this phase
	told  time.Duration // the last line
	bar   *progressbar.ProgressBar
}

func newMeter(out io.Writer, rows *uint64) *meter {
	f, ok := out.(*os.File)
	return &meter{out: out, terminal: ok && term.IsTerminal(int(f.Fd())), rows: rows}
}

// show is told a few times a second, and when a phase begins.
func (m *meter) show(p bloom.Progress) {
	if p.Phase != m.phase {
		m.end(p.Items, p.Elapsed)
		m.begin(p)
	}
	done, total := p.Done, p.Total
	if m.reads() {
		done, total = p.Items, *m.rows
	}
	switch {
	case done == 0:
	case m.bar != nil:
		m.draw(done, total)
	case p.Elapsed-m.told >= lineEvery:
		m.told = p.Elapsed
		m.line(m.howFar(done, total))
	}
}

// reads says whether the phase is one that counts rows, and not bytes.
func (m *meter) reads() bool { return m.phase == "read" || m.phase == "verify" }

func (m *meter) begin(p bloom.Progress) {
	m.phase, m.began, m.told = p.Phase, p.Elapsed, p.Elapsed
	switch m.phase {
	case "wait":
		m.line("another rebuild runs")
	case "settle":
		m.line("until the transactions that were open have ended")
	case "check":
		m.line("a sample of the rows, in what was built")
	case "publish":
		m.line("in place of the live filter, if there is one")
	default:
		if m.terminal {
			m.bar = newBar(m.out, m.phase, m.reads())
		}
	}
}

// end closes the phase, rows and elapsed after the start of the whole.
func (m *meter) end(rows uint64, elapsed time.Duration) {
	if m.bar != nil {
		m.bar.Clear()
		m.bar = nil
	}
	took := (elapsed - m.began).Seconds()
	switch m.phase {
	case "read":
		m.line(fmt.Sprintf("%s rows in %.1f s", grouped(rows), took))
	case "merge":
		m.line(fmt.Sprintf("into Redis in %.1f s", took))
	}
	m.phase = ""
}

func (m *meter) line(text string) { fmt.Fprintf(m.out, "  %-10s%s\n", m.phase, text) }

func (m *meter) howFar(done, total uint64) string {
	switch {
	case !m.reads():
		return size(done) + " of " + size(total)
	case total < done: // not counted, or inserted since
		return grouped(done) + " rows"
	}
	return grouped(done) + " of " + grouped(total) + " rows"
}

// draw keeps the total ahead of what is done: rows may have been inserted since
// they were counted, and a bar that was full once is not drawn again.
func (m *meter) draw(done, total uint64) {
	if total = max(total, done+1); int64(total) != m.bar.GetMax64() {
		m.bar.ChangeMax64(int64(total))
	}
	m.bar.Set64(int64(done))
}

func newBar(out io.Writer, phase string, rows bool) *progressbar.ProgressBar {
	options := []progressbar.Option{
		progressbar.OptionSetWriter(out),
		progressbar.OptionSetDescription(fmt.Sprintf("  %-8s", phase)),
		progressbar.OptionSetWidth(16), // so that ten million rows fit into 80 columns
		progressbar.OptionShowCount(),
		progressbar.OptionShowBytes(!rows),
		progressbar.OptionUseIECUnits(true),
	}
	if rows {
		options = append(options, progressbar.OptionShowIts(), progressbar.OptionSetItsString(""))
	}
	bar := progressbar.NewOptions64(1, options...)
	bar.StartWithoutRender() // else its clock, and so the rate, would begin with the first rows that it is told of
	return bar
}
