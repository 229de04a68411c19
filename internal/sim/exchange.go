package sim

import (
	"cmp"

	"pointsman.dev/pointsman/internal/ledger"
	"pointsman.dev/pointsman/internal/prefix"
)

// change is what gateways tell each other about one request. What they make of it follows pool.Peer; what has to be put right because a
// report came first is found by package ledger for both.
type change uint8

const (
	bookRemote    change = iota // it was picked: endpoint, blocks, tokens
	prefillRemote               // its first token came
	releaseRemote               // it ended
)

// remote is a request in the books of another gateway, the zero value one that these do not have.
type remote struct {
	ticket  ledger.Ticket
	promise prefix.Promise // until its first token is known there
}

// tellTokens is how far an answer runs ahead of what the other gateways know of it.
const tellTokens = 64

// tell lets the other gateways know of a change to f, as late as Config.Exchange says.
func (s *Sim) tell(f *flight, what change) {
	if what == bookRemote && len(s.gates) > 1 {
		f.remote = append(f.remote[:0], make([]remote, len(s.gates))...)
	}
	s.others(f, func(g *gateway) { g.hear(f, what) })
}

// tellOutput lets them know of tokens, now and then.
func (s *Sim) tellOutput(f *flight) {
	if f.untold += f.pending; f.untold < tellTokens {
		return
	}
	tokens := f.untold
	f.untold = 0
	s.others(f, func(g *gateway) { g.books.Streamed(f.remote[g.id].ticket, tokens) })
}

// others does something, as late as Config.Exchange says, at every gateway but that of f.
func (s *Sim) others(f *flight, do func(*gateway)) {
	if len(s.gates) == 1 || s.cfg.Exchange < 0 {
		return
	}
	f.refs++
	s.After(s.cfg.Exchange, func() {
		f.refs--
		for _, g := range s.gates {
			if g != f.gate {
				do(g)
			}
		}
		s.recycle(f)
	})
}

// hear enters in the books what another gateway did.
func (g *gateway) hear(f *flight, what change) {
	i, now := f.pick.Slot, g.now()
	if i >= len(g.slots) {
		return
	}
	s, r := g.slots[i], &f.remote[g.id]
	switch what {
	case bookRemote:
		s.foreign.Booked(1)
		r.ticket = g.books.Book(i, int(f.prompt), int(f.prompt-f.hit), int(f.answer), now)
		if s.hasRep && f.rec.At+epoch < s.repAt {
			g.books.Remark(r.ticket)
			s.foreign.BookedBefore(1)
		}
		s.learn.BookWork(f.pick.Work, now)
		r.promise = prefix.Promise{Chain: f.chain}
		if g.credits(i, f.chain) {
			g.index.Hits(f.chain, g.raw)
			r.promise.Held = g.raw[i]
		}
		g.credit(i, &r.promise)
		g.occupy(i, f.chain, 1)
	case prefillRemote:
		g.books.Prefilled(r.ticket, now)
		r.promise.Keep()
	case releaseRemote:
		if end := cmp.Or(f.rec.End, f.rec.At); s.hasRep && end+epoch < s.repAt { // one that the engine refused ended as it came
			g.books.Unmark(r.ticket)
			s.foreign.ReleasedBefore(1)
		}
		s.foreign.Released(1)
		g.books.Release(r.ticket)
		r.promise.Break(g.index, i)
		g.occupy(i, f.chain, -1)
	}
	g.touch(i)
}
