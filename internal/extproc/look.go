package extproc

import (
	"context"
	"net/http"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/telemetry"
)

const (
	// lookEvery is how often the streams are looked at for what no message tells.
	lookEvery = time.Second

	// goneSilence is how long the answer of an endpoint that went away may be silent. It may still hold bytes that are under way.
	goneSilence = time.Second
)

// Run looks at the streams now and then: an answer whose endpoint went away, or that goes on when the drain is over, is ended. It returns
// when ctx ends.
func (s *Server) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.look()
		}
	}
}

// CutAll ends every answer that is in flight, a stream with an error event, and what has no answer yet with a refusal. It is for the end of
// a drain.
func (s *Server) CutAll() {
	s.cutting.Store(true)
	s.endWaits() // who waits for an endpoint is no stream that look could touch
	s.look()
}

func (s *Server) look() {
	s.mu.Lock()
	list := make([]*stream, 0, len(s.streams))
	for x := range s.streams {
		list = append(list, x)
	}
	s.mu.Unlock()
	for _, x := range list {
		x.look()
	}
}

// look ends the stream's request if it cannot or must not go on. A stream that deals with a message is left for the next time.
func (x *stream) look() {
	if !x.mu.TryLock() {
		return
	}
	defer x.mu.Unlock()
	if x.settled || !x.asked {
		return
	}
	if x.srv.cutting.Load() {
		x.stop(&llmapi.Error{Status: http.StatusServiceUnavailable, Reason: llmapi.ReasonShutdown, Code: "gateway_shutdown",
			Message: "the gateway is shutting down and its drain time is over"}, true)
		return
	}
	if !x.Booked || x.Now()-x.last < goneSilence {
		return
	}
	_ = x.letGo() // who shows no body before its headers are answered would wait without end
	select {
	case <-x.Booking.Gone():
		x.stop(&llmapi.Error{Status: http.StatusBadGateway, Reason: llmapi.ReasonUpstreamError, Code: "upstream_gone",
			Message: "the model server went away while it worked on the request; the request may have been processed and was not sent again"}, false)
	default:
	}
}

// stop ends the request as e tells the client: with a refusal before its answer has begun, with an error event in a stream, and else by
// an answer of Envoy's behind the head of another one, for which it breaks the connection off. ours says that the drain is over.
func (x *stream) stop(e *llmapi.Error, ours bool) {
	if !x.listened {
		x.Outcome = telemetry.OutcomeUpstreamError
		_ = x.refuse(e) // nobody is there to be told of a stream that is gone
		return
	}
	switch x.responseMode {
	case modeDuplex:
	case modeStream:
		if ours { // Envoy may be allowed to go on alone
			return
		}
	default: // of a body that is not shown nobody knows whether it goes on
		return
	}
	last := x.cut(e, telemetry.OutcomeCut, ours)
	if x.responseMode == modeDuplex && x.answer.Stream {
		x.over = true
		_ = x.reply.responseChunk(x.out, last, true)
		return
	}
	h := &extprocv3.HeaderMutation{}
	set(h, headerReason, e.Reason)
	set(h, headerNoRetry, "false")
	_ = x.answerNow(e.Status, e.Reason, h, e.Body(x.API.Dialect))
}
