package pool

import (
	"time"

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
	r.id, r.model, r.at, r.seq = b.req.ID, b.req.Model, now, t.seq
	r.params, r.regret, r.req, r.rnd = p.snap.Params, p.snap.Regret, *req, rnd
	r.slots, r.chosen = int32(len(p.slots)), p.slots[pick.Slot].ep.Name
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
	Model      string      `json:"model"`
	Pool       string      `json:"pool"`
	AgeSeconds float64     `json:"age_seconds"`
	Policy     string      `json:"policy"`
	Endpoint   string      `json:"endpoint"`
	Reason     string      `json:"reason"`
	Cost       float64     `json:"cost_seconds"`
	Prompt     int         `json:"prompt_tokens"`
	Hit        int         `json:"predicted_hit_tokens"`
	Candidates []Candidate `json:"candidates"`
}

// Candidate is one endpoint of an Explanation. The terms add up to the cost.
type Candidate struct {
	Endpoint string  `json:"endpoint"`
	Skipped  string  `json:"skipped,omitempty"` // why it was no candidate
	Full     bool    `json:"full"`
	Hit      int     `json:"hit_tokens"`
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
	rec := *r
	snap, ok := p.trace.snapshot(&p.snap, r)
	hits, exclude := p.trace.inputs(r)
	names := make([]string, len(p.slots))
	for i, s := range p.slots {
		if s != nil && s.born <= rec.seq {
			names[i] = s.ep.Name
		}
	}
	out := Explanation{ID: rec.id, Model: rec.model, Pool: p.cfg.Name, AgeSeconds: (p.now() - rec.at).Seconds(),
		Policy: rec.params.Policy.String(), Endpoint: rec.chosen, Prompt: int(rec.req.PromptTokens)}
	p.mu.Unlock()
	if !ok {
		return Explanation{}, false
	}
	e := route.Explain(&snap, &rec.req, hits, exclude, rec.rnd)
	out.Reason, out.Cost, out.Hit = e.Pick.Reason.String(), e.Pick.Cost, int(e.Pick.HitTokens)
	for _, c := range e.Candidates {
		name := ""
		if c.Slot >= 0 && c.Slot < len(names) {
			name = names[c.Slot]
		}
		if c.Chosen {
			name = rec.chosen
		}
		if name == "" {
			continue // an unused slot, or an endpoint that left since
		}
		out.Candidates = append(out.Candidates, named(name, &c))
	}
	return out, true
}

func named(name string, c *route.Candidate) Candidate {
	out := Candidate{Endpoint: name, Skipped: c.Skipped, Full: c.Full, Hit: int(c.HitTokens), Cost: c.Cost,
		Tied: c.Tied, Chosen: c.Chosen, Gates: []Gate{}, Terms: []Term{}}
	for _, g := range c.Gates {
		out.Gates = append(out.Gates, Gate(g))
	}
	for _, t := range c.Terms {
		out.Terms = append(out.Terms, Term(t))
	}
	return out
}
