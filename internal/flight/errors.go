package flight

import (
	"fmt"
	"net/http"
	"time"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// NoEndpoint is what a client is told when no endpoint is there to try: 503, and the request may be sent again.
func NoEndpoint() *llmapi.Error {
	return &llmapi.Error{Status: http.StatusServiceUnavailable, Reason: llmapi.ReasonNoEndpoint, RetryAfter: time.Second,
		Message: "no model server is available for this model at the moment; the request was not processed and may be sent again"}
}

// Unreachable is NoEndpoint for a request that every endpoint was tried for.
func Unreachable() *llmapi.Error {
	e := NoEndpoint()
	e.Message = "no model server could be reached; the request was not processed and may be sent again"
	return e
}

func errShed(e *pool.ShedError) *llmapi.Error {
	out := &llmapi.Error{Status: http.StatusTooManyRequests, Reason: llmapi.ReasonQueueFull, RetryAfter: e.RetryAfter,
		Message: fmt.Sprintf("every model server is full and %d requests wait already (queue.max of the pool in the configuration of pointsman); "+
			"the request was not processed and may be sent again", e.Max)}
	if e.Reason == pool.QueueTimeout {
		out.Reason = llmapi.ReasonQueueTimeout
		out.Message = fmt.Sprintf("no model server had room within %v (queue.wait of the pool in the configuration of pointsman); "+
			"the request was not processed and may be sent again", e.Wait)
	}
	return out
}

func errHeld(waited time.Duration) *llmapi.Error {
	e := NoEndpoint()
	e.Message = fmt.Sprintf("no model server became available within %v; the request was not processed and may be sent again", waited.Round(time.Second))
	return e
}

// OutcomeOf is the table from errors of our own to outcomes.
func OutcomeOf(e *llmapi.Error) string {
	switch {
	case e.Reason == llmapi.ReasonNoEndpoint:
		return telemetry.OutcomeNoEndpoint
	case e.Reason == llmapi.ReasonQueueFull || e.Reason == llmapi.ReasonQueueTimeout || e.Reason == llmapi.ReasonInternal: // no room for its body
		return telemetry.OutcomeShed
	case e.Reason == llmapi.ReasonTooLong:
		return telemetry.OutcomeTooLong
	case e.Reason == llmapi.ReasonTimeout:
		return telemetry.OutcomeTimeout
	case e.Status < 500:
		return telemetry.OutcomeClientError
	}
	return telemetry.OutcomeUpstreamError
}
