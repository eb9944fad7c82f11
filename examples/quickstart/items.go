package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
)

// shipped holds every 225th of 4,499,322 distinct real item names, sorted.
//
//go:embed names.txt
var shipped []byte

const maxLine = 1 << 20 // bytes; a longer id is a wrong file

// catalog holds the ids that exist.
type catalog struct {
	source     string
	names      []string         // distinct, in the order of the source
	rows       map[string]int32 // name to its place in names
	duplicates int
}

// openCatalog reads the file at path, or the shipped names where path is empty.
func openCatalog(path string) (*catalog, error) {
	if path == "" {
		return readCatalog("every 225th of 4,499,322 real names, shipped with the example", bytes.NewReader(shipped))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("-items: %w", err)
	}
	defer f.Close()
	c, err := readCatalog(path, f)
	if err != nil {
		return nil, fmt.Errorf("-items %s: %w", path, err)
	}
	return c, nil
}

func readCatalog(source string, r io.Reader) (*catalog, error) {
	text, err := gunzipped(r)
	if err != nil {
		return nil, err
	}
	c := &catalog{source: source, rows: make(map[string]int32)}
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, maxLine)
	n := 0
	for ; lines.Scan(); n++ { // drops "\r" too
		c.add(lines.Bytes())
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	if len(c.names) == 0 {
		return nil, errors.New("no items in it: want one id a line")
	}
	return c, nil
}

// gunzipped goes by the content, not the name: a file may be called anything.
func gunzipped(r io.Reader) (io.Reader, error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	magic, _ := buffered.Peek(2) // what is wrong with a short file shows later
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return buffered, nil
	}
	return gzip.NewReader(buffered)
}

func (c *catalog) add(line []byte) {
	if len(line) == 0 {
		return
	}
	if _, ok := c.rows[string(line)]; ok {
		c.duplicates++
		return
	}
	name := string(line)
	c.rows[name] = int32(len(c.names))
	c.names = append(c.names, name)
}

// all yields every item, as a query would.
func (c *catalog) all(yield func(string, error) bool) {
	for _, name := range c.names {
		if !yield(name, nil) {
			return
		}
	}
}

func (c *catalog) has(id string) bool {
	_, ok := c.rows[id]
	return ok
}
