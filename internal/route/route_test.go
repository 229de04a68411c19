package route

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

const trials = 400

// scene is a random pool, request and hits.
func scene(seed uint64) (*rand.Rand, *Snapshot, *Request, []int32) {
	rnd := rand.New(rand.NewPCG(seed, 77))
	s := randomSnapshot(rnd, 1+rnd.IntN(12))
	s.Params.Policy = Policy(rnd.IntN(4) / 3)
	s.Params.Gates = Gates(rnd.IntN(3))
	s.Params.WhenFull = WhenFull(rnd.IntN(2))
	s.Params.Scale = math.Exp(2 * rnd.NormFloat64())
	for i := range s.Endpoints {
		s.Endpoints[i].Admission = []uint8{Normal, Normal, Normal, Trial, Avoid, LastResort}[rnd.IntN(6)]
	}
	r := &Request{PromptTokens: rnd.Int32N(20000), MaxTokens: rnd.Int32N(3) * 500}
	hits := make([]int32, len(s.Endpoints))
	for i := range hits {
		hits[i] = rnd.Int32N(r.PromptTokens+1) * rnd.Int32N(2)
	}
	return rnd, s, r, hits
}

// The pick is a slot that is not excluded and of the best admission, its figures are numbers, Explain agrees, and the terms add up.
func TestPickAndExplanation(t *testing.T) {
	for seed := range uint64(trials) {
		rnd, s, r, hits := scene(seed)
		exclude := []uint64{rnd.Uint64() & rnd.Uint64() & rnd.Uint64()}
		if rnd.IntN(3) == 0 {
			hits = hits[:rnd.IntN(len(hits))]
		}
		chance := rnd.Uint64()
		p := Choose(s, r, hits, exclude, chance)
		best := uint8(noTier)
		for i, e := range s.Endpoints {
			if !excluded(exclude, i) {
				best = min(best, Rank(e.Admission))
			}
		}
		if best == noTier {
			if p.Slot != -1 || p.Reason != ReasonNone {
				t.Fatalf("seed %d: picked %d of none", seed, p.Slot)
			}
			continue
		}
		if p.Slot < 0 || p.Slot >= len(s.Endpoints) || excluded(exclude, p.Slot) || Rank(s.Endpoints[p.Slot].Admission) != best {
			t.Fatalf("seed %d: picked %d", seed, p.Slot)
		}
		for _, v := range []float64{p.Cost, p.Predicted, p.Work} {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Fatalf("seed %d: %+v", seed, p)
			}
		}
		checkExplanation(t, seed, Explain(s, r, hits, exclude, chance), p)
	}
}

func checkExplanation(t *testing.T, seed uint64, x Explanation, p Pick) {
	t.Helper()
	if x.Pick != p {
		t.Fatalf("seed %d: explained %+v, chose %+v", seed, x.Pick, p)
	}
	for _, c := range x.Candidates {
		sum := 0.0
		for _, term := range c.Terms {
			sum += term.Seconds
		}
		if math.Abs(sum-c.Cost) > 1e-9*max(1, math.Abs(c.Cost)) || math.IsNaN(sum) {
			t.Fatalf("seed %d: terms of %d add up to %v, cost %v", seed, c.Slot, sum, c.Cost)
		}
		if len(c.Gates) != NumGates {
			t.Fatalf("seed %d: %d gates", seed, len(c.Gates))
		}
		full := false
		for _, g := range c.Gates {
			full = full || !g.Passed
			if !g.Passed && (!g.Applies || g.Value < g.Threshold) {
				t.Fatalf("seed %d: gate %+v", seed, g)
			}
		}
		if full != c.Full {
			t.Fatalf("seed %d: full %v, gates %+v", seed, c.Full, c.Gates)
		}
		if c.Chosen != (c.Slot == p.Slot) || c.Chosen && (c.Skipped != "" || !c.Tied) {
			t.Fatalf("seed %d: %+v, pick %d", seed, c, p.Slot)
		}
	}
}

// Relabelling the endpoints does not change the choice: only between equals may chance decide.
func TestRelabelling(t *testing.T) {
	for seed := range uint64(trials) {
		rnd, s, r, hits := scene(seed)
		perm := rnd.Perm(len(s.Endpoints))
		s2, hits2 := *s, make([]int32, len(hits))
		s2.Endpoints = make([]Endpoint, len(s.Endpoints))
		for i, j := range perm {
			s2.Endpoints[j], hits2[j] = s.Endpoints[i], hits[i]
		}
		a, b := Choose(s, r, hits, nil, 5), Choose(&s2, r, hits2, nil, 5)
		back := slices.Index(perm, b.Slot)
		if a.Slot == back {
			continue
		}
		x := Explain(s, r, hits, nil, 5).Candidates
		ea, eb := &s.Endpoints[a.Slot], &s.Endpoints[back]
		if !x[a.Slot].Tied || !x[back].Tied || ea.Requests != eb.Requests || x[a.Slot].HitTokens != x[back].HitTokens {
			t.Errorf("seed %d: %d by one labelling, %d by the other", seed, a.Slot, back)
		}
	}
}

