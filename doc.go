// Package bloom keeps Bloom filters in Redis, and guards a database with them
// against floods of lookups for ids that do not exist.
//
// A [Filter] answers for a set of items that any number of processes share: a
// false from [Filter.Exists] is certain, a true is wrong at the rate that the
// filter was sized for. Its bits live in a [Backend]: [Bitmap] is one native
// Redis string, [Memory] the same bytes in this process, [RedisBloom] a filter of
// that module, [Sharded] several of these for what one is too small for. A [Guard] answers lookups
// by id from a cache, lets the filter reject the ids that cannot exist, and loads
// the rest from the database, once for all who ask.
//
// # The promise
//
// A false is certain, relative to the server that answered: the reply that said
// so also proved that the filter is present, whole, and was read with the
// geometry that it was written with. A filter that is missing, evicted, expired,
// flushed, truncated, overwritten, of another type or size is an error, [ErrNotReady]
// or [ErrCorrupt], and beside every error the bool is true: a caller who drops
// the error lets everything through.
//
// # Where the promise ends
//
// What no reply can prove:
//
//   - Redis acknowledged an Add and lost it: a failover to a replica that had not
//     got it, a restored backup, a crash between two fsyncs. [Config].WaitReplicas,
//     and min-replicas-to-write on the servers, make a failover that loses adds
//     unlikely, not impossible. Rebuild after such an event, or drop the filter.
//   - The reply came from a replica that lags. [New] and [NewGuard] refuse cluster
//     clients that read from replicas (New unless [Config].ReplicaReads is set), and
//     *redis.Ring, which moves keys between servers. They cannot see a replica
//     behind a plain address, a proxy or a failover client with ReplicaOnly, nor
//     what an AutoPipeliner wraps. A primary that was cut off from its cluster and
//     does not know yet that another one has taken over is such a replica too.
//   - Somebody cleared bits inside the string, or an item was never added.
//   - Somebody put an older filter in the place of this one: RESTORE, COPY or RENAME
//     over it, or SET of what [Memory.WriteTo] wrote.
//
// # Keys
//
// A filter is one key, so that EXPIRE, RENAME, COPY, DUMP and eviction act on all
// of it. A rebuild of "orders" works at "{orders}:next", in the same cluster slot;
// scripts name both keys. An ACL user that reads needs
//
//	%R~orders +bitfield_ro +getrange
//
// (and, where BITFIELD_RO is missing, +eval_ro +evalsha_ro +getbit +strlen); one
// that adds needs both keys, and
//
//	~orders ~{orders}:* +evalsha +eval +getrange +setbit +strlen
//
// with WaitReplicas also +setrange +wait; to create, reset and drop also +setrange
// +set +del +exists +time +pexpire, and +bitcount for [Filter.Info]; to rebuild and
// verify all of these and
//
//	+bitfield_ro +get +bitop +bitcount +pttl +rename +persist
//
// [RedisBloom] reads with
//
//	%R~orders +bf.mexists
//
// and says why where it finds something amiss with %R~{orders}:build +bf.info
// +bf.scandump +hmget. What adds, makes or rebuilds one runs scripts over ~orders
// ~{orders}:* with +@bloom +@hash and the commands above.
//
// What the cache of a [Guard] needs, [RedisCache] says.
//
// A [Sharded] filter has these keys for each shard. [ShardKeys] names shards so that
// they spread over the slots of a cluster: "orders:0/8:0", "orders:1/8:2" and so on.
//
// # Concurrency
//
// Everything is safe for concurrent use. Handles hold no state but what they last
// read of a filter, which every reply proves again: when a filter is made anew in
// another size, every handle in every process follows with its next call.
//
// A context ends a wait of this package at once. It ends a call of go-redis only
// if the client has ContextTimeoutEnabled.
package bloom
