package flight

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// Answer is what is learnt of an endpoint's answer beside its way to the client. The zero value is ready for Refusal and Attach.
type Answer struct {
	f *Flight

	Tap    *llmapi.Stream // nil: not read beside
	Status int
	Stream bool // an event stream
	JSON   bool // one JSON value
	Empty  bool // no byte of the body came yet
	Judged bool // of an API whose streams have a terminal marker

	Refused bool // the endpoint did not take the request
	Denied  bool // it refused the pool's own API key
	TooLong bool

	known  bool // the response's id was found, see keepResponse
	tokens int  // told to the booking
}

// EventStream is the media type of streams.
const EventStream = "text/event-stream"

// MediaType is the type of a body without its parameters, lower case.
func MediaType(contentType string) string {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(kind))
}

// Attach begins an answer of f with its head. tap, which is nil where the body cannot be read, reads the body.
func (a *Answer) Attach(f *Flight, status int, contentType string, tap *llmapi.Stream) {
	kind := MediaType(contentType)
	a.f, a.Status, a.Tap = f, status, tap
	a.Stream, a.Empty = kind == EventStream, true
	a.JSON = status == http.StatusOK && kind == "application/json"
	if tap == nil {
		return
	}
	tap.Reset(f.API.Kind, f.API.Dialect, a.Stream)
	switch f.API.Kind {
	case llmapi.Chat, llmapi.Completions, llmapi.Generate, llmapi.Responses, llmapi.Messages:
		a.Judged = a.Stream
	}
}

// Readable reports whether an answer's body can be read beside the copy.
func Readable(status int, contentEncoding string) bool {
	return status < 400 && (contentEncoding == "" || contentEncoding == "identity")
}

// Restart forgets a stream of which nothing went out: another endpoint's takes its place.
func (a *Answer) Restart() {
	a.tokens = 0
	a.Tap.Reset(a.f.API.Kind, a.f.API.Dialect, true)
}

// Read reads the next bytes of the body.
func (a *Answer) Read(b []byte) {
	a.Tap.Write(b)
	a.keepResponse()
}

// Note tells the booking how far the stream has got.
func (a *Answer) Note() {
	f := a.f
	if f.Rec.TTFT == 0 && a.Tap.FirstToken() {
		f.Rec.TTFT = f.Now()
		f.Booking.FirstToken()
	}
	if n := a.Tap.Tokens(); n > a.tokens {
		f.Booking.Progress(n - a.tokens)
		a.tokens = n
	}
}

// Count takes over what the answer has said of its tokens so far.
func (a *Answer) Count() {
	if a.Tap == nil {
		return
	}
	u, ok := a.Tap.Usage()
	a.f.Result.Usage, a.f.Result.HasUsage = usageOf(u), ok
	a.f.Result.Tokens = a.Tap.Tokens()
}

func usageOf(u llmapi.Usage) pool.Usage {
	return pool.Usage{Prompt: u.Prompt, Output: u.Output, Cached: u.Cached, HasCached: u.HasCached}
}

// Said reports whether the last event of a stream went out: the answer is whole however its connection ends. Official clients
// leave at that event, before the last chunk of the framing.
func (a *Answer) Said() bool { return a.Judged && a.Tap.Done() }

// Complete reports whether an answer that ended in good order is whole.
func (a *Answer) Complete() bool {
	t := a.Tap
	if t == nil || !a.Stream && !a.JSON {
		return true
	}
	if t.Aborted() {
		return false
	}
	if !a.Stream {
		return t.Events() > 0 || a.Empty // the JSON value is
	}
	if !a.Judged {
		return true
	}
	_, _, bad := t.ErrorEvent()
	return t.Finished() && !bad
}

// Cut settles the outcome of an answer that ended before it was complete, as e tells the client, and returns the bytes that tell it
// in a stream: e's event, unless the engine itself has sent one. ours says that the gateway ended the answer.
func (a *Answer) Cut(e *llmapi.Error, outcome, cause string, ours bool) []byte {
	f := a.f
	f.Outcome, f.Rec.ErrorReason, f.Rec.Cause, f.Rec.Status = outcome, e.Reason, cause, a.Status
	if a.Tap == nil {
		return nil
	}
	message, code, own := a.Tap.ErrorEvent()
	if own && !ours {
		f.Outcome, f.Rec.Cause = a.EngineError(message, code), "the model server sent an error event"
	}
	switch {
	case !a.Stream:
		return nil
	case own: // it is out already
		return a.Tap.EventEnd()
	}
	return a.Tap.CutEvent(e)
}

