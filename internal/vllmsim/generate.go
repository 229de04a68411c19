package vllmsim

import (
	"crypto/sha256"
	"errors"
	"net/http"
	"time"
)

// answer renders the output of one call in the wire format of a route. The handler's goroutine calls it; the first event
// of a call comes after start.
type answer interface {
	// start opens a stream; other answers do nothing yet.
	start(x *exchange)
	// event takes one output.
	event(x *exchange, ev event)
	// end completes the answer after the last event.
	end(x *exchange)
	// broken ends an answer whose engine died; streams are open by then.
	broken(x *exchange, e *apiError)
}

// begin counts a request whose body has arrived, waits or answers for a fault that strikes before the headers, and reports
// whether the handler goes on.
func (x *exchange) begin(anthropic bool) bool {
	s := x.s
	x.fault = s.takeFault(x)
	f := x.fault
	if f == nil {
		return true
	}
	switch f.Kind {
	case FaultSlow:
		x.fault = nil
		return wait(x, f.Delay)
	case FaultStatus:
		x.fault = nil
		x.status = f.Status
		if f.RetryAfter > 0 {
			x.w.Header()["retry-after"] = []string{seconds(f.RetryAfter)}
		}
		kind := "InternalServerError"
		if f.Status == http.StatusServiceUnavailable {
			kind = "Service Unavailable"
		}
		x.fail(&apiError{status: f.Status, kind: kind, message: "Internal server error"}, anthropic)
		return false
	}
	if f.After < 0 {
		x.strike()
	}
	return true
}

func wait(x *exchange, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-x.ctx.Done():
		return false
	}
}

// generate runs c and renders it with a. It owns the statistics of the request: in flight, executed, finished, aborted.
func (x *exchange) generate(c *call, body []byte, a answer, anthropic bool) {
	s := x.s
	if e := s.submit(c); e != nil {
		s.count(func(st *Stats) { st.Refused++ })
		x.fail(e, anthropic)
		return
	}
	s.countExecuted(c, sha256.Sum256(body))
	defer func() {
		if s.leave(c) {
			s.count(func(st *Stats) { st.Aborted++ })
		}
	}()
	a.start(x)
	for open := len(c.jobs); open > 0; {
		events, err := s.next(x.ctx, c)
		if err != nil {
			x.interrupted(err, a)
			return
		}
		for _, ev := range events {
			if ev.finish != "" {
				open--
			}
			a.event(x, ev)
		}
	}
	if x.fault != nil && x.frames == 0 {
		x.strike()
	}
	a.end(x)
	s.count(func(st *Stats) { st.Finished++ })
}

func (x *exchange) interrupted(err error, a answer) {
	var e *apiError
	if errors.As(err, &e) {
		a.broken(x, e)
		return
	}
	panic(http.ErrAbortHandler) // the client has left: drop the connection without a last chunk
}

// count changes the statistics under the lock.
func (s *Server) count(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}

func (s *Server) countExecuted(c *call, sum [sha256.Size]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Executed++
	for _, j := range c.jobs {
		s.stats.Prompt += int64(j.seq.PromptLen())
	}
	s.bodies.add(sum)
}

// enter counts a generating request in and returns what counts it out.
func (s *Server) enter() (exit func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Requests++
	s.stats.InFlight++
	s.stats.MaxInFlight = max(s.stats.MaxInFlight, s.stats.InFlight)
	return func() { s.count(func(st *Stats) { st.InFlight-- }) }
}

// posted wraps the handler of a generating route: content type, body, statistics, faults, drain.
func (s *Server) posted(anthropic bool, handle func(*exchange, []byte) *apiError) func(*exchange) {
	return func(x *exchange) {
		defer s.enter()()
		if e := checkContentType(x.r); e != nil {
			s.count(func(st *Stats) { st.Refused++ })
			x.fail(e, anthropic)
			return
		}
		body, ok := x.readBody()
		if !ok {
			s.count(func(st *Stats) { st.Aborted++ })
			panic(http.ErrAbortHandler)
		}
		if !x.begin(anthropic) {
			return
		}
		if e := handle(x, body); e != nil {
			s.count(func(st *Stats) { st.Refused++ })
			x.fail(e, anthropic)
		}
	}
}
