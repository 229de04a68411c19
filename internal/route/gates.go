package route

// Gate numbers, the order of Pick.Full and of the gates in an Explanation.
const (
	GateWaiting = iota
	GateMaxNumSeqs
	GateProjectedKV
	NumGates
)

// GateName returns the metric label of a gate: waiting, max_num_seqs or projected_kv.
func GateName(gate int) string {
	switch gate {
	case GateWaiting:
		return "waiting"
	case GateMaxNumSeqs:
		return "max_num_seqs"
	case GateProjectedKV:
		return "projected_kv"
	}
	return "unknown"
}

// GateSet is a set of gates, bit g for gate g.
type GateSet uint8

// Has reports whether gate is in the set.
func (g GateSet) Has(gate int) bool { return g&(1<<gate) != 0 }

// FullGates returns the gates that make slot full for r, of which it holds hit tokens: for gauges of how full a pool is. A slot
// out of range has none.
func FullGates(s *Snapshot, r *Request, slot int, hit int32) GateSet {
	if slot < 0 || slot >= len(s.Endpoints) {
		return 0
	}
	v := newView(s, r)
	e := &s.Endpoints[slot]
	return v.full(e, v.projected(e, v.hitOf(e, hit)))
}

// ProjectedKV returns the share of its KV memory that slot is forecast to use after r was picked there, of which it holds hit
// tokens; it may pass 1. It is -1 when the capacity is unknown. A nil r forecasts what is booked already.
func ProjectedKV(s *Snapshot, r *Request, slot int, hit int32) float64 {
	if slot < 0 || slot >= len(s.Endpoints) {
		return -1
	}
	e := &s.Endpoints[slot]
	capacity := e.capacity()
	if capacity == 0 {
		return -1
	}
	if r == nil {
		v := newView(s, &Request{PromptTokens: 1, MaxTokens: 1})
		v.prompt, v.output = 0, 0
		return max(0, v.projected(e, 0)-e.block()/2) / capacity
	}
	v := newView(s, r)
	return v.projected(e, v.hitOf(e, hit)) / capacity
}

// full returns the gates that exclude e, which is forecast to need so many tokens of KV.
func (v *view) full(e *Endpoint, need float64) GateSet {
	if v.p.Gates == GatesOff {
		return 0
	}
	var set GateSet
	if v.waitingApplies(e) && v.waiting(e) >= int64(v.p.FullWaiting) {
		set |= 1 << GateWaiting
	}
	if e.MaxNumSeqs > 0 && e.sequences() >= int64(e.MaxNumSeqs) {
		set |= 1 << GateMaxNumSeqs
	}
	if capacity := e.capacity(); capacity > 0 && need > v.p.ProjectedKV*capacity {
		set |= 1 << GateProjectedKV
	}
	return set
}

// waitingApplies: a long prompt is what makes others wait; sending each one to an endpoint where nothing waits blocks one more.
func (v *view) waitingApplies(e *Endpoint) bool {
	return e.Known && (v.p.Gates == GatesStrict || v.prompt < float64(v.p.LongPrompt))
}

// waiting returns the requests whose waiting means that e is full. An engine reports at the end of a step, so whatever arrived
// during that step waits; with a prompt in prefill that is most of the time. As long as memory is plentiful, own
// requests without a first token are waiting for their turn, which the cost knows in seconds: counting them would send a
// conversation away from its endpoint for every neighbour that asks at the same time.
func (v *view) waiting(e *Endpoint) int64 {
	n := int64(max(0, e.Waiting))
	if v.p.Gates == GatesStrict || !(e.KVUsage < plentyKV) {
		return n
	}
	return max(0, n-int64(max(0, e.AtReport.Requests-e.AtReport.Decoding)))
}

// sequences is what runs on e, reported or own, whichever is more. Of what was reported, the own requests that ended since run
// no longer: else an endpoint at its limit would stay full until its next report, whoever finished.
func (e *Endpoint) sequences() int64 {
	n := int64(max(0, e.Requests))
	if e.Known {
		ended := int64(max(0, e.AtReport.Requests-e.Requests))
		n = max(n+int64(max(0, e.ForeignRunning)), int64(e.Running)-ended)
	}
	return n
}
