package llmapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// tap runs a Stream over body in pieces of the size that next returns.
func tap(k Kind, d Dialect, sse bool, body []byte, next func(n int) int) *Stream {
	s := new(Stream)
	s.Reset(k, d, sse)
	for len(body) > 0 {
		n := next(len(body))
		s.Write(body[:n])
		body = body[n:]
	}
	return s
}

func all(n int) int { return n }

// factsOf is everything that a Stream says.
func factsOf(s *Stream) string {
	u, ok := s.Usage()
	msg, code, failed := s.ErrorEvent()
	out := fmt.Sprintf("events=%d tokens=%d first=%v finished=%v done=%v", s.Events(), s.Tokens(), s.FirstToken(), s.Finished(), s.Done())
	if ok {
		out += fmt.Sprintf(" prompt=%d output=%d", u.Prompt, u.Output)
		if u.HasCached {
			out += fmt.Sprintf(" cached=%d", u.Cached)
		}
	}
	if failed {
		out += fmt.Sprintf(" error=%d %.60q", code, msg)
	}
	if s.Aborted() {
		out += " aborted"
	}
	if s.NoChoices() {
		out += " nochoices"
	}
	return out
}

// TestStreamRecordings compares the facts of every recorded answer with a golden
// file, and shows that the chunking makes no difference.
func TestStreamRecordings(t *testing.T) {
	var out strings.Builder
	for _, r := range recordings(t) {
		api, err := Lookup(r.method, r.path)
		if err != nil || r.status == 0 {
			continue
		}
		want := factsOf(tap(api.Kind, api.Dialect, r.sse, r.respBody, all))
		form := "json"
		if r.sse {
			form = "sse"
		}
		fmt.Fprintf(&out, "%s %d %s: %s\n", r.name, r.status, form, want)
		for _, size := range []int{1, 2, 3, 7, 64, 1000} {
			if got := factsOf(tap(api.Kind, api.Dialect, r.sse, r.respBody, func(n int) int { return min(n, size) })); got != want {
				t.Errorf("%s in chunks of %d: %s, want %s", r.name, size, got, want)
			}
		}
	}
	golden(t, "streams.golden", out.String())
}

// TestStreamCutAnywhere: until the last event is complete no prefix of a recorded
// stream counts as finished.
func TestStreamCutAnywhere(t *testing.T) {
	for _, r := range recordings(t) {
		api, err := Lookup(r.method, r.path)
		if err != nil || !r.sse || r.status != 200 {
			continue
		}
		terminal := []byte(`"finish_reason":"`)
		switch api.Kind {
		case Responses:
			terminal = []byte(`response.completed`)
		case Messages:
			terminal = []byte(`"type":"message_stop"`)
		}
		at := bytes.LastIndex(r.respBody, terminal)
		if at < 0 {
			continue
		}
		at += bytes.Index(r.respBody[at:], []byte("\n\n")) + 2
		s := new(Stream)
		s.Reset(api.Kind, api.Dialect, true)
		for i := range r.respBody {
			n := bytes.Count(r.respBody[:i], terminal)
			if s.Finished() && i < at && n < 1 {
				t.Fatalf("%s: finished after %d bytes, the last answer ends at %d", r.name, i, at)
			}
			if i >= at && !s.Finished() {
				t.Fatalf("%s: not finished after %d bytes", r.name, i)
			}
			s.Write(r.respBody[i : i+1])
		}
	}
}

