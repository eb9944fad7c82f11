package bloom

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"sort"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var sizingLayouts = []Layout{Classic, Blocked}

// sizingRand returns a generator whose seed is printed if the test fails.
func sizingRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

func sizingParams(t *testing.T, capacity uint64, fpRate float64, layout Layout) Params {
	t.Helper()
	p, err := NewParams(capacity, fpRate, layout)
	require.NoError(t, err)
	return p
}

// The sizes that the textbook's formula gives, worked out elsewhere.
func TestNewParamsPublishedSizes(t *testing.T) {
	for _, tt := range []struct {
		capacity uint64
		fpRate   float64
		bits     uint64
		hashes   int
	}{
		{1e6, 0.01, 9_585_059, 7},
		{1e7, 0.01, 95_850_584, 7},
		{1e7, 0.001, 143_775_876, 10},
		{1e8, 0.01, 958_505_838, 7},
	} {
		t.Run(fmt.Sprintf("%d at %v", tt.capacity, tt.fpRate), func(t *testing.T) {
			require.Equal(t, Params{tt.capacity, tt.fpRate, Classic, tt.bits, tt.hashes},
				sizingParams(t, tt.capacity, tt.fpRate, Classic))
		})
	}
}

func TestFPRateAtPublishedRates(t *testing.T) {
	p := sizingParams(t, 1e6, 0.01, Classic)
	for _, tt := range []struct {
		items   uint64
		percent float64
		digit   float64 // of the last digit published
	}{
		{500_000, 0.025, 0.001},
		{800_000, 0.33, 0.01},
		{1_000_000, 1.004, 0.001},
		{1_500_000, 5.8, 0.1},
		{2_000_000, 15.7, 0.1},
	} {
		t.Run(strconv.FormatUint(tt.items, 10), func(t *testing.T) {
			require.InDelta(t, tt.percent, 100*p.FPRateAt(tt.items), tt.digit/2)
		})
	}
}

func TestNewParamsBestHashes(t *testing.T) {
	rnd := sizingRand(t)
	samples := map[Layout]int{Classic: 5000, Blocked: 100} // a rate of Blocked costs some 20 µs
	for _, layout := range sizingLayouts {
		t.Run(layout.String(), func(t *testing.T) {
			for range samples[layout] {
				n := uint64(math.Exp(rnd.Float64() * math.Log(1e7)))
				rate := math.Exp(rnd.Float64() * math.Log(1e-12))
				p := sizingParams(t, n, rate, layout)
				best := p.FPRateAt(n)
				for k := 1; k <= maxHashes; k++ {
					if other := p.withHashes(k).FPRateAt(n); other < best {
						t.Fatalf("%+v: rate %v at capacity, with k=%d %v", p, best, k, other)
					}
				}
			}
		})
	}
}

func TestNewParamsInvalid(t *testing.T) {
	const rates = "want at least 5.5e-20 and below 1"
	for _, tt := range []struct {
		capacity uint64
		fpRate   float64
		layout   Layout
		value    string // in the text
		allowed  string
	}{
		{0, 0.01, Classic, "capacity 0", "at least 1"},
		{0, 0.01, Blocked, "capacity 0", "at least 1"},
		{10, 0, Classic, "rate 0", rates},
		{10, 1, Classic, "rate 1", rates},
		{10, -1, Classic, "rate -1", rates},
		{10, 5, Blocked, "rate 5", rates}, // who means 5 %
		{10, 5, Classic, "rate 5", rates},
		{10, math.NaN(), Classic, "rate NaN", rates},
		{10, math.NaN(), Blocked, "rate NaN", rates},
		{10, math.Inf(1), Classic, "rate +Inf", rates},
		{10, math.Inf(-1), Blocked, "rate -Inf", rates},
		{10, 5.4e-20, Classic, "rate 5.4e-20", rates}, // would need k = 65
		{10, math.SmallestNonzeroFloat64, Blocked, "rate 5e-324", rates},
		{10, 0.01, 7, "layout 7", "Classic (0) or Blocked (1)"},
		{math.MaxUint64, 0.01, 7, "layout 7", "Classic (0) or Blocked (1)"},
	} {
		t.Run(fmt.Sprint(tt.capacity, tt.fpRate, tt.layout), func(t *testing.T) {
			start := time.Now()
			p, err := NewParams(tt.capacity, tt.fpRate, tt.layout)
			took := time.Since(start)
			require.ErrorIs(t, err, ErrInvalidParams)
			require.NotErrorIs(t, err, ErrTooLarge)
			require.ErrorContains(t, err, tt.value)
			require.ErrorContains(t, err, tt.allowed)
			require.Zero(t, p)
			// It takes about a microsecond and must take less than a millisecond;
			// the rest is for a scheduler that runs something else in between.
			require.Less(t, took, 50*time.Millisecond)

			if tt.fpRate != 0 && tt.capacity != 0 { // which mean something else in a Config
				_, err = New(NewMemory(), Config{Capacity: tt.capacity, FPRate: tt.fpRate, Layout: tt.layout})
				require.ErrorIs(t, err, ErrInvalidParams)
			}
		})
	}
}

