package llmapi

import "time"

// Reasons are the stable machine words for refusals, sent as x-pointsman-reason.
const (
	ReasonNotFound         = "not_found"
	ReasonMethodNotAllowed = "method_not_allowed"
	ReasonBadJSON          = "bad_json"
	ReasonBadForm          = "bad_form"
	ReasonBadType          = "bad_type"
	ReasonDuplicateKey     = "duplicate_key"
	ReasonMissingModel     = "missing_model"
	ReasonUnknownModel     = "unknown_model"
	ReasonTooLarge         = "too_large"
	ReasonTooLong          = "too_long"
	ReasonNoEndpoint       = "no_endpoint"
	ReasonAllFull          = "all_full"
	ReasonTimeout          = "timeout"
	ReasonUpstreamError    = "upstream_error"
	ReasonCut              = "cut"
	ReasonShutdown         = "shutdown"
	ReasonInternal         = "internal"
)

// An Error is a refusal or a failure as the client is told of it.
type Error struct {
	Status  int    // HTTP status
	Reason  string // stable machine word, one of the Reason constants
	Type    string // OpenAI error type; empty: chosen by Status
	Code    string // OpenAI error code; empty: Reason
	Param   string // the request field at fault; empty: none
	Message string // for the client; holds no internal cause
	// RetryAfter is for the Retry-After header; zero: none.
	RetryAfter time.Duration
	// Allow is the Allow header of a 405.
	Allow string
}

// Error returns the client's message.
func (e *Error) Error() string { return e.Message }

// Body returns the JSON body in the dialect.
func (e *Error) Body(d Dialect) []byte { _ = d; return nil }

// Event returns the server-sent event, or events, that tell a client of kind k
// that its stream was cut. No finish reason and no [DONE] follow.
func (e *Error) Event(k Kind, d Dialect) []byte { _, _ = k, d; return nil }

// NearMiss returns the known name that is closest to name, or "" when none is
// close enough to be a slip.
func NearMiss(name string, known []string) string { _, _ = name, known; return "" }

// IsContextLength reports whether an engine's answer says that the request does
// not fit into the model's window.
func IsContextLength(status int, body []byte) bool { _, _ = status, body; return false }

// Drainish reports whether an engine's answer says that it is shutting down.
func Drainish(status int, body []byte) bool { _, _ = status, body; return false }

// EngineBusy reports whether an engine's answer says that it took nothing because
// its own queue is full, so that another endpoint may be asked.
func EngineBusy(status int, body []byte) bool { _, _ = status, body; return false }