func TestStreamFacts(t *testing.T) {
	chunk := func(s string) string { return "data: " + s + "\n\n" }
	tests := []struct {
		name string
		kind Kind
		sse  bool
		body string
		want string
	}{
		{"role only", Chat, true, chunk(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`),
			"events=1 tokens=0 first=false finished=false done=false"},
		{"content", Chat, true, chunk(`{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}`),
			"events=1 tokens=1 first=true finished=false done=false"},
		{"reasoning", Chat, true, chunk(`{"choices":[{"index":0,"delta":{"reasoning_content":"a"}}]}`),
			"events=1 tokens=1 first=true finished=false done=false"},
		{"tool call", Chat, true, chunk(`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}`),
			"events=1 tokens=1 first=true finished=false done=false"},
		{"one of two answers ended", Chat, true, chunk(`{"choices":[{"index":1,"delta":{"content":"a"}}]}`) + chunk(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`),
			"events=2 tokens=1 first=true finished=false done=false"},
		{"both answers ended", Chat, true, chunk(`{"choices":[{"index":1,"finish_reason":"length"},{"index":0,"finish_reason":"stop"}]}`),
			"events=1 tokens=0 first=true finished=true done=false"},
		{"event cut in the middle", Chat, true, `data: {"choices":[{"index":0,"finish_reason":"stop"}]}` + "\n",
			"events=0 tokens=0 first=false finished=false done=false"},
		{"abort", Chat, true, chunk(`{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}`),
			"events=1 tokens=0 first=true finished=true done=false aborted"},
		{"done without choices", Completions, true, chunk(`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":0}}`) + chunk("[DONE]"),
			"events=2 tokens=0 first=false finished=false done=true prompt=3 output=0 nochoices"},
		{"engine died", Chat, true, "data: {\"error\": {\"message\": \"EngineCore encountered an issue.\", \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}\n\ndata: [DONE]\n\n",
			`events=2 tokens=0 first=false finished=false done=true error=500 "EngineCore encountered an issue."`},
		{"error as string", Chat, false, `{"error":"Unauthorized"}`, `events=1 tokens=0 first=false finished=false done=false error=0 "Unauthorized"`},
		{"flat error", Chat, false, `{"object":"error","message":"no","type":"BadRequestError","param":null,"code":400}`,
			`events=1 tokens=0 first=false finished=false done=false error=400 "no"`},
		{"code as string", Chat, true, chunk(`{"error":{"message":"slow","code":"504"}}`), `events=1 tokens=0 first=false finished=false done=false error=504 "slow"`},
		{"done spellings", Chat, true, "data:[done] \r\n\r\n", "events=1 tokens=0 first=false finished=false done=true nochoices"},
		{"carriage returns, comments, split data", Chat, true,
			"\ufeff: hi\revent: x\rid: 1\rdata:{\"choices\":\rdata:[{\"index\":0,\rdata: \"finish_reason\":\"stop\"}]}\r\r: ping\r\n\r\n",
			"events=1 tokens=0 first=true finished=true done=false"},
		{"garbage between", Chat, true, chunk("{") + chunk("hello") + "nonsense line\n\n" + chunk(`{"choices":[{"finish_reason":"stop"}]}`),
			"events=3 tokens=0 first=true finished=true done=false"},
		{"no empty line", Chat, true, strings.Repeat("data: {}\n", 50), "events=0 tokens=0 first=false finished=false done=false"},
		{"words in the text do not count", Chat, true, chunk(`{"choices":[{"index":0,"delta":{"content":"\"finish_reason\":\"stop\" [DONE]"}}]}`),
			"events=1 tokens=1 first=true finished=false done=false"},
		{"response failed", Responses, true, "event: response.failed\n" + chunk(`{"type":"response.failed","response":{"error":{"code":"server_error","message":"x"}},"sequence_number":4}`),
			`events=1 tokens=0 first=false finished=true done=true error=0 "x"`},
		{"token ids", Generate, true, chunk(`{"usage":null,"choices":[{"index":0,"token_ids":[1,2,3],"finish_reason":null}]}`),
			"events=1 tokens=3 first=true finished=false done=false"},
		{"embeddings", Embeddings, false, `{"object":"list","data":[{"embedding":[0.1,-2e3]}],"usage":{"prompt_tokens":7,"total_tokens":7}}`,
			"events=1 tokens=0 first=false finished=true done=false prompt=7 output=0"},
		{"body cut short", Chat, false, `{"choices":[{"index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":7`,
			"events=0 tokens=0 first=false finished=false done=false"},
		{"transcript in plain text", Audio, false, "hello there", "events=0 tokens=0 first=false finished=false done=false"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := factsOf(tap(tt.kind, OpenAI, tt.sse, []byte(tt.body), all)); got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
			for cut := range len(tt.body) {
				first := true
				got := factsOf(tap(tt.kind, OpenAI, tt.sse, []byte(tt.body), func(n int) int {
					if first && cut > 0 {
						first = false
						return cut
					}
					return n
				}))
				if got != tt.want {
					t.Fatalf("split at %d:\n got %s\nwant %s", cut, got, tt.want)
				}
			}
		})
	}
}

