package bloom_test

import (
	"os"
	"testing"

	"github.com/bloomguard/bloom/internal/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
