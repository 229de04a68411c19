package telemetry

import (
	"time"

	"pointsman.dev/pointsman/internal/prefix"
)

// Outcomes of a request, the values of the label outcome. Exactly one holds for each request.
const (
	OutcomeOK              = "ok"               // the answer reached its end
	OutcomeClientError     = "client_error"     // 4xx, from the gateway or the engine, other than those below
	OutcomeClientCancelled = "client_cancelled" // the client went away first
	OutcomeUpstreamError   = "upstream_error"   // the endpoint answered 5xx or broke before the first byte
	OutcomeCut             = "cut"              // the answer broke off after its first byte
	OutcomeTimeout         = "timeout"          // the time limit ended it
	OutcomeShed            = "shed"             // refused because there was no room (429, 503)
	OutcomeTooLong         = "too_long"         // the prompt does not fit the model's window
	OutcomeNoEndpoint      = "no_endpoint"      // no endpoint was there to try
)

// Outcomes lists every value of the label outcome, in the order in which they are documented.
func Outcomes() []string {
	return []string{OutcomeOK, OutcomeClientError, OutcomeClientCancelled, OutcomeUpstreamError, OutcomeCut,
		OutcomeTimeout, OutcomeShed, OutcomeTooLong, OutcomeNoEndpoint}
}

// Ways in which a pool was chosen among those that serve a model with different windows, the values of the label how.
const (
	WindowDirect   = "direct"   // smaller windows were passed over: the prompt certainly exceeds them
	WindowResent   = "resent"   // a smaller window's engine refused the prompt
	WindowRefused  = "refused"  // the largest window's engine refused it too
	WindowOverflow = "overflow" // the smaller window's pool was full, and may overflow

	WindowNoEndpoint = "no_endpoint" // no endpoint of the smaller window's pool was there, or could be reached
)

// Windows lists every value of the label how.
func Windows() []string {
	return []string{WindowDirect, WindowResent, WindowRefused, WindowOverflow, WindowNoEndpoint}
}

// How far the earlier attempt of a request had got that a client sends again, the values of the label reached.
const (
	ReachedUnknown  = "unknown"  // it is not remembered, or it was answered
	ReachedNothing  = "nothing"  // no endpoint took it
	ReachedEndpoint = "endpoint" // it was sent to an endpoint; no token of it was seen
	ReachedTokens   = "tokens"   // tokens were generated for it
)

// Reaches lists every value of the label reached.
func Reaches() []string {
	return []string{ReachedUnknown, ReachedNothing, ReachedEndpoint, ReachedTokens}
}

// WastedPrefill is the reason of prompt tokens that were computed again. The other reasons of wasted tokens are outcomes.
const WastedPrefill = "repeated_prefill"

// Wastes lists every value of the label reason of wasted tokens.
func Wastes() []string {
	return []string{OutcomeClientCancelled, OutcomeUpstreamError, OutcomeCut, OutcomeTimeout, WastedPrefill}
}

// Unanswered reports whether a request with this outcome ended without the answer that it may have got at another time.
func Unanswered(outcome string) bool { return outcome == OutcomeClientCancelled || failed(outcome) }

// failed says that an operator must see a request that ended so, whatever else is written.
func failed(outcome string) bool {
	switch outcome {
	case OutcomeUpstreamError, OutcomeCut, OutcomeTimeout, OutcomeShed, OutcomeNoEndpoint:
		return true
	}
	return false
}

// Record is what there is to say of one finished request. The zero value of a field means that it is not
// known or does not apply, except where noted. It is filled by one goroutine and read after the request.
type Record struct {
	ID          string // the request id that the client was told
	Method      string // HTTP method
	Path        string // canonical API path, one of a bounded set; never the raw URL
	UnknownPath string // escaped path of a request that is for no API, as received; the access record shows what is harmless of it
	Model       string // model as the client asked for it
	Served      string // name the endpoint knows it by, when an alias rewrote it
	Pool        string // name of the pool; "" when the request never got to one
	Endpoint    string // name (host:port) of the endpoint that answered, or was tried last
	PickReason  string // why that endpoint: prefix, load, all_full, only_one
	Outcome     string // one of Outcomes
	ErrorReason string // stable machine word of an error answer (unknown_model, timeout, ...)
	Cause       string // internal cause of a failure, for the operator; never request or answer content

	Window    string // how the pool was chosen among those with different windows, one of Windows; "" when it was the first
	RefusedBy string // pool whose endpoint refused the prompt for its length before another one was asked
	Estimate  int    // tokens of the prompt as estimated for the choice of a window; 0: not estimated

	Reached string // of a request that its client sent again: how far the earlier attempt had got, one of Reaches; "" for others

	Status   int  // HTTP status the client got; 0 when it got none
	Attempts int  // endpoints tried
	Stream   bool // the client asked for a stream

	PromptTokens int // of usage, else the estimate used for the pick
	PredictedHit int // prompt tokens expected to be cached at the endpoint, from our own index
	CachedTokens int // prompt tokens the endpoint says were cached; -1: it did not say
	OutputTokens int // of usage, else the content frames seen

	TTFT     time.Duration // arrival to first token
	Duration time.Duration // arrival to end
	PickTime time.Duration // spent deciding
	Queued   time.Duration // spent waiting for an endpoint
	BytesIn  int64         // request body
	BytesOut int64         // response body
	Start    time.Time     // arrival

	Blocks []prefix.Block // chain of the prompt; read while the record is logged only
}
