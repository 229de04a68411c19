package pool

import (
	"math"
	"net"
	"strings"

	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/route"
)

// What a pick needs when somebody else sends the request: the endpoints it may choose from, those to go on to when the chosen one
// cannot be reached, and the news that another one got it.

// Subset says which endpoints a request may go to, by their addresses. The nil Subset allows every one, an empty one none. It is
// not changed after it was made.
type Subset map[string]struct{}

// NewSubset returns the subset of some addresses: host:port for one endpoint, a host for all of its ports. White space around
// them is ignored, and so are empty ones.
func NewSubset(addresses []string) Subset {
	s := make(Subset, len(addresses))
	for _, a := range addresses {
		a = strings.TrimSpace(a)
		if host, port, err := net.SplitHostPort(a); err == nil {
			a = net.JoinHostPort(host, port)
		} else {
			a = strings.Trim(a, "[]")
		}
		if a != "" {
			s[a] = struct{}{}
		}
	}
	return s
}

// has reports whether the subset allows e.
func (s Subset) has(e *Endpoint) bool {
	_, ok := s[e.URL.Host]
	if !ok {
		_, ok = s[e.host]
	}
	return ok
}

// restrict takes the endpoints that are not in b's subset out of a pick. The mutex is held.
func (p *Pool) restrict(b *Booking, set []uint64) {
	for i, s := range p.slots {
		if s != nil && set[i>>6]&(1<<(i&63)) == 0 && !b.req.Only.has(s.ep) {
			set[i>>6] |= 1 << (i & 63)
		}
	}
}

// Next appends to dst up to n endpoints to go on to, in this order, if the booked one cannot be reached. They are not booked; whoever goes
// on says so with Moved.
func (b *Booking) Next(dst []*Endpoint, n int) []*Endpoint {
	p := b.pool
	if p == nil {
		return dst
	}
	p.mu.Lock()
	defer p.unlock()
	if !b.booked || len(p.byURL) < 2 {
		return dst
	}
	set := p.scratch(p.excluded(b))
	hits := p.predict(b)
	req := b.asked()
	for last := b.slot; n > 0; n-- {
		set[last>>6] |= 1 << (last & 63)
		pick := route.Choose(&p.snap, &req, hits, set, p.random())
		if pick.Slot < 0 || p.slots[pick.Slot] == nil || p.snap.Endpoints[pick.Slot].Admission != route.Normal {
			break
		}
		last = pick.Slot
		dst = append(dst, p.slots[last].ep)
	}
	return dst
}

// Moved says that the request is at the endpoint of that name, because whoever sent it went on there. The booking follows. The endpoint
// that was booked could not be reached, if unreached says so. It returns false, and changes nothing, when the pool has no such endpoint.
func (b *Booking) Moved(name string, unreached bool) bool {
	p := b.pool
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.unlock()
	if !b.booked {
		return false
	}
	if b.ep.Name == name {
		return true
	}
	to := -1
	for i, s := range p.slots {
		if s != nil && s.ep.Name == name && (to < 0 || !s.leaving) {
			to = i
		}
	}
	if to < 0 {
		return false
	}
	now := p.now()
	if unreached {
		b.blame(health.KindConnect, now)
	}
	old, oldSlot, oldTicket := b.s, b.slot, b.ticket
	b.tried = append(b.tried, int32(b.slot))
	b.promise.Break(p.index, b.slot)
	old.disown(b)
	set := p.scratch(p.unused)
	for k := range set {
		set[k] = ^uint64(0)
	}
	set[to>>6] &^= 1 << (to & 63)
	hits := p.predict(b)
	req := b.asked()
	pick := route.Choose(&p.snap, &req, hits, set, p.random())
	reason := b.pick.Reason
	if b.pick = pick; pick.Slot != to {
		b.pick = route.Pick{Slot: to}
	}
	b.pick.Reason = reason
	b.slot, b.s = to, p.slots[to]
	b.hit, b.promise.Held = 0, 0
	if hits != nil {
		b.hit, b.promise.Held = hits[to], p.raw[to]
	}
	p.book(b, now)
	b.busy = false
	p.leave(oldSlot, old, oldTicket, b.n, now)
	return true
}

// asked is b as package route knows it, with every endpoint open to it that is not excluded. The mutex is held.
func (b *Booking) asked() route.Request {
	return route.Request{PromptTokens: b.prompt, MaxTokens: int32(min(max(0, b.req.MaxTokens), math.MaxInt32)), OutputTokens: b.answer}
}

// scratch copies an exclusion to where it may be changed. The mutex is held.
func (p *Pool) scratch(set []uint64) []uint64 {
	own := p.exclude[:len(set)]
	copy(own, set)
	return own
}
