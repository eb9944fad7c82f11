package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// render makes what the documentation under docs shows of the results in dir: charts
// beside the JSON, tables between the markers of README.md and docs/performance.md.
func render(dir, docs string, out io.Writer) error {
	all, err := loadResults(dir)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("no results in %s: measure first", dir)
	}
	blocks := map[string]string{}
	var failed error
	for _, p := range parts {
		s := all[p.name]
		if s == nil {
			fmt.Fprintf(out, "%s: not measured\n", p.name)
			continue
		}
		for _, t := range p.tables(s) {
			blocks[t.name] = t.markdown()
		}
		blocks["machine-"+p.name] = s.provenance()
		if p.charts == nil {
			continue
		}
		charts, err := p.charts(s)
		for _, c := range charts {
			if err == nil {
				err = c.save(dir)
			}
		}
		failed = errors.Join(failed, err)
	}
	for _, t := range overview(all) {
		blocks[t.name] = t.markdown()
	}
	for name, text := range sentences(all) {
		blocks[name] = text
	}
	for _, page := range []string{"README.md", filepath.Join("docs", "performance.md")} {
		failed = errors.Join(failed, fillPage(filepath.Join(docs, page), blocks, out))
	}
	return failed
}

const (
	opening = "<!-- benchmarks:"
	closing = "<!-- /benchmarks -->"
)

// fillPage replaces what stands between the markers of a page, where there is something
// to put there.
func fillPage(path string, blocks map[string]string, out io.Writer) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(out, "%s: not there\n", path)
		return nil
	}
	if err != nil {
		return err
	}
	filled, err := fill(string(text), blocks)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if filled == string(text) {
		return nil
	}
	fmt.Fprintf(out, "%s: new figures\n", path)
	return os.WriteFile(path, []byte(filled), 0o644)
}

func fill(text string, blocks map[string]string) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, opening)
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, rest, found := strings.Cut(rest, " -->\n")
		if !found {
			return "", fmt.Errorf("%s… is not closed by -->", opening)
		}
		old, rest, found := strings.Cut(rest, closing)
		if !found {
			return "", fmt.Errorf("nothing closes %s%s -->", opening, name)
		}
		if block, ok := blocks[name]; ok {
			old = "\n" + strings.TrimSpace(block) + "\n\n"
		}
		b.WriteString(opening + name + " -->\n" + old + closing)
		text = rest
	}
}

// provenance says where and of what a section was measured.
func (s *section) provenance() string {
	m := s.Machine
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, %d CPUs, %s, load %s before; %s, Redis %s, RedisBloom %s; %s rounds, %s in all.",
		m.Time, m.CPU, m.CPUs, m.System, m.Load, m.Go, m.Redis, m.Module, s.Setting["rounds"], s.Setting["took"])
	for _, path := range compared {
		if v := m.Versions[path]; v != "" {
			fmt.Fprintf(&b, " %s %s.", path, v)
		}
	}
	return b.String()
}
