package sim

import "pointsman.dev/pointsman/internal/ledger"

// change is what gateways tell each other about one request. What they make of it follows pool.Peer; what has to be put right because a
// report came first is found by package ledger for both.
type change uint8

const (
	bookRemote    change = iota // it was picked: endpoint, blocks, tokens
	prefillRemote               // its first token came
	releaseRemote               // it ended
)

// tellTokens is how far an answer runs ahead of what the other gateways know of it.
const tellTokens = 64

// tell lets the other gateways know of a change to f, as late as Config.Exchange says.
func (s *Sim) tell(f *flight, what change) {
	if what == bookRemote && len(s.gates) > 1 {
		f.remote = append(f.remote[:0], make([]ledger.Ticket, len(s.gates))...)
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
	s.others(f, func(g *gateway) { g.books.Streamed(f.remote[g.id], tokens) })
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
	s, t := g.slots[i], &f.remote[g.id]
	switch what {
	case bookRemote:
		s.foreign.Booked(1)
		*t = g.books.Book(i, int(f.prompt), int(f.prompt-f.hit), int(f.answer), now)
		if s.hasRep && f.rec.At+epoch < s.repAt {
			g.books.Remark(*t)
			s.foreign.BookedBefore(1)
		}
		s.learn.BookWork(f.pick.Work, now)
		if f.promise.Credited && !s.leaving {
			g.index.Insert(i, f.chain, now)
		}
		g.occupy(i, f.chain, 1)
	case prefillRemote:
		g.books.Prefilled(*t, now)
	case releaseRemote:
		if s.hasRep && f.rec.End+epoch < s.repAt {
			g.books.Unmark(*t)
			s.foreign.ReleasedBefore(1)
		}
		s.foreign.Released(1)
		g.books.Release(*t)
		g.occupy(i, f.chain, -1)
	}
	g.touch(i)
}
