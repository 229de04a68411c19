package route

import "math"

// Choose picks an endpoint for r. hits[slot] is the number of leading prompt tokens that slot holds (shorter than
// Endpoints: 0 for the rest); exclude has a bit set for every slot that may not be picked (nil: none). rnd decides
// between equals and should be uniform over 64 bits. It allocates nothing.
//
// The order of choice: the best admission, not full before full, the lowest cost. Costs within a tolerance of the lowest count as
// equal; among those an endpoint on trial goes first, then the fewest requests in flight, then the longest hit, then
// chance. Without that order a burst inside one report would follow noise, and quiet endpoints would starve.
func Choose(s *Snapshot, r *Request, hits []int32, exclude []uint64, rnd uint64) Pick {
	v := newView(s, r)
	v.survey(s, hits, exclude)
	var kept [scratch]priced
	best, pick := v.lowest(s, hits, exclude, &kept)
	if best.tier == noTier {
		return Pick{Slot: -1, Full: pick.Full}
	}
	if best.tier == isFull && r.Open {
		return Pick{Slot: -1, Reason: ReasonAllFull, Full: pick.Full}
	}
	slot, c, hit := v.among(s, hits, exclude, &kept, best, rnd)
	pick.Slot, pick.Cost, pick.HitTokens = slot, c.sum(), int32(hit)
	pick.Predicted, pick.Work = c.predicted, c.engine
	pick.Reason = v.reason(s, hits, exclude, best.tier, hit)
	return pick
}

const (
	scratch = 256 // endpoints whose price is kept between the two passes; beyond, it is computed again

	isOpen = 0
	isFull = 1
	noTier = math.MaxUint8
)

// priced is one endpoint's rank: the tier first, the cost second.
type priced struct {
	cost  float64
	tier  uint8
	tight bool // full, and it would take the prompt in at once and have no memory for the answers
}

// newView fills in what does not depend on the endpoints.
func newView(s *Snapshot, r *Request) view {
	v := view{p: s.Params.withDefaults(), request: *r, returner: -1, regret: within(s.Regret, 0, 1, 0), best: noTier}
	v.policy = v.p.Policy
	v.prompt = max(1, count(r.PromptTokens))
	v.patience = patience * v.p.Coeff.A * v.p.Scale
	v.hurry = 1 / v.patience
	v.output = v.p.MeanOutput
	if r.OutputTokens > 0 {
		v.output = float64(r.OutputTokens)
	}
	if r.MaxTokens > 0 {
		v.output = min(v.output, float64(r.MaxTokens))
	}
	return v
}

func excluded(exclude []uint64, i int) bool {
	return i>>6 < len(exclude) && exclude[i>>6]&(1<<(i&63)) != 0
}

// hitOf turns a hit into tokens that count: an engine finds whole blocks only and always computes the last token.
func (v *view) hitOf(e *Endpoint, hit int32) float64 {
	if hit <= 0 || v.policy == LeastRequest {
		return 0
	}
	block := e.BlockSize
	if block <= 0 {
		block = defaultBlock
	}
	hit = min(hit, int32(v.prompt)-1)
	return float64(hit - hit%block)
}

func (v *view) hitAt(s *Snapshot, hits []int32, i int) float64 {
	if i >= len(hits) {
		return 0
	}
	return v.hitOf(&s.Endpoints[i], hits[i])
}

// survey finds the best admission, the averages that stand in for unknown figures, and the endpoint that alone holds the most of
// the prompt.
func (v *view) survey(s *Snapshot, hits []int32, exclude []uint64) {
	for v.best = Normal; v.best <= LastResort; v.best++ { // nearly always done with the first
		if v.surveyed(s, hits, exclude) {
			return
		}
	}
	v.best = noTier
}