// More of any load never lowers the cost of an endpoint.
func TestMoreLoadNeverLowersTheCost(t *testing.T) {
	more := map[string]func(e *Endpoint){
		"request":        func(e *Endpoint) { e.Requests++; e.PromptTokens += 500; e.NewTokens += 500; e.UncachedTokens += 500 },
		"cached request": func(e *Endpoint) { e.Requests++; e.PromptTokens += 900; e.NewTokens += 10; e.UncachedTokens += 10 },
		"decoding": func(e *Endpoint) {
			e.Requests++
			e.Decoding++
			e.ContextTokens += 700
			e.PromptTokens += 700
			e.NewTokens += 700
		},
		"context":         func(e *Endpoint) { e.ContextTokens += 5000 },
		"foreign waiting": func(e *Endpoint) { e.ForeignWaiting++; e.Waiting++ },
		"foreign running": func(e *Endpoint) { e.ForeignRunning++; e.Running++ },
		"kv":              func(e *Endpoint) { e.KVUsage = min(1, e.KVUsage+0.1) },
		"kappa":           func(e *Endpoint) { e.Kappa *= 1.5 },
		"penalty":         func(e *Endpoint) { e.Penalty += 3 },
		"rho":             func(e *Endpoint) { e.Rho = min(1, e.Rho+0.1) },
		"held":            func(e *Endpoint) { e.HeldTokens += 20000 },
	}
	for name, add := range more {
		for seed := range uint64(trials) {
			rnd, s, r, hits := scene(seed)
			i := rnd.IntN(len(s.Endpoints))
			s.Endpoints[i].Admission = Normal
			before := Explain(s, r, hits, nil, 1).Candidates[i]
			add(&s.Endpoints[i])
			after := Explain(s, r, hits, nil, 1).Candidates[i]
			if after.Cost < before.Cost-1e-9*math.Abs(before.Cost) {
				t.Errorf("%s, seed %d: cost %v became %v", name, seed, before.Cost, after.Cost)
			}
			if before.Full && !after.Full {
				t.Errorf("%s, seed %d: no longer full", name, seed)
			}
		}
	}
}

// Whatever nonsense stands in the snapshot, the pick is a slot and its cost a number.
func TestNonsense(t *testing.T) {
	bad := []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0, 1e300}
	for seed := range uint64(trials) {
		rnd, s, r, hits := scene(seed)
		odd := func() float64 { return bad[rnd.IntN(len(bad))] }
		n := func() int32 { return []int32{-5, 0, math.MaxInt32, math.MinInt32}[rnd.IntN(4)] }
		s.Regret, s.Params.MeanOutput, s.Params.Residence, s.Params.Scale = odd(), odd(), odd(), odd()
		s.Params.ProjectedKV, s.Params.StallShare = odd(), odd()
		s.Params.Coeff = Coefficients{odd(), odd(), odd(), odd(), odd()}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			e.Penalty, e.KVUsage, e.Kappa, e.Rho = odd(), odd(), odd(), odd()
			e.Running, e.Waiting, e.BlockSize, e.Budget, e.MaxNumSeqs, e.Requests = n(), n(), n(), n(), n(), n()
			e.CapacityTokens, e.Decoding, e.ForeignRunning = int64(n()), n(), n()
			e.PromptTokens, e.NewTokens, e.AtReport.PromptTokens = int64(n()), int64(n()), int64(n())
			hits[i] = n()
		}
		r.PromptTokens, r.MaxTokens = n(), n()
		p := Choose(s, r, hits, nil, rnd.Uint64())
		if p.Slot < 0 || p.Slot >= len(s.Endpoints) || math.IsNaN(p.Cost) || math.IsNaN(p.Predicted) || math.IsNaN(p.Work) || p.HitTokens < 0 {
			t.Fatalf("seed %d: %+v", seed, p)
		}
	}
}

func TestPickAllocatesNothing(t *testing.T) {
	for _, n := range []int{4, 100, 300} {
		s := randomSnapshot(rand.New(rand.NewPCG(3, 4)), n)
		hits := make([]int32, n)
		r := Request{PromptTokens: 3000}
		if got := testing.AllocsPerRun(50, func() { Choose(s, &r, hits, nil, 9) }); got != 0 {
			t.Errorf("%d endpoints: %v allocations", n, got)
		}
	}
}

