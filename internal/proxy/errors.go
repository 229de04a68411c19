package proxy

import (
	"errors"
	"math"
	"net/http"
	"strconv"

	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/telemetry"
)

// refuse answers with an error of our own and settles the outcome by it.
func (x *exchange) refuse(e *llmapi.Error) {
	x.Outcome = flight.OutcomeOf(e)
	x.writeError(e)
}

// writeError sends an error of our own in the dialect of the path. The answer must not have begun.
func (x *exchange) writeError(e *llmapi.Error) {
	x.Rec.ErrorReason, x.Rec.Status = e.Reason, e.Status
	h := x.w.Header()
	clear(h)
	x.ownHeaders()
	h[headerReason] = []string{e.Reason}
	if x.Sent && wouldRetry(e.Status) { // it may have been processed: doing so again would be waste
		h[headerNoRetry] = noRetry
	}
	if e.RetryAfter > 0 {
		h["Retry-After"] = []string{strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds())))}
	}
	if e.Allow != "" {
		h["Allow"] = []string{e.Allow}
	}
	if x.hangsUp() {
		h["Connection"] = closing
	}
	body := e.Body(x.API.Dialect)
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	x.w.WriteHeader(e.Status)
	if x.in.Method != http.MethodHead {
		x.answer.bytes = int64(len(body))
		_, _ = x.w.Write(body) // a client that left cannot be told
	}
}

var noRetry = []string{"false"}

// failCut answers an exchange that the watch ended before its answer had begun.
func (x *exchange) failCut(c *cutCause) {
	x.Outcome = c.outcome
	if x.Rec.Cause == "" {
		x.Rec.Cause = c.message // names the timer
	}
	if c.status == 0 { // the client's own doing
		panic(http.ErrAbortHandler)
	}
	x.writeError(c.as())
}

// handleError is ReverseProxy's ErrorHandler: there will be no answer from an endpoint.
func handleError(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r)
	if x.answer.socket != nil { // the connection is not HTTP any more
		x.Outcome, x.Rec.Cause = telemetry.OutcomeUpstreamError, err.Error()
		return
	}
	var e *llmapi.Error
	var c *cutCause
	switch {
	case errors.As(err, &e):
		x.refuse(e)
	case errors.As(err, &c):
		x.failCut(c)
	case errors.Is(err, errClientLeft):
		x.Outcome = telemetry.OutcomeClientCancelled
		panic(http.ErrAbortHandler) // nobody listens; the connection is of no use either
	default: // an upgrade that went wrong
		x.Rec.Cause = err.Error()
		x.refuse(&llmapi.Error{Status: http.StatusBadGateway, Reason: llmapi.ReasonUpstreamError, Message: "the model server's answer could not be passed on"})
	}
}
