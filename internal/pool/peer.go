package pool

import (
	"math"
	"time"

	"pointsman.dev/pointsman/internal/prefix"
)

// Bounds on what one peer may have in one pool. Beyond them its requests are not counted, as if it were silent about them.
const (
	maxPeerBookings = 1 << 16
	maxPeerBlocks   = 1 << 20 // of prompts whose prefill has not been seen
)

// Peer is the requests of another gateway in this pool, by what it says of them. They stand in the same ledger as those of this
// gateway, so that a pick counts them, and what the endpoints report less both is foreign load. Its methods may be called from
// any goroutine, and take things in any order and any number of times: what is known is not counted twice, and what is not
// known is passed over.
type Peer struct {
	pool   *Pool
	open   map[uint64]*peerBooking
	blocks int    // kept
	round  uint64 // of the latest full state
	closed bool
}

// peerBooking is a booking that is not ours. An endpoint that is unknown here, or no longer, leaves it without a place; it is
// counted as soon as discovery shows the endpoint.
type peerBooking struct {
	Booking
	request Request
	key     string // of the endpoint: URL
	life    string
	work    float64
	round   uint64
}

// NewPeer returns the requests of another gateway, none so far.
func (p *Pool) NewPeer() *Peer {
	q := &Peer{pool: p, open: map[uint64]*peerBooking{}}
	p.mu.Lock()
	p.peers = append(p.peers, q)
	p.mu.Unlock()
	return q
}

// Close takes all of them off the books. Whatever is said afterwards is passed over.
func (q *Peer) Close() {
	p := q.pool
	p.mu.Lock()
	defer p.unlock()
	now := p.now()
	for id := range q.open {
		q.end(id, now, now)
	}
	q.closed = true
	for i, o := range p.peers {
		if o == q {
			p.peers = append(p.peers[:i:i], p.peers[i+1:]...)
			break
		}
	}
}

// Len returns how many requests the peer has in flight.
func (q *Peer) Len() int {
	q.pool.mu.Lock()
	defer q.pool.mu.Unlock()
	return len(q.open)
}

// Apply takes an event of the peer. The blocks of a Booked are kept and must not be changed. It returns false when a Booked is
// beyond what one peer may have.
func (q *Peer) Apply(e *Event) bool {
	p := q.pool
	p.mu.Lock()
	defer p.unlock()
	if q.closed {
		return true
	}
	now := p.now()
	if e.Kind == Booked {
		return q.book(e, now)
	}
	b := q.open[e.ID]
	if b == nil {
		return true
	}
	switch e.Kind {
	case Prefilled:
		q.computed(b, now)
	case Streamed:
		q.streamed(b, e.Output)
	case Ended:
		q.end(e.ID, now-max(0, min(e.Age, now)), now)
		return true
	}
	if b.s != nil {
		p.touch(b.slot, now)
	}
	return true
}

// Holds says that the endpoint of a URL and a life has computed a chain and holds it, as far as the peer knows. The blocks may be changed
// afterwards. It returns false when the endpoint is not known here, and nothing is kept of what it holds.
func (q *Peer) Holds(endpoint, life string, chain []prefix.Block) bool {
	p := q.pool
	p.mu.Lock()
	defer p.unlock()
	i, ok := p.living(endpoint, life)
	if ok && !q.closed && len(chain) > 0 && p.caches(p.slots[i]) {
		p.index.Insert(i, chain, p.now())
		p.slots[i].promises.Computed(chain)
	}
	return ok
}

// Knows reports whether an endpoint is known here.
func (q *Peer) Knows(endpoint, life string) bool {
	q.pool.mu.Lock()
	defer q.pool.mu.Unlock()
	_, ok := q.pool.living(endpoint, life)
	return ok
}

// living returns the slot of the endpoint of a URL, unless another one answered there when a peer spoke of it. The mutex is held.
func (p *Pool) living(url, life string) (int, bool) {
	i, ok := p.byURL[url]
	return i, ok && (life == "" || p.slots[i].id == "" || p.slots[i].id == life)
}

// Begin starts a full state: what the peer does not name until Complete has ended meanwhile.
func (q *Peer) Begin() {
	q.pool.mu.Lock()
	defer q.pool.mu.Unlock()
	q.round++
}

// Complete ends a full state.
func (q *Peer) Complete() {
	p := q.pool
	p.mu.Lock()
	defer p.unlock()
	now := p.now()
	for id, b := range q.open {
		if b.round != q.round {
			q.end(id, now, now)
		}
	}
}

