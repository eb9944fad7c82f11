// Package bloomtest lets unit tests use Redis features that the in-memory server
// miniredis lacks.
//
// [RedisBloom] adds the commands of the RedisBloom module to a miniredis:
//
//	m := miniredis.RunT(t)
//	bloomtest.RedisBloom(m)
//	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
//	rdb.BFReserve(ctx, "orders", 0.01, 1000)
//
// BF.RESERVE, BF.ADD, BF.MADD, BF.INSERT, BF.EXISTS, BF.MEXISTS, BF.INFO, BF.CARD,
// BF.SCANDUMP, BF.LOADCHUNK and BF.DEBUG answer what the module answers, byte for
// byte, errors included, in RESP2 and RESP3, alone, in pipelines, in MULTI and from
// Lua. Hashing, sizing and growth are the module's own, so a filter answers for
// every item (false positives included) as the real one would, and BF.SCANDUMP
// gives bytes that a real server loads. The bf-* settings are read and set with
// CONFIG. Each command is atomic, and any number of connections may send them.
//
// # Keys
//
// A filter is one key. DEL, UNLINK, EXISTS, TOUCH, EXPIRE and its kin, RENAME, MOVE,
// SWAPDB, SELECT, KEYS, SCAN, WATCH, FLUSHDB, FLUSHALL and [miniredis.Miniredis.FastForward]
// act on it as on any key. TYPE answers MBbloom--, string commands answer WRONGTYPE,
// SCAN knows the type, COPY is refused as the module refuses it, OBJECT ENCODING,
// OBJECT REFCOUNT and MEMORY USAGE answer for it.
//
// # What differs from a real server
//
//   - miniredis keeps a filter as a string with a private prefix. Methods of
//     Miniredis itself (Get, Type, Dump) show that string, and every add copies it,
//     however many items it brings: some 0.2 ms for a filter of 100 KB, some
//     milliseconds for one of 10 MB. Reads don't. The bits take memory from the first
//     add on; filters over 4 GiB are refused.
//   - DUMP gives a payload that RESTORE takes back only on a miniredis.
//   - TYPE, WRONGTYPE, MULTI, CONFIG and exact Lua replies need the one hook that
//     miniredis' server has. Miniredis.SetError and Server().SetPreHook replace it;
//     call RedisBloom again afterwards, and again after Miniredis.Restart.
//   - In a script whose text does not contain "BF." (the name comes in ARGV), redis.call
//     converts replies as miniredis does: the error inside the array of a full
//     filter is raised, and the field names of BF.INFO are strings.
//   - A script can give a BF command some 2 500 arguments; a real server takes 8 000.
//     Booleans that a script returns after redis.setresp(3) are integers in RESP3 too.
//   - Filters of old versions (32-bit hashes, or a power of two of bits)
//     are refused by BF.LOADCHUNK.
//   - miniredis has no ACL rules, COMMAND INFO, memory limit, replicas and client
//     tracking, and there are no cuckoo filters.
//   - Miniredis.CommandCount, and a hook of one's own, also see what a BF command sends
//     within the server.
package bloomtest
