package bloom

import (
	"encoding/binary"
	"fmt"

	"github.com/dchest/siphash"
)

// hashKeyBytes is the length of Config.HashKey: SipHash takes a key of 128 bits.
const hashKeyBytes = 16

// hashKey is a secret that items are hashed with. The zero value is none: then
// MurmurHash3 hashes them, whose results anybody can compute.
type hashKey struct {
	k0, k1      uint64
	fingerprint uint64 // stored with the filter; 0: there is no key
}

// newHashKey takes Config.HashKey, which may be nil.
func newHashKey(b []byte) (hashKey, error) {
	if b == nil {
		return hashKey{}, nil
	}
	if len(b) != hashKeyBytes {
		return hashKey{}, fmt.Errorf("bloom: HashKey of %d bytes: want %d random ones, or nil for none: %w",
			len(b), hashKeyBytes, ErrInvalidParams)
	}
	k := hashKey{k0: binary.LittleEndian.Uint64(b), k1: binary.LittleEndian.Uint64(b[8:])}
	k.fingerprint, _ = k.derive("bloom: fingerprint", 0)
	k.fingerprint |= 1 // never 0
	return k, nil
}

// hash is the number that the header has for how items are hashed.
func (k hashKey) hash() byte {
	if k.isSet() {
		return hashSipHash
	}
	return hashMurmur3
}

func (k hashKey) isSet() bool { return k.fingerprint != 0 }

// derive returns a key for one use, from which neither this key nor that of
// another use can be found.
func (k hashKey) derive(use string, n uint64) (k0, k1 uint64) {
	return siphash.Hash128(k.k0, k.k1, binary.BigEndian.AppendUint64([]byte(use), n))
}

// forPositions is the key of a filter's positions.
func (k hashKey) forPositions(seed uint32) (k0, k1 uint64) {
	return k.derive("bloom: positions", uint64(seed))
}

// forRouting is the key of what an item's shard is chosen by.
func (k hashKey) forRouting() (k0, k1 uint64) { return k.derive("bloom: routing", routingVersion) }

// forModule is the key of what a RedisBloom filter is given instead of an item.
func (k hashKey) forModule() (k0, k1 uint64) { return k.derive("bloom: items", 0) }

// keyedHash is SipHash-2-4-128 of the bytes of item, which it does not copy.
func keyedHash(k0, k1 uint64, item string) (h1, h2 uint64) {
	return siphash.Hash128(k0, k1, bytesOf(item))
}

// keyedItem is an item as it is given to a server that hashes for itself.
func keyedItem(k0, k1 uint64, item string) string {
	h1, h2 := keyedHash(k0, k1, item)
	b := make([]byte, 0, hashKeyBytes)
	return string(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, h1), h2))
}

// mismatch is the error of a filter that was made with another key than k.
func (k hashKey) mismatch(fingerprint uint64) error {
	return fmt.Errorf("stored is a filter with %s, Config has %s: %w",
		keyName(fingerprint), keyName(k.fingerprint), ErrParamsMismatch)
}

func keyName(fingerprint uint64) string {
	if fingerprint == 0 {
		return "no hash key"
	}
	return fmt.Sprintf("the hash key of fingerprint %016x", fingerprint)
}
