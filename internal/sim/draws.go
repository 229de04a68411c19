package sim

import (
	"math"
	"slices"
	"time"
)

// Draws that workloads are made of. Each takes its chance from Sim.Rand.

func secs(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }

// Uniform draws an integer of [a, b].
func (s *Sim) Uniform(a, b int) int { return a + s.Rand.IntN(b-a+1) }

// Exponential draws the time to the next event of a Poisson process of so many per second.
func (s *Sim) Exponential(rate float64) time.Duration { return secs(s.Rand.ExpFloat64() / rate) }

// Lognormal draws from the lognormal distribution with this mean and standard deviation.
func (s *Sim) Lognormal(mean, sd float64) float64 {
	s2 := math.Log(1 + sd*sd/mean/mean)
	return math.Exp(math.Log(mean) - s2/2 + math.Sqrt(s2)*s.Rand.NormFloat64())
}

// LognormalMedian draws from the lognormal distribution with this median and standard deviation of the logarithm.
func (s *Sim) LognormalMedian(median, sigma float64) float64 {
	return median * math.Exp(sigma*s.Rand.NormFloat64())
}

// Zipf returns a sampler of 0..n-1 in which k has the weight 1/(k+1)^e.
func (s *Sim) Zipf(n int, e float64) func() int {
	cum := make([]float64, n)
	sum := 0.0
	for k := range cum {
		sum += math.Pow(float64(k+1), -e)
		cum[k] = sum
	}
	return func() int {
		i, _ := slices.BinarySearch(cum, s.Rand.Float64()*sum)
		return min(i, n-1)
	}
}

// Poisson calls do so many times per second, at random, from now to the end of arrivals.
func (s *Sim) Poisson(rate float64, do func()) {
	var next func()
	next = func() {
		if s.now >= s.cfg.Length {
			return
		}
		do()
		s.After(s.Exponential(rate), next)
	}
	s.After(s.Exponential(rate), next)
}