func TestStreamResponseID(t *testing.T) {
	for _, r := range recordings(t) {
		var want string
		switch r.name {
		case "vllm-0.32.0/responses-stream":
			want = "resp_b7ac3b7bc62be7b9"
		case "vllm-0.32.0/responses-nonstream":
			want = "resp_af8c14f142f5fd79"
		default:
			continue
		}
		if got := tap(Responses, OpenAI, r.sse, r.respBody, all).ResponseID(); got != want {
			t.Errorf("%s: id %q, want %q", r.name, got, want)
		}
	}
}

func TestStreamChoice(t *testing.T) {
	for _, tt := range []struct {
		kind Kind
		body string
		want bool
	}{
		{Chat, "data: {\"choices\":[]}\n\ndata: [DONE]\n\n", false},
		{Chat, ": ping\n\n", false},
		{Chat, "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n", true},
		{Responses, "data: {\"type\":\"response.created\"}\n\n", true},
		{Responses, "", false},
	} {
		if got := tap(tt.kind, OpenAI, true, []byte(tt.body), all).Choice(); got != tt.want {
			t.Errorf("%q: %v, want %v", tt.body, got, tt.want)
		}
	}
}

func TestStreamLongLine(t *testing.T) {
	body := []byte(`data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 20<<20) + `"},"finish_reason":"stop"}]}` + "\n\n")
	s := new(Stream)
	s.Reset(Chat, OpenAI, true)
	if n := testing.AllocsPerRun(1, func() {
		for b := body; len(b) > 0; {
			n := min(len(b), 32<<10)
			s.Write(b[:n])
			b = b[n:]
		}
	}); n != 0 {
		t.Errorf("a line of 20 MB allocates %v times", n)
	}
	if !s.Finished() {
		t.Error("not finished")
	}
}

func TestStreamCutEvent(t *testing.T) {
	e := &Error{Status: 504, Reason: ReasonTimeout, Code: "stream_idle_timeout", Message: "no byte for 5m"}
	cut := func(k Kind, d Dialect, body string) string {
		return string(tap(k, d, true, []byte(body), all).CutEvent(e))
	}
	const event = `data: {"error":{"message":"no byte for 5m","type":"timeout_error","param":null,"code":"stream_idle_timeout"}}` + "\n\n"
	tests := []struct{ name, body, want string }{
		{"between events", "data: {}\n\n", event},
		{"before the first", "", event},
		{"in a line", `data: {"a`, "\n\n" + event},
		{"in a field name", `dat`, "\n\n" + event},
		{"behind a line", "data: {}\n", "\n" + event},
		{"behind a comment", ": x\n", "\n" + event},
	}
	for _, tt := range tests {
		if got := cut(Chat, OpenAI, tt.body); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	got := cut(Responses, OpenAI, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\"},\"sequence_number\":7}\n\n")
	for _, want := range []string{`"sequence_number":8`, `"id":"resp_1"`, `"sequence_number":9`, "event: response.failed\n", "event: error\n", `"status":"failed"`} {
		if !strings.Contains(got, want) {
			t.Errorf("responses: %q lacks %q", got, want)
		}
	}
	if got := cut(Messages, Anthropic, ""); got != "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"timeout_error\",\"message\":\"no byte for 5m\"}}\n\n" {
		t.Errorf("messages: %q", got)
	}
	// What was cut and mended fails for the tap of the next hop too.
	s := tap(Chat, OpenAI, true, []byte("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n"+event), all)
	if msg, _, ok := s.ErrorEvent(); !ok || msg != "no byte for 5m" || s.Finished() {
		t.Errorf("the event reads as %q %v", msg, ok)
	}
}

func chatStream(n int) []byte {
	var b bytes.Buffer
	for range n {
		b.WriteString(`data: {"id":"chatcmpl-9449b8fd3baff778","object":"chat.completion.chunk","created":1796193926,"model":"tiny","choices":[{"index":0,"delta":{"content":" the"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n")
	}
	return b.Bytes()
}

func TestStreamAllocatesNothing(t *testing.T) {
	body := chatStream(100)
	s := new(Stream)
	s.Reset(Chat, OpenAI, true)
	if n := testing.AllocsPerRun(20, func() { s.Write(body) }); n != 0 {
		t.Errorf("100 events allocate %v times", n)
	}
}

// BenchmarkStream is the cost of reading one event of a chat stream beside the
// copy. Budget: no allocation, and well under the 19 us of CPU that a proxy in C
// spends on passing the event on.
func BenchmarkStream(b *testing.B) {
	event := chatStream(1)
	s := new(Stream)
	s.Reset(Chat, OpenAI, true)
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		s.Write(event)
	}
}

// strictUsage reads the usage as encoding/json would, of the last event that has one.
func strictUsage(body []byte) (Usage, bool) {
	type usage struct {
		Prompt  *int `json:"prompt_tokens"`
		Output  *int `json:"completion_tokens"`
		Details *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	var out Usage
	found := false
	for _, event := range strings.Split(string(body), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			continue
		}
		var v struct{ Usage *usage }
		if json.Unmarshal([]byte(data), &v) != nil || v.Usage == nil {
			continue
		}
		u := v.Usage
		if u.Prompt != nil {
			out.Prompt, found = *u.Prompt, true
		}
		if u.Output != nil {
			out.Output, found = *u.Output, true
		}
		if u.Details != nil && u.Details.Cached != nil && (u.Prompt != nil || u.Output != nil) {
			out.Cached, out.HasCached = *u.Details.Cached, true
		}
	}
	return out, found
}

func TestStreamUsageEqualsStrictParser(t *testing.T) {
	n := 0
	for _, r := range recordings(t) {
		api, err := Lookup(r.method, r.path)
		if err != nil || !r.sse || (api.Kind != Chat && api.Kind != Completions && api.Kind != Generate) {
			continue
		}
		want, wantOK := strictUsage(r.respBody)
		got, ok := tap(api.Kind, api.Dialect, true, r.respBody, all).Usage()
		if got != want || ok != wantOK {
			t.Errorf("%s: usage %+v %v, want %+v %v", r.name, got, ok, want, wantOK)
		}
		n++
	}
	if n < 10 {
		t.Errorf("compared %d streams", n)
	}
}

func FuzzStream(f *testing.F) {
	for _, r := range recordings(f) {
		if api, err := Lookup(r.method, r.path); err == nil && len(r.respBody) < 4000 {
			f.Add(r.respBody, uint8(api.Kind), r.sse, uint64(1))
		}
	}
	f.Add([]byte("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\ud83d\\ude00\"}}]}\r\rdata:[DONE]\n\n"), uint8(Chat), true, uint64(3))
	f.Fuzz(func(t *testing.T, body []byte, kind uint8, sse bool, seed uint64) {
		k := Kind(kind % uint8(Render+1))
		d := OpenAI
		if k == Messages {
			d = Anthropic
		}
		want := tap(k, d, sse, body, all)
		rnd := rand.New(rand.NewPCG(seed, 1))
		got := tap(k, d, sse, body, func(n int) int { return 1 + rnd.IntN(min(n, 1+int(seed%50))) })
		if factsOf(got) != factsOf(want) {
			t.Fatalf("split:\n%s\nwhole:\n%s", factsOf(got), factsOf(want))
		}
		// A number at the top has no end of its own.
		if isContainer := bytes.ContainsAny(body, "{["); !sse && isContainer && json.Valid(body) && !want.lx.complete() {
			t.Fatal("a valid JSON value was not read to its end")
		}
		if u, ok := want.Usage(); ok && (u.Prompt < 0 || u.Output < 0 || u.Cached < 0) {
			t.Fatalf("negative usage %+v", u)
		}
	})
}