// sizingRefusal is what the text of an ErrTooLarge says.
type sizingRefusal struct{ bits, whole, limit, shards float64 }

var sizingRefusalText = regexp.MustCompile(`need (\d+) bits, (\d+) in all; one key holds at most (\d+): (\d+) shards would`)

func sizingParseRefusal(t *testing.T, err error) (r sizingRefusal) {
	t.Helper()
	require.ErrorIs(t, err, ErrTooLarge)
	require.NotErrorIs(t, err, ErrInvalidParams)
	m := sizingRefusalText.FindStringSubmatch(err.Error())
	require.NotNil(t, m, err.Error())
	for i, to := range []*float64{&r.bits, &r.whole, &r.limit, &r.shards} {
		var e error
		*to, e = strconv.ParseFloat(m[1+i], 64)
		require.NoError(t, e)
	}
	return r
}

// A capacity that one key cannot hold is refused at once, and the number of
// shards that the refusal names really serves, each with its allowance.
func TestNewParamsTooLarge(t *testing.T) {
	rnd := sizingRand(t)
	type sizing struct {
		capacity uint64
		fpRate   float64
	}
	sizings := []sizing{
		{1e9, 0.01}, {1e9, 1e-6}, {1e12, 0.01}, {1e18, 0.5}, {1e18, 0.999999},
		{math.MaxInt64, 0.01}, {math.MaxUint64, 0.01}, {math.MaxUint64, 0.9}, {math.MaxUint64, minFPRate},
	}
	for range 100 {
		n := uint64(math.Exp(math.Log(4e9) + rnd.Float64()*math.Log(math.MaxUint64/4e9*0.99)))
		sizings = append(sizings, sizing{n, math.Exp(math.Log(0.4) + rnd.Float64()*math.Log(1e-17))})
	}
	for _, layout := range sizingLayouts {
		for _, tt := range sizings {
			t.Run(fmt.Sprintf("%v/%d at %v", layout, tt.capacity, tt.fpRate), func(t *testing.T) {
				start := time.Now()
				p, err := NewParams(tt.capacity, tt.fpRate, layout)
				took := time.Since(start)
				require.Zero(t, p)
				r := sizingParseRefusal(t, err)
				require.Less(t, took, time.Second, "it takes about ten milliseconds; this asks that it is no search without end")
				require.Equal(t, float64(1<<32), r.limit)
				require.Greater(t, r.whole, r.limit)
				require.GreaterOrEqual(t, r.whole, r.bits)

				share := float64(tt.capacity) / r.shards
				share = math.Ceil(share + shareAllowance(float64(tt.capacity), r.shards) + 1)
				p, err = NewParams(uint64(share), tt.fpRate, layout)
				require.NoError(t, err)
				// Nor does it name many more than the sizes ask for.
				require.LessOrEqual(t, r.shards, math.Ceil(1.02*r.whole/r.limit)+1)
				// What was said to be needed is what the shards need together.
				require.InEpsilon(t, r.bits/float64(tt.capacity), float64(p.Bits)/share, 1e-6)
			})
		}
	}
	t.Run("the numbers of a billion at 1 %", func(t *testing.T) {
		_, err := NewParams(1e9, 0.01, Classic)
		require.Equal(t, sizingRefusal{9_585_058_378, 9_585_058_378 + 1600, 1 << 32, 3}, sizingParseRefusal(t, err))
		_, err = New(NewMemory(), Config{Capacity: 1e9})
		require.ErrorIs(t, err, ErrTooLarge)
	})
}

// The largest filter that is accepted fills the longest Redis string, to within a
// block, and one item more is refused.
func TestNewParamsLimit(t *testing.T) {
	for _, layout := range sizingLayouts {
		for _, rate := range []float64{0.3, 0.01, 1e-9} {
			t.Run(fmt.Sprintf("%v at %v", layout, rate), func(t *testing.T) {
				refused := func(n int) bool {
					_, err := NewParams(uint64(n), rate, layout)
					return err != nil
				}
				most := uint64(sort.Search(math.MaxInt32, refused)) - 1
				p := sizingParams(t, most, rate, layout)
				require.LessOrEqual(t, p.Bytes(), uint64(512<<20))
				require.Greater(t, p.Bytes(), uint64(512<<20-blockBytes))
				_, err := NewParams(most+1, rate, layout)
				r := sizingParseRefusal(t, err)
				require.Equal(t, 2., r.shards)
				require.LessOrEqual(t, r.whole, r.limit+2*blockBytes*8)
			})
		}
	}
}