// surveyed looks at the endpoints of admission v.best; false when there are none.
func (v *view) surveyed(s *Snapshot, hits []int32, exclude []uint64) bool {
	var longest, second int32
	inFlight, rho := 0.0, 0.0
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if Rank(e.Admission) != v.best || excluded(exclude, i) {
			continue
		}
		v.candidates++
		inFlight += count(e.Requests)
		rho += within(e.Rho, 0, maxRho, 0)
		if e.Known {
			v.known++
			v.meanRunning += count(e.Decoding) + count(e.ForeignRunning)
			v.meanContext += tokens(e.ContextTokens)
			v.meanWaiting += count(e.ForeignWaiting)
			inFlight += count(e.ForeignRunning) + count(e.ForeignWaiting)
		}
		if i < len(hits) && hits[i] > second {
			second = hits[i]
			if second > longest {
				longest, second, v.returner = hits[i], longest, i
			}
		}
	}
	if v.candidates == 0 {
		return false
	}
	if v.known > 0 {
		n := float64(v.known)
		v.meanRunning, v.meanContext, v.meanWaiting = v.meanRunning/n, v.meanContext/n, v.meanWaiting/n
	}
	n := float64(v.candidates)
	v.meanInFlight = inFlight / n
	v.busy = rho / n / (1 - rho/n)
	v.returning(s, longest, second)
	return true
}

// returning finds out what going back is worth. A conversation goes back to the one endpoint that holds more of it than any other,
// even if that is a single short turn, as long as that endpoint has not much more in flight than the others: at most as
// much as one round of conversations that all ask at once. While nobody else holds anything it may be a prefix that
// everybody is about to use, so the patience is shorter.
func (v *view) returning(s *Snapshot, longest, second int32) {
	if longest == second || v.hitOf(&s.Endpoints[v.returner], longest) == 0 {
		v.returner = -1
		return
	}
	v.spread = firstSpread
	if second > 0 {
		v.spread = returnSpread
	}
	v.credit = v.p.Scale * (v.p.Coeff.A + v.p.Coeff.P*v.prompt)
}

// Rank puts a trial beside a normal endpoint.
func Rank(admission uint8) uint8 {
	if admission == Trial {
		return Normal
	}
	return min(admission, LastResort)
}

// lowest prices every endpoint and returns the rank of the best. Pick carries the counts of full ones.
//
// Full endpoints are set aside while they are the exception. When many are full, those few that are not would be sent
// whatever comes, whoever holds its prefix; the hits would fall, the load would rise, and the pool would never come back.
// Then all are compared by cost, as they are when every one is full, but for tight ones: they would take the request in and
// preempt somebody later. Where memory is short for the prompt itself it waits there. A request that can wait here needs
// none of this.
func (v *view) lowest(s *Snapshot, hits []int32, exclude []uint64, kept *[scratch]priced) (priced, Pick) {
	best := priced{tier: noTier, cost: math.Inf(1)}
	anyone, full := best, 0
	var pick Pick
	for i := range s.Endpoints {
		pr := priced{tier: noTier}
		if e := &s.Endpoints[i]; Rank(e.Admission) == v.best && !excluded(exclude, i) {
			var set GateSet
			if pr, set = v.price(e, i, v.hitAt(s, hits, i)); set != 0 {
				pick.count(set)
				full++
			}
			if pr.tier < best.tier || pr.tier == best.tier && pr.cost < best.cost {
				best = pr
			}
			if !pr.tight {
				anyone.cost = min(anyone.cost, pr.cost)
			}
		}
		if i < scratch {
			kept[i] = pr
		}
	}
	if v.p.Gates == GatesDefault && v.p.WhenFull == Seconds && !v.request.Open && full < v.candidates && full > max(1, v.candidates/crowd) {
		v.crowded = true
		best.cost = anyone.cost
	}
	return best, pick
}

func (p *Pick) count(set GateSet) {
	for g := range p.Full {
		if set.Has(g) {
			p.Full[g]++
		}
	}
}

