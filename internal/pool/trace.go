package pool

import (
	"slices"
	"time"

	"pointsman.dev/pointsman/internal/books"
	"pointsman.dev/pointsman/internal/route"
)

// trace remembers recent picks so that they can be explained. Copying the snapshot at every pick would cost more than
// the pick, so it is undone instead: every change of an endpoint in the snapshot keeps what was there before, and the
// snapshot of a pick is today's with the later changes taken back. All of it is bounded and grows on demand: some
// 6 MB per pool at most.
type trace struct {
	seq   uint64 // changes so far
	undo  [maxUndo / undoChunk]*[undoChunk]change
	picks []pickRecord // ring
	next  uint64       // picks so far
	words []int32      // ring of hits and exclude bitmaps
	used  uint64       // words so far
}

const (
	maxUndo   = 1 << 14
	undoChunk = 1 << 8
	maxPicks  = 1 << 11
	maxWords  = 1 << 17
)

// change is the value that an endpoint had before.
type change struct {
	slot int32
	was  route.Endpoint
}

// pickRecord is one pick with all that it was made of, except the endpoints.
type pickRecord struct {
	id, model string
	number    uint64
	at        time.Duration
	seq       uint64 // of the snapshot that was looked at
	params    route.Params
	regret    float64
	req       route.Request
	rnd       uint64
	words     uint64 // where its hits and then its exclude bitmap start
	hits      int32  // number of each
	excluded  int32
	slots     int32
	chosen    string
	queued    time.Duration
	ended     string // what became of it; "" while it is in flight
}

// changed keeps the value that is about to be overwritten.
func (t *trace) changed(i int, was *route.Endpoint) {
	at := t.seq % maxUndo
	chunk := t.undo[at/undoChunk]
	if chunk == nil {
		chunk = new([undoChunk]change)
		t.undo[at/undoChunk] = chunk
	}
	c := &chunk[at%undoChunk]
	c.slot, c.was = int32(i), *was
	t.seq++
}

// picked keeps a pick. It is called before the booking changes the snapshot.
func (t *trace) picked(p *Pool, b *Booking, req *route.Request, pick *route.Pick, hits []int32, exclude []uint64,
	rnd uint64, now time.Duration) {
	if len(t.picks) < maxPicks {
		t.picks = append(t.picks, pickRecord{})
	}
	r := &t.picks[t.next%maxPicks]
	t.next++
	r.id, r.number, r.model, r.at, r.seq = b.req.ID, b.req.Number, b.req.Model, now, t.seq
	r.params, r.regret, r.req, r.rnd = p.snap.Params, p.snap.Regret, *req, rnd
	r.slots, r.chosen, r.queued = int32(len(p.slots)), p.slots[pick.Slot].ep.Name, 0
	r.ended, b.traced = "", t.next
	if b.turn.over != nil {
		r.queued = now - b.turn.since
	}
	need := uint64(len(hits) + 2*len(exclude))
	if t.words == nil {
		t.words = make([]int32, maxWords)
	}
	if at := t.used % maxWords; at+need > maxWords {
		t.used += maxWords - at // keep each pick in one piece
	}
	at := t.used % maxWords
	copy(t.words[at:], hits)
	for k, w := range exclude {
		t.words[at+uint64(len(hits)+2*k)], t.words[at+uint64(len(hits)+2*k+1)] = int32(uint32(w)), int32(uint32(w>>32))
	}
	r.words, r.hits, r.excluded = t.used, int32(len(hits)), int32(len(exclude))
	t.used += need
}

// end notes what became of the last pick of b.
func (t *trace) end(b *Booking, what string) {
	if b.traced > 0 && t.next-b.traced < uint64(len(t.picks)) {
		t.picks[(b.traced-1)%maxPicks].ended = what
	}
}

// all returns the latest picks of the requests of an id, the oldest first.
func (t *trace) all(id string) (list []pickRecord) {
	const most = 16
	for k := uint64(1); k <= uint64(len(t.picks)) && len(list) < most; k++ {
		if r := &t.picks[(t.next-k)%maxPicks]; r.id == id {
			list = append(list, *r)
		}
	}
	slices.Reverse(list)
	return list
}

