package bloomtest

import (
	"math"
	"math/big"
)

// ln 2 to more digits than lnBits holds.
var bigLn2, _ = new(big.Float).SetPrec(lnBits).SetString("0.693147180559945309417232121458176568075500134360255254120680")

const lnBits = 128

// ln is the natural logarithm of a positive x, rounded as the C library rounds it.
// On amd64 math.Log(0.01) is wrong in the last bit, which would show in BF.SCANDUMP's
// header and can make a filter a word longer, and numbers below 1e-307 get -709.
func ln(x float64) float64 {
	newFloat := func(x float64) *big.Float { return new(big.Float).SetPrec(lnBits).SetFloat64(x) }
	fraction, exponent := math.Frexp(x)
	// ln f = 2·artanh t = 2·(t + t³/3 + t⁵/5 + …) with t = (f-1)/(f+1), here in [-1/3, 0):
	// every term adds three bits.
	f, one := newFloat(fraction), newFloat(1)
	t := new(big.Float).Quo(new(big.Float).Sub(f, one), new(big.Float).Add(f, one))
	square := new(big.Float).Mul(t, t)
	sum := newFloat(0)
	for i := 1; i < 2*lnBits/3; i += 2 {
		sum.Add(sum, new(big.Float).Quo(t, newFloat(float64(i))))
		t.Mul(t, square)
	}
	sum.Mul(sum, newFloat(2))
	sum.Add(sum, new(big.Float).Mul(bigLn2, newFloat(float64(exponent))))
	y, _ := sum.Float64()
	return y
}
