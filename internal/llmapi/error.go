package llmapi

import (
	"encoding/json"
	"net/http"
	"time"
)

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
	ReasonQueueFull        = "queue_full"
	ReasonQueueTimeout     = "queue_timeout"
	ReasonTimeout          = "timeout"
	ReasonUpstreamError    = "upstream_error"
	ReasonCut              = "cut"
	ReasonShutdown         = "shutdown"
	ReasonInternal         = "internal"
)

// An Error is a refusal or a failure as the client is told of it.
type Error struct {
	Status  int    // HTTP status; 0: in a stream whose head said 200
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

type openAIError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

type anthropicError struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// Body returns the JSON body in the dialect: OpenAI's error object, with param
// null when there is none, or Anthropic's with the type that its table gives for
// the status.
func (e *Error) Body(d Dialect) []byte {
	if d == Anthropic {
		return marshal(struct {
			Type  string         `json:"type"`
			Error anthropicError `json:"error"`
		}{"error", anthropicError{e.anthropicType(), e.Message}})
	}
	return marshal(struct {
		Error openAIError `json:"error"`
	}{e.openAI()})
}

// Event returns the server-sent event, or events, that tell a client of kind k
// that its stream was cut. No finish reason and no [DONE] follow. Chat and
// completions clients take any data frame with an error object for a failure; of
// the Responses clients some act on response.failed only and some on error only,
// so they get both.
func (e *Error) Event(k Kind, d Dialect) []byte { return e.event(k, d, "", 0) }

// event is Event with what a Responses stream was seen to be.
func (e *Error) event(k Kind, d Dialect, responseID string, sequence int) []byte {
	switch {
	case d == Anthropic:
		return frame("error", e.Body(Anthropic))
	case k == Responses || k == Response:
		return append(e.responseFailed(responseID, sequence), e.responseError(sequence+1)...)
	}
	return frame("", e.Body(OpenAI))
}

type responseFailure struct {
	ID                string         `json:"id"`
	Object            string         `json:"object"`
	Status            string         `json:"status"`
	Error             map[string]any `json:"error"`
	IncompleteDetails any            `json:"incomplete_details"`
	Output            []any          `json:"output"`
}

func (e *Error) responseFailed(id string, sequence int) []byte {
	return frame("response.failed", marshal(struct {
		Type           string          `json:"type"`
		SequenceNumber int             `json:"sequence_number"`
		Response       responseFailure `json:"response"`
	}{"response.failed", sequence, responseFailure{
		ID: id, Object: "response", Status: "failed", Output: []any{},
		Error: map[string]any{"code": e.responseCode(), "message": e.Message},
	}}))
}

func (e *Error) responseError(sequence int) []byte {
	return frame("error", marshal(struct {
		Type           string  `json:"type"`
		Code           string  `json:"code"`
		Message        string  `json:"message"`
		Param          *string `json:"param"`
		SequenceNumber int     `json:"sequence_number"`
	}{"error", e.responseCode(), e.Message, nil, sequence}))
}

// responseCode is one of the few codes that Responses clients know.
func (e *Error) responseCode() string {
	switch {
	case e.Status == http.StatusTooManyRequests:
		return "rate_limit_exceeded"
	case e.Code == codeTooLong:
		return codeTooLong
	}
	return "server_error"
}

func (e *Error) openAI() openAIError {
	o := openAIError{Message: e.Message, Type: e.Type, Code: e.Code}
	if o.Type == "" {
		o.Type = openAIType(e.Status)
	}
	if o.Code == "" {
		o.Code = e.Reason
	}
	if e.Param != "" {
		o.Param = &e.Param
	}
	return o
}

func openAIType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status >= 500 || status == 0 {
		return "server_error"
	}
	return "invalid_request_error"
}

// anthropicType follows the table of Anthropic's API reference. A wrong type
// misleads clients: on invalid_request_error some drop the conversation's history.
func (e *Error) anthropicType() string {
	switch e.Status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, 529:
		return "overloaded_error"
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if e.Status >= 500 || e.Status == 0 {
		return "api_error"
	}
	return "invalid_request_error"
}

// frame makes one server-sent event. data has no line break: it is compact JSON.
func frame(name string, data []byte) []byte {
	out := make([]byte, 0, len(data)+len(name)+24)
	if name != "" {
		out = append(append(append(out, "event: "...), name...), '\n')
	}
	return append(append(append(out, "data: "...), data...), '\n', '\n')
}

// marshal encodes values that are strings and numbers all through, which cannot
// fail.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal"}}`)
	}
	return b
}
