package pool

import (
	"math"
	"net/http"
	"time"

	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/ledger"
)

// The ends of a booking: what they say about the endpoint, the prefix index and the pool's averages. Every function
// here runs with the pool's mutex held.

// leave takes a booking off the books of a slot.
func (p *Pool) leave(i int, s *slot, t ledger.Ticket, n int, now time.Duration) {
	if !p.books.Release(t) {
		return
	}
	p.tell(Event{Kind: Ended, ID: t.Number(), At: now})
	s.live--
	s.foreign.Released(n)
	p.queue.freed = true
	if p.cfg.Queue.Max > 0 {
		p.queue.pace.left(now)
	}
	s.machine.Released(now)
	if s.leaving && s.live == 0 {
		p.release(i)
		return
	}
	p.touch(i, now)
	p.wake(s, now)
}

// blame records a failure once per endpoint tried.
func (b *Booking) blame(k health.Kind, now time.Duration) {
	if b.failed {
		return
	}
	b.failed = true
	if k == health.KindOurs {
		if b.s.heard {
			b.s.machine.Failed(now, k)
			return
		}
		k = health.KindConnect // an address that is wrong looks the same from here
	}
	b.s.why = k.String()
	if k == health.KindConnect {
		b.s.machine.ConnectFailed(now)
		return
	}
	b.s.machine.Failed(now, k)
}

// prefill records that the endpoint has computed the prompt.
func (b *Booking) prefill(now time.Duration) {
	b.prefilled = true
	b.pool.queue.freed = true
	if b.pool.books.Prefilled(b.ticket, now) {
		b.pool.tellPrefilled(b, now)
	}
	b.promise.Keep()
	b.s.stir(now)
}

// succeed records an answer. If it came while every endpoint looked dead, the cause was common and is over: all are
// tried again.
func (b *Booking) succeed(now time.Duration) {
	b.s.machine.Succeeded(now, now-b.at)
	b.pool.served(b.s)
	b.s.machine.Progress(now)
	if !b.lastResort {
		return
	}
	for i, s := range b.pool.slots {
		if s != nil && !s.leaving {
			s.machine.Pardon(now)
			b.pool.touch(i, now)
		}
	}
}

// flush tells the books what was streamed.
func (b *Booking) flush(now time.Duration) {
	b.flushed.Store(int64(now))
	tokens := b.pending.Swap(0)
	if tokens == 0 {
		return
	}
	b.pool.books.Streamed(b.ticket, int(tokens))
	b.output = int32(min(int64(b.output)+tokens, math.MaxInt32))
	b.pool.tellOutput(b, now)
	b.s.machine.Progress(now)
	b.s.stir(now)
}

// learnWhole compares an answer that came in one piece with what the model expects of prefill and decoding together:
// the time to its first token cannot be seen.
func (b *Booking) learnWhole(res *Result, now time.Duration) {
	e := &b.pool.snap.Endpoints[b.slot]
	c := &b.pool.snap.Params.Coeff
	step := c.A + c.B*float64(e.Decoding) + c.C*float64(e.ContextTokens)
	tokens := max(0, res.output()-1)
	b.s.learn.ObserveTTFT((now - b.at).Seconds(), b.pick.Predicted+float64(tokens)*step, now)
}

// output returns the output tokens, by usage or by what was seen.
func (r *Result) output() int {
	if r.HasUsage {
		return max(0, r.Usage.Output)
	}
	return max(0, r.Tokens)
}

// judge tells the health machine how the request ended.
func (b *Booking) judge(res *Result, now time.Duration) {
	m := b.s.machine
	switch {
	case res.Drain:
		b.blame(health.KindDrain, now)
	case res.Outcome == OK:
		m.Progress(now)
		b.pool.answeredRequest(b.s, false, now)
	case res.Outcome == ClientError:
		m.ClientError(now)
		b.pool.answeredRequest(b.s, res.Status != http.StatusRequestTimeout, now)
	case res.Outcome == Shed:
		if !b.busy && !b.failed {
			m.Busy(now, res.RetryAfter)
		}
	case res.Outcome == Timeout:
		b.blame(health.KindTimeout, now)
	case res.Outcome == Cut:
		b.blame(health.KindCut, now)
	case res.Outcome == UpstreamError && res.Unreached:
		b.blame(health.KindConnect, now)
	case res.Outcome == UpstreamError:
		b.blame(kindOf(res.Status), now)
	}
}

// kindOf says how a request failed by the status of its answer.
func kindOf(status int) health.Kind {
	switch {
	case status >= 500:
		return health.KindStatus
	case status >= 400:
		return health.KindDenied
	case status > 0:
		return health.KindImproper
	}
	return health.KindReset
}

// answeredRequest notes whether an endpoint refused a request as the client's fault.
func (p *Pool) answeredRequest(s *slot, refused bool, now time.Duration) {
	before := s.refused.Share()
	s.refused.Answered(now, refused)
	if !s.leaving {
		p.refused = max(0, p.refused+s.refused.Share()-before)
	}
}

// refusals is the penalty of an endpoint that refuses far more than its siblings do.
func (p *Pool) refusals(s *slot, now time.Duration) float64 {
	siblings := len(p.byURL) - 1
	if siblings < 1 || s.leaving {
		return 0
	}
	return s.refused.Penalty(now, max(0, p.refused-s.refused.Share())/float64(siblings))
}

// learn updates averages and corrects what is believed of the endpoint's cache.
func (p *Pool) learn(b *Booking, res *Result, now time.Duration) {
	if res.Outcome != OK {
		return
	}
	p.avg.ObserveResidence((now - b.begun).Seconds())
	if n := res.output(); n > 0 {
		p.avg.ObserveOutput(int(b.prompt), n)
	}
	if !res.HasUsage || res.Usage.Prompt <= 0 {
		return
	}
	if !b.req.TokenIDs && b.req.PromptBytes > 0 {
		p.avg.ObservePrompt(b.req.PromptBytes, res.Usage.Prompt)
		p.observe(b.req, res.Usage.Prompt)
	}
	if !res.Usage.HasCached {
		return
	}
	s := b.s
	p.count.predicted += int64(b.hit)
	p.count.actual += int64(res.Usage.Cached)
	p.count.prompt += int64(res.Usage.Prompt)
	s.predicted += int64(b.hit)
	s.actualHit += int64(res.Usage.Cached)
	if b.promise.Credited && !b.unsure {
		broken := s.fit.Observe(int(b.hit), res.Usage.Cached, int(p.snap.Endpoints[b.slot].BlockSize))
		if broken {
			p.shrink(b, res.Usage.Cached)
		}
		p.setCapacity(b.slot, s)
	}
}

// shrink reacts to a hit that was not there when the capacity is unknown: the endpoint holds less than the index
// credits to it, and nothing says how much.
func (p *Pool) shrink(b *Booking, _ int) {
	if b.s.rep.CapacityTokens > 0 {
		return
	}
	_, held := p.index.Held(b.slot)
	b.s.capacity = max(held*9/10, 1<<16)
	p.index.SetCapacity(b.slot, b.s.capacity)
}
