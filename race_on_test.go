//go:build race

package bloom

// raceEnabled says that the race detector is on: everything takes some ten times
// as long.
const raceEnabled = true
