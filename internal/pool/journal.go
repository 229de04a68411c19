package pool

import (
	"slices"
	"time"

	"pointsman.dev/pointsman/internal/prefix"
)

// What the gateways that share the endpoints of a pool are told of its requests. A pool only keeps what happened until
// somebody takes it (Take): it is a journal, filled in the same critical section as the books, without allocating.
// Peer, in peer.go, is the other end.

// EventKind is what happened to a request.
type EventKind uint8

// The kinds, in the order of a request's life.
const (
	Booked    EventKind = iota // picked and sent
	Prefilled                  // the endpoint has computed its prompt
	Streamed                   // output tokens came
	Ended                      // it is off the books; without Prefilled before, its prompt was not computed
)

// Event is one thing that happened to a request of this gateway. ID, Kind and At are always set.
type Event struct {
	Kind     EventKind
	ID       uint64        // of the booking, unique in its pool for the life of the process
	At       time.Duration // by the pool's clock; 0 in an event of a peer
	Age      time.Duration // how long ago that was when it was taken, or told
	Endpoint string        // of Booked: URL
	Life     string        // of Booked: of the endpoint, by its discovery; "" unknown
	Blocks   []prefix.Block
	Prompt   int32   // tokens
	Uncached int32   // of these, not expected in the cache
	Answers  int32   // sequences, at least 1
	Expected int32   // tokens of the answer
	Work     float64 // seconds of prefill that the pick adds
	Output   int32   // tokens so far; of Streamed, and of Booked in a State
	Computed bool    // of Booked in a State: its prompt is computed already
}

const (
	// MaxChain bounds the blocks of one prompt that peers are told of: 4 MB of text. What is behind counts as load only.
	MaxChain = 1 << 14

	journalEvents = 1 << 12
	journalBlocks = 1 << 16
	// tellTokens is how far a stream runs ahead of what the peers know of it: nothing that a pick looks at changes by less.
	tellTokens = 64
)

// journal is what happened since the last Take. Two sets of buffers take turns.
type journal struct {
	on     bool
	lost   bool // something did not fit
	events []Event
	blocks []prefix.Block // that the events point into
	spare  struct {
		events []Event
		blocks []prefix.Block
	}
}

// Share makes the pool keep what happens to its requests for Take. It cannot be undone.
func (p *Pool) Share() {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := &p.journal
	if j.on {
		return
	}
	j.on = true
	j.events, j.blocks = make([]Event, 0, journalEvents), make([]prefix.Block, 0, journalBlocks)
	j.spare.events, j.spare.blocks = make([]Event, 0, journalEvents), make([]prefix.Block, 0, journalBlocks)
}

// Take returns what happened since the last Take, in order, and how long ago the first of it did. lost says that some of it
// is missing, so that only State tells how things are. The slice belongs to the caller. It must not run beside itself.
func (p *Pool) Take() (events []Event, age time.Duration, lost bool) {
	p.mu.Lock()
	j := &p.journal
	full, blocks, lost := j.events, j.blocks, j.lost
	if len(full) == 0 && !lost {
		p.mu.Unlock()
		return nil, 0, false
	}
	now := p.now()
	j.events, j.blocks, j.lost = j.spare.events[:0], j.spare.blocks[:0], false
	p.mu.Unlock()

	if len(full) > 0 {
		age = now - full[0].At
	}
	events = slices.Clone(full)
	kept := slices.Clone(blocks)
	at := 0
	for i := range events {
		events[i].Age = now - events[i].At
		if n := len(events[i].Blocks); n > 0 {
			events[i].Blocks = kept[at : at+n : at+n]
			at += n
		}
	}
	clear(full)
	j.spare.events, j.spare.blocks = full[:0], blocks[:0]
	return events, age, lost
}

// tell keeps an event. The mutex is held.
func (p *Pool) tell(e Event) {
	j := &p.journal
	if !j.on || e.ID == 0 {
		return
	}
	if len(j.events) == cap(j.events) {
		j.lost = true
		return
	}
	j.events = append(j.events, e)
}