// Sizes around 2³¹ bits, where an int of 32 bits ends, are sizes like any other.
func TestNewParamsAround31Bits(t *testing.T) {
	perItem := -math.Log(0.01) / ln2Squared
	n := uint64((1 << 31) / perItem)
	for d := range uint64(3) {
		p := sizingParams(t, n-1+d, 0.01, Classic)
		require.InDelta(t, float64(n-1+d)*perItem, float64(p.Bits), 1)
		require.Equal(t, (p.Bits+7)/8+headerBytes+trailerBytes, p.Bytes())
		require.Equal(t, 7, p.Hashes)
		require.InDelta(t, 0.01004, p.FPRateAt(p.Capacity), 0.00001)
	}
	require.Less(t, sizingParams(t, n, 0.01, Classic).Bits, uint64(1<<31))
	require.Greater(t, sizingParams(t, n+1, 0.01, Classic).Bits, uint64(1<<31))
}

// A filter without hashes, or of one bit for nobody, would deny everything: for
// every rate that is accepted, what was added is there.
func TestNewParamsEveryRate(t *testing.T) {
	rates := []float64{minFPRate, 1e-10, 0.69, 0.7, 0.71, 0.72, 0.9, 0.99, 0.9999, math.Nextafter(1, 0)}
	for p := 0.005; p < 1; p += 0.03 {
		rates = append(rates, p)
	}
	for _, layout := range sizingLayouts {
		for _, rate := range rates {
			for _, n := range []uint64{1, 1000} {
				t.Run(fmt.Sprintf("%v/%d at %v", layout, n, rate), func(t *testing.T) {
					p := sizingParams(t, n, rate, layout)
					require.GreaterOrEqual(t, p.Hashes, 1)
					require.LessOrEqual(t, p.Hashes, maxHashes)
					require.GreaterOrEqual(t, p.Bits, uint64(1))
					require.NoError(t, p.checkStored(), "what NewParams makes, a header may say")

					m := NewMemory()
					require.NoError(t, m.CreateEmpty(t.Context(), Config{Capacity: n, FPRate: rate, Layout: layout}))
					for _, item := range []string{"", "a", "item"} {
						_, err := m.Add(t.Context(), item)
						require.NoError(t, err)
						found, err := m.Exists(t.Context(), item)
						require.NoError(t, err)
						require.True(t, found)
					}
				})
			}
		}
	}
}

func TestFPRateAtBounds(t *testing.T) {
	items := []uint64{0, 1, 2, 3, 5, 9, 1 << 32, 1 << 53, 1 << 63, math.MaxUint64 - 1, math.MaxUint64}
	for n := 10.; n < math.MaxUint64; n *= 1.1 {
		items = append(items, uint64(n))
	}
	sort.Slice(items, func(i, j int) bool { return items[i] < items[j] })
	geometries := []Params{
		{Layout: Classic, Bits: 1, Hashes: 1},
		{Layout: Classic, Bits: 1 << 32, Hashes: maxHashes},
		{Layout: Blocked, Bits: blockBits, Hashes: 1},
		{Layout: Blocked, Bits: blockBits, Hashes: maxHashes},
	}
	for _, layout := range sizingLayouts {
		for _, rate := range []float64{0.9, 0.01, 1e-6, minFPRate} {
			geometries = append(geometries, sizingParams(t, 1, rate, layout), sizingParams(t, 1e6, rate, layout))
		}
	}
	for _, p := range geometries {
		t.Run(fmt.Sprintf("%v m=%d k=%d", p.Layout, p.Bits, p.Hashes), func(t *testing.T) {
			require.Zero(t, p.FPRateAt(0))
			before := 0.
			for _, n := range items {
				rate := p.FPRateAt(n)
				// Written so that NaN fails. The slack is the rounding of Poisson weights.
				if !(rate >= before*(1-1e-10) && rate <= 1) {
					t.Fatalf("rate %v with %d items, %v with fewer", rate, n, before)
				}
				before = rate
			}
			require.InDelta(t, 1, before, 1e-10)
		})
	}
	require.Zero(t, Params{}.FPRateAt(1), "no filter, no rate")
}

func TestParamsBytes(t *testing.T) {
	for _, tt := range []struct {
		params Params
		bytes  uint64
	}{
		{Params{Layout: Classic, Bits: 1}, 192 + 1 + 8},
		{Params{Layout: Classic, Bits: 8}, 192 + 1 + 8},
		{Params{Layout: Classic, Bits: 9}, 192 + 2 + 8},
		{Params{Layout: Classic, Bits: 9_585_059}, 192 + 1_198_133 + 8},
		{Params{Layout: Classic, Bits: 1<<32 - 1600}, 512 << 20},
		{Params{Layout: Blocked, Bits: 480}, 192 + 64 + 8},
		{Params{Layout: Blocked, Bits: 480 * 20_705}, 192 + 64*20_705 + 8},
		{Params{Layout: Blocked, Bits: 480 * (1<<23 - 4)}, 512<<20 - 56},
	} {
		t.Run(fmt.Sprintf("%v m=%d", tt.params.Layout, tt.params.Bits), func(t *testing.T) {
			require.Equal(t, tt.bytes, tt.params.Bytes())
		})
	}
}

func TestLayoutString(t *testing.T) {
	require.Equal(t, "classic", Classic.String())
	require.Equal(t, "blocked", Blocked.String())
	require.Equal(t, "Layout(7)", Layout(7).String())
}
