package bloom_test

import (
	"github.com/bloomguard/bloom"
	"github.com/bloomguard/bloom/bloomtest"
)

// bloomtest may import this package, so tests inside of it get the double here.
func init() { bloom.ModuleDouble = bloomtest.RedisBloom }
