package pool

import (
	"errors"
	"log/slog"
	"math"
	"time"

	"pointsman.dev/pointsman/internal/prefix"
	"pointsman.dev/pointsman/internal/route"
)

// Pick chooses an endpoint for r and books it, in one step that the next pick sees. The booking holds on to r and
// its blocks until Done, which must be called exactly once on every path. The error is ErrNoEndpoint.
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
	now := p.now()
	if now >= p.due {
		p.refresh(now)
	}
	b.start(p, r, now)
	b.prompt = p.promptTokens(r)
	err := p.assign(b, now)
	if errors.Is(err, ErrNoEndpoint) {
		p.count.noEndpoint++
	}
	p.unlock()
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
	hits := p.predict(b)
	req := route.Request{PromptTokens: b.prompt, MaxTokens: int32(min(max(0, b.req.MaxTokens), math.MaxInt32)), Open: b.req.Spare}
	rnd := p.random()
	pick := route.Choose(&p.snap, &req, hits, exclude, rnd)
	if pick.Reason == route.ReasonAllFull && pick.Slot < 0 {
		return ErrFull
	}
	if pick.Slot < 0 || pick.Slot >= len(p.slots) || p.slots[pick.Slot] == nil {
		return ErrNoEndpoint
	}
	p.trace.picked(p, b, &req, &pick, hits, exclude, rnd, now)
	b.pick, b.slot, b.s = pick, pick.Slot, p.slots[pick.Slot]
	b.hit, b.held = 0, 0
	if hits != nil {
		b.hit, b.held = pick.HitTokens, p.raw[pick.Slot]
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
	if len(b.tried) == 0 && b.req.Sticky == "" {
		return base
	}
	set := p.exclude[:len(base)]
	copy(set, base)
	for _, i := range b.tried {
		set[i>>6] |= 1 << (i & 63)
	}
	if b.req.Sticky == "" {
		return set
	}
	for i, s := range p.slots {
		if s != nil && s.ep.Name == b.req.Sticky && set[i>>6]&(1<<(i&63)) == 0 {
			for k := range set {
				set[k] = ^uint64(0)
			}
			set[i>>6] &^= 1 << (i & 63)
			break
		}
	}
	return set
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
	b.booked, b.prefilled, b.credited, b.failed, b.keep = true, false, false, false, 0
	b.lastResort = e.Admission >= route.LastResort
	b.unsure = s.pending(b)
	s.live++
	s.seqs += b.n
	s.peak = max(s.peak, s.seqs)
	s.picks++
	p.count.picks[b.pick.Reason]++
	b.ticket = p.books.Book(i, int(b.prompt), int(b.prompt-b.hit), now)
	if e.Admission == route.Trial {
		s.machine.Trying(now)
	}
	s.machine.Booked(now, seconds(b.pick.Predicted*orOne(e.Kappa)*orOne(p.snap.Params.Scale)))
	s.learn.BookWork(b.pick.Work, now)
	if len(b.req.Blocks) > 0 && p.caches(s) {
		p.index.Insert(i, b.req.Blocks, now)
		b.credited = true
	}
	s.link(b)
	p.touch(i, now)
	p.wake(s, now)
}

// wake makes sure that the next change by time alone is not missed. The mutex is held.
func (p *Pool) wake(s *slot, now time.Duration) {
	if at := s.machine.NextEvent(now); at > now {
		p.due = min(p.due, at)
	}
}

// orOne reads a factor whose zero value means that nothing is known.
func orOne(v float64) float64 {
	if v > 0 {
		return v
	}
	return 1
}

// seconds turns a model's figure into a duration, bounded where it could overflow.
func seconds(v float64) time.Duration {
	if !(v > 0) {
		return 0
	}
	return time.Duration(min(v, 1e6) * float64(time.Second))
}

// maxWalk bounds how many bookings of a slot are compared with one another. Beyond it less is credited than is held.
const maxWalk = 128

// pending says that the deepest block that b is promised may come from a request whose prefill has not been seen.
func (s *slot) pending(b *Booking) bool {
	if b.held == 0 {
		return false
	}
	walked := 0
	for o := s.bookings; o != nil && walked < maxWalk; o = o.next {
		if o.held < b.held && common(o.req.Blocks, b.req.Blocks) >= b.held {
			return true
		}
		walked++
	}
	return false
}

// confirm records that the endpoint has computed the prompt of b: what others share with it is held whatever becomes
// of them.
func (s *slot) confirm(b *Booking) {
	walked := 0
	for o := s.bookings; o != nil && walked < maxWalk; o = o.next {
		if o != b && o.credited {
			o.keep = max(o.keep, common(o.req.Blocks, b.req.Blocks))
		}
		walked++
	}
}

// withdraw takes back what the index credits to the endpoint for b, whose prefill never happened, except what it held
// before and what others vouch for. The mutex is held.
func (p *Pool) withdraw(b *Booking) {
	if !b.credited {
		return
	}
	b.credited = false
	sure := max(b.held, b.keep)
	left := sure
	walked := 0
	for o := b.s.bookings; o != nil && walked < maxWalk; o = o.next {
		if o == b || !o.credited {
			continue
		}
		shared := common(o.req.Blocks, b.req.Blocks)
		left = max(left, shared)
		if o.held <= shared {
			o.held = min(o.held, max(sure, o.keep)) // what it was promised may have been ours
		}
		walked++
	}
	if blocks := b.req.Blocks; left < blocks[len(blocks)-1].End {
		p.index.Truncate(b.slot, blocks, left)
	}
}

// common returns the bytes that two chains share from the start. A block's hash covers all before it, so the length
// is found by halving.
func common(a, b []prefix.Block) int32 {
	lo, hi := 0, min(len(a), len(b))
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if a[mid].Hash == b[mid].Hash {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return 0
	}
	return a[lo-1].End
}

// link and unlink keep the list of bookings whose prefill has not been seen.
func (s *slot) link(b *Booking) {
	b.prev, b.next = nil, s.bookings
	if s.bookings != nil {
		s.bookings.prev = b
	}
	s.bookings, b.linked = b, true
}

func (s *slot) unlink(b *Booking) {
	if !b.linked {
		return
	}
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		s.bookings = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	}
	b.prev, b.next, b.linked = nil, nil, false
}

// event keeps a line for the log until the mutex is let go.
type event struct {
	level slog.Level
	msg   string
	attrs []any
}
