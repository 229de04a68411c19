package route

import "math"

// Constants of the cost that no measurement of an engine gives.
const (
	foreignPrompt   = 500  // tokens to prefill that a foreign waiting request stands for
	minChunk        = 512  // smallest share of the step budget that prefill is assumed to get
	defaultBudget   = 2048 // tokens per step
	defaultBlock    = 16   // tokens per KV block
	maxRho          = 0.9
	returnSpread    = 6    // requests above the mean up to which a conversation goes back to its endpoint
	firstSpread     = 2    // the same while no other endpoint holds any of it
	returnMaxKappa  = 1.6  // slower endpoints are not returned to
	plentyKV        = 0.5  // reported KV use below which own requests do not wait for memory
	crowd           = 4    // full endpoints are set aside while they are at most one in so many, or one
	tieShare        = 0.10 // costs this close to the lowest (as a share of the time to first token) are equal
	defaultStall    = 0.3
	patience        = 400 // steps from which on a wait counts by its logarithm
	maxAhead        = 3   // requests before a prompt that are not decoding yet which count among those that it holds up
	defaultOutput   = 200
	defaultWindowKV = 0.95
	defaultLong     = 16384
)

// view is what a pick derives once: parameters with their defaults, and the pool's averages for endpoints whose own
// figures are unknown.
type view struct {
	p       Params
	request Request
	prompt  float64 // tokens
	output  float64 // expected output tokens of this request
	regret  float64
	policy  Policy

	known        int     // candidates with a report
	meanRunning  float64 // decoding, own and foreign, per candidate with a report
	meanWaiting  float64 // foreign waiting
	meanContext  float64
	busy         float64 // price of a second of work: rho/(1-rho) of the candidates' mean rho
	meanInFlight float64 // over all candidates of the best admission
	returner     int     // slot that alone holds most of the prompt; -1
	credit       float64 // seconds that going back there is worth
	spread       float64 // requests in flight above the mean up to which it is
	patience     float64 // seconds from which on a wait counts by its logarithm
	hurry        float64 // 1 / patience
	best         uint8   // best admission among the candidates
	candidates   int     // with it
	crowded      bool
}

// load is what counts as work on one endpoint: own, foreign, or the pool's average.
type load struct {
	decoding, context, uncached, foreign, inFlight float64
}

// cost is the summands in seconds. Explain names them in this order.
type cost struct {
	wait, work, busy, stall, step, penalty, credit float64
	predicted                                      float64 // wait + work before kappa and scale
	engine                                         float64 // work before kappa and scale
}

func (c *cost) sum() float64 {
	return c.wait + c.work + c.busy + c.stall + c.step + c.penalty + c.credit
}

func within(v, lo, hi, def float64) float64 {
	if v >= lo && v <= hi {
		return v
	}
	if v > hi {
		return hi
	}
	if v < lo {
		return lo
	}
	return def // NaN
}

// positive returns v when it is a positive finite number, else def.
func positive(v, def float64) float64 {
	if v > 0 && v <= math.MaxFloat64 {
		return v
	}
	return def
}

func tokens(n int64) float64 { return float64(max(0, n)) }

func count(n int32) float64 { return float64(max(0, n)) }

func (p Params) withDefaults() Params {
	if p.FullWaiting <= 0 {
		p.FullWaiting = 1
	}
	if p.LongPrompt <= 0 {
		p.LongPrompt = defaultLong
	}
	p.ProjectedKV = positive(p.ProjectedKV, defaultWindowKV)
	p.MeanOutput = within(positive(p.MeanOutput, defaultOutput), 1, 1e6, defaultOutput)
	p.Residence = within(p.Residence, 1, 3600, 1)
	p.Scale = within(positive(p.Scale, 1), 1e-3, 1e3, 1)
	p.StallShare = within(p.StallShare, 0, 10, defaultStall)
	c := &p.Coeff
	if c.A == 0 && c.P == 0 {
		*c = profiles[0].c
	}
	c.A, c.B, c.C = within(c.A, 1e-6, 1e3, 0.01), within(c.B, 0, 1, 0), within(c.C, 0, 1, 0)
	c.P, c.Q = within(c.P, 1e-9, 1, 5e-5), within(c.Q, 0, 1, 0)
	return p
}

// loadOf finds what counts as work on e.
func (v *view) loadOf(l *load, e *Endpoint) {
	l.decoding, l.context, l.uncached = count(e.Decoding), tokens(e.ContextTokens), tokens(e.UncachedTokens)
	l.inFlight, l.foreign = count(e.Requests), 0
	switch {
	case e.Known:
		if e.ForeignRunning > 0 || e.ForeignWaiting > 0 {
			fr := count(e.ForeignRunning)
			l.foreign = count(e.ForeignWaiting)
			l.inFlight += fr + l.foreign
			if fr > 0 {
				l.decoding += fr
				l.context += e.foreignTokens()
			}
		}
	case v.known > 0:
		l.decoding = max(l.decoding, v.meanRunning)
		l.context = max(l.context, v.meanContext)
		l.inFlight = max(l.inFlight, v.meanInFlight)
		l.foreign = v.meanWaiting
	}
}

// expect returns the expected seconds to prefill the part of a prompt that is not held behind what is booked: before
// kappa and scale.
func (v *view) expect(e *Endpoint, l *load, hit float64) (wait, work float64) {
	c := &v.p.Coeff
	budget := e.budget()
	floor := c.A + c.B*l.decoding + c.C*l.context
	rate := c.P + floor/max(minChunk, budget-l.decoding)
	u := v.prompt - hit
	work = u*rate + c.Q*u*(v.prompt-u/2) + floor
	wait = l.uncached*rate + l.foreign*foreignPrompt*rate
	return wait, work
}

