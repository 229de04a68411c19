package pool

import (
	"errors"
	"log/slog"
	"math"
	"time"

	"pointsman.dev/pointsman/internal/books"
	"pointsman.dev/pointsman/internal/route"
)

// Pick chooses an endpoint for r and books it, in one step that the next pick sees. The booking holds on to r and
// its blocks until Done, which must be called exactly once on every path. The error is ErrNoEndpoint or ErrFull.
func (p *Pool) Pick(r *Request) (*Booking, error) {
	b := new(Booking)
	if err := p.PickInto(b, r); err != nil {
		return nil, err
	}
	return b, nil
}

// PickInto is Pick into a booking that the caller keeps, for instance inside its own state of the request. b must be
// new or done. It does not allocate.
func (p *Pool) PickInto(b *Booking, r *Request) error {
	p.mu.Lock()
	defer p.unlock() // after a panic too: net/http keeps the process, and the pool must not stay locked
	now := p.now()
	if now >= p.due {
		p.refresh(now)
	}
	b.start(p, r, now)
	b.prompt = p.promptTokens(r)
	err := ErrFull // those that wait were here first
	if p.queue.n == 0 || r.Light {
		err = p.assign(b, now)
	}
	if errors.Is(err, ErrNoEndpoint) {
		p.count.noEndpoint++
	}
	return err
}

// promptTokens estimates the tokens of a prompt. The mutex is held.
func (p *Pool) promptTokens(r *Request) int32 {
	per := p.snap.Params.BytesPerToken
	if r.TokenIDs || !(per > 0) {
		per = 4
	}
	return int32(max(1, min(float64(r.PromptBytes)/per, math.MaxInt32/2)))
}

// assign chooses an endpoint that b has not tried and books it there. The mutex is held.
func (p *Pool) assign(b *Booking, now time.Duration) error {
	exclude := p.excluded(b)
	if b.turn.waiting {
		exclude = p.queue.behind(b, exclude)
	}
	if p.holds(b, exclude) {
		return ErrFull
	}
	hits := p.predict(b)
	b.answer = int32(p.avg.Output(int(b.prompt), b.req.MaxTokens))
	req := b.asked()
	req.Open = p.wantsRoom(b)
	rnd := p.random()
	pick := route.Choose(&p.snap, &req, hits, exclude, rnd)
	if pick.Reason == route.ReasonAllFull && pick.Slot < 0 {
		if b.req.Spare || !p.idle() {
			return ErrFull
		}
		req.Open = false // nothing of ours could end: waiting for the load of others would have no end either
		pick = route.Choose(&p.snap, &req, hits, exclude, rnd)
	}
	if pick.Slot < 0 || pick.Slot >= len(p.slots) || p.slots[pick.Slot] == nil {
		return ErrNoEndpoint
	}
	p.trace.picked(p, b, &req, &pick, hits, exclude, rnd, now)
	b.pick, b.slot, b.s = pick, pick.Slot, p.slots[pick.Slot]
	b.hit, b.promise.Held = 0, 0
	if hits != nil {
		b.hit, b.promise.Held = pick.HitTokens, p.raw[pick.Slot]
	}
	p.book(b, now)
	return nil
}

// excluded returns the slots that b may not have: unused ones, those that do not list the model, those it tried.
// A sticky request may have one only, if that is there. The mutex is held.
func (p *Pool) excluded(b *Booking) []uint64 {
	base := p.unused
	if set, ok := p.byModel[b.req.Model]; ok {
		base = set
	}
	if len(b.tried) == 0 && b.req.Sticky == "" && b.req.Only == nil {
		return base
	}
	set := p.exclude[:len(base)]
	copy(set, base)
	for _, i := range b.tried {
		set[i>>6] |= 1 << (i & 63)
	}
	if b.req.Only != nil {
		p.restrict(b, set)
	}
	if b.req.Sticky != "" {
		p.stick(b, set)
	}
	return set
}

// stick leaves a sticky request the one endpoint that it wants, if that is there. The mutex is held.
func (p *Pool) stick(b *Booking, set []uint64) {
	for i, s := range p.slots {
		if s != nil && s.ep.Name == b.req.Sticky && set[i>>6]&(1<<(i&63)) == 0 {
			for k := range set {
				set[k] = ^uint64(0)
			}
			set[i>>6] &^= 1 << (i & 63)
			return
		}
	}
}

// predict fills p.raw with the bytes and p.hits with the tokens of the prompt that each slot holds. It returns nil
// when prefixes do not count. Engines compute the last token always. They find whole blocks only, which route knows: it needs
// the exact length to send back a conversation whose own turn is shorter than a block. The mutex is held.
func (p *Pool) predict(b *Booking) []int32 {
	blocks := b.req.Blocks
	if len(blocks) == 0 || p.snap.Params.Policy != route.Prefix {
		return nil
	}
	p.index.Hits(blocks, p.raw)
	per := p.snap.Params.BytesPerToken
	if b.req.TokenIDs {
		per = 4
	}
	scale := 1 / per
	for i, bytes := range p.raw {
		if bytes == 0 {
			p.hits[i] = 0
			continue
		}
		p.hits[i] = min(int32(float64(bytes)*scale), b.prompt-1)
	}
	return p.hits
}

// book enters b at its slot. The mutex is held.
func (p *Pool) book(b *Booking, now time.Duration) {
	i, s := b.slot, b.s
	e := &p.snap.Endpoints[i]
	b.ep, b.gone, b.at = s.ep, s.gone, now
	b.booked, b.prefilled, b.failed = true, false, false
	b.lastResort = e.Admission >= route.LastResort
	b.unsure = s.promises.Unsure(b.req.Blocks, b.promise.Held)
	s.live++
	s.foreign.Booked(b.n)
	s.picks++
	p.count.picks[b.pick.Reason]++
	b.ticket = p.books.Book(i, int(b.prompt), int(b.prompt-b.hit), int(b.answer), now)
	if e.Admission == route.Trial {
		s.machine.Trying(now)
	}
	s.machine.Booked(now, books.Expected(&b.pick, e, &p.snap.Params, 1))
	s.learn.BookWork(b.pick.Work, now)
	b.promise.Credited = len(b.req.Blocks) > 0 && p.caches(s)
	if b.promise.Credited {
		p.index.Insert(i, b.req.Blocks, now)
	}
	s.promise(b)
	s.own(b)
	p.tellBooked(b, now)
	p.touch(i, now)
	p.wake(s, now)
}

// wake makes sure that the next change by time alone is not missed. The mutex is held.
func (p *Pool) wake(s *slot, now time.Duration) {
	if at := s.machine.NextEvent(now); at > now {
		p.due = min(p.due, at)
	}
}

// promise notes that the prompt of b is still to be computed.
func (s *slot) promise(b *Booking) {
	b.promise.Data, b.promise.Chain = b, b.req.Blocks
	s.promises.Add(&b.promise)
}

// event keeps a line for the log until the mutex is let go.
type event struct {
	level slog.Level
	msg   string
	attrs []any
}