// book enters a request of the peer, or brings one that is known up to date. The mutex is held.
func (q *Peer) book(e *Event, now time.Duration) bool {
	p := q.pool
	b := q.open[e.ID]
	if b == nil {
		if len(q.open) >= maxPeerBookings {
			return false
		}
		b = &peerBooking{key: e.Endpoint, life: e.Life, work: e.Work}
		b.start(p, &b.request, now-max(0, min(e.Age, now)))
		b.prompt = max(1, min(e.Prompt, math.MaxInt32/2))
		b.hit = b.prompt - max(0, min(e.Uncached, b.prompt))
		b.answer = max(0, e.Expected)
		b.n = max(1, min(int(e.Answers), 1024))
		if q.blocks+len(e.Blocks) <= maxPeerBlocks {
			b.request.Blocks = e.Blocks
			q.blocks += len(e.Blocks)
		}
		q.open[e.ID] = b
		p.place(b, now)
	}
	b.round = q.round
	if e.Computed {
		q.computed(b, now)
	}
	q.streamed(b, e.Output)
	if b.s != nil {
		p.touch(b.slot, now)
	}
	return true
}

// computed records that the endpoint has computed the prompt, after which only load is left of it. The mutex is held.
func (q *Peer) computed(b *peerBooking, now time.Duration) {
	if b.prefilled {
		return
	}
	b.prefilled = true
	b.promise.Keep()
	q.forget(b)
	if b.s == nil {
		return
	}
	q.pool.books.Prefilled(b.ticket, now)
	q.pool.queue.freed = true
	b.s.theirDec++
}

// forget lets the chain of a request go. The mutex is held.
func (q *Peer) forget(b *peerBooking) {
	q.blocks -= len(b.request.Blocks)
	b.request.Blocks = nil
}

// streamed takes the output of a request so far. The mutex is held.
func (q *Peer) streamed(b *peerBooking, output int32) {
	if output > b.output {
		q.pool.books.Streamed(b.ticket, int(output-b.output))
		b.output = output
	}
}

// end takes a request off the books that ended at some time, maybe before the endpoint's last report. The mutex is held.
func (q *Peer) end(id uint64, at, now time.Duration) {
	b := q.open[id]
	if b == nil {
		return
	}
	if b.s != nil && b.s.hasRep && at < b.s.repAt {
		q.pool.books.Unmark(b.ticket)
		b.s.foreign.ReleasedBefore(b.n)
	}
	q.pool.displace(b, now)
	q.forget(b)
	delete(q.open, id)
}

// place books b at its endpoint, if that is known. The mutex is held.
func (p *Pool) place(b *peerBooking, now time.Duration) {
	i, ok := p.living(b.key, b.life)
	if !ok {
		return
	}
	s := p.slots[i]
	b.s, b.slot, b.ep = s, i, s.ep
	if blocks := b.request.Blocks; len(blocks) > 0 && p.caches(s) {
		p.index.Hits(blocks, p.raw)
		b.promise.Held, b.promise.Credited = p.raw[i], true
		p.index.Insert(i, blocks, now)
	}
	b.ticket = p.books.Book(i, int(b.prompt), int(b.prompt-b.hit), int(b.answer), now)
	s.theirs++
	s.foreign.Booked(b.n)
	if s.hasRep && b.begun < s.repAt {
		p.books.Remark(b.ticket)
		s.foreign.BookedBefore(b.n)
	}
	s.learn.BookWork(b.work, now)
	if b.prefilled {
		p.books.Prefilled(b.ticket, now)
		s.theirDec++
	} else {
		s.promise(&b.Booking)
	}
	p.books.Streamed(b.ticket, int(b.output))
	p.touch(i, now)
}

// displace takes b off the books of its endpoint. The mutex is held.
func (p *Pool) displace(b *peerBooking, now time.Duration) {
	s := b.s
	if s == nil {
		return
	}
	p.books.Release(b.ticket)
	p.queue.freed = true
	b.promise.Break(p.index, b.slot)
	s.theirs--
	s.foreign.Released(b.n)
	if b.prefilled {
		s.theirDec--
	}
	b.s, b.promise = nil, prefix.Promise{}
	if s.leaving {
		p.release(b.slot)
		return
	}
	p.touch(b.slot, now)
}

// placePeers follows a change of the set of endpoints. The mutex is held.
func (p *Pool) placePeers(now time.Duration) {
	for _, q := range p.peers {
		for _, b := range q.open {
			if b.s != nil && b.s.leaving {
				p.displace(b, now)
			}
			if b.s == nil {
				p.place(b, now)
			}
		}
	}
}
