// Package redistest is the test bed shared by the tests of this module: real
// redis-server processes (alone, with replicas, under Sentinels, or as a Redis
// Cluster whose slots move and whose primaries die on demand), miniredis, a counter of round trips, and a proxy
// that loses, delays and repeats requests the way a network does.
//
// A package that uses [Shared], [SharedCluster] or [Each] hands its TestMain to [Main]:
//
//	func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
//
// Two environment variables steer it. BLOOM_REDIS_SERVER names the
// redis-server executable, which is otherwise looked up in PATH; a wrapper
// script must exec the server, since signals go to the process that was
// started. BLOOM_REQUIRE_REDIS=1 turns "not installed" from a skip into a
// failure, so that CI cannot pass by skipping.
//
// No server but the ones started here is ever contacted.
package redistest
