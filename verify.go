package bloom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// VerifyOptions are the knobs of [Filter.Verify]. The zero value, or nil, is the
// default.
type VerifyOptions struct {
	// Examples is how many missing items are reported by name. 0: 10; negative:
	// none.
	Examples int
	// Progress is called from Verify's goroutine, at most a few times a second.
	Progress func(Progress)
}

// VerifyReport says what a verification found.
type VerifyReport struct {
	Checked  uint64        // items that source yielded
	Missing  uint64        // of them: not in the filter, which denies them
	Examples []string      // the first of the missing
	Elapsed  time.Duration // in all
}

const (
	defaultExamples = 10
	// maxRestarts bounds how often a verification begins again because a rebuild
	// was published under it.
	maxRestarts = 3
	suspects    = 1000 // possible misses that are asked again in one batch
)

// Verify reads items that must be in the filter from source, and reports each one
// that is not. Missing items are no error, they are the answer: see to it that
// their writers Register, and Rebuild.
//
// It tests in this process, on a copy of the filter, and asks the server again
// about what seems to be missing, so that items which were added meanwhile are no
// misses. If the filter was made anew meanwhile it starts again, with source as
// well. A source that yields an error ends it.
func (f *Filter) Verify(ctx context.Context, source iter.Seq2[string, error], opts *VerifyOptions) (VerifyReport, error) {
	if source == nil {
		return VerifyReport{}, f.wrap("verify", fmt.Errorf("nil source: %w", ErrInvalidParams))
	}
	v := verification{backend: f.backend, source: source, began: time.Now()}
	if opts != nil {
		v.examples, v.progress = opts.Examples, opts.Progress
	}
	setDefault(&v.examples, defaultExamples)
	err := v.run(ctx)
	v.report.Elapsed = time.Since(v.began)
	return v.report, f.wrap("verify", err)
}

// snapshot is what a verification knows of a filter without asking.
type snapshot interface {
	// exists is true for items that are in; of the others the server is asked.
	exists(item string) bool
	// unchanged returns nil while the live generation is the one of the snapshot.
	unchanged(ctx context.Context) error
}

// takeSnapshot copies the filter into this process where its backend can do that:
// there a test costs no round trip.
func takeSnapshot(ctx context.Context, b Backend, progress func(done, total uint64)) (snapshot, error) {
	if s, ok := b.(interface {
		snapshot(ctx context.Context, progress func(done, total uint64)) (snapshot, error)
	}); ok {
		return s.snapshot(ctx, progress)
	}
	info, err := b.Info(ctx)
	return &noSnapshot{b, info}, err
}

// noSnapshot is that of a filter that cannot be copied.
type noSnapshot struct {
	backend Backend
	before  Info
}

func (s *noSnapshot) exists(string) bool { return false }

func (s *noSnapshot) unchanged(ctx context.Context) error {
	after, err := s.backend.Info(ctx)
	if err == nil && (after.Generation != s.before.Generation || !after.Created.Equal(s.before.Created)) {
		return errChanged
	}
	return err
}

// errChanged starts a verification again.
var errChanged = errors.New("the filter was made anew meanwhile")

// verification is one call of Verify.
type verification struct {
	backend  Backend
	source   iter.Seq2[string, error]
	examples int
	progress func(Progress)
	began    time.Time
	told     time.Time
	report   VerifyReport
	copy     snapshot
	batch    []string
}

func (v *verification) run(ctx context.Context) error {
	for range 1 + maxRestarts {
		v.report, v.batch = VerifyReport{}, nil
		if err := v.pass(ctx); !errors.Is(err, errChanged) {
			return err
		}
	}
	return fmt.Errorf("%w, %d times", errChanged, 1+maxRestarts)
}

// pass goes through source once.
func (v *verification) pass(ctx context.Context) error {
	var err error
	v.copy, err = takeSnapshot(ctx, v.backend, func(done, total uint64) { v.tell("download", done, total) })
	if err != nil {
		return err
	}
	for item, err := range v.source {
		if err != nil {
			return fmt.Errorf("source, after %d items: %w", v.report.Checked, err)
		}
		if err := v.check(ctx, item); err != nil {
			return err
		}
	}
	if err := v.ask(ctx); err != nil {
		return err
	}
	return v.copy.unchanged(ctx)
}

// check counts an item, and keeps it to be asked for unless the copy has it.
func (v *verification) check(ctx context.Context, item string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if v.report.Checked++; v.report.Checked%1024 == 0 {
		v.tell("read", 0, 0)
	}
	if v.copy.exists(item) {
		return nil
	}
	if v.batch = append(v.batch, item); len(v.batch) < suspects {
		return nil
	}
	return v.ask(ctx)
}

// ask asks the server about the items of the batch.
func (v *verification) ask(ctx context.Context) error {
	if len(v.batch) == 0 {
		return nil
	}
	found, err := v.backend.ExistsMulti(ctx, v.batch)
	if err != nil {
		return err
	}
	for i, ok := range found {
		if ok {
			continue
		}
		v.report.Missing++
		if len(v.report.Examples) < v.examples {
			v.report.Examples = append(v.report.Examples, v.batch[i])
		}
	}
	v.batch = v.batch[:0]
	return nil
}

// tell calls Progress, unless it was called a moment ago.
func (v *verification) tell(phase string, done, total uint64) {
	if v.progress == nil || time.Since(v.told) < progressEvery {
		return
	}
	v.told = time.Now()
	v.progress(Progress{Phase: phase, Items: v.report.Checked, Done: done, Total: total, Elapsed: time.Since(v.began)})
}

// memorySnapshot of a Memory is the filter itself.
type memorySnapshot struct {
	*memoryFilter
	m *Memory
}

func (m *Memory) snapshot(ctx context.Context, _ func(done, total uint64)) (snapshot, error) {
	f, err := m.filter(ctx)
	return memorySnapshot{f, m}, err
}

func (s memorySnapshot) unchanged(ctx context.Context) error {
	now, err := s.m.filter(ctx)
	if err == nil && now != s.memoryFilter {
		return errChanged
	}
	return err
}
