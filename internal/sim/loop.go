package sim

import "time"

// event is something that happens at a time; order decides between equals.
type event struct {
	at    time.Duration
	order uint64
	do    func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.order < o.order }

// agenda is a binary heap of events. It is written out because container/heap would allocate at every push.
type agenda []event

func (a *agenda) push(e event) {
	h := append(*a, e)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !e.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
	*a = h
}

func (a *agenda) pop() event {
	h := *a
	first, last := h[0], h[len(h)-1]
	h[len(h)-1] = event{}
	h = h[:len(h)-1]
	*a = h
	if len(h) == 0 {
		return first
	}
	i := 0
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].before(&h[c]) {
			c++
		}
		if !h[c].before(&last) {
			break
		}
		h[i] = h[c]
		i = c
	}
	h[i] = last
	return first
}

// At runs do at t, or now when t is past. What is due at the same time happens in the order in which it was asked for.
func (s *Sim) At(t time.Duration, do func()) {
	s.order++
	s.agenda.push(event{max(t, s.now), s.order, do})
}

// After runs do in d.
func (s *Sim) After(d time.Duration, do func()) { s.At(s.now+d, do) }

// RunUntil lets everything happen that is due until t. The time is t afterwards if events are left, else that of the last one.
func (s *Sim) RunUntil(t time.Duration) {
	for len(s.agenda) > 0 && s.agenda[0].at <= t {
		e := s.agenda.pop()
		s.now = e.at
		e.do()
	}
	if len(s.agenda) > 0 {
		s.now = max(s.now, t)
	}
}
