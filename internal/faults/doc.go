// Package faults is the fault suite, and has no code but its tests: readers, adders
// and builders work on a filter, each against a model that knows what they may be
// told, while a driver does to the servers and to the network whatever it can think
// of, at random.
//
//	go test ./internal/faults -v                                 # some seconds each, as in CI
//	BLOOM_FAULTS=1h go test ./internal/faults -v -timeout 0 -race  # an hour in all
//	BLOOM_SEED=1 go test ./internal/faults -v -run TestFaults/single
//
// The seed decides what is done and in which order, not when it meets whom.
//
// What is held against every answer:
//
//   - An item whose Add has returned nil is never denied, whatever happened since: a
//     filter that was lost says so by errors, until a Rebuild has published one that
//     has the items of all rows. Only a server that acknowledged a write and lost it
//     alone could excuse a "no". So primaries die when their replicas are in step, or
//     at any time under a Config that waits for replicas; and an old filter is put
//     back only where no newer one is.
//   - After a loss, and before the next rebuild, every call is an error.
//   - Every bool beside an error is true.
//   - Every call returns when its context ends.
//   - Only errors that are named here come, no panic, no goroutine stays, the heap
//     does not grow, and no staging or scratch key outlives its lease.
//   - A Guard returns a row as it is, or an error: never "not found" for a row that
//     was registered, and nothing older than what was invalidated.
package faults
