package llmapi

import (
	"encoding/json"
	"path"
	"runtime"
	"strings"
	"testing"
)

func TestStreamEvents(t *testing.T) {
	const (
		role  = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
		hello = `data: {"choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":null}]}` + "\n\n"
		stop  = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
		end   = "data: [DONE]\n\n"
		whole = hello + stop + end
		told  = "events=3 tokens=1 first finished done"
	)
	for _, c := range []struct{ name, body, want string }{
		{"whole", whole, told},
		{"role only", role, "events=1 tokens=0"},
		{"cr", strings.ReplaceAll(whole, "\n", "\r"), told},
		{"crlf", strings.ReplaceAll(whole, "\n", "\r\n"), told},
		{"no space", strings.ReplaceAll(whole, "data: ", "data:"), told},
		{"two spaces", strings.ReplaceAll(whole, "data: ", "data:  "), told},
		{"byte order mark", "\xef\xbb\xbf" + whole, told},
		{"byte order mark in the middle", hello + "\xef\xbb\xbf" + stop + end, "events=2 tokens=1 first done"},
		{"no blank line at the end", hello + stop + "data: [DONE]", told},
		{"no blank line at all", strings.ReplaceAll(role+whole, "\n\n", "\n"), "events=4 tokens=1 first finished done"},
		{"no blank line at all, cr", strings.ReplaceAll(role+whole, "\n\n", "\r"), "events=4 tokens=1 first finished done"},
		{"no blank line at all, cut", strings.ReplaceAll(hello+hello, "\n\n", "\n"), "events=2 tokens=2 first"},
		{"no blank line after the finish", hello + strings.TrimRight(stop, "\n"), "events=2 tokens=1 first finished"},
		{"cut before the last brace", hello + strings.TrimRight(stop, "}\n"), "events=1 tokens=1 first"},
		{"comments", ": ping\n\n" + hello + ":\n: ping\n" + stop + ": x\n\n" + end, told},
		{"id and retry", "id: 7\nretry: 10\n" + hello + "id\n" + stop + "unknown: data: [DONE]\n\n" + end, told},
		{"data in several lines", strings.ReplaceAll(whole, `"choices":`, "\"choices\":\ndata: "), told},
		{"line break in a string", strings.ReplaceAll(whole, "hello", "hel\ndata: lo"), told},
		{"not utf-8, and control characters", strings.ReplaceAll(whole, "hello", "\xff\x01\xc3"), told},
		{"done in lower case", hello + stop + "data:[done]\n\n", told},
		{"done and more", hello + stop + "data: [DONE] bye\n\n", told},
		{"done in a text", strings.ReplaceAll(hello, "hello", `\n\ndata: [DONE]`), "events=1 tokens=1 first"},
		{"an array is not done", "data: [ DONE]\n\ndata: [1]\n\n", "events=2 tokens=0"},
		{"everything at once", "\ufeff: hi\revent: x\rid: 1\rdata:{\"choices\":\rdata:[{\"index\":0,\rdata: \"finish_reason\":\"stop\"}]}\r\r: ping\r\n\r\n", "events=1 tokens=0 first finished"},
		{"garbage between", "data: {\n\ndata: hello\n\nnonsense line\n\n" + stop, "events=3 tokens=0 first finished"},
		{"not json", "data: hello\n\ndata: {\"choices\":[{\"finish_reason\":\"stop\"]}\n\ndata\n\n", "events=3 tokens=0"},
		{"keys inside of a text", `data: {"choices":[{"index":0,"delta":{"content":"\",\"finish_reason\":\"stop\",\"usage\":{\"prompt_tokens\":1},\"error\":{\"x\":1}"},"finish_reason":null}]}` + "\n\n",
			"events=1 tokens=1 first"},
		{"keys at other places", `data: {"x":{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1}},"choices":{"finish_reason":"stop"},"y":[{"error":{"a":1}}],"error":null}` + "\n\n",
			"events=1 tokens=0"},
		{"keys with escapes", `data: {"ch\u006fices":[{"fi\u006eish_reason":"\u0061bort","d\u0065lta":{}}]}` + "\n\n", "events=1 tokens=0 first finished aborted"},
		{"tool call", `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}}]}` + "\n\n", "events=1 tokens=1 first"},
		{"no tool call", `data: {"choices":[{"delta":{"tool_calls":[],"content":null}}]}` + "\n\n", "events=1 tokens=0"},
		{"reasoning", `data: {"choices":[{"delta":{"content":null,"reasoning":"hm"}}]}` + "\n\n", "events=1 tokens=1 first"},
		{"two choices, one unfinished", strings.ReplaceAll(hello, `"index":0`, `"index":1`) + stop + end, "events=3 tokens=1 first done"},
		{"two choices in one event", `data: {"choices":[{"index":1,"finish_reason":"stop"},{"index":0,"text":"a","finish_reason":"length"}]}` + "\n\n", "events=1 tokens=1 first finished"},
		{"finish at once", role + stop, "events=2 tokens=0 first finished"},
		{"finish reason empty", strings.ReplaceAll(stop, `"stop"`, `""`), "events=1 tokens=0"},
		{"text held back", role + strings.ReplaceAll(hello, "hello", "") + strings.ReplaceAll(hello, "hello", "") + stop, "events=4 tokens=2 first finished"},
		{"text held back, completions", `data: {"choices":[{"index":0,"text":"","finish_reason":null}]}` + "\n\n", "events=1 tokens=1 first"},
		{"empty with the finish", `data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}` + "\n\n", "events=1 tokens=0 first finished"},
		{"abort", hello + strings.ReplaceAll(stop, "stop", "abort") + end, told + " aborted"},
		{"token ids", `data: {"choices":[{"delta":{"content":""},"token_ids":[1,2,3]}]}` + "\n\n", "events=1 tokens=3 first"},
		{"usage in every frame", strings.ReplaceAll(hello, "\n", "")[:len(hello)-3] + `,"usage":{"prompt_tokens":9,"completion_tokens":5}}` + "\n\n" + hello, "events=2 tokens=6 first usage=9/6"},
		{"usage null", `data: {"choices":[],"usage":null}` + "\n\n", "events=1 tokens=0"},
		{"numbers that are none", `data: {"usage":{"prompt_tokens":-4,"completion_tokens":1.5,"prompt_tokens_details":{"cached_tokens":1e3}}}` + "\n\n", "events=1 tokens=0"},
		{"many choices", `data: {"choices":[{"index":1023,"finish_reason":"stop"},{"index":1025,"finish_reason":"stop"}]}` + "\n\n" +
			`data: {"choices":[{"index":1024,"text":"a"}]}` + "\n\n", "events=2 tokens=1 first"},
		{"many choices, all finished", `data: {"choices":[{"index":1025,"finish_reason":"stop"},{"index":1024,"finish_reason":"stop"}]}` + "\n\n", "events=1 tokens=0 first finished"},
		{"drained", `data: {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":0}}` + "\n\n" + end, "events=2 tokens=0 done no-choices usage=20/0"},
		{"error", hello + `data: {"error": {"message": "Engine\u00e9 \"x\"", "type": "InternalServerError", "param": null, "code": 500}}` + "\n\n" + end,
			`events=3 tokens=1 first done error=500 "Engineé \"x\""`},
		{"error before anything", `data: {"error":{"message":"m","code":"503"}}` + "\n\n" + end, `events=2 tokens=0 done error=503 "m"`},
		{"error of another type", `data: {"error":{"message":"m","type":"invalid_request_error","code":"x"}}` + "\n\n", `events=1 tokens=0 error=400 "m"`},
		{"error that is a text", `data: {"error":"m"}` + "\n\n", `events=1 tokens=0 error=0 "m"`},
		{"flat error", `data: {"object":"error","message":"m","type":"BadRequestError","code":400}` + "\n\n", `events=1 tokens=0 error=400 "m"`},
		{"error by its name", "event: error\ndata: overloaded\n\n", `events=1 tokens=0 error=0 ""`},
		{"no error", `data: {"error":{},"choices":[]}` + "\n\ndata: " + `{"error":null}` + "\n\ndata: " + `{"error":""}` + "\n\n", "events=3 tokens=0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := everySplit(t, Chat, OpenAI, true, c.body).String(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestStreamMessages(t *testing.T) {
	const (
		start = `event: message_start
data: {"type":"message_start","message":{"content":[],"usage":{"input_tokens":10,"cache_read_input_tokens":200,"cache_creation_input_tokens":3,"output_tokens":1}}}

`
		delta = `event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}

`
		stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	)
	for _, c := range []struct{ name, body, want string }{
		{"start", start, "events=1 tokens=0 usage=213/0/200"},
		{"ping", start + "event: ping\ndata: {\"type\": \"ping\"}\n\n", "events=2 tokens=0 usage=213/0/200"},
		{"broken off", start + delta + delta, "events=3 tokens=2 first usage=213/2/200"},
		{"output only at the end", start + delta + `data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}` + "\n\n" + stop,
			"events=4 tokens=7 first finished done usage=213/7/200"},
		{"all at the end", start + delta + `data: {"type":"message_delta","usage":{"input_tokens":3,"cache_read_input_tokens":32,"cache_creation_input_tokens":0,"output_tokens":7}}` + "\n\n",
			"events=3 tokens=7 first usage=35/7/32"},
		{"type by the event's name", "event: message_stop\ndata: {}\n\n", "events=1 tokens=0 first finished done"},
		{"empty tool input", `data: {"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":""}}` + "\n\n", "events=1 tokens=0"},
		{"tool input", `data: {"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}` + "\n\n", "events=1 tokens=1 first"},
		{"error", start + "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n",
			`events=2 tokens=0 usage=213/0/200 error=503 "Overloaded"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := everySplit(t, Messages, Anthropic, true, c.body).String(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestStreamResponses(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"delta", `data: {"type":"response.output_text.delta","delta":"x","sequence_number":4}` + "\n\n", "events=1 tokens=1 first"},
		{"type at the end", `data: {"delta":"x","sequence_number":4,"type":"response.function_call_arguments.delta"}` + "\n\n", "events=1 tokens=1 first"},
		{"added", `data: {"type":"response.output_item.added","item":{"content":[]}}` + "\n\n", "events=1 tokens=0"},
		{"incomplete", `data: {"type":"response.incomplete","response":{"usage":{"input_tokens":5,"output_tokens":6,"input_tokens_details":{"cached_tokens":4}}}}` + "\n\n",
			"events=1 tokens=6 first finished done usage=5/6/4"},
		{"failed", `data: {"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"boom"}}}` + "\n\n",
			`events=1 tokens=0 finished done error=500 "boom"`},
		{"error", "event: error\ndata: " + `{"type":"error","code":"rate_limit_exceeded","message":"slow down","param":null,"sequence_number":3}` + "\n\n",
			`events=1 tokens=0 error=429 "slow down"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := everySplit(t, Responses, OpenAI, true, c.body).String(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestStreamBodies(t *testing.T) {
	for _, c := range []struct {
		name string
		kind Kind
		body string
		want string
	}{
		{"embeddings", Embeddings, `{"data":[{"embedding":[0.1,-2e-3]}],"usage":{"prompt_tokens":7,"total_tokens":7,"completion_tokens":0}}`, "events=1 tokens=0 finished usage=7/0"},
		{"cut", Chat, `{"choices":[{"index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":1}`, "events=0 tokens=0"},
		{"error", Chat, ` {"error":{"message":"m","code":400}} `, `events=1 tokens=0 error=400 "m"`},
		{"error of another API", Embeddings, `{"error":{"message":"m"}}`, `events=1 tokens=0 error=0 "m"`},
		{"error that is a text", Chat, `{"error":"Unauthorized"}`, `events=1 tokens=0 error=0 "Unauthorized"`},
		{"status", Responses, `{"status":"in_progress","usage":null}`, "events=1 tokens=0 finished"},
		{"not json", Audio, "hello", "events=0 tokens=0"},
		{"many choices", Completions, `{"choices":[{"index":900,"finish_reason":"stop"},{"index":5000,"finish_reason":null}]}`, "events=1 tokens=0 first"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := everySplit(t, c.kind, OpenAI, false, c.body).String(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// A reader that was used before must say the same as a new one.
func TestStreamReset(t *testing.T) {
	s := new(Stream)
	s.Reset(Responses, OpenAI, true)
	s.Write([]byte("event: error\r\ndata: {\"error\":{\"message\":\"m\",\"code\":5},\"id\":\"resp_1\",\"choices\":[{\"finish_reason\":\"abort\",\"text\":\"x\"}],\"usage\":{\"prompt_tokens\":1}}\r\n\r"))
	for _, stream := range []bool{true, false} {
		for _, begun := range []string{"", "data: {\"choices\":[{\"fini", `{"choices":[{"index":3,"finish_reason":"ab`, "event: err\r"} {
			s.Write([]byte(begun))
			body := `{"choices":[{"index":0,"text":"a"}]}`
			if stream {
				body = "data: " + body + "\n\n"
			}
			s.Reset(Completions, OpenAI, stream)
			s.Write([]byte(body))
			if got, want := factsOf(s), readStream(Completions, OpenAI, stream, body); got != want {
				t.Errorf("after %q: got %v, want %v", begun, got, want)
			}
		}
	}
}

// A line of 20 MB passes without being held.
func TestStreamLongLine(t *testing.T) {
	piece := []byte(strings.Repeat(`\n\"finish_reason\":`, 1<<20/19))
	s := new(Stream)
	s.Reset(Chat, OpenAI, true)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s.Write([]byte(`data: {"choices":[{"index":0,"delta":{"content":"`))
	for range 20 {
		s.Write(piece)
	}
	s.Write([]byte(`"},"finish_reason":"stop"}],"` + strings.Repeat("k", 3<<20) + `":1}` + "\n\n"))
	runtime.ReadMemStats(&after)
	if got, want := factsOf(s).String(), "events=1 tokens=1 first finished"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 9<<20 { // of the test's own strings
		t.Errorf("allocated %d bytes", grown)
	}
}

// Wherever a stream breaks off, its client must find the error in an event of its
// own, after what it had got before, and no end marker.
func TestStreamCutEvent(t *testing.T) {
	for _, name := range []string{"chat-stream-plain", "messages-stream", "responses-stream"} {
		file, k, d := recordedStream(t, name)
		for _, eol := range []string{"\n", "\r\n", "\r"} {
			body := strings.ReplaceAll(file, "\n", eol)
			for i := range len(body) {
				passed := body[:i]
				s := new(Stream)
				s.Reset(k, d, true)
				s.Write([]byte(passed))
				checkCut(t, k, passed, string(s.CutEvent(cutForTest)))
			}
		}
	}
}

// What the client did not get yet of an event that says that its answer is not
// complete, it must not get.
func TestStreamBroken(t *testing.T) {
	const (
		hello = `data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}` + "\n\n"
		stop  = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
		abort = `data: {"choices":[{"index":0,"delta":{"content":"\"abort\" [DONE]"},"finish_reason":"abort"}]}` + "\n\n"
		usage = `data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}` + "\n\n"
		end   = "data: [done] bye\n\n"
	)
	for _, c := range []struct{ name, passes, stays string }{
		{"abort", hello + hello, abort + end},
		{"abort, with a comment", hello, ": ping\n" + abort},
		{"abort, without blank line", hello, strings.TrimRight(abort, "\n")},
		{"abort, without any blank line", strings.ReplaceAll(hello+hello, "\n\n", "\n"), strings.ReplaceAll(abort+end, "\n\n", "\n")},
		{"abort at once", "", abort + end},
		{"end without finish", hello + hello + usage, end},
		{"whole", hello + stop + end, ""},
		{"two ends", hello + stop + end + end, ""},
	} {
		for _, eol := range []string{"\n", "\r\n", "\r"} {
			passes, stays := strings.ReplaceAll(c.passes, "\n", eol), strings.ReplaceAll(c.stays, "\n", eol)
			body := passes + stays
			for i := range len(body) {
				s, client := new(Stream), ""
				s.Reset(Chat, OpenAI, true)
				for _, p := range []string{body[:i], body[i:]} {
					s.Write([]byte(p))
					tail, ok := s.Broken()
					if ok {
						p = p[:len(p)-min(len(p), tail)]
					}
					if client += p; ok {
						break
					}
				}
				tail, ok := s.Broken()
				if n := max(i, len(passes)); ok != (stays != "") || len(client) < len(passes) || len(client) > n {
					t.Fatalf("%s, cut at %d: %d %v, the client has %q", c.name, i, tail, ok, client)
				}
				if ok {
					checkCut(t, Chat, client, string(s.CutEvent(cutForTest)))
				}
			}
		}
	}
}

var cutForTest = &Error{Status: 504, Reason: ReasonTimeout, Code: "stream_idle_timeout", Message: "no bytes for 300 s"}

// recordedStream is the stream of a recording of the newest vLLM.
func recordedStream(t *testing.T, name string) (string, Kind, Dialect) {
	t.Helper()
	for _, r := range recordings(t) {
		if dir, base := path.Split(r.name); base == name && strings.HasPrefix(dir, "vllm-0.32.0/") {
			api, err := Lookup(r.method, r.path)
			if err != nil || !r.sse {
				t.Fatalf("%s is no stream", r.name)
			}
			return string(r.respBody), api.Kind, api.Dialect
		}
	}
	t.Fatalf("there is no recording %s", name)
	return "", 0, 0
}

func checkCut(t *testing.T, k Kind, passed, cut string) {
	t.Helper()
	before, after := dataEvents(passed), dataEvents(passed+cut)
	own := 1
	if k == Responses {
		own = 2 // response.failed and error
	}
	if n := len(after) - own; n < len(before) || n > len(before)+1 {
		t.Fatalf("after %q: %d events became %d", passed, len(before), len(after))
	}
	next := 0
	for _, data := range before {
		if _, number, ok := strings.Cut(data, `"sequence_number":`); ok {
			_ = json.NewDecoder(strings.NewReader(number)).Decode(&next)
			next++
		}
	}
	for i, data := range after[len(after)-own:] {
		var got struct {
			Type     string
			Message  string
			Sequence *int `json:"sequence_number"`
			Error    struct{ Message, Type, Code string }
			Response struct{ ID string }
		}
		if err := json.Unmarshal([]byte(data), &got); err != nil {
			t.Fatalf("after %q: %q: %v", passed, data, err)
		}
		switch {
		case k == Responses && i == 0:
			if got.Type != "response.failed" || *got.Sequence < next || *got.Sequence > next+1 || next > 0 && got.Response.ID != "resp_b7ac3b7bc62be7b9" {
				t.Fatalf("after %q: %s", passed, data)
			}
		case k == Responses:
			if got.Type != "error" || got.Message != "no bytes for 300 s" {
				t.Fatalf("after %q: %s", passed, data)
			}
		case got.Error.Message != "no bytes for 300 s" || got.Error.Type != "timeout_error":
			t.Fatalf("after %q: %s", passed, data)
		}
	}
	if strings.Contains(cut, "[DONE]") {
		t.Fatalf("an end marker: %q", cut)
	}
}

// dataEvents returns the data of the events that a client gets of a stream.
func dataEvents(body string) (events []string) {
	lines := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(body), "\n")
	var data []string
	for _, line := range lines[:len(lines)-1] {
		switch value, ok := strings.CutPrefix(line, "data:"); {
		case ok:
			data = append(data, strings.TrimPrefix(value, " "))
		case line == "" && data != nil:
			events = append(events, strings.Join(data, "\n"))
			data = nil
		}
	}
	return events
}

func FuzzStream(f *testing.F) {
	for i, r := range recordings(f) {
		if api, err := Lookup(r.method, r.path); err == nil && len(r.respBody) < 4000 {
			f.Add(r.respBody, uint8(api.Kind), r.sse, uint64(i*97))
		}
	}
	f.Add([]byte("event: error\rdata:{\"x\":\ndata:1}\r\n\r\n: c\n\ndata: [DONE]"), uint8(Chat), true, uint64(3))
	f.Fuzz(func(t *testing.T, raw []byte, kind uint8, stream bool, cut uint64) {
		body := string(raw)
		k, d := Kind(kind%uint8(Render+1)), OpenAI
		if k == Messages {
			d = Anthropic
		}
		whole := readStream(k, d, stream, body)
		i := int(cut % uint64(len(body)+1))
		if got := readStream(k, d, stream, body[:i], body[i:]); got != whole {
			t.Fatalf("cut at %d: got %v, want %v", i, got, whole)
		}
		pieces := make([]string, 0, len(body))
		for i := range len(body) {
			pieces = append(pieces, body[i:i+1])
		}
		if got := readStream(k, d, stream, pieces...); got != whole {
			t.Fatalf("byte by byte: got %v, want %v", got, whole)
		}
		ref := refer(k, d, stream, body)
		if ref.vague || len(whole.Error) > maxMessage-4 {
			return
		}
		if got, want := plainFacts(whole), plainFacts(ref.got); got != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestStreamAllocatesNothing(t *testing.T) {
	for _, name := range []string{"chat-stream-n2", "responses-stream", "messages-stream"} {
		file, k, d := recordedStream(t, name)
		body := []byte(file)
		s := new(Stream)
		if n := testing.AllocsPerRun(20, func() {
			s.Reset(k, d, true)
			s.Write(body[:100])
			s.Write(body[100:])
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkStream(b *testing.B) {
	content := func(i int) string {
		words := []string{"ri", " the", "tion", " a", "\\n\\n"}
		return words[i%len(words)]
	}
	for _, c := range []struct {
		name string
		kind Kind
		make func(i int) string
	}{
		{"chat", Chat, func(i int) string {
			return `data: {"id":"chatcmpl-req-0004","object":"chat.completion.chunk","created":1796192311,"model":"tiny","choices":[{"index":0,"delta":{"content":"` + content(i%4) + `"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n"
		}},
		{"chat-two-choices", Chat, func(i int) string {
			return `data: {"id":"chatcmpl-req-0004","object":"chat.completion.chunk","created":1796192311,"model":"tiny","choices":[{"index":` + string(rune('0'+i&1)) + `,"delta":{"content":"` + content(i) + `"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n"
		}},
		{"messages", Messages, func(i int) string {
			return "event: content_block_delta\n" + `data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"` + content(i) + `"},"index":0}` + "\n\n"
		}},
		{"responses", Responses, func(i int) string {
			return "event: response.output_text.delta\n" + `data: {"content_index":0,"delta":"` + content(i) + `","item_id":"msg_b66f535df43b6661","logprobs":[],"output_index":0,"sequence_number":` + string(rune('1'+i%9)) + `,"type":"response.output_text.delta"}` + "\n\n"
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var events [20][]byte
			n := 0
			for i := range events {
				events[i] = []byte(c.make(i))
				n += len(events[i])
			}
			s := new(Stream)
			s.Reset(c.kind, OpenAI, true)
			b.SetBytes(int64(n / len(events)))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Write(events[i%len(events)])
			}
			if s.Events() == 0 || !s.FirstToken() {
				b.Fatal("nothing was read")
			}
		})
	}
}
