package peers

import (
	"errors"
	"fmt"
	"math"
	"time"

	"pointsman.dev/pointsman/internal/peers/wire"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/prefix"
)

// longestURL bounds the text of an endpoint, and that of its life.
const longestURL = 1 << 10

// maxPassed bounds what is remembered of what was passed over, all of which is looked at with every batch.
const maxPassed = 1 << 12

var errBounds = errors.New("reading a batch: it is beyond what a peer may send")

// reader takes the messages of one stream. Its other end is a writer.
type reader struct {
	dict   dictionary
	urls   map[uint32]*wire.Endpoint
	pools  map[string]bool
	hashes bool // the peer's mean the same as ours

	// peer returns where the requests of a pool are booked, nil when there is no such pool here.
	peer    func(name string) *pool.Peer
	refused int // bookings beyond the bounds of pool.Peer

	passed map[[3]string]bool // what was passed over: pool, and URL and life of an endpoint whose prefixes were told
}

func newReader(hashes bool, peer func(name string) *pool.Peer) *reader {
	return &reader{hashes: hashes, peer: peer, urls: map[uint32]*wire.Endpoint{}, pools: map[string]bool{}, passed: map[[3]string]bool{}}
}

// take applies what a message says. After an error nothing more of the stream can be understood.
func (r *reader) take(b *wire.Batch) error {
	for _, p := range b.GetPools() {
		name := p.GetName()
		if !r.pools[name] {
			if len(r.pools) == maxPools || len(name) > 256 {
				return errBounds
			}
			r.pools[name] = true
		}
		if err := r.pool(p, r.peer(name)); err != nil {
			return fmt.Errorf("pool %q: %w", name, err)
		}
	}
	return nil
}

// pool applies what happened in a pool; q is nil when it is none of ours: the chains have to be read all the same.
func (r *reader) pool(p *wire.Pool, q *pool.Peer) error {
	switch {
	case q == nil:
		r.pass(p.GetName(), nil)
	case p.GetStateBegins():
		q.Begin()
	}
	for _, e := range p.GetEndpoints() {
		if err := r.endpoint(e); err != nil {
			return err
		}
	}
	for _, h := range p.GetHeld() {
		chain, err := r.chain(h.GetChain())
		if err != nil {
			return err
		}
		if q != nil {
			at := r.urls[h.GetEndpoint()]
			if !q.Holds(at.GetUrl(), at.GetLife(), chain) {
				r.pass(p.GetName(), at)
			}
		}
	}
	for _, b := range p.GetBooked() {
		chain, err := r.chain(b.GetChain())
		if err != nil {
			return err
		}
		if q != nil && !q.Apply(r.booked(b, chain)) {
			r.refused++
		}
	}
	if q != nil {
		return r.rest(p, q)
	}
	return nil
}

// endpoint takes the number of an endpoint, which is given once.
func (r *reader) endpoint(e *wire.Endpoint) error {
	if r.urls[e.GetNumber()] != nil || len(r.urls) == maxEndpoints || max(len(e.GetUrl()), len(e.GetLife())) > longestURL {
		return errBounds
	}
	r.urls[e.GetNumber()] = e
	return nil
}

// pass notes what was passed over: a pool, or what an endpoint of it holds. Beyond a bound there is enough that again looks for.
func (r *reader) pass(name string, at *wire.Endpoint) {
	if len(r.passed) < maxPassed {
		r.passed[[3]string{name, at.GetUrl(), at.GetLife()}] = true
	}
}

// again says that something is known here now that was passed over before.
func (r *reader) again() bool {
	for what := range r.passed {
		if q := r.peer(what[0]); q != nil && (what[1] == "" || q.Knows(what[1], what[2])) {
			clear(r.passed)
			return true
		}
	}
	return false
}

func (r *reader) chain(c *wire.Chain) ([]prefix.Block, error) {
	if c == nil {
		return nil, nil
	}
	chain, err := r.dict.decode(c)
	if !r.hashes {
		chain = nil
	}
	return chain, err
}

func (r *reader) booked(b *wire.Booked, chain []prefix.Block) *pool.Event {
	at := r.urls[b.GetEndpoint()]
	return &pool.Event{Kind: pool.Booked, ID: b.GetId(), Endpoint: at.GetUrl(), Life: at.GetLife(), Blocks: chain, Prompt: tokens(b.GetPrompt()),
		Uncached: tokens(b.GetUncached()), Answers: tokens(b.GetAnswers()), Expected: tokens(b.GetExpected()),
		Age:  time.Duration(b.GetAgeMs()) * time.Millisecond,
		Work: float64(b.GetWorkUs()) / 1e6, Output: tokens(b.GetOutput()), Computed: b.GetPrefilled()}
}

// rest applies what happened to requests that were booked before.
func (r *reader) rest(p *wire.Pool, q *pool.Peer) error {
	for _, id := range p.GetPrefilled() {
		q.Apply(&pool.Event{Kind: pool.Prefilled, ID: id})
	}
	output := p.GetOutput()
	if len(output) != len(p.GetStreaming()) {
		return errBounds
	}
	for i, id := range p.GetStreaming() {
		q.Apply(&pool.Event{Kind: pool.Streamed, ID: id, Output: tokens(output[i])})
	}
	ago := p.GetEndedMs()
	for i, id := range p.GetEnded() {
		e := pool.Event{Kind: pool.Ended, ID: id}
		if i < len(ago) {
			e.Age = time.Duration(ago[i]) * time.Millisecond
		}
		q.Apply(&e)
	}
	if p.GetStateEnds() {
		q.Complete()
	}
	return nil
}

func tokens(n uint32) int32 { return int32(min(n, math.MaxInt32/2)) }