// find returns the latest pick of a request, or the latest of all for "".
func (t *trace) find(id string) *pickRecord {
	for k := uint64(1); k <= uint64(len(t.picks)); k++ {
		r := &t.picks[(t.next-k)%maxPicks]
		if id == "" || r.id == id {
			return r
		}
	}
	return nil
}

// snapshot undoes every change since a pick; false if too many happened.
func (t *trace) snapshot(now *route.Snapshot, r *pickRecord) (route.Snapshot, bool) {
	if t.seq-r.seq > maxUndo || t.used-r.words > maxWords {
		return route.Snapshot{}, false
	}
	s := route.Snapshot{Params: r.params, Regret: r.regret, Endpoints: append([]route.Endpoint(nil), now.Endpoints...)}
	for seq := t.seq; seq > r.seq; seq-- {
		at := (seq - 1) % maxUndo
		c := &t.undo[at/undoChunk][at%undoChunk]
		s.Endpoints[c.slot] = c.was
	}
	s.Endpoints = s.Endpoints[:r.slots]
	return s, true
}

// inputs returns copies of the hits and the exclude bitmap of a pick.
func (t *trace) inputs(r *pickRecord) (hits []int32, exclude []uint64) {
	at := r.words % maxWords
	if r.hits > 0 {
		hits = append(hits, t.words[at:at+uint64(r.hits)]...)
	}
	at += uint64(r.hits)
	for k := uint64(0); k < uint64(r.excluded); k++ {
		exclude = append(exclude, uint64(uint32(t.words[at+2*k]))|uint64(uint32(t.words[at+2*k+1]))<<32)
	}
	return hits, exclude
}

// Explanation is one pick with every gate and cost term by name.
type Explanation struct {
	ID         string      `json:"id"`
	Number     uint64      `json:"-"` // of the request: clients may give several one id
	Model      string      `json:"model"`
	Pool       string      `json:"pool"`
	AgeSeconds float64     `json:"age_seconds"`
	Policy     string      `json:"policy"`
	Endpoint   string      `json:"endpoint"`
	Reason     string      `json:"reason"`
	Cost       float64     `json:"cost_seconds"`
	Prompt     int         `json:"prompt_tokens"`
	Hit        int         `json:"predicted_hit_tokens"`
	Queued     float64     `json:"queued_seconds"` // how long it had waited for an endpoint
	Ended      string      `json:"ended"`          // what became of it there; "" while it is in flight
	Steps      Steps       `json:"steps"`
	Candidates []Candidate `json:"candidates"`
}

// Steps is what the pick took the engines' steps to be, in seconds (see route.Coefficients).
type Steps struct {
	Step       float64 `json:"step_seconds"`             // without prefill
	Decoding   float64 `json:"decoding_request_seconds"` // more for each request that decodes
	Context    float64 `json:"context_token_seconds"`    // more for each token of their contexts
	Prefill    float64 `json:"prefill_token_seconds"`    // more for each token of a prompt
	Scale      float64 `json:"scale"`                    // observed to predicted times, learnt of the pool; the others have it in them
	MeanOutput float64 `json:"mean_output_tokens"`       // learnt of the pool
}

// Candidate is one endpoint of an Explanation. The terms add up to the cost.
type Candidate struct {
	Endpoint string  `json:"endpoint"`
	Skipped  string  `json:"skipped,omitempty"` // why it was no candidate
	Paused   bool    `json:"paused,omitempty"`  // skipped only while others are left: it asked for a pause, or is new and has enough to do
	Full     bool    `json:"full"`
	Hit      int     `json:"hit_tokens"`
	InFlight int     `json:"in_flight"` // there at that moment, from this gateway
	Peers    int     `json:"peers"`     // from others, by what they said
	Foreign  int     `json:"foreign"`   // from elsewhere, by the endpoint's report
	Slowness float64 `json:"slowness"`  // its times against the pool's, learnt
	Gates    []Gate  `json:"gates"`
	Terms    []Term  `json:"terms"`
	Cost     float64 `json:"cost_seconds"`
	Tied     bool    `json:"tied"`
	Chosen   bool    `json:"chosen"`
}

