package llmapi

import (
	"bytes"
	"net/http"
)

// maxRefusal bounds how much of an engine's answer is looked at.
const maxRefusal = 16 << 10

// contextPhrases are the wordings of context-length refusals, lower case; a row
// matches when all its parts occur. With the engine and version where each is
// found; the list must not match other refusals of the same status. SGLang's
// "Input length ... exceeds the maximum allowed length" is none of them: it is
// about the memory of that engine, not about the window.
var contextPhrases = [...][2]string{
	{"maximum context length", ""},                       // vLLM all versions, SGLang, OpenAI chat, OpenRouter
	{"longer than the maximum model length", ""},         // vLLM engine check, multimodal
	{"too long to fit into the model", ""},               // vLLM older
	{"cannot be greater than max_model_len", ""},         // vLLM 0.32, output limit alone over the window
	{"longer than the model's context length", ""},       // SGLang
	{"`inputs` tokens + `max_new_tokens` must be", ""},   // TGI
	{"`inputs` must have less than", "tokens"},           // TGI
	{"should not exceed max_num_tokens", ""},             // TensorRT-LLM
	{"prompt length", "exceeds maximum sequence length"}, // TensorRT-LLM behind Triton
	{"prompt length", "exceeds maximum input length"},    // same
	{"exceeds the available context size", ""},           // llama.cpp
	{"exceed_context_size_error", ""},                    // llama.cpp, type
	{"context_length_exceeded", ""},                      // OpenAI, code
	{"exceeds the context window", ""},                   // OpenAI Responses
	{"greater than the context length", ""},              // LM Studio
	{"context length of only", ""},                       // LM Studio, older
	{"input tokens exceed the configured limit", ""},     // OpenAI Responses
	{"exceed context limit", ""},                         // Anthropic
	{"prompt is too long:", "maximum"},                   // Anthropic
	{"maximum context limit", ""},                        // Bedrock and others
	{"exceeds the maximum number of tokens allowed", ""}, // Vertex
}

// IsContextLength reports whether an engine's answer says that the request does
// not fit into the model's window. body may be a prefix of the answer, or the
// message of an error event, whose status is 200. See RefusedForLength for the one
// wording that depends on the request.
func IsContextLength(status int, body []byte) bool {
	switch status {
	case http.StatusOK, http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity, http.StatusInternalServerError:
	default:
		return false
	}
	text := lower(body)
	if bytes.Contains(text, []byte("'loc'")) || bytes.Contains(text, []byte(`"loc"`)) {
		return false // a schema error, which may quote any words of the prompt
	}
	for _, p := range contextPhrases {
		if bytes.Contains(text, []byte(p[0])) && bytes.Contains(text, []byte(p[1])) {
			return true
		}
	}
	return false
}

// RefusedForLength is IsContextLength for an answer to r. A vLLM whose window the
// prompt fills exactly complains of max_tokens 0, in the words that it also has for
// a client that asked for 0.
func RefusedForLength(status int, body []byte, r *Request) bool {
	if IsContextLength(status, body) {
		return true
	}
	return status == http.StatusBadRequest && !r.BadMaxTokens &&
		bytes.Contains(lower(body), []byte("max_tokens must be at least 1, got 0"))
}

// Drainish reports whether an engine's answer says that it is shutting down: vLLM
// 0.32 with --shutdown-timeout refuses so while its /health is still 200.
func Drainish(status int, body []byte) bool {
	return status >= 500 && bytes.Contains(lower(body), []byte("cannot schedule new futures after shutdown"))
}

// busyPhrases are the answers of engines that took nothing of a request.
var busyPhrases = [...]string{
	"the engine is currently busy",                     // vLLM --max-num-queued-reqs
	"the engine has reached its prefill token backlog", // vLLM --max-num-queued-tokens
	"the model is currently scaling",                   // vLLM elastic expert parallelism
	"queue is full",                                    // SGLang
	"model is overloaded",                              // TGI
	"loading model",                                    // llama.cpp
}

// EngineBusy reports whether an engine's answer says that it took nothing because
// its own queue is full or it is not ready, so that another endpoint may be asked.
func EngineBusy(status int, body []byte) bool {
	if status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
		return false
	}
	text := lower(body)
	for _, p := range busyPhrases {
		if bytes.Contains(text, []byte(p)) {
			return true
		}
	}
	return false
}

func lower(body []byte) []byte { return bytes.ToLower(body[:min(len(body), maxRefusal)]) }