// EndedEarly is what the client is told of a stream that its model server ended before it was complete. code is the machine word of
// the error event.
func EndedEarly(code string) *llmapi.Error {
	return &llmapi.Error{Status: http.StatusBadGateway, Reason: llmapi.ReasonCut, Code: code,
		Message: "the model server ended the stream before the answer was complete"}
}

// Finish settles the outcome of an answer that is complete.
func (a *Answer) Finish() {
	a.f.Rec.Status = a.Status
	if !a.saysError() {
		a.f.Outcome = a.statusOutcome()
	}
}

// statusOutcome is the table from an endpoint's status to the outcome.
func (a *Answer) statusOutcome() string {
	switch {
	case a.Status < 400:
		return telemetry.OutcomeOK
	case a.f.Result.Drain:
		return telemetry.OutcomeUpstreamError
	case a.Refused:
		return telemetry.OutcomeShed
	case a.TooLong:
		return telemetry.OutcomeTooLong
	case a.Status < 500 && !a.Denied:
		return telemetry.OutcomeClientError
	}
	return telemetry.OutcomeUpstreamError
}

// saysError takes an error that the engine put into a whole answer behind a 200, and reports whether there is one.
func (a *Answer) saysError() bool {
	if a.Stream || a.Tap == nil {
		return false
	}
	message, code, bad := a.Tap.ErrorEvent()
	if !bad {
		return false
	}
	a.f.Outcome, a.f.Rec.Cause = a.EngineError(message, code), "the model server sent an error with a status of success"
	if code >= 400 {
		a.f.Result.Status = code
	}
	return true
}

// EngineError is the outcome of an error that the engine put into its answer.
func (a *Answer) EngineError(message string, code int) string {
	switch {
	case llmapi.IsContextLength(max(code, http.StatusBadRequest), []byte(message)):
		return telemetry.OutcomeTooLong
	case code >= 400 && code < 500:
		return telemetry.OutcomeClientError
	case a.tokens > 0:
		return telemetry.OutcomeCut
	}
	return telemetry.OutcomeUpstreamError
}

// RefusalPeek is how much of an error's body Refusal wants to see.
const RefusalPeek = 16 << 10

// Refusal looks at an answer to f with an error status, whose body begins with head, and says whether it means that the endpoint did
// not take the request, and the outcome of that attempt. It also notes a prompt that is too long. retryAfter is the answer's
// header.
func (a *Answer) Refusal(f *Flight, status int, retryAfter string, head []byte) (health.Kind, string, bool) {
	switch {
	case llmapi.Drainish(status, head):
		a.Refused, f.Result.Drain = true, true
		return health.KindDrain, telemetry.OutcomeUpstreamError, true
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable && retryAfter != "", llmapi.EngineBusy(status, head):
		a.Refused = true
		f.Result.RetryAfter = RetryAfter(retryAfter)
		return health.KindBusy, telemetry.OutcomeShed, true
	case (status == http.StatusUnauthorized || status == http.StatusForbidden) && f.Pool != nil && f.Pool.APIKey() != "":
		a.Denied = true
		return health.KindDenied, telemetry.OutcomeUpstreamError, f.Rec.Attempts == 1 // the key is the pool's: others may refuse it too
	case f.tooLong(status, head):
		a.TooLong = true
	}
	return 0, "", false
}

// tooLong reports whether an answer says that the request does not fit into the model's window.
func (f *Flight) tooLong(status int, body []byte) bool {
	if f.Req != nil {
		return llmapi.RefusedForLength(status, body, f.Req)
	}
	return llmapi.IsContextLength(status, body)
}

// RetryAfter reads a Retry-After of seconds or of a date; 0 means none.
func RetryAfter(v string) time.Duration {
	if v == "" {
		return 0
	}
	if n, err := strconv.Atoi(v); err == nil {
		return max(0, min(time.Duration(n), 86400)*time.Second)
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, min(time.Until(at), 24*time.Hour))
	}
	return 0
}
