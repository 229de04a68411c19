package llmapi

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strconv"
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

// TestIsContextLength: the wordings of every engine, and those that look like them. The proxy's test reads the same file.
func TestIsContextLength(t *testing.T) {
	raw, err := os.ReadFile("testdata/refusals.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(raw)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		if len(parts) != 3 {
			continue
		}
		n++
		status, err := strconv.Atoi(parts[1])
		if got := IsContextLength(status, []byte(parts[2])); err != nil || got != (parts[0] == "long") {
			t.Errorf("%s: context-length refusal %v", line, got)
		}
		if IsContextLength(404, []byte(parts[2])) || IsContextLength(503, []byte(parts[2])) {
			t.Errorf("%s: the status must count", line)
		}
	}
	if n < 35 {
		t.Errorf("%d wordings", n)
	}
}

// TestTooLong: whatever the engine said, clients find a phrase and a code that they know, and the engine's own words.
func TestTooLong(t *testing.T) {
	for _, tt := range []struct {
		path, words string
		window      int
		want        string
	}{
		{chatPath, "This model's maximum context length is 9 tokens. However, ...", 9, `{"error":{"message":"This model's maximum context length is 9 tokens. However, ...","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`},
		{complPath, "The decoder prompt (length 9000) is longer than the maximum model length of 8192.", 8192, `{"error":{"message":"This model's maximum context length is 8192 tokens: The decoder prompt (length 9000) is longer than the maximum model length of 8192.","type":"invalid_request_error","param":"prompt","code":"context_length_exceeded"}}`},
		{respPath, "", 0, `{"error":{"message":"This model's maximum context length is exceeded","type":"invalid_request_error","param":"input","code":"context_length_exceeded"}}`},
		{msgPath, "your prompt contains 9000 input tokens", 8192, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9000 tokens \u003e 8192 maximum: your prompt contains 9000 input tokens"}}`},
		{msgPath, "prompt is too long: 9 tokens", 8, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens"}}`},
		{msgPath, "no numbers", 0, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: no numbers"}}`},
	} {
		api := apiOf(t, tt.path)
		if got := string(TooLong(tt.words, tt.window, api).Body(api.Dialect)); got != tt.want {
			t.Errorf("%s\n got %s\nwant %s", tt.path, got, tt.want)
		}
	}
	if got := string(TooLong("x", 5, API{Kind: Responses}).Event(Responses, OpenAI)); strings.Count(got, codeTooLong) != 2 {
		t.Errorf("a Responses stream is told %s", got)
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

// TestReasonsAreDocumented: whoever has a reason in hand finds it in the page that says what to do.
func TestReasonsAreDocumented(t *testing.T) {
	code, err := os.ReadFile("error.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`(?m)^\tReason\w+\s+= "(\w+)"`).FindAllStringSubmatch(string(code), -1)
	if len(reasons) < 10 {
		t.Fatalf("only %d reasons found in error.go", len(reasons))
	}
	_, table, _ := strings.Cut(string(page), "## Answers that are the gateway's own")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, r := range reasons {
		if !strings.Contains(table, "`"+r[1]+"`") {
			t.Errorf("docs/operations.md does not say what reason %s means", r[1])
		}
	}
}
