package route

// Explanation is one pick, shown term by term.
type Explanation struct {
	Pick       Pick
	Request    Request
	Candidates []Candidate // one per slot of the snapshot
}

// Candidate is one endpoint in an Explanation. The Terms add up to Cost.
type Candidate struct {
	Slot      int
	Skipped   string // why it was no candidate: "", "excluded", "health"
	Full      bool
	HitTokens int32
	Gates     []GateResult
	Terms     []Term
	Cost      float64 // seconds
	Tied      bool    // within the tolerance of the lowest cost
	Chosen    bool
}

// GateResult is one gate of one endpoint.
type GateResult struct {
	Name      string
	Value     float64
	Threshold float64
	Applies   bool // false: off, unknown, or lifted for this prompt
	Passed    bool
}

// Term is one summand of a cost.
type Term struct {
	Name    string
	Seconds float64
}

// Explain makes the same choice as Choose with the same arguments and says why.
func Explain(s *Snapshot, r *Request, hits []int32, exclude []uint64, rnd uint64) Explanation {
	return Explanation{Pick: Choose(s, r, hits, exclude, rnd), Request: *r}
}
