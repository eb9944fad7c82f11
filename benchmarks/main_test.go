package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// tiny is enough to run every line once.
func tiny() scale {
	return scale{
		rounds: 1, items: 3000, ops: 40, window: 5 * time.Millisecond,
		callers: []int{1, 128}, batches: []int{1, 1000},
		sizes: []uint64{1e3, 1e4}, rates: []float64{1e-1, 1e-2},
		loaded: 20_000, local: 20_000, capacity: 5000, looks: 50_000,
	}
}

func testOptions(t testing.TB) options {
	t.Helper()
	o, err := parseOptions(nil, new(bytes.Buffer))
	require.NoError(t, err)
	if _, err := exec.LookPath(o.server); err != nil {
		if os.Getenv("BLOOM_REQUIRE_REDIS") == "1" {
			t.Fatal("no redis-server: ", err)
		}
		t.Skip("no redis-server: ", err)
	}
	return o
}

// Every section runs, is kept, read again and shown: each marker of the pages gets its
// block, each block and chart has a place.
func TestMeasureAndRender(t *testing.T) {
	o := testOptions(t)
	o.results = t.TempDir()
	var out bytes.Buffer
	require.NoError(t, measure(t.Context(), o, tiny(), true, &out), out.String())

	docs := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(docs, "docs"), 0o755))
	pages := []string{"README.md", "docs/performance.md"}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join("..", page))
		require.NoError(t, err)
		empty := regexp.MustCompile(`(?s)(<!-- benchmarks:[^>]*-->\n).*?(<!-- /benchmarks -->)`).ReplaceAll(text, []byte("$1$2"))
		require.NoError(t, os.WriteFile(filepath.Join(docs, page), empty, 0o644))
	}
	require.NoError(t, render(o.results, docs, &out))

	all, err := loadResults(o.results)
	require.NoError(t, err)
	require.Len(t, all, len(parts))
	for name, s := range all {
		t.Log(name, "took", s.Setting["took"])
	}
	shown := ""
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(docs, page))
		require.NoError(t, err)
		shown += string(text)
	}
	require.NotRegexp(t, `<!-- benchmarks:(latency|[^>]*) -->\n<!-- /benchmarks`, without(shown, "module-batches"), "a marker that nothing fills")
	for _, p := range parts {
		for _, x := range p.tables(all[p.name]) {
			require.Contains(t, shown, strings.TrimSpace(x.markdown()), "table %s is nowhere", x.name)
			require.NotEmpty(t, x.rows, x.name)
		}
		if p.charts == nil {
			continue
		}
		charts, err := p.charts(all[p.name])
		require.NoError(t, err)
		require.NotEmpty(t, charts, p.name)
		for _, c := range charts {
			require.Contains(t, shown, "benchmarks/results/"+c.name+".svg")
			svg, err := os.ReadFile(filepath.Join(o.results, c.name+".svg"))
			require.NoError(t, err)
			require.Less(t, len(svg), 64<<10, "%s is too heavy for a page", c.name)
		}
	}
	for _, x := range targets {
		_, ok := x.get(all)
		require.True(t, ok, "nothing measures %q", x.what)
	}
	require.NoError(t, render(o.results, docs, &out), "a second time")
}

// without removes the empty block of a name: it is of the module, which may be absent.
func without(text, name string) string {
	return strings.ReplaceAll(text, "<!-- benchmarks:"+name+" -->\n<!-- /benchmarks -->", "")
}

// All that is compared agrees about what is stored, so all look up the same, and
// go-zero's own code reads the bits that were computed for it.
func TestSubjectsAgree(t *testing.T) {
	b, err := newBench(t.Context(), testOptions(t), tiny(), new(bytes.Buffer))
	require.NoError(t, err)
	defer b.close()
	d := b.main()
	drop, err := b.stored(t.Context(), d)
	defer drop()
	require.NoError(t, err)
	coalescing, closeAll, err := b.coalescing()
	defer closeAll()
	require.NoError(t, err)
	for _, r := range []rig{b.plain(), coalescing} {
		all, err := b.subjects(r, d)
		require.NoError(t, err)
		for _, x := range all {
			t.Run(x.name, func(t *testing.T) {
				wrong := 0
				for i := range 1000 {
					exists, err := x.exists(t.Context(), itemName(i))
					require.NoError(t, err)
					require.True(t, exists, itemName(i))
					exists, err = x.exists(t.Context(), absentName(i))
					require.NoError(t, err)
					if exists {
						wrong++
					}
				}
				// At 1 %, or what 14 hashes make of as many bits, with ten σ.
				require.Less(t, wrong, 100)
				items := probes(2500, d.items) // more than one pipeline
				require.NoError(t, x.ask(t.Context(), items))
				require.NoError(t, x.add(t.Context(), items[:10]))
				exists, err := x.exists(t.Context(), items[1])
				require.NoError(t, err)
				require.True(t, exists, "it was added")
			})
		}
	}
}

