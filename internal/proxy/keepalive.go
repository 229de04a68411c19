package proxy

import (
	"net/http"
	"sync"
	"time"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/telemetry"
)

// A stream that waits for a long prefill is silent, and whatever stands between us and the client counts that silence as
// idle time. A comment line, which no client shows, resets those timers. It is no progress of the endpoint: our own limits go
// on counting.

var (
	commentLine  = []byte(": keep-alive\n\n")
	messagesPing = []byte("event: ping\ndata: {\"type\": \"ping\"}\n\n") // what this API itself sends
)

// shown is the ResponseWriter that ReverseProxy has. At the head of a stream it flushes from a goroutine of its own, whenever
// that gets to run, and a keep-alive must not be written meanwhile. Everything else it does while it holds turn.
type shown struct {
	http.ResponseWriter
	flush sync.Mutex
}

// FlushError implements what http.ResponseController looks for.
func (s *shown) FlushError() error {
	s.flush.Lock()
	defer s.flush.Unlock()
	return http.NewResponseController(s.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController find the rest.
func (s *shown) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// began notes that the head of a stream has come, from which on silence can be broken. The caller holds turn.
func (w *watch) began() {
	w.mu.Lock()
	w.kept = max(1, w.x.Now())
	w.mu.Unlock()
}

// keepAlive sends a comment when the stream has been silent for long enough, and returns when to look again, not after
// next, or why the exchange must end. The caller holds mu.
func (w *watch) keepAlive(now, next time.Duration) (time.Duration, *cutCause) {
	every := w.x.p.cfg.KeepAlive
	if every <= 0 || w.kept == 0 {
		return next, nil
	}
	if quiet := now - max(w.kept, w.last.get()); quiet < every {
		return min(next, every-quiet), nil
	}
	if !w.turn.TryLock() {
		return next, nil // bytes are on their way
	}
	defer w.turn.Unlock()
	a := &w.x.answer
	if a.end != nil || !a.hold && !a.Tap.Between() {
		return next, nil // inside an event a comment would be a part of it
	}
	w.kept = now
	line := commentLine
	if w.x.API.Kind == llmapi.Messages {
		line = messagesPing
	}
	w.x.shown.flush.Lock()
	defer w.x.shown.flush.Unlock()
	rc := http.NewResponseController(w.x.w)
	_ = rc.SetWriteDeadline(time.Now().Add(lastWords)) // a client that takes nothing must not hold us here
	_, err := w.x.w.Write(line)
	if err == nil {
		err = rc.Flush()
	}
	if err != nil {
		return 0, &cutCause{reason: llmapi.ReasonTimeout, outcome: telemetry.OutcomeClientCancelled, code: "client_stalled", message: "a keep-alive could not be written to the client"}
	}
	_ = rc.SetWriteDeadline(time.Time{})
	return min(next, every), nil
}
