package pool

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"pointsman.dev/pointsman/internal/health"
)

// What makes an address a model server. A mistyped port is often another web server, which answers everything with 404: it
// must not count as usable. But servers differ in the pages that they have, and some want a key for them. So any one
// of these is enough:
//
//   - /metrics shows a series that is known,
//   - /health answers well,
//   - /v1/models is a model list,
//   - one of the three answers 401 or 403: it is there, and wants a key,
//   - a request was answered since the last of these was lost.
//
// Until then an endpoint is warming at best: it gets requests, but does not make its pool ready. When all three
// have answered that they are not there, the endpoint is a last resort. Errors of the server, refusals for load and
// silence say nothing either way.

// AnswerError is an answer of an endpoint that is not what was asked for. Errors of other types given to ReportFailed,
// HealthProbe and LearnFailed mean that there was no answer.
type AnswerError struct {
	Status int   // HTTP status
	Err    error // what is wrong with a good status; nil otherwise
}

// Error implements error.
func (e *AnswerError) Error() string {
	switch {
	case e.Err != nil:
		return e.Err.Error()
	case e.WantsKey():
		return fmt.Sprintf("status %d (check api_key_file of the pool)", e.Status)
	}
	return fmt.Sprintf("status %d", e.Status)
}

// Unwrap returns what is wrong with a good status.
func (e *AnswerError) Unwrap() error { return e.Err }

// WantsKey says that the page is there and that the key is missing or wrong.
func (e *AnswerError) WantsKey() bool {
	return e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden
}

// NoPage says that the server has no such page.
func (e *AnswerError) NoPage() bool {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	case http.StatusNotImplemented: // llama.cpp without --metrics
		return true
	}
	return e.Status < 500
}

// page is what is known of one page of an endpoint.
type page uint8

const (
	pageUnknown page = iota // it did not say yet
	pageShown
	pageMissing
)

// proof is what shows that an endpoint is a model server.
type proof struct {
	report, health, models page
	served                 bool // a request was answered
}

func (p *proof) pages() bool {
	return p.report == pageShown || p.health == pageShown || p.models == pageShown
}

// shown says that it is a model server.
func (p *proof) shown() bool { return p.served || p.pages() }

// refuted says that it is none as far as anybody can tell.
func (p *proof) refuted() bool {
	return !p.served && p.report == pageMissing && p.health == pageMissing && p.models == pageMissing
}

// answered takes an answer about one page. The mutex is held.
func (p *Pool) answered(s *slot, which *page, to page) {
	s.heard = true
	if to == pageUnknown || *which == to {
		return
	}
	had, was := s.proof.pages(), s.proof.refuted()
	*which = to
	if had && !s.proof.pages() {
		s.proof.served = false // another server may have taken its place
	}
	if s.leaving || s.proof.refuted() == was {
		return
	}
	p.modelsNew = true // it counts, or no longer, as one that may serve anything
	if !was {
		p.event(slog.LevelWarn, "endpoint is no model server", "endpoint", s.ep.Name, "error", s.refutation())
	}
}

// served records that a request was answered. The mutex is held.
func (p *Pool) served(s *slot) {
	p.modelsNew = p.modelsNew || s.proof.refuted()
	s.heard, s.proof.served = true, true
}

// refutation says why an endpoint is taken for no model server.
func (s *slot) refutation() string {
	return fmt.Sprintf("%s; %s; /health is not there either", s.repErr, s.modelsErr)
}

// failed takes an error about one page. The mutex is held.
func (p *Pool) failed(s *slot, which *page, err error, now time.Duration) {
	var a *AnswerError
	switch {
	case !errors.As(err, &a):
		p.unanswered(s, err, now)
	case a.WantsKey():
		p.answered(s, which, pageShown)
	case a.NoPage():
		p.answered(s, which, pageMissing)
	default:
		p.answered(s, which, pageUnknown)
	}
}

// stateAt is the state that is shown and logged.
func (s *slot) stateAt(now time.Duration) health.State {
	st := s.machine.State(now)
	if st == health.Ready && !s.proof.shown() {
		return health.Warming
	}
	return st
}

// admission is how far the endpoint may be used.
func (s *slot) admission(now time.Duration) health.Admission {
	if s.proof.refuted() {
		return health.LastResort
	}
	return s.machine.Admission(now)
}

// A pool of endpoints that do not answer from the start says so in the log, each once, but not thousands of lines.
const (
	missedLines = 8                // single lines
	missedEvery = 10 * time.Second // within this
	missedRest  = time.Second      // after this the others are said together
)

// missed throttles these lines.
type missed struct {
	since      time.Duration // of the first line
	said, more int
}

// unanswered says once that an endpoint that was never heard of does not answer. What was heard of changes its state.
// The mutex is held.
func (p *Pool) unanswered(s *slot, err error, now time.Duration) {
	if s.heard || s.missed || s.leaving {
		return
	}
	s.missed = true
	m := &p.missed
	if now-m.since >= missedEvery {
		p.sayMissed()
		m.since, m.said = now, 0
	}
	if m.said++; m.said > missedLines {
		m.more++
		return
	}
	p.event(slog.LevelWarn, "endpoint does not answer", "endpoint", s.ep.Name, "error", err.Error())
}

// sayMissed says how many lines were held back. The mutex is held.
func (p *Pool) sayMissed() {
	if p.missed.more > 0 {
		p.event(slog.LevelWarn, "more endpoints do not answer", "count", p.missed.more)
	}
	p.missed.more = 0
}

// LearnFailed records that the model list of url could not be read. One failure may be that of a start.
func (p *Pool) LearnFailed(url string, err error) {
	p.mu.Lock()
	defer p.unlock()
	now := p.now()
	p.watched(url, func(i int, s *slot) {
		if s.leaving {
			return
		}
		s.modelsErr = err.Error()
		p.failed(s, &s.proof.models, err, now)
		var a *AnswerError
		s.wantsKey = errors.As(err, &a) && a.WantsKey()
		if a != nil {
			s.modelsFails++
		}
		if s.modelsFails >= 2 && !s.modelsSaid && !s.proof.refuted() {
			s.modelsSaid = true
			p.event(slog.LevelWarn, "endpoint lists no models", "endpoint", s.ep.Name, "error", s.modelsErr)
		}
		p.touch(i, now)
	})
}