// Gate is one gate of a Candidate.
type Gate struct {
	Name      string  `json:"name"`
	Value     float64 `json:"value"`
	Threshold float64 `json:"threshold"`
	Applies   bool    `json:"applies"`
	Passed    bool    `json:"passed"`
}

// Term is one summand of a cost.
type Term struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Explain repeats a recent pick and says why; id "" means the latest. It is false when the pick is not remembered.
func (p *Pool) Explain(id string) (Explanation, bool) {
	p.mu.Lock()
	r := p.trace.find(id)
	if r == nil {
		p.mu.Unlock()
		return Explanation{}, false
	}
	past := p.recall(r)
	p.mu.Unlock()
	return past.explain()
}

// Explanations are those of every pick of an id that is remembered, the oldest first. A request may have been sent to one endpoint after
// the other; those of another Number are of another request.
func (p *Pool) Explanations(id string) (list []Explanation) {
	p.mu.Lock()
	records := p.trace.all(id)
	past := make([]recalled, 0, len(records))
	for i := range records {
		past = append(past, p.recall(&records[i]))
	}
	p.mu.Unlock()
	for i := range past {
		if e, ok := past[i].explain(); ok {
			list = append(list, e)
		}
	}
	return list
}

// recalled is all that a pick was made of.
type recalled struct {
	rec     pickRecord
	snap    route.Snapshot
	whole   bool // the snapshot could be restored
	hits    []int32
	exclude []uint64
	names   []string
	out     Explanation
}

// recall restores what a pick was made of. The mutex is held.
func (p *Pool) recall(r *pickRecord) recalled {
	x := recalled{rec: *r, names: make([]string, len(p.slots))}
	x.snap, x.whole = p.trace.snapshot(&p.snap, r)
	x.hits, x.exclude = p.trace.inputs(r)
	for i, s := range p.slots {
		if s != nil && s.born <= r.seq {
			x.names[i] = s.ep.Name
		}
	}
	x.out = Explanation{ID: r.id, Number: r.number, Model: r.model, Pool: p.cfg.Name, AgeSeconds: (p.now() - r.at).Seconds(), Policy: r.params.Policy.String(),
		Endpoint: r.chosen, Prompt: int(r.req.PromptTokens), Queued: r.queued.Seconds(), Ended: r.ended}
	return x
}

// explain makes the pick again. It is false when too much has happened since.
func (x *recalled) explain() (Explanation, bool) {
	if !x.whole {
		return Explanation{}, false
	}
	out := x.out
	e := route.Explain(&x.snap, &x.rec.req, x.hits, x.exclude, x.rec.rnd)
	steps, scale := x.snap.Params.Steps()
	out.Steps = Steps{steps.A, steps.B, steps.C, steps.P, scale, x.snap.Params.MeanOutput}
	out.Reason, out.Cost, out.Hit = e.Pick.Reason.String(), e.Pick.Cost, int(e.Pick.HitTokens)
	for _, c := range e.Candidates {
		name := ""
		if c.Slot >= 0 && c.Slot < len(x.names) {
			name = x.names[c.Slot]
		}
		if c.Chosen {
			name = x.rec.chosen
		}
		if name == "" {
			continue // an unused slot, or an endpoint that left since
		}
		out.Candidates = append(out.Candidates, named(name, &c, &x.snap.Endpoints[c.Slot]))
	}
	return out, true
}

func named(name string, c *route.Candidate, e *route.Endpoint) Candidate {
	out := Candidate{Endpoint: name, Skipped: c.Skipped, Paused: e.Admission == route.Avoid, Full: c.Full, Hit: int(c.HitTokens), Cost: c.Cost,
		InFlight: int(e.Requests - e.Peers), Peers: int(e.Peers), Foreign: int(e.ForeignRunning + e.ForeignWaiting),
		Slowness: books.OrOne(e.Kappa), Tied: c.Tied, Chosen: c.Chosen, Gates: []Gate{}, Terms: []Term{}}
	for _, g := range c.Gates {
		out.Gates = append(out.Gates, Gate(g))
	}
	for _, t := range c.Terms {
		out.Terms = append(out.Terms, Term(t))
	}
	return out
}