// tellBooked keeps a pick. The mutex is held.
func (p *Pool) tellBooked(b *Booking, now time.Duration) {
	j := &p.journal
	if !j.on {
		return
	}
	e := b.event(now)
	if len(j.blocks)+len(e.Blocks) > cap(j.blocks) {
		j.lost = true
		return
	}
	at := len(j.blocks)
	j.blocks = append(j.blocks, e.Blocks...)
	e.Blocks = j.blocks[at:]
	p.tell(e)
}

// event describes a booking as it is. Its blocks are those of the request.
func (b *Booking) event(now time.Duration) Event {
	e := Event{Kind: Booked, ID: b.ticket.Number(), At: now, Endpoint: b.s.key, Life: b.s.id, Prompt: b.prompt, Uncached: b.prompt - b.hit,
		Answers: int32(b.n), Expected: b.answer, Work: b.pick.Work, Output: b.output, Computed: b.prefilled}
	if b.pool.caches(b.s) {
		e.Blocks = b.req.Blocks[:min(len(b.req.Blocks), MaxChain)]
	}
	return e
}

// tellOutput keeps the progress of a stream, now and then. The mutex is held.
func (p *Pool) tellOutput(b *Booking, now time.Duration) {
	if p.journal.on && b.output-b.told >= tellTokens {
		b.told = b.output
		p.tell(Event{Kind: Streamed, ID: b.ticket.Number(), At: now, Output: b.output})
	}
}

// tellPrefilled keeps the end of the prefill of a request of ours. The mutex is held.
func (p *Pool) tellPrefilled(b *Booking, now time.Duration) {
	p.tell(Event{Kind: Prefilled, ID: b.ticket.Number(), At: now})
}

// own and disown keep the list of bookings of ours.
func (s *slot) own(b *Booking) {
	b.prevOwn, b.nextOwn = nil, s.ours
	if s.ours != nil {
		s.ours.prevOwn = b
	}
	s.ours = b
}

func (s *slot) disown(b *Booking) {
	if b.prevOwn != nil {
		b.prevOwn.nextOwn = b.nextOwn
	} else {
		s.ours = b.nextOwn
	}
	if b.nextOwn != nil {
		b.nextOwn.prevOwn = b.prevOwn
	}
	b.prevOwn, b.nextOwn = nil, nil
}

// State is what a peer that knows nothing of an endpoint has to be told: what it holds and what is in flight from here. What it is only
// thought to hold, because of requests whose prefill has not been seen, is not among what it holds.
type State struct {
	Endpoint string
	Life     string           // as in Event
	Held     [][]prefix.Block // chains, the least recently used first
	Open     []Event          // Booked
}

// stateBlocks bounds State.Held: what is least recently used is left out.
const stateBlocks = 1 << 16

// State returns the State of the i-th place for an endpoint, counted from 0; it is empty where there is none. more says that
// there may be places behind. Events that Take returns later may repeat what it says.
func (p *Pool) State(i int) (st State, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i >= len(p.slots) {
		return State{}, false
	}
	s := p.slots[i]
	if s == nil {
		return State{}, true
	}
	st.Endpoint, st.Life = s.key, s.id
	now := p.now()
	for b := s.ours; b != nil; b = b.nextOwn {
		e := b.event(b.at)
		e.Age = now - b.at
		if e.Blocks = slices.Clone(e.Blocks); b.prefilled {
			e.Blocks = nil // among those held
		}
		if e.ID != 0 {
			st.Open = append(st.Open, e)
		}
	}
	if s.leaving || !p.caches(s) {
		return st, true
	}
	left := stateBlocks
	p.index.Chains(i, func(chain []prefix.Block) bool {
		chain = s.promises.Sure(chain[:min(len(chain), MaxChain)])
		if left -= len(chain); left < 0 {
			return false
		}
		if len(chain) > 0 {
			st.Held = append(st.Held, slices.Clone(chain))
		}
		return true
	})
	slices.Reverse(st.Held)
	return st, true
}
