package llmapi

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestErrorBody(t *testing.T) {
	e := &Error{Status: 404, Reason: ReasonUnknownModel, Code: "model_not_found", Param: "model", Message: `no "x"`}
	if got, want := string(e.Body(OpenAI)), `{"error":{"message":"no \"x\"","type":"invalid_request_error","param":"model","code":"model_not_found"}}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := string(e.Body(Anthropic)), `{"type":"error","error":{"type":"not_found_error","message":"no \"x\""}}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	e = &Error{Status: 503, Reason: ReasonNoEndpoint, Type: "own_type", Message: "x"}
	if got, want := string(e.Body(OpenAI)), `{"error":{"message":"x","type":"own_type","param":null,"code":"no_endpoint"}}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestErrorTypes(t *testing.T) {
	tests := []struct {
		status            int
		openAI, anthropic string
	}{
		{400, "invalid_request_error", "invalid_request_error"}, {401, "authentication_error", "authentication_error"},
		{403, "permission_error", "permission_error"}, {404, "invalid_request_error", "not_found_error"}, {405, "invalid_request_error", "invalid_request_error"},
		{413, "invalid_request_error", "request_too_large"}, {429, "rate_limit_error", "rate_limit_error"}, {500, "server_error", "api_error"},
		{502, "server_error", "api_error"}, {503, "server_error", "overloaded_error"}, {504, "timeout_error", "timeout_error"}, {529, "server_error", "overloaded_error"},
	}
	for _, tt := range tests {
		e := &Error{Status: tt.status, Message: "m"}
		if got := openAIType(tt.status); got != tt.openAI {
			t.Errorf("%d: OpenAI type %s, want %s", tt.status, got, tt.openAI)
		}
		if got := e.anthropicType(); got != tt.anthropic {
			t.Errorf("%d: Anthropic type %s, want %s", tt.status, got, tt.anthropic)
		}
	}
}

// TestErrorShapesAreTheEngines: the keys of our bodies are those that the recorded
// engine answers have, so a client needs one parser.
func TestErrorShapesAreTheEngines(t *testing.T) {
	n := 0
	for _, r := range recordings(t) {
		api, err := Lookup(r.method, r.path)
		if err != nil || r.status < 400 || !strings.HasPrefix(r.name, "vllm-0.32.0/") || !bytes.Contains(r.respBody, []byte(`"message"`)) {
			continue
		}
		d := OpenAI
		if bytes.HasPrefix(r.respBody, []byte(`{"type":"error"`)) {
			d = Anthropic
		}
		ours := (&Error{Status: r.status, Message: "m"}).Body(d)
		if d := cmp.Diff(keys(t, r.respBody), keys(t, ours)); d != "" {
			t.Errorf("%s (%s): %s", r.name, api.Path, d)
		}
		n++
	}
	if n < 30 {
		t.Errorf("compared %d answers", n)
	}
}

func keys(t *testing.T, body []byte) []string {
	t.Helper()
	var v map[string]json.RawMessage
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	var out []string
	for k, raw := range v {
		out = append(out, k)
		var inner map[string]json.RawMessage
		if json.Unmarshal(raw, &inner) == nil {
			for i := range inner {
				out = append(out, k+"."+i)
			}
		}
	}
	slices.Sort(out)
	return out
}

func TestErrorEvent(t *testing.T) {
	e := &Error{Status: 502, Reason: ReasonCut, Message: "cut\nshort"}
	tests := []struct {
		kind    Kind
		dialect Dialect
		want    string
	}{
		{Chat, OpenAI, "data: {\"error\":{\"message\":\"cut\\nshort\",\"type\":\"server_error\",\"param\":null,\"code\":\"cut\"}}\n\n"},
		{Messages, Anthropic, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"cut\\nshort\"}}\n\n"},
		{Responses, OpenAI, "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":0,\"response\":{\"id\":\"\",\"object\":\"response\",\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"cut\\nshort\"},\"incomplete_details\":null,\"output\":[]}}\n\n" +
			"event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"cut\\nshort\",\"param\":null,\"sequence_number\":1}\n\n"},
	}
	for _, tt := range tests {
		got := string(e.Event(tt.kind, tt.dialect))
		if got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
		if strings.Contains(got, "[DONE]") || strings.Contains(got, "finish_reason") {
			t.Error("a cut stream must not look complete")
		}
	}
}

// A stream that broke has no status of its own, and it is never the client's fault.
func TestErrorEventWithoutStatus(t *testing.T) {
	e := &Error{Reason: ReasonCut, Code: "upstream_reset", Message: "broke"}
	for _, tt := range []struct {
		kind    Kind
		dialect Dialect
		want    string
	}{
		{Chat, OpenAI, `"type":"server_error"`},
		{Messages, Anthropic, `"type":"api_error"`},
	} {
		if got := string(e.Event(tt.kind, tt.dialect)); !strings.Contains(got, tt.want) {
			t.Errorf("%s: want %s", got, tt.want)
		}
	}
}

func TestNearMiss(t *testing.T) {
	known := []string{"Org/Model-1.5", "tiny", "llama-3.1-8b-instruct", "qwen3-32b"}
	for name, want := range map[string]string{
		"org/model-1.5": "Org/Model-1.5", "Model-1.5": "Org/Model-1.5", "Other/Model-1.5": "Org/Model-1.5", "tinny": "tiny", "tniy": "tiny", "tin": "tiny",
		"llama-3.1-8b": "", "llama-31-8b-instruct": "llama-3.1-8b-instruct", "qwen3-32B": "qwen3-32b", "gpt-4o": "", "": "", "x": "", strings.Repeat("t", 5000): "",
	} {
		if got := NearMiss(name, known); got != want {
			t.Errorf("%.20q: %q, want %q", name, got, want)
		}
	}
}

// wordings are the context-length refusals of the engines, by status.
var wordings = []struct {
	status int
	body   string
}{
	{400, `{"object":"error","message":"This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in the messages, 10000 in the completion). Please reduce the length of the messages or completion.","type":"BadRequestError","param":null,"code":400}`},
	{400, `{"object":"error","message":"This model's maximum context length is 2048 tokens. However, you requested 5013 tokens in the messages, Please reduce the length of the messages. None","type":"BadRequestError","param":null,"code":400}`},
	{400, `{"error":{"message":"'max_tokens' or 'max_completion_tokens' is too large: 500. This model's maximum context length is 2048 tokens and your request has 1900 input tokens (500 > 2048 - 1900).","type":"BadRequestError","param":null,"code":400}}`},
	{400, `{"error":{"message":"This model's maximum context length is 4096 tokens. However, your request has 8000 input tokens. Please reduce the length of the input messages. (parameter=input_tokens, value=8000)","param":"input_tokens"}}`},
	{400, `{"error":{"message":"This model's maximum context length is 2048 tokens. However, your prompt contains 200000 characters (more than 51200 characters, which is the upper bound for 2048 input tokens).","param":"input_text"}}`},
	{400, "The decoder prompt (length 9000) is longer than the maximum model length of 8192. Make sure that `max_model_len` is no smaller than the number of text tokens"},
	{400, "The prompt (length 9000) plus the number of requested output tokens (at least 1) is longer than the maximum model length of 9000"},
	{400, "The prompt (total length 9000) is too long to fit into the model (context length 8192)"},
	{400, `{"error":{"message":"max_completion_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer output tokens."}}`},
	{400, `{"object":"error","message":"The input (9000 tokens) is longer than the model's context length (8192 tokens).","type":"BadRequestError","param":null,"code":400}`},
	{200, `The input (9000 tokens) is longer than the model's context length (8192 tokens).`},
	{400, "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 9000"},
	{400, "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens"},
	{422, "{\"error\":\"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 500 `max_new_tokens`\",\"error_type\":\"validation\"}"},
	{422, "{\"error\":\"Input validation error: `inputs` must have less than 4096 tokens. Given: 5000\",\"error_type\":\"validation\"}"},
	{400, `{"object":"error","message":"The sum of prompt length (50849.0), query length (0) should not exceed max_num_tokens (32768)","type":"BadRequestError"}`},
	{500, "Prompt length (5056) exceeds maximum sequence length (2048)"},
	{500, "Prompt length (5056) exceeds maximum input length (2048)"},
	{400, `{"error":{"code":400,"message":"the request exceeds the available context size. try increasing the context size or enable context shift","type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":8192}}`},
	{500, "request (67374 tokens) exceeds the available context size (65536 tokens), try increasing it"},
	{400, `{"error":{"message":"This model's maximum context length is 128000 tokens. However, your messages resulted in 150000 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`},
	{400, "Your input exceeds the context window of this model. Please adjust your input and try again."},
	{400, "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens."},
	{400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again"},
	{400, "prompt is too long: 210000 tokens > 200000 maximum"},
	{400, "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 tokens"},
}

func TestIsContextLength(t *testing.T) {
	for _, w := range wordings {
		if !IsContextLength(w.status, []byte(w.body)) {
			t.Errorf("%d %s: not seen as a context-length refusal", w.status, w.body)
		}
		if IsContextLength(404, []byte(w.body)) || IsContextLength(503, []byte(w.body)) {
			t.Errorf("%s: the status must count", w.body)
		}
	}
	controls := []struct {
		status int
		body   string
	}{
		{400, `{"error":{"message":"temperature must be non-negative, got -1.0."}}`}, {400, `{"error":{"message":"n must be at least 1, got 0."}}`},
		{400, `{"error":{"message":"max_tokens must be at least 1, got -1."}}`}, {413, `{"error":{"message":"Request exceeds the maximum size","type":"request_too_large"}}`},
		{400, `{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': ('body', 'x'), 'input': {'content': 'what is the maximum context length'}}"}}`},
		{400, `Requested sample logprobs of 99, which is greater than max allowed: 20`}, {400, `string too long. Expected a string with maximum length 64`},
		{400, `Input length (700001 tokens) exceeds the maximum allowed length (536826 tokens). Use a shorter input or enable --allow-auto-truncate.`}, // KV memory
		{422, `Input validation error: best_of must be > 0`}, {500, `cannot schedule new futures after shutdown`}, {400, ``},
	}
	for _, c := range controls {
		if IsContextLength(c.status, []byte(c.body)) {
			t.Errorf("%d %s: seen as a context-length refusal", c.status, c.body)
		}
	}
}

// TestRefusalsRecorded classifies every recorded refusal by the name that its
// recording has.
func TestRefusalsRecorded(t *testing.T) {
	for _, r := range recordings(t) {
		if r.status < 400 {
			continue
		}
		q := &Request{BadMaxTokens: strings.Contains(r.name, "max-tokens-0") || strings.Contains(r.name, "max-tokens-negative")}
		long := strings.Contains(r.name, "too-long") || strings.Contains(r.name, "text-huge") || strings.Contains(r.name, "exactly-max-len")
		if got := RefusedForLength(r.status, r.respBody, q); got != long {
			t.Errorf("%s: refused for length %v, want %v: %s", r.name, got, long, r.respBody)
		}
		drain := strings.Contains(r.name, "/drain/") && r.status == 500
		if got := Drainish(r.status, r.respBody); got != drain {
			t.Errorf("%s: drain %v, want %v", r.name, got, drain)
		}
		busy := strings.Contains(r.name, "503-max-num-queued")
		if got := EngineBusy(r.status, r.respBody); got != busy {
			t.Errorf("%s: busy %v, want %v", r.name, got, busy)
		}
	}
}

func TestEngineBusyOthers(t *testing.T) {
	for _, tt := range []struct {
		status int
		body   string
		want   bool
	}{
		{503, `{"error":"The model is currently scaling. Please try again later."}`, true},
		{429, `{"error":"Model is overloaded","error_type":"overloaded"}`, true},
		{503, `{"object":"error","message":"The request queue is full.","code":503}`, true},
		{503, `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`, true},
		{503, `upstream connect error`, false},
		{429, `{"error":{"message":"Rate limit reached for your organization"}}`, false},
		{500, `The engine is currently busy and cannot accept new requests.`, false},
	} {
		if got := EngineBusy(tt.status, []byte(tt.body)); got != tt.want {
			t.Errorf("%d %s: %v, want %v", tt.status, tt.body, got, tt.want)
		}
	}
}
