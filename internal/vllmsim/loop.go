package vllmsim

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/engine"
)

// token is one generated token.
type token struct {
	id   uint32
	text string
}

// event is what one engine step brought to one job: tokens (more than one when outputs were merged), or its end.
type event struct {
	job    *job
	tokens []token
	finish string // finish_reason; "" while the job runs
	cached int    // prompt tokens of the job found in the cache
}

// job is one sequence of a call: prompt p, answer number index. The engine side is guarded by Server.mu; the text side
// belongs to the handler.
type job struct {
	call  *call
	seq   engine.Seq
	index int
	seed  uint64
	texts []string // of the answer's tokens, aligned with seq.Answer

	held      []token // merged into the next output
	cached    int
	first     time.Time // of the first token
	last      time.Time
	scheduled time.Time // start of the step that gave the first token
	emitted   int

	buf  string // text so far, only kept when there are stop strings
	sent int    // bytes of buf that were sent
}

// call is one generating request: its jobs share the queue that the handler reads.
type call struct {
	id      string // as in the response: chatcmpl-..., cmpl-...
	arrived time.Time
	jobs    []*job
	stops   []string
	n       int
	maxTok  int // as the client asked or the window left
	params  params
	prompts []prompt

	// guarded by Server.mu
	events []event
	open   int // jobs that have not ended
	failed *apiError
	notify chan struct{} // capacity 1
}

// errClientGone ends a handler whose client has left.
var errClientGone = errors.New("serving request: client has gone")

// submit queues c's jobs in the engine: all of them, or none and an apiError.
func (s *Server) submit(c *call) *apiError {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return errEngineDead()
	}
	c.notify = make(chan struct{}, 1)
	c.open = len(c.jobs)
	seqs := make([]*engine.Seq, len(c.jobs))
	for i, j := range c.jobs {
		seqs[i] = &j.seq
	}
	if len(seqs) > 0 {
		if err := s.eng.Add(seqs...); err != nil {
			return refusal(err)
		}
	}
	s.calls[c] = struct{}{}
	s.kick()
	return nil
}

func refusal(err error) *apiError {
	switch {
	case errors.Is(err, engine.ErrQueueFull):
		return errQueueFull()
	case errors.Is(err, engine.ErrBacklog):
		return errBacklog()
	}
	return badRequest("", "%s", err.Error())
}

// next waits for output of c. It returns errClientGone when ctx ends and the apiError of a dead engine; the events before
// either are delivered first.
func (s *Server) next(ctx context.Context, c *call) ([]event, error) {
	for {
		s.mu.Lock()
		events, failed := c.events, c.failed
		c.events = nil
		s.mu.Unlock()
		if len(events) > 0 {
			return events, nil
		}
		if failed != nil {
			return nil, failed
		}
		select {
		case <-c.notify:
		case <-ctx.Done():
			return nil, errClientGone
		}
	}
}

// leave forgets c; what has not ended is aborted in the engine, whose blocks are free before its next step.
func (s *Server) leave(c *call) (aborted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, c)
	for _, j := range c.jobs {
		if s.eng.Abort(&j.seq) {
			aborted = true
		}
	}
	if aborted {
		s.kick()
	}
	return aborted
}

// kick starts the stepping goroutine if there is none. s.mu is held.
func (s *Server) kick() {
	if s.stepping || s.dead || s.halted || s.zombie {
		return
	}
	s.stepping = true
	go s.step()
}

// step runs the engine until it has nothing to do, is paused, or is stopped by a fault.
func (s *Server) step() {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.stepping = false }()
	planned := time.Now()
	for !s.dead && !s.halted && !s.zombie {
		if s.inFlight == nil {
			st, ok := s.eng.Schedule()
			if !ok {
				return
			}
			s.inFlight, s.stepStart = &st, time.Now()
		}
		wait := s.inFlight.Duration
		if s.cfg.Speed != 1 || s.slowdown != 1 {
			wait = time.Duration(float64(wait) / s.cfg.Speed * s.slowdown)
		}
		planned = s.sleep(planned, wait)
		if s.dead || s.halted || s.zombie {
			return
		}
		st := *s.inFlight
		s.inFlight = nil
		s.deliver(s.eng.Finish(st), time.Now())
		s.pausing.Broadcast()
	}
}

// sleep waits until planned+wait with s.mu released and returns that moment. A late wake-up is made good by the next step,
// up to 20 ms: beyond that the machine is overloaded and catching up would only bunch the output.
func (s *Server) sleep(planned time.Time, wait time.Duration) time.Time {
	if now := time.Now(); now.Sub(planned) > 20*time.Millisecond {
		planned = now
	}
	planned = planned.Add(wait)
	s.mu.Unlock()
	defer s.mu.Lock()
	if d := time.Until(planned); d > 0 {
		time.Sleep(d)
	} else {
		runtime.Gosched()
	}
	return planned
}

// deliver books outputs and hands them to the calls. s.mu is held.
func (s *Server) deliver(outputs []engine.Output, now time.Time) {
	stats := s.eng.Stats()
	computed := 0
	for i := range outputs {
		out := &outputs[i]
		j := out.Seq.Data.(*job)
		s.book.output(j, out, s.stepStart, now)
		j.cached = out.Cached
		if out.First {
			computed += j.seq.PromptLen()
			if !s.book.wholePromptPerIteration {
				computed -= out.Cached
			}
		}
		if out.Index >= 0 {
			computed++
			j.held = append(j.held, token{out.Token, j.texts[out.Index]})
		}
		if out.Finished == engine.None && !out.First && s.merges(j, stats.Running) {
			continue
		}
		s.push(j, out.Finished.String())
	}
	if len(outputs) > 0 {
		s.book.iteration.observe(float64(computed))
	}
}

// push queues what j holds. s.mu is held.
func (s *Server) push(j *job, finish string) {
	c := j.call
	c.events = append(c.events, event{job: j, tokens: j.held, finish: finish, cached: j.cached})
	j.held = nil
	if finish != "" {
		c.open--
	}
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

// merges says whether j's token waits for the next one, as outputs do when the front-end of a real server is busy. Which
// ones is a function of the request and the position, so that a run can be repeated.
func (s *Server) merges(j *job, running int) bool {
	if s.cfg.Merge <= 0 || running < 4 {
		return false
	}
	h := mix(j.seed + uint64(j.emitted))
	return float64(h>>11)/(1<<53) < s.cfg.Merge
}

// release returns the text of ev that may be sent: with stop strings the last characters wait until they can no longer
// begin one. stopped is the stop string that ended the answer.
func (j *job) release(ev event) (text, stopped string) {
	for _, t := range ev.tokens {
		text += t.text
	}
	if len(j.call.stops) == 0 {
		return text, ""
	}
	j.buf += text
	end := len(j.buf)
	if ev.finish == "" {
		end = max(j.sent, end-longest(j.call.stops)+1)
	} else if at, stop := firstStop(j.buf, j.call.stops); stop != "" {
		end, stopped = at, stop
	}
	text = j.buf[j.sent:max(j.sent, end)]
	j.sent = max(j.sent, end)
	return text, stopped
}

func longest(stops []string) int {
	n := 0
	for _, s := range stops {
		n = max(n, len(s))
	}
	return n
}

func firstStop(text string, stops []string) (at int, stop string) {
	at = -1
	for _, s := range stops {
		if i := strings.Index(text, s); s != "" && i >= 0 && (at < 0 || i < at) {
			at, stop = i, s
		}
	}
	return at, stop
}