// Above the kept prices the choice is the same as below.
func TestManyEndpoints(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	s := randomSnapshot(rnd, 1000)
	hits := make([]int32, 1000)
	for i := range hits {
		hits[i] = rnd.Int32N(3000)
	}
	r := &Request{PromptTokens: 3000}
	p := Choose(s, r, hits, nil, 1)
	x := Explain(s, r, hits, nil, 1)
	lowest := math.Inf(1)
	for _, c := range x.Candidates {
		if c.Skipped == "" {
			lowest = min(lowest, c.Cost)
		}
	}
	if c := x.Candidates[p.Slot]; !c.Tied || c.Cost > lowest*1.2+0.1 {
		t.Errorf("picked cost %v, lowest %v", c.Cost, lowest)
	}
}

func TestEqualsAreChosenEvenly(t *testing.T) {
	s := &Snapshot{Params: DefaultParams(), Endpoints: make([]Endpoint, 5)}
	got := make([]int, 5)
	rnd := rand.New(rand.NewPCG(8, 8))
	for range 5000 {
		got[Choose(s, &Request{PromptTokens: 100}, nil, nil, rnd.Uint64()).Slot]++
	}
	for i, n := range got {
		if n < 880 || n > 1120 {
			t.Errorf("slot %d was chosen %d times of 5000 among five equals", i, n)
		}
	}
}

// What was never reported is neither a favourite nor shunned.
func TestUnknownIsAverage(t *testing.T) {
	s := &Snapshot{Params: DefaultParams(), Endpoints: []Endpoint{
		{Known: true, Load: Load{Requests: 10, Decoding: 10, ContextTokens: 9000, PromptTokens: 9000, NewTokens: 9000}},
		{Known: true, Load: Load{Requests: 20, Decoding: 20, ContextTokens: 18000, PromptTokens: 18000, NewTokens: 18000}},
		{},
	}}
	x := Explain(s, &Request{PromptTokens: 300}, nil, nil, 1)
	c := x.Candidates
	if !(c[0].Cost < c[2].Cost && c[2].Cost < c[1].Cost) {
		t.Errorf("costs %v, %v, unknown %v: want it between", c[0].Cost, c[1].Cost, c[2].Cost)
	}
	// When nothing is known of anybody, the own books decide.
	for i := range s.Endpoints {
		s.Endpoints[i].Known = false
	}
	if p := Choose(s, &Request{PromptTokens: 300}, nil, nil, 1); p.Slot != 2 {
		t.Errorf("picked %d, want the one without requests", p.Slot)
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		ReasonPrefix.String(): "prefix", ReasonLoad.String(): "load", ReasonAllFull.String(): "all_full", ReasonOnlyOne.String(): "only_one",
		ReasonNone.String(): "none", Prefix.String(): "prefix", LeastRequest.String(): "least_request", GatesDefault.String(): "default",
		GatesStrict.String(): "strict", GatesOff.String(): "off", Seconds.String(): "seconds", Requests.String(): "requests",
		fmt.Sprint(GateName(0), GateName(1), GateName(2), GateName(9)): "waitingmax_num_seqsprojected_kvunknown",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if _, ok := Profile("nothing"); ok {
		t.Error("an unknown profile was found")
	}
	for _, p := range profiles {
		if c, ok := Profile(p.name); !ok || c.A <= 0 || c.P <= 0 {
			t.Errorf("profile %s: %+v", p.name, c)
		}
	}
}

// A wait of a moment counts in full. A long one counts by its logarithm, but never stops to count: a queue of an hour is worse than
// one of a minute. Where that begins is a number of engine steps, so that it suits slow engines as well as fast ones.
func TestWaitIsFelt(t *testing.T) {
	for _, scale := range []float64{1, 0.1, 30} {
		p := DefaultParams()
		p.Scale = scale
		felt := func(seconds float64) float64 {
			perToken := p.Coeff.P + p.Coeff.A/defaultBudget
			s := &Snapshot{Params: p, Endpoints: make([]Endpoint, 2)}
			s.Endpoints[0] = Endpoint{Known: true, KVUsage: 0.1, Load: Load{UncachedTokens: int64(seconds / perToken)}}
			return Explain(s, &Request{PromptTokens: 100}, nil, nil, 1).Candidates[0].Terms[0].Seconds / scale
		}
		for _, c := range []struct{ wait, lo, hi float64 }{{0, 0, 0}, {0.1, 0.098, 0.1}, {1, 0.9, 1}, {5.73, 3.9, 4.05}, {60, 13, 14.5}, {3600, 36, 38}} {
			if got := felt(c.wait); got < c.lo || got > c.hi {
				t.Errorf("scale %g: %g s of wait cost %g, want %g to %g", scale, c.wait, got, c.lo, c.hi)
			}
		}
	}
}
