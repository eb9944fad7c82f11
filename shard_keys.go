package bloom

import "strconv"

// clusterSlots is how many slots a Redis Cluster spreads its keys over.
const clusterSlots = 16384

// ShardKeys returns n keys for the shards of one filter, 1 to 1024, that spread
// evenly over the slots of a Redis Cluster: of n equal ranges of slots the first has
// the first key, and so on. So every primary gets its part of the shards, however
// many primaries there are. The keys are the same on every call and in every version
// of this package: "orders:0/8:0" and seven more.
//
// They name n, so a filter of another number of shards lies under other keys. It
// returns nil, which [New] refuses as no shards, for another n, for an empty name and
// for one with a brace, which would put all keys into one slot.
func ShardKeys(name string, n int) []string {
	if name == "" || n < 1 || n > maxShards {
		return nil
	}
	for i := range len(name) {
		if name[i] == '{' || name[i] == '}' {
			return nil
		}
	}
	keys := make([]string, n)
	for i := range keys {
		first, end := i*clusterSlots/n, (i+1)*clusterSlots/n
		prefix := name + ":" + strconv.Itoa(i) + "/" + strconv.Itoa(n) + ":"
		sum := crc16(0, prefix)
		for try := 0; keys[i] == ""; try++ { // about n times
			suffix := strconv.Itoa(try)
			if slot := int(crc16(sum, suffix) % clusterSlots); first <= slot && slot < end {
				keys[i] = prefix + suffix
			}
		}
	}
	return keys
}

// crc16 continues the checksum that Redis Cluster takes a key's slot from: CRC-16
// of polynomial 0x1021, as XMODEM has it.
func crc16(sum uint16, s string) uint16 {
	for i := range len(s) {
		sum = sum<<8 ^ crc16Table[byte(sum>>8)^s[i]]
	}
	return sum
}

var crc16Table = func() (table [256]uint16) {
	for i := range table {
		sum := uint16(i) << 8
		for range 8 {
			if carry := sum&0x8000 != 0; carry {
				sum = sum<<1 ^ 0x1021
			} else {
				sum <<= 1
			}
		}
		table[i] = sum
	}
	return table
}()
