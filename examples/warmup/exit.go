package main

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/bloomguard/bloom"
)

// The exit codes are this program's interface to a deploy pipeline.
const (
	exitOK = iota
	exitFailed
	exitFlags
	exitRebuilding
	exitRefused
	exitMissing
)

const exitHelp = `exit codes:
  0  loaded; or skipped, since the filter is younger than -max-age
  1  failed: database, Redis, interrupted
  2  bad flags
  3  another rebuild of this filter runs
  4  a safety check refused to publish: empty table, fewer ids than -min-items
     or than half the live filter's, lease lost
  5  -verify found rows that are not in the filter
After 1 to 4 the live filter is as it was, unless -verify is what failed.
"go run" makes 1 of all but 0: build the program for a pipeline.
`

// errMissing is what a verification that found something ends with.
var errMissing = errors.New("rows are not in the filter, which denies them")

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func exitCode(err error) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(err, new(usageError)),
		errors.Is(err, bloom.ErrInvalidParams), errors.Is(err, bloom.ErrTooLarge): // a flag caused it, a flag mends it
		return exitFlags
	case errors.Is(err, bloom.ErrRebuilding):
		return exitRebuilding
	case errors.Is(err, bloom.ErrRebuildRefused):
		return exitRefused
	case errors.Is(err, errMissing):
		return exitMissing
	}
	return exitFailed
}

func writeHelp(out io.Writer, flags *flag.FlagSet) {
	fmt.Fprintln(out, "usage: warmup [flags]     (with none: an embedded demonstration)")
	flags.SetOutput(out)
	flags.PrintDefaults()
	fmt.Fprint(out, "\n", exitHelp)
}
