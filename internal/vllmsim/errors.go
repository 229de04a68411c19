package vllmsim

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// apiError is an answer that is not 200. Its texts are those of the recorded servers.
type apiError struct {
	status  int
	kind    string // error type on the wire: BadRequestError, "Bad Request", NotFoundError ...
	param   string // name of the field; "" = null
	named   bool   // newer servers append "(parameter=<param>, value=<value>)" to the message
	value   string // "" = "(parameter=<param>)" alone
	message string
	schema  bool // found before the route's own code: OpenAI shape on every route
	bare    bool // sent by the outermost handler: no vary and no x-request-id
}

func (e *apiError) Error() string { return e.message }

// body renders e as the given age and dialect of the API does.
func (e *apiError) body(old, anthropic bool) []byte {
	msg := e.message
	switch {
	case e.schema && old:
		if text, ok := strings.CutPrefix(msg, "1 validation error:\n  "); ok {
			msg = ` ["` + text + `"]`
		}
	case !old && e.named && e.value != "":
		msg += " (parameter=" + e.param + ", value=" + e.value + ")"
	case !old && e.named:
		msg += " (parameter=" + e.param + ")"
	}
	var b []byte
	switch {
	case old:
		b = append(b, `{"object":"error","message":`...)
		b = appendJSONString(b, msg)
		b = append(b, `,"type":`...)
		b = appendJSONString(b, e.kind)
		b = append(b, `,"param":null,"code":`...)
		b = strconv.AppendInt(b, int64(e.status), 10)
		return append(b, '}')
	case anthropic && !e.schema:
		b = append(b, `{"type":"error","error":{"type":`...)
		b = appendJSONString(b, e.kind)
		b = append(b, `,"message":`...)
		b = appendJSONString(b, msg)
		return append(b, "}}"...)
	}
	b = append(b, `{"error":{"message":`...)
	b = appendJSONString(b, msg)
	b = append(b, `,"type":`...)
	b = appendJSONString(b, e.kind)
	b = append(b, `,"param":`...)
	if e.param == "" {
		b = append(b, "null"...)
	} else {
		b = appendJSONString(b, e.param)
	}
	b = append(b, `,"code":`...)
	b = strconv.AppendInt(b, int64(e.status), 10)
	return append(b, "}}"...)
}

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "BadRequestError", param: param, named: param != "", message: fmt.Sprintf(format, args...)}
}

func errMinTokens(got int) *apiError {
	e := badRequest("max_tokens", "max_tokens must be at least 1, got %d.", got)
	e.value = strconv.Itoa(got)
	return e
}

func (s *Server) errUnknownModel(name string) *apiError {
	msg := "The model `" + name + "` does not exist."
	if !s.old() {
		msg += " Valid aliases: " + strings.Join(s.cfg.Model, ", ") + "."
	}
	return &apiError{status: http.StatusNotFound, kind: "NotFoundError", param: "model", message: msg}
}

func errUnknownResponse(id string) *apiError {
	return &apiError{status: http.StatusNotFound, kind: "invalid_request_error", param: "response_id",
		message: "Response with id '" + id + "' not found."}
}

func errScaleOut() *apiError {
	return &apiError{status: http.StatusForbidden, kind: "PermissionDeniedError",
		message: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."}
}

func errQueueFull() *apiError {
	return &apiError{status: http.StatusServiceUnavailable, kind: "Service Unavailable",
		message: "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."}
}

func errBacklog() *apiError {
	return &apiError{status: http.StatusServiceUnavailable, kind: "Service Unavailable",
		message: "The engine has reached its prefill token backlog limit. Please try again later or on a different instance."}
}

// engineDeadText is the message of every answer after the engine process has died.
const engineDeadText = "EngineCore encountered an issue. See stack trace (above) for the root cause."

func errEngineDead() *apiError {
	return &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: engineDeadText}
}

// errShutdown is the answer to text requests while a drain runs; on the OpenAI routes the outermost handler sends it.
func errShutdown(anthropic bool) *apiError {
	return &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", bare: !anthropic,
		message: "cannot schedule new futures after shutdown"}
}

// errTooLong refuses a prompt that leaves no room. got is the token count of the prompt; atLeast says that the tokenizer
// stopped counting there, as it does for text.
func (s *Server) errTooLong(got, maxTokens int, atLeast bool, chat bool) *apiError {
	limit := s.cfg.MaxModelLen
	if s.old() {
		if chat {
			return badRequest("", "This model's maximum context length is %d tokens. However, you requested %d tokens in the messages, "+
				"Please reduce the length of the messages. None", limit, got)
		}
		return s.errOldSum(got, maxTokens, false)
	}
	prefix := ""
	if atLeast {
		prefix, got = "at least ", limit+1
	}
	e := badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains %s%d input tokens, "+
		"which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.", limit, prefix, got)
	e.value = strconv.Itoa(got)
	return e
}

// errOldSum is the refusal of prompt plus max_tokens that servers up to 0.10 send; newer ones clamp.
func (s *Server) errOldSum(prompt, maxTokens int, chat bool) *apiError {
	tail := ""
	if chat {
		tail = " None"
	}
	return badRequest("", "This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the messages, %d in "+
		"the completion). Please reduce the length of the messages or completion.%s", s.cfg.MaxModelLen, prompt+maxTokens, prompt, maxTokens, tail)
}

// charsPerToken is the bound above which the server refuses a text without tokenizing it.
const charsPerToken = 25

func (s *Server) errTooManyChars(chars int) *apiError {
	limit := s.cfg.MaxModelLen
	e := badRequest("input_text", "This model's maximum context length is %d tokens. However, your prompt contains %d characters (more than "+
		"%d characters, which is the upper bound for %d input tokens). Please reduce the length of the input prompt.",
		limit, chars, limit*charsPerToken, limit)
	e.value = strconv.Itoa(chars)
	return e
}

func (s *Server) errMaxTokens(field string, got int) *apiError {
	e := badRequest(field, "%s=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", field, got, s.cfg.MaxModelLen)
	e.value = strconv.Itoa(got)
	return e
}
