package route

// Explanation is one pick, shown term by term.
type Explanation struct {
	Pick       Pick
	Request    Request
	Candidates []Candidate // one per slot of the snapshot
}

// Candidate is one endpoint in an Explanation. The Terms add up to Cost. One that was skipped is priced all the same.
type Candidate struct {
	Slot      int
	Skipped   string // why it was not compared: "" (it was), "excluded", "health" or "full"
	Full      bool
	HitTokens int32
	Gates     []GateResult // NumGates of them
	Terms     []Term
	Cost      float64 // seconds
	Tied      bool    // counted as equal to the lowest cost
	Chosen    bool
}

// GateResult is one gate of one endpoint. Value reaching (waiting, max_num_seqs) or passing (projected_kv) Threshold makes it
// full. Value is -1 when it is unknown.
type GateResult struct {
	Name      string
	Value     float64
	Threshold float64
	Applies   bool // false: off, unknown, or lifted for this prompt
	Passed    bool // false: this gate makes the endpoint full
}

// Term is one summand of a cost.
type Term struct {
	Name    string
	Seconds float64
}

// Explain makes the same choice as Choose with the same arguments and says why.
func Explain(s *Snapshot, r *Request, hits []int32, exclude []uint64, rnd uint64) Explanation {
	x := Explanation{Pick: Choose(s, r, hits, exclude, rnd), Request: *r, Candidates: make([]Candidate, len(s.Endpoints))}
	v := newView(s, r)
	v.survey(s, hits, exclude)
	var kept [scratch]priced
	best, _ := v.lowest(s, hits, exclude, &kept)
	limit := best.cost + v.tolerance(best)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		hit := v.hitAt(s, hits, i)
		need := v.projected(e, hit)
		var price cost
		v.costOf(&price, e, i, hit, need)
		pr, set := v.price(e, i, hit)
		c := Candidate{Slot: i, Full: set != 0, HitTokens: int32(hit), Gates: v.gateResults(e, need, set), Terms: price.terms(v.policy),
			Cost: price.sum(), Chosen: i == x.Pick.Slot}
		switch {
		case excluded(exclude, i):
			c.Skipped = "excluded"
		case Rank(e.Admission) != v.best:
			c.Skipped = "health"
		case pr.tier != best.tier && (!v.crowded || pr.tight):
			c.Skipped = "full"
		default:
			c.Tied = pr.cost <= limit
		}
		x.Candidates[i] = c
	}
	return x
}

func (v *view) gateResults(e *Endpoint, need float64, set GateSet) []GateResult {
	on := v.p.Gates != GatesOff
	capacity := e.capacity()
	waiting, projected := -1.0, -1.0
	if e.Known {
		waiting = float64(v.waiting(e))
	}
	if capacity > 0 {
		projected = need / capacity
	}
	return []GateResult{
		{GateName(GateWaiting), waiting, float64(v.p.FullWaiting), on && v.waitingApplies(e), !set.Has(GateWaiting)},
		{GateName(GateMaxNumSeqs), float64(e.sequences()), float64(e.MaxNumSeqs), on && e.MaxNumSeqs > 0, !set.Has(GateMaxNumSeqs)},
		{GateName(GateProjectedKV), projected, v.p.ProjectedKV, on && capacity > 0, !set.Has(GateProjectedKV)},
	}
}

// terms names the summands.
func (c *cost) terms(p Policy) []Term {
	if p == LeastRequest {
		return []Term{{"requests", c.wait}, {"request", c.work}, {"penalty", c.penalty}}
	}
	return []Term{
		{"wait", c.wait}, {"work", c.work}, {"busy", c.busy}, {"stall", c.stall}, {"step", c.step},
		{"penalty", c.penalty}, {"return", c.credit},
	}
}