// price ranks one endpoint. Where the literal shortest queue is asked for, the cost of a full one is its number of requests.
func (v *view) price(e *Endpoint, i int, hit float64) (priced, GateSet) {
	need := v.projected(e, hit)
	set := v.full(e, need)
	if v.request.Open && set != 0 && queue(e) == 0 {
		set = 0 // nothing is going on there that could end: waiting would never
	}
	if set != 0 && v.p.WhenFull == Requests {
		return priced{tier: isFull, cost: queue(e)}, set
	}
	var c cost
	v.costOf(&c, e, i, hit, need)
	pr := priced{tier: isOpen, cost: c.sum()}
	if set != 0 {
		pr.tier = isFull
		pr.tight = set.Has(GateProjectedKV) && hit == 0 && need-tokens(e.GrowthTokens)-v.output <= e.capacity()
	}
	return pr, set
}

// queue is the literal length of an endpoint's queue: what waits and runs there, reported or own, whichever is more.
func queue(e *Endpoint) float64 {
	n := count(e.Requests)
	if e.Known {
		n = max(n+count(e.ForeignRunning)+count(e.ForeignWaiting), count(e.Running)+count(e.Waiting))
	}
	return n
}

// among chooses between the endpoints of the best tier whose cost is within the tolerance.
func (v *view) among(s *Snapshot, hits []int32, exclude []uint64, kept *[scratch]priced, best priced, rnd uint64) (int, cost, float64) {
	limit := best.cost + v.tolerance(best)
	var lead tied
	for i := range s.Endpoints {
		var pr priced
		e := &s.Endpoints[i]
		switch {
		case i < scratch:
			pr = kept[i]
		case Rank(e.Admission) != v.best || excluded(exclude, i):
			continue
		default:
			pr, _ = v.price(e, i, v.hitAt(s, hits, i))
		}
		if pr.tier == noTier || pr.tier != best.tier && (!v.crowded || pr.tight) || pr.cost > limit {
			continue
		}
		var l load
		v.loadOf(&l, e)
		lead.offer(tied{slot: i, trial: e.Admission == Trial, inFlight: l.inFlight, hit: v.hitAt(s, hits, i)}, rnd)
	}
	var c cost
	e := &s.Endpoints[lead.slot]
	v.costOf(&c, e, lead.slot, lead.hit, v.projected(e, lead.hit))
	return lead.slot, c, lead.hit
}

// tolerance is the difference up to which costs are equal. It is a share of the cost, and never more than a few steps of the
// engine, so that a long queue is no excuse for a cold prefill.
func (v *view) tolerance(best priced) float64 {
	if best.tier == isFull && v.p.WhenFull == Requests || v.p.Without&TermTies != 0 {
		return 0
	}
	a := v.p.Coeff.A * v.p.Scale
	return min(tieShare*(max(0, best.cost)+a), 2*a)
}

// tied is one endpoint among equals.
type tied struct {
	slot          int
	trial         bool
	inFlight, hit float64
	equals        uint64
}

// offer takes o in place of the leader if it goes first, or by chance if they are equal.
func (t *tied) offer(o tied, rnd uint64) {
	o.equals = 1
	switch {
	case t.equals == 0:
	case o.trial != t.trial:
		if !o.trial {
			return
		}
	case o.inFlight != t.inFlight:
		if o.inFlight > t.inFlight {
			return
		}
	case o.hit != t.hit:
		if o.hit < t.hit {
			return
		}
	default:
		// The k-th equal takes over with probability 1/k; each step uses its own bits of rnd.
		n := t.equals + 1
		if mix(rnd+n)%n != 0 {
			t.equals = n
			return
		}
		o.equals = n
	}
	*t = o
}

// mix spreads the bits of x (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// reason says what decided.
func (v *view) reason(s *Snapshot, hits []int32, exclude []uint64, tier uint8, hit float64) Reason {
	switch {
	case v.candidates == 1:
		return ReasonOnlyOne
	case tier == isFull:
		return ReasonAllFull
	case hit == 0:
		return ReasonLoad
	}
	for i := range s.Endpoints {
		if !excluded(exclude, i) && Rank(s.Endpoints[i].Admission) == v.best && v.hitAt(s, hits, i) < hit {
			return ReasonPrefix
		}
	}
	return ReasonLoad
}