func TestProxy(t *testing.T) {
	o := testOptions(t)
	h, stop, err := startServer(t.Context(), o.server, "")
	require.NoError(t, err)
	defer stop()
	const delay = 5 * time.Millisecond
	px, err := newProxy(h.addr, delay)
	require.NoError(t, err)
	defer px.close()
	rdb := redis.NewClient(&redis.Options{Addr: px.addr()})
	defer rdb.Close()
	require.NoError(t, rdb.Ping(t.Context()).Err())

	trips, up, down := px.trips.Load(), px.up.Load(), px.down.Load()
	began := time.Now()
	require.NoError(t, rdb.Ping(t.Context()).Err())
	require.GreaterOrEqual(t, time.Since(began), 2*delay)
	require.EqualValues(t, 1, px.trips.Load()-trips)
	require.EqualValues(t, len("*1\r\n$4\r\nping\r\n"), px.up.Load()-up)
	require.EqualValues(t, len("+PONG\r\n"), px.down.Load()-down)

	// A thousand commands behind each other are late together, not one by one.
	began = time.Now()
	_, err = rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := range 1000 {
			p.Set(t.Context(), fmt.Sprint(i), strings.Repeat("x", 1000), 0)
		}
		return nil
	})
	require.NoError(t, err)
	require.Less(t, time.Since(began), 200*delay)
}

func TestGoZeroBits(t *testing.T) {
	p, err := bloom.NewParams(1000, 0.01, bloom.Classic)
	require.NoError(t, err)
	bits := goZeroBits(p)(nil, "a")
	require.Len(t, bits, goZeroHashes)
	for _, bit := range bits {
		require.Less(t, bit, p.Bits)
	}
}

func TestOptions(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "-1"}, {"-only", "latency,nonsense"}, {"extra"}, {"-nonsense"}} {
		_, err := parseOptions(args, new(bytes.Buffer))
		require.Error(t, err, args)
	}
	require.ErrorContains(t, run(context.Background(), []string{"-render", "-results", t.TempDir()}, new(bytes.Buffer)), "measure first")
}

func TestServerThatEndsAtOnce(t *testing.T) {
	_, _, err := startServer(t.Context(), testOptions(t).server, filepath.Join(t.TempDir(), "no such module.so"))
	require.ErrorContains(t, err, "module")
}

func TestFill(t *testing.T) {
	blocks := map[string]string{"a": "new"}
	got, err := fill("x\n<!-- benchmarks:a -->\nold\n<!-- /benchmarks -->\n<!-- benchmarks:b -->\nkept\n<!-- /benchmarks -->\ny", blocks)
	require.NoError(t, err)
	require.Equal(t, "x\n<!-- benchmarks:a -->\n\nnew\n\n<!-- /benchmarks -->\n<!-- benchmarks:b -->\nkept\n<!-- /benchmarks -->\ny", got)
	again, err := fill(got, blocks)
	require.NoError(t, err)
	require.Equal(t, got, again)
	for _, text := range []string{"<!-- benchmarks:a", "<!-- benchmarks:a -->\nold"} {
		_, err := fill(text, blocks)
		require.Error(t, err)
	}
}

func TestFigures(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.00123: "0.0012", 0.123: "0.12", 12.34: "12.3", 123.4: "123", 1234: "1,230", 1234567: "1,230,000", 999.9: "1000"} {
		require.Equal(t, want, number(v))
	}
	require.Equal(t, 1235.0, round4(1234.56))
	require.Equal(t, 0.001235, round4(0.00123456))
	r, base := &row{Values: []float64{2, 4, 9}}, &row{Values: []float64{1, 4, 3}}
	q, ok := r.over(base)
	require.True(t, ok)
	require.Equal(t, spread{2, 1, 3}, q)
	_, ok = r.over(&row{Values: []float64{1}})
	require.False(t, ok)
	require.Equal(t, 2.5, spreadOf([]float64{4, 1, 2, 3}).median)
}
