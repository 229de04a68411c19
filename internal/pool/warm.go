package pool

import (
	"log/slog"
	"time"
)

// WarmRequest describes synthetic requests that an endpoint gets before users' requests.
type WarmRequest struct {
	Prompt int // tokens, about
	Output int // tokens
	AtOnce int // so many of them side by side
}

// warmth is how far an endpoint has come with its synthetic requests.
type warmth uint8

const (
	warm    warmth = iota // it had them, or needs none
	cold                  // it is to get them
	heating               // they are under way
)

const (
	// warmWait is how long an endpoint that answers may fail to say which model it serves, or what it did so far.
	warmWait = 10 * time.Second
	// warmShare is how often what the synthetic requests compute an engine must have computed to be warm without them: other
	// replicas of this gateway may be at it too.
	warmShare = 2
)

// chill makes a new process get synthetic requests, if any are configured. The mutex is held.
func (p *Pool) chill(s *slot, now time.Duration) {
	if len(p.cfg.Warm) == 0 || s.leaving {
		return
	}
	s.warmth, s.coldSince = cold, now
	s.machine.Warm(true)
}

// warmed ends that. The mutex is held.
func (p *Pool) warmed(i int, s *slot, now time.Duration) {
	s.warmth = warm
	s.machine.Warm(false)
	p.queue.freed = true
	p.touch(i, now)
}

// WarmUp says whether the endpoint at url is to be sent the synthetic requests now, and with the name of which model. Whoever is
// told so sends them and calls Warmed. It is asked for every endpoint now and then.
func (p *Pool) WarmUp(url string) (requests []WarmRequest, model string, start bool) {
	p.mu.Lock()
	i, ok := p.byURL[url]
	if !ok || p.slots[i].warmth != cold {
		p.mu.Unlock() // nearly always: nothing has changed that anybody is to be told
		return nil, "", false
	}
	defer p.unlock()
	s, now := p.slots[i], p.now()
	if !s.machine.Usable(now) {
		s.coldSince = now
		return nil, "", false
	}
	model, patient := s.baseModel(), now-s.coldSince < warmWait
	switch {
	case s.hasRep && s.rep.PromptTokens >= warmShare*float64(warmTokens(p.cfg.Warm)), len(p.cfg.Warm) == 0:
		p.warmed(i, s, now)
	case model != "" && (s.hasRep || !patient):
		s.warmth = heating
		return p.cfg.Warm, model, true
	case !patient:
		p.event(slog.LevelWarn, "endpoint is used cold", "endpoint", s.ep.Name, "cause", "it lists no model to send warm-up requests to")
		p.warmed(i, s, now)
	}
	return nil, "", false
}

func warmTokens(all []WarmRequest) (n int) {
	for _, w := range all {
		n += w.Prompt * max(1, w.AtOnce)
	}
	return n
}

// baseModel is the first model that is no adapter, "" while none is known.
func (s *slot) baseModel() string {
	for _, m := range s.models {
		if !m.Adapter {
			return m.ID
		}
	}
	return ""
}

// Warmed says that the synthetic requests to url are over, after took; err is why they did not all succeed. The endpoint is used in
// either case.
func (p *Pool) Warmed(url string, took time.Duration, err error) {
	p.mu.Lock()
	defer p.unlock()
	i, ok := p.byURL[url]
	if !ok || p.slots[i].warmth != heating {
		return // another process took its place meanwhile
	}
	s := p.slots[i]
	if err != nil {
		p.event(slog.LevelWarn, "endpoint is used cold", "endpoint", s.ep.Name, "cause", err.Error())
	} else {
		p.event(slog.LevelInfo, "endpoint warmed up", "endpoint", s.ep.Name, "took", took.Round(time.Millisecond).String())
	}
	p.warmed(i, s, p.now())
}
