package route

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestLog1p(t *testing.T) {
	last := 0.0
	for x := 1e-9; x < 1e15; x *= 1.0003 {
		got, want := log1p(x), math.Log1p(x)
		if math.Abs(got-want) > 1e-12 {
			t.Fatalf("log1p(%g) = %.17g, want %.17g", x, got, want)
		}
		if got < last-1e-15 {
			t.Fatalf("log1p(%g) = %.17g is less than %.17g before it", x, got, last)
		}
		last = got
	}
	for _, x := range []float64{0, -1, math.NaN(), math.Inf(-1)} {
		if got := log1p(x); got != 0 {
			t.Errorf("log1p(%g) = %g, want 0", x, got)
		}
	}
	if got, want := log1p(math.Inf(1)), math.Log1p(1e15); math.Abs(got-want) > 1e-12 {
		t.Errorf("log1p(Inf) = %g, want %g", got, want)
	}
}

func BenchmarkLog1p(b *testing.B) {
	var x [256]float64
	for i := range x {
		x[i] = rand.ExpFloat64()
	}
	for name, f := range map[string]func(float64) float64{"here": log1p, "math": math.Log1p} {
		b.Run(name, func(b *testing.B) {
			sum := 0.0
			for i := range b.N {
				sum += f(x[i%len(x)])
			}
			if sum < 0 {
				b.Error(sum)
			}
		})
	}
}
