package route

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// randomSnapshot is a pool of n endpoints in all kinds of states.
func randomSnapshot(rnd *rand.Rand, n int) *Snapshot {
	s := &Snapshot{Params: DefaultParams(), Regret: rnd.Float64(), Endpoints: make([]Endpoint, n)}
	for i := range s.Endpoints {
		s.Endpoints[i] = randomEndpoint(rnd)
	}
	return s
}

func randomLoad(rnd *rand.Rand) Load {
	var l Load
	for range rnd.IntN(30) {
		prompt := rnd.Int64N(8000) + 1
		uncached := rnd.Int64N(prompt + 1)
		l.Requests++
		l.PromptTokens += prompt
		l.NewTokens += uncached
		if rnd.IntN(2) == 0 {
			l.UncachedTokens += uncached
			continue
		}
		out := rnd.Int64N(300)
		l.Decoding++
		l.ContextTokens += prompt + out
		l.OutputTokens += out
	}
	return l
}

func randomEndpoint(rnd *rand.Rand) Endpoint {
	e := Endpoint{
		Known: rnd.IntN(8) > 0, Running: rnd.Int32N(40), KVUsage: rnd.Float64(), BlockSize: 16, CapacityTokens: 307328,
		MaxNumSeqs: 256, Load: randomLoad(rnd), AtReport: randomLoad(rnd), HeldTokens: rnd.Int64N(307328),
		Kappa: 0.2 + 2*rnd.Float64(), Rho: rnd.Float64(),
	}
	if rnd.IntN(6) == 0 {
		e.Waiting = rnd.Int32N(5)
	}
	if rnd.IntN(6) == 0 {
		e.ForeignRunning, e.ForeignWaiting = rnd.Int32N(20), rnd.Int32N(5)
	}
	return e
}

// BenchmarkPick prices and chooses among 10, 100 and 1,000 endpoints with the hits at hand. Budget: 5 us at 100, 0 allocations.
func BenchmarkPick(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			rnd := rand.New(rand.NewPCG(1, 2))
			s := randomSnapshot(rnd, n)
			hits := make([]int32, n)
			for i := range hits {
				hits[i] = rnd.Int32N(2) * rnd.Int32N(4000)
			}
			r := Request{PromptTokens: 4200, MaxTokens: 200}
			b.ReportAllocs()
			for b.Loop() {
				r.PromptTokens ^= 1
				_ = Choose(s, &r, hits, nil, 7)
			}
		})
	}
}
