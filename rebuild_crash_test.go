//go:build unix

package bloom

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bloomguard/bloom/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Builders in processes of their own: this test binary again, told by
// rebuildJobEnv what to do.

const rebuildJobEnv = "BLOOM_TEST_REBUILD_JOB"

// rebuildJob is what a builder process does.
type rebuildJob struct {
	Addr, Key string
	Layout    Layout
	Capacity  uint64
	Lease     time.Duration
	MaxAge    time.Duration
	Forever   bool   // one rebuild after the other
	PauseAt   string // step in front of which it waits for the key Gate
	Gate      string
}

// rebuildResult is what it prints in the end.
type rebuildResult struct {
	Err                 string
	Rebuilding, Refused bool
	Report              RebuildReport
}

// rebuildRows yields the members of a set, the table, opened where it is read.
func rebuildRows(ctx context.Context, rdb *redis.Client, table string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		rows, err := rdb.SMembers(ctx, table).Result()
		if err != nil {
			yield("", err)
			return
		}
		rebuildSource(rows)(yield)
	}
}

// TestRebuildProcess is the builder process.
func TestRebuildProcess(t *testing.T) {
	text := os.Getenv(rebuildJobEnv)
	if text == "" {
		t.Skip("it is the builder of other tests")
	}
	go func() { // do not outlive the parent
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	var job rebuildJob
	require.NoError(t, json.Unmarshal([]byte(text), &job))
	rdb := redis.NewClient(&redis.Options{Addr: job.Addr, ContextTimeoutEnabled: true})
	ctx, once := context.Background(), sync.Once{}
	seam := rebuildSeam{NewBitmap(rdb, job.Key), func(b build) build {
		return rebuildSteps{b, func(step string) error {
			if job.Forever && (step != "add" || rand.IntN(100) == 0) { // so that it is killed at each of the steps
				time.Sleep(time.Duration(rand.IntN(4000)) * time.Microsecond)
			}
			for step == job.PauseAt && rdb.Exists(ctx, job.Gate).Val() == 0 {
				once.Do(func() { fmt.Println("paused") })
				time.Sleep(5 * time.Millisecond)
			}
			return nil
		}}
	}}
	f, err := New(seam, Config{Capacity: job.Capacity, Layout: job.Layout})
	require.NoError(t, err)
	opts := &RebuildOptions{Settle: -1, Lease: job.Lease, MaxAge: job.MaxAge}
	fmt.Println("begins")
	for {
		report, err := f.Rebuild(ctx, rebuildRows(ctx, rdb, job.Key+" table"), opts)
		if err == nil && job.Forever {
			continue
		}
		result := rebuildResult{Report: report, Rebuilding: errors.Is(err, ErrRebuilding), Refused: errors.Is(err, ErrRebuildRefused)}
		if err != nil {
			result.Err = err.Error()
		}
		line, _ := json.Marshal(result)
		fmt.Printf("result %s\n", line)
		os.Exit(0)
	}
}

// rebuildProcess is a running builder.
type rebuildProcess struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func rebuildStart(t *testing.T, job rebuildJob) *rebuildProcess {
	t.Helper()
	text, err := json.Marshal(job)
	require.NoError(t, err)
	p := &rebuildProcess{cmd: exec.Command(os.Args[0], "-test.run=^TestRebuildProcess$", "-test.timeout=2m")}
	p.cmd.Env = append(os.Environ(), rebuildJobEnv+"="+string(text))
	p.cmd.Stderr = os.Stderr
	_, err = p.cmd.StdinPipe() // closed when this process ends
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.lines = bufio.NewScanner(out)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	return p
}

// kill ends the process by SIGKILL, and waits until it is gone.
func (p *rebuildProcess) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// await waits for a line that begins with a word, and returns the rest.
func (p *rebuildProcess) await(t *testing.T, word string) string {
	t.Helper()
	var seen []string
	for p.lines.Scan() {
		if rest, ok := strings.CutPrefix(p.lines.Text(), word); ok {
			return strings.TrimSpace(rest)
		}
		seen = append(seen, p.lines.Text())
	}
	require.FailNow(t, "builder process ended", "waiting for %q: %q", word, seen)
	return ""
}

func (p *rebuildProcess) result(t *testing.T) rebuildResult {
	t.Helper()
	var r rebuildResult
	require.NoError(t, json.Unmarshal([]byte(p.await(t, "result")), &r))
	_ = p.cmd.Wait()
	return r
}

// rebuildTown is a table in Redis with a filter in front of it.
type rebuildTown struct {
	rebuildBed
	job     rebuildJob
	acked   []string // rows whose Add has returned
	builder *rebuildProcess
	dies    time.Time
}

func newRebuildTown(t *testing.T, s *redistest.Server, layout Layout) *rebuildTown {
	t.Helper()
	town := &rebuildTown{rebuildBed: rebuildOwn(t, s, layout)}
	town.job = rebuildJob{Addr: s.Addr(), Key: town.key, Layout: layout, Capacity: 150_000, Lease: minLease}
	town.insert(t, rebuildItems("row ", 300))
	_, err := town.rebuild(t, time.Nanosecond)
	require.NoError(t, err)
	town.acked = rebuildItems("row ", 300)
	return town
}

func (town *rebuildTown) insert(t *testing.T, rows []string) {
	t.Helper()
	args := make([]any, len(rows))
	for i := range rows {
		args[i] = rows[i]
	}
	require.NoError(t, town.rdb.SAdd(t.Context(), town.key+" table", args...).Err())
}

// rebuild rebuilds from this process. With MaxAge it waits for a dead one's lease.
func (town *rebuildTown) rebuild(t *testing.T, maxAge time.Duration) (RebuildReport, error) {
	t.Helper()
	return town.open(t, town.config(town.job.Capacity)).Rebuild(t.Context(), rebuildRows(t.Context(), town.rdb, town.key+" table"),
		&RebuildOptions{Settle: -1, MaxAge: maxAge})
}

// A builder that is killed at any moment leaves the live filter whole, is in the
// next one's way no longer than its lease, and leaves no key beyond that.
func TestRebuildKilled(t *testing.T) {
	t.Parallel()
	s, rnd := redistest.Start(t), rand.New(rand.NewPCG(rebuildSeed(t), 0))
	towns, rounds := make([]*rebuildTown, 10), 5
	if testing.Short() {
		rounds = 1
	}
	for i := range towns {
		towns[i] = newRebuildTown(t, s, Layout(i%2))
		towns[i].job.Forever = true
	}
	died := map[string]int{} // at which state
	for round := range rounds {
		for _, town := range towns {
			town.builder = rebuildStart(t, town.job)
		}
		began := time.Now()
		for _, town := range towns {
			town.builder.await(t, "begins")
			town.dies = time.Now().Add(time.Duration(rnd.IntN(300)) * time.Millisecond)
		}
		for n, alive := 0, len(towns); alive > 0; n++ {
			alive = 0
			for _, town := range towns {
				switch row := fmt.Sprintf("new %d %d", round, n); {
				case town.builder == nil:
					continue
				case time.Now().After(town.dies):
					town.builder.kill()
					town.builder = nil
					died[town.requireWhole(t)]++
				default:
					town.insert(t, []string{row})
					_, err := town.open(t, Config{}).Add(t.Context(), row)
					require.NoError(t, err)
					town.acked = append(town.acked, row)
				}
				alive++
			}
		}
		t.Logf("round %d: all are dead after %v", round, time.Since(began).Round(time.Millisecond))
		if round%2 == 1 {
			time.Sleep(minLease + 20*time.Millisecond) // nothing is left then
			for _, town := range towns {
				town.requireClean(t)
			}
		}
		for _, town := range towns {
			report, err := town.rebuild(t, time.Nanosecond)
			require.NoError(t, err)
			require.False(t, report.Skipped)
			town.requireClean(t)
			rebuildRequireAll(t, town.open(t, Config{}), town.acked)
		}
	}
	t.Logf("killed with %v", died)
	require.Less(t, died["nothing staged"], rounds*len(towns), "no builder was killed at work")
}

// requireWhole requires a live filter without a fault, and that whatever a dead
// builder left goes with its lease. It returns what that is.
func (town *rebuildTown) requireWhole(t *testing.T) string {
	t.Helper()
	f := town.open(t, Config{})
	require.NoError(t, f.Ready(t.Context()))
	rebuildRequireAll(t, f, town.acked)
	for _, key := range filterKeys(town.key)[1:] {
		ttl, err := town.rdb.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		require.NotEqualValues(t, -1, ttl, "%q stays for ever", key)
		require.LessOrEqual(t, ttl, minLease)
		require.True(t, ttl == -2 || key == companionKey(town.key, "next"), "%q is left", key)
	}
	head, err := town.rdb.GetRange(t.Context(), companionKey(town.key, "next"), offMagic, headerBytes-1).Result()
	require.NoError(t, err)
	if head == "" {
		return "nothing staged"
	}
	h, err := decodeHeader([]byte(head), hashKey{})
	require.NoError(t, err)
	return fmt.Sprint(h.merged, " chunks staged")
}

// Of two builders in two processes one wins. The other is turned away at once, or
// with MaxAge waits and then skips.
func TestRebuildTwoProcesses(t *testing.T) {
	town := newRebuildTown(t, redistest.Start(t), Classic)
	town.job.Lease = defaultLease // nobody dies
	job := town.job
	job.PauseAt, job.Gate = "merge", town.key+" gate"
	first := rebuildStart(t, job)
	first.await(t, "paused")

	second := rebuildStart(t, town.job).result(t)
	require.True(t, second.Rebuilding, "%+v", second)
	require.False(t, second.Report.Skipped)

	waits := town.job
	waits.MaxAge = time.Second * 30
	third := rebuildStart(t, waits)
	third.await(t, "begins")
	time.Sleep(50 * time.Millisecond)
	require.NoError(t, town.rdb.Set(t.Context(), job.Gate, "open", 0).Err())
	won := first.result(t)
	require.Empty(t, won.Err)
	require.EqualValues(t, 2, won.Report.Generation)
	skipped := third.result(t)
	require.Empty(t, skipped.Err)
	require.True(t, skipped.Report.Skipped)
	require.EqualValues(t, 2, skipped.Report.Generation)
	rebuildRequireAll(t, town.open(t, Config{}), town.acked)
	town.requireClean(t)
}

// A builder that is stopped past its lease, while another one builds and publishes,
// harms nothing when it goes on, and ends with an error.
func TestRebuildStoppedPastItsLease(t *testing.T) {
	t.Parallel()
	s, towns := redistest.Start(t), map[string]*rebuildTown{}
	for _, name := range []string{"add published", "merge published", "check published", "publish published",
		"merge building", "publish building", "merge nothing", "publish nothing"} {
		town := newRebuildTown(t, s, Blocked)
		town.job.PauseAt, _, _ = strings.Cut(name, " ")
		town.job.Gate = town.key + " gate"
		town.builder = rebuildStart(t, town.job)
		towns[name] = town
	}
	for _, town := range towns {
		town.builder.await(t, "paused")
		require.NoError(t, town.builder.cmd.Process.Signal(syscall.SIGSTOP))
	}
	for name, town := range towns {
		rebuildWait(t, "the end of the lease", func() bool { return !town.staged(t) })
		require.NoError(t, town.rdb.Set(t.Context(), town.job.Gate, "open", 0).Err())
		resume := func() {
			before := town.content(t)
			require.NoError(t, town.builder.cmd.Process.Signal(syscall.SIGCONT))
			r := town.builder.result(t)
			require.True(t, r.Refused, "%s: %+v", name, r)
			require.True(t, before == town.content(t), "%s: the live filter has changed", name)
		}
		f := town.open(t, town.config(town.job.Capacity))
		switch _, what, _ := strings.Cut(name, " "); what {
		case "published":
			_, err := town.rebuild(t, 0)
			require.NoError(t, err)
			resume()
		case "building":
			_, err := f.Rebuild(t.Context(), rebuildMidway(town.acked, resume), rebuildQuick())
			require.NoError(t, err)
		default:
			resume()
		}
		rebuildRequireAll(t, f, town.acked)
		town.requireClean(t)
	}
}
