package llmapi

import (
	"fmt"
	"net/http"
	"strings"
)

// knownWords are the phrases by which clients in the field, LiteLLM's list before all, know that a prompt is too long. Newer clients know the
// code as well.
var knownWords = [...]string{
	"this model's maximum context length is", "is longer than the model's context length", "exceed context limit", "model's maximum context limit",
	"input tokens exceed the configured limit", "`inputs` tokens + `max_new_tokens` must be", "exceeds the available context size",
	"exceeds the maximum number of tokens allowed",
}

// TooLong is what the client of an API is told when no pool takes its request, whose last engine refused it for length in these
// words ("" if none could be read) under a window of so many tokens (0: unknown). Engines differ in status, shape and words; clients
// look for the code or for phrases of OpenAI's, or of Anthropic's.
func TooLong(words string, window int, api API) *Error {
	e := &Error{Status: http.StatusBadRequest, Reason: ReasonTooLong, Type: "invalid_request_error", Code: codeTooLong, Param: "messages", Message: words}
	switch api.Kind {
	case Completions:
		e.Param = "prompt"
	case Responses, Embeddings, Pooling, Classify:
		e.Param = "input"
	}
	lead, known := "This model's maximum context length is exceeded", knownWords[:]
	if window > 0 {
		lead = fmt.Sprintf("This model's maximum context length is %d tokens", window)
	}
	if api.Dialect == Anthropic {
		lead, known = "prompt is too long", []string{"prompt is too long", "exceed context limit"}
		if n := tokensIn(words); window > 0 && n > window {
			lead = fmt.Sprintf("prompt is too long: %d tokens > %d maximum", n, window)
		}
	}
	text := strings.ToLower(words)
	for _, k := range known {
		if strings.Contains(text, k) {
			return e
		}
	}
	if e.Message = lead; words != "" {
		e.Message += ": " + words
	}
	return e
}

const codeTooLong = "context_length_exceeded"

// tokensIn returns the largest number of tokens that an engine's words name, 0 for none.
func tokensIn(words string) (most int) {
	n, digits := 0, false
	for i := range len(words) {
		if c := words[i]; c >= '0' && c <= '9' && n < 1<<40 {
			if !digits {
				n = 0
			}
			n, digits = n*10+int(c-'0'), true
			continue
		}
		if rest := words[i:]; digits && (strings.HasPrefix(rest, " token") || strings.HasPrefix(rest, " input token")) {
			most = max(most, n)
		}
		digits = false
	}
	return most
}