// costOf prices this request on e, slot i, which holds hit tokens of it and is forecast to need so many tokens of KV.
func (v *view) costOf(k *cost, e *Endpoint, i int, hit, need float64) {
	var l load
	v.loadOf(&l, e)
	wait, work := v.expect(e, &l, hit)
	scale := v.p.Scale
	kappa := within(positive(e.Kappa, 1), 0.1, 10, 1)
	if v.p.Without&TermKappa != 0 {
		kappa = 1
	}
	*k = cost{predicted: wait + work, engine: work, penalty: within(e.Penalty, 0, 1e6, 0)}
	if v.policy == LeastRequest {
		k.wait = l.inFlight * kappa * scale * v.p.Coeff.A
		k.work = kappa * scale * v.p.Coeff.A
		return
	}
	c := &v.p.Coeff
	k.wait, k.work = v.felt(kappa*scale*wait), kappa*scale*work
	k.busy = v.busy * scale * (work + v.regret*c.P*v.evicted(e, hit, need))
	// Whoever is before this prompt decodes by the time that it is prefilled. Those whose prompts are still to come have all of their
	// answer before them and are held up most, by all but the step that would run anyway; where many wait, how many says nothing of
	// what this prompt adds.
	ahead := min(maxAhead, max(0, l.inFlight-l.decoding))
	k.stall = (v.p.StallShare*l.decoding*work + ahead*(work-v.p.Coeff.A)) * scale
	k.step = v.output * (c.B*(l.decoding+1) + c.C*(l.context+v.prompt)) * scale
	if i == v.returner && kappa <= returnMaxKappa && l.inFlight <= v.meanInFlight+v.spread {
		k.credit = -v.credit
	}
	if v.p.Without != 0 {
		k.drop(v.p.Without)
	}
}

// felt returns what waiting so many seconds costs: in full while it is short, by its logarithm beyond some seconds. Where more is asked
// for than the pool can do, costs that rise in proportion keep all queues equally long, until every request of every endpoint is too
// late. Like this the queues grow where they are long already, and the other endpoints stay in time.
func (v *view) felt(wait float64) float64 {
	return v.patience * log1p(wait*v.hurry)
}

// evicted returns the tokens of others' prefixes that this request would push out of e's cache. What it would have to wait for
// memory is no term: the gates set such endpoints aside, and where all are full a price on it sends conversations
// away from what is left of their prefixes, which costs more memory.
func (v *view) evicted(e *Endpoint, hit, need float64) float64 {
	capacity := e.capacity()
	if capacity == 0 {
		return 0
	}
	news := v.prompt - hit + v.output
	room := capacity - max(tokens(e.HeldTokens), need-news)
	return min(news, max(0, news-room))
}

// capacity returns the KV capacity in tokens; 0 unknown.
func (e *Endpoint) capacity() float64 {
	if e.CapacityTokens > 0 {
		return float64(e.CapacityTokens)
	}
	return count(e.Blocks) * count(e.BlockSize)
}

// budget returns the tokens of a step.
func (e *Endpoint) budget() float64 {
	if e.Budget > 0 {
		return float64(e.Budget)
	}
	return defaultBudget
}

func (e *Endpoint) block() float64 {
	if e.BlockSize > 0 {
		return float64(e.BlockSize)
	}
	return defaultBlock
}

// held estimates the KV tokens of own requests in flight. Their uncached part and their output are their own; of the part that
// was in the cache, only the share distinct is not held by several of them at once. Half a block per request is lost.
func (l *Load) held(distinct, block float64) float64 {
	cached := tokens(l.PromptTokens - l.NewTokens)
	return tokens(l.NewTokens) + tokens(l.OutputTokens) + distinct*cached + count(l.Requests)*block/2
}

// foreignTokens estimates the KV tokens of requests that did not come from here.
func (e *Endpoint) foreignTokens() float64 {
	reported := within(e.KVUsage, 0, 1, 0) * e.capacity()
	return max(0, reported-e.AtReport.held(1, e.block()))
}

// projected forecasts the KV tokens in use on e after this pick; 0 when its capacity is unknown:
//
//	at the report + own now - own at the report + this prompt less what is referenced + expected growth
//
// At the report, prompts that were still being prefilled hold less than they will: the reported use is raised by what
// they had booked, but not above what the books held then. How much of the cached parts the requests share is read
// from the same report: with one hot prefix the books add it up once per request and the engine holds it once. What is
// reported beyond the books is foreign, but for answers in one piece, of which nothing is seen until they end: their
// whole length is expected growth as long as they run, and nothing of it is left when they have ended.
func (v *view) projected(e *Endpoint, hit float64) float64 {
	capacity := e.capacity()
	if capacity == 0 {
		return 0
	}
	block := e.block()
	distinct, base := 1.0, 0.0
	then := &e.AtReport
	if e.Known && e.KVUsage >= 0 {
		reported := min(e.KVUsage, 1) * capacity
		if cached := tokens(then.PromptTokens - then.NewTokens); cached > 0 {
			alone := tokens(then.NewTokens-then.UncachedTokens) + tokens(then.OutputTokens)
			distinct = within((reported-alone)/cached, 0, 1, 1)
		}
		base = max(reported, min(reported+tokens(then.UncachedTokens), then.held(distinct, block)))
		base -= then.held(distinct, block)
		if e.ForeignRunning == 0 && e.ForeignWaiting == 0 {
			base -= within(base, 0, tokens(then.UnseenTokens), 0)
		}
	}
	own := e.held(distinct, block)
	growth := tokens(e.GrowthTokens)
	if e.Known {
		growth += count(e.ForeignRunning) * v.p.MeanOutput / 2
	}
	return max(0, base+own) + growth + v.prompt - hit + distinct*hit + v.output + block/2
}
