package llmapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pointsman.dev/pointsman/internal/prefix"
)

func apiOf(t testing.TB, path string) API {
	t.Helper()
	api, err := Lookup("POST", path)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return api
}

// scan reads a body in pieces of the size that next returns.
func scan(s *Scanner, api API, body []byte, next func(n int) int) (*Request, error) {
	s.Reset(api)
	for len(body) > 0 {
		n := next(len(body))
		if err := s.Write(body[:n]); err != nil {
			return nil, err
		}
		body = body[n:]
	}
	return s.Close()
}

// mustScan returns a copy of the request that body makes.
func mustScan(t testing.TB, path, body string) Request {
	t.Helper()
	r, err := scan(new(Scanner), apiOf(t, path), []byte(body), all)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return *r
}

const (
	chatPath  = "/v1/chat/completions"
	complPath = "/v1/completions"
	respPath  = "/v1/responses"
	msgPath   = "/v1/messages"
)

// bodies are requests of every API with what they ask for.
var bodies = []struct {
	name, path, body string
	want             Request
}{
	{"chat", chatPath, `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":7,"n":2,"priority":-3}`,
		Request{Model: "m", HasModel: true, ModelStart: 9, ModelEnd: 12, Stream: true, IncludeUsage: true, MaxTokens: 7, N: 2, Priority: -3, Prompts: 1}},
	{"chat, max_completion_tokens goes first", chatPath, `{"max_completion_tokens":9,"messages":[],"max_tokens":7}`, Request{MaxTokens: 9, N: 1}},
	{"chat, no model", chatPath, ` { "messages" : [ { "role" : "user" } ] } `, Request{N: 1, Prompts: 1}},
	{"chat, model null", chatPath, `{"model":null,"messages":null,"stream":null,"max_tokens":null,"stream_options":null,"n":null}`, Request{N: 1}},
	{"chat, model empty", chatPath, `{"model":"","messages":[]}`, Request{ModelStart: 9, ModelEnd: 11, N: 1}},
	{"chat, escaped model and key", chatPath, `{"mod\u0065l":"a\/\"b\u00e9"}`, Request{Model: `a/"bé`, HasModel: true, ModelStart: 14, ModelEnd: 28, N: 1}},
	{"chat, lax types", chatPath, `{"stream":"true","max_tokens":"12","n":1.0}`, Request{Stream: true, MaxTokens: 12, N: 1}},
	{"chat, max_tokens 0", chatPath, `{"max_tokens":0}`, Request{BadMaxTokens: true, N: 1}},
	{"chat, model inside of other things", chatPath, `{"metadata":{"model":"x","stream":true},"messages":[{"role":"user","content":"{\"model\":\"y\"}","model":"z"}]}`, Request{N: 1, Prompts: 1}},
	{"chat, two conversations", "/v1/chat/completions/batch", `{"messages":[[{"role":"user","content":"a"}],[{"role":"user","content":"b"},{"role":"user","content":"c"}]]}`, Request{N: 1, Prompts: 2}},
	{"chat, images", chatPath, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x","detail":"low"}},{"type":"image_url","image_url":"http://y"},{"type":"text","text":"see"}]}]}`, Request{N: 1, Prompts: 1, Images: 2, MediaBytes: 4096}},
	{"chat, other scripts", chatPath, `{"messages":[{"role":"user","content":"日本é\u65e5\ud83d\ude00abc"}]}`, Request{N: 1, Prompts: 1, WideBytes: 17}},
	{"completions", complPath, `{"prompt":"hello","model":"m"}`, Request{Model: "m", HasModel: true, ModelStart: 26, ModelEnd: 29, N: 1, Prompts: 1, PromptBytes: 5}},
	{"completions, list", complPath, `{"prompt":["hello","you"]}`, Request{N: 1, Prompts: 2, PromptBytes: 8}},
	{"completions, ids", complPath, `{"prompt":[1,22,333]}`, Request{N: 1, Prompts: 1, PromptBytes: 12, TokenIDs: true}},
	{"completions, lists of ids", complPath, `{"prompt":[[1],[22,333]]}`, Request{N: 1, Prompts: 2, PromptBytes: 12, TokenIDs: true}},
	{"responses", respPath, `{"model":"m","input":"hi","instructions":"be brief","max_output_tokens":5,"previous_response_id":"resp_1"}`,
		Request{Model: "m", HasModel: true, ModelStart: 9, ModelEnd: 12, MaxTokens: 5, N: 1, Prompts: 1, PreviousResponse: "resp_1"}},
	{"responses, items", respPath, `{"input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"data:z"}]},{"type":"function_call_output","call_id":"c","output":"4"}]}`, Request{N: 1, Prompts: 1, Images: 1, MediaBytes: 2048}},
	{"messages", msgPath, `{"model":"m","max_tokens":5,"system":[{"type":"text","text":"sys"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"base64","data":"xx"}}]}]}],"stream":true}`,
		Request{Model: "m", HasModel: true, ModelStart: 9, ModelEnd: 12, Stream: true, MaxTokens: 5, N: 1, Prompts: 1, Images: 1, MediaBytes: 2048}},
	{"count tokens", "/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, Request{Model: "m", HasModel: true, ModelStart: 9, ModelEnd: 12, N: 1, Prompts: 1}},
	{"embeddings", "/v1/embeddings", `{"input":["ab","c"]}`, Request{N: 1, Prompts: 2, PromptBytes: 3}},
	{"embeddings, ids", "/v1/embeddings", `{"input":[[1,2],[3]]}`, Request{N: 1, Prompts: 2, PromptBytes: 12, TokenIDs: true}},
	{"pooling", "/pooling", `{"messages":[{"role":"user","content":"hi"}]}`, Request{N: 1, Prompts: 1}},
	{"classify", "/classify", `{"input":"abc"}`, Request{N: 1, Prompts: 1, PromptBytes: 3}},
	{"score", "/v1/score", `{"text_1":"ab","text_2":["c","def"]}`, Request{N: 1, Prompts: 3, PromptBytes: 6}},
	{"rerank", "/v2/rerank", `{"query":"ab","documents":["c","def"],"top_n":1}`, Request{N: 1, Prompts: 3, PromptBytes: 6}},
	{"tokenize", "/tokenize", `{"prompt":"abc"}`, Request{N: 1, Prompts: 1, PromptBytes: 3}},
	{"detokenize", "/detokenize", `{"tokens":[1,2]}`, Request{N: 1, Prompts: 1, PromptBytes: 8, TokenIDs: true}},
	{"generate", "/inference/v1/generate", `{"token_ids":[5,6,7],"sampling_params":{"max_tokens":3,"n":2},"stream":true}`, Request{N: 2, MaxTokens: 3, Stream: true, Prompts: 1, PromptBytes: 12, TokenIDs: true}},
	{"render", "/v1/completions/render", `{"prompt":"abc"}`, Request{N: 1, Prompts: 1, PromptBytes: 3}},
}

// TestSameBytes: indentation and rules are counted apart from what a tokenizer makes words of, and a prompt that the engine
// cuts by itself is never too long.
func TestSameBytes(t *testing.T) {
	plain := mustScan(t, complPath, `{"prompt":"`+strings.Repeat("abcdefg ", 100)+`"}`)
	ruled := mustScan(t, complPath, `{"prompt":"`+strings.Repeat("-", 500)+strings.Repeat("\\n        x", 50)+`"}`)
	if plain.SameBytes != 0 || ruled.SameBytes < 499+50*7 || ruled.SameBytes > ruled.PromptBytes {
		t.Errorf("%d of %d, and %d of %d bytes", plain.SameBytes, plain.PromptBytes, ruled.SameBytes, ruled.PromptBytes)
	}
	for body, want := range map[string]bool{`{"input":"x","truncation":"auto"}`: true, `{"input":"x","truncation":"disabled"}`: false,
		`{"input":"x","truncation":null}`: false, `{"input":"x","truncate_prompt_tokens":5}`: true} {
		if got := mustScan(t, respPath, body); got.Truncates != want {
			t.Errorf("%s: truncates %v", body, got.Truncates)
		}
	}
}

// TestScanner: every body of every API, at every split point.
func TestScanner(t *testing.T) {
	for _, tt := range bodies {
		t.Run(tt.name, func(t *testing.T) {
			api := apiOf(t, tt.path)
			var s Scanner
			whole := mustScan(t, tt.path, tt.body)
			want := tt.want
			if want.PromptBytes == 0 {
				want.PromptBytes = whole.PromptBytes // conversations: asserted by their chains
			}
			if d := cmp.Diff(want, whole, cmpopts.IgnoreFields(Request{}, "Blocks", "SameBytes")); d != "" {
				t.Fatal(d)
			}
			if whole.HasModel {
				var name string
				if err := json.Unmarshal([]byte(tt.body)[whole.ModelStart:whole.ModelEnd], &name); err != nil || name != whole.Model {
					t.Errorf("the literal at the offsets is %q, want %q", name, whole.Model)
				}
			}
			for cut := range len(tt.body) + 1 {
				got, err := scan(&s, api, []byte(tt.body), func(n int) int {
					if n == len(tt.body) && cut > 0 {
						return cut
					}
					return n
				})
				if err != nil {
					t.Fatalf("split at %d: %v", cut, err)
				}
				if d := cmp.Diff(whole, *got); d != "" {
					t.Fatalf("split at %d: %s", cut, d)
				}
			}
			got, err := scan(&s, api, []byte(tt.body), func(int) int { return 1 })
			if err != nil || !cmp.Equal(whole, *got) {
				t.Errorf("byte by byte: %v %s", err, cmp.Diff(whole, *got))
			}
		})
	}
}

func TestScannerErrors(t *testing.T) {
	tests := []struct{ name, path, body, reason, param, text string }{
		{"empty", chatPath, "", ReasonBadJSON, "", "the request body is empty"},
		{"ends early", chatPath, `{"model":"m"`, ReasonBadJSON, "", "ends early, after 12 bytes"},
		{"array", chatPath, `[]`, ReasonBadJSON, "", "must be a JSON object"},
		{"string", chatPath, `"x"`, ReasonBadJSON, "", "must be a JSON object"},
		{"two objects", chatPath, `{} {}`, ReasonBadJSON, "", "text after the end at byte 4"},
		{"trailing comma", chatPath, `{"a":1,}`, ReasonBadJSON, "", "expected a key"},
		{"comma in array", chatPath, `{"a":[1,]}`, ReasonBadJSON, "", "expected a value"},
		{"mixed brackets", chatPath, `{"a":[1}}`, ReasonBadJSON, "", "expected a comma or the end"},
		{"number", chatPath, `{"a":01}`, ReasonBadJSON, "", "expected a comma"},
		{"number ends in a dot", chatPath, `{"a":1.}`, ReasonBadJSON, "", "malformed number"},
		{"literal", chatPath, `{"a":nul}`, ReasonBadJSON, "", "expected a value"},
		{"escape", chatPath, `{"a":"\x"}`, ReasonBadJSON, "", "unknown escape"},
		{"unicode escape", chatPath, `{"a":"\u12g4"}`, ReasonBadJSON, "", `malformed \u escape`},
		{"too deep", chatPath, strings.Repeat(`{"a":`, 513), ReasonBadJSON, "", "nested deeper than 512"},
		{"long key", chatPath, `{"` + strings.Repeat("k", 1025) + `":1}`, ReasonBadJSON, "", "more than 1024 bytes"},
		{"model twice", chatPath, `{"model":"a","model":"b"}`, ReasonDuplicateKey, "model", `has "model" twice`},
		{"model twice, escaped", chatPath, `{"model":"a","m\u006fdel":"b"}`, ReasonDuplicateKey, "model", `has "model" twice`},
		{"messages twice", chatPath, `{"messages":[],"messages":[]}`, ReasonDuplicateKey, "messages", `has "messages" twice`},
		{"model a number", chatPath, `{"model":5}`, ReasonBadType, "model", `"model" must be a string`},
		{"model a list", msgPath, `{"model":["a"]}`, ReasonBadType, "model", `"model" must be a string`},
		{"model an object", complPath, `{"model":{}}`, ReasonBadType, "model", `"model" must be a string`},
		{"model true", complPath, `{"model":true}`, ReasonBadType, "model", `"model" must be a string`},
		{"model too long", chatPath, `{"model":"` + strings.Repeat("m", 1025) + `"}`, ReasonBadType, "model", "too long"},
		{"stream a list", chatPath, `{"stream":[]}`, ReasonBadType, "stream", "true or false"},
		{"stream a word", chatPath, `{"stream":"maybe"}`, ReasonBadType, "stream", "true or false"},
		{"max_tokens an object", chatPath, `{"max_tokens":{}}`, ReasonBadType, "max_tokens", "a number"},
		{"max_tokens a word", chatPath, `{"max_tokens":"many"}`, ReasonBadType, "max_tokens", "a number"},
		{"messages a string", chatPath, `{"messages":"hi"}`, ReasonBadType, "messages", "an array"},
		{"input a number", respPath, `{"input":3}`, ReasonBadType, "input", "a string or an array"},
		{"stream_options a list", chatPath, `{"stream_options":[]}`, ReasonBadType, "stream_options", "an object"},
		{"previous_response_id a number", respPath, `{"previous_response_id":1}`, ReasonBadType, "previous_response_id", "a string"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			api := apiOf(t, tt.path)
			for _, size := range []int{1, 5, 1 << 20} {
				_, err := scan(new(Scanner), api, []byte(tt.body), func(n int) int { return min(n, size) })
				var e *Error
				if !errors.As(err, &e) {
					t.Fatalf("chunks of %d: error %v, want an *Error", size, err)
				}
				if e.Status != 400 || e.Reason != tt.reason || e.Param != tt.param || !strings.Contains(e.Message, tt.text) {
					t.Errorf("chunks of %d: %d %s %q: %s; want 400 %s %q: ...%s", size, e.Status, e.Reason, e.Param, e.Message, tt.reason, tt.param, tt.text)
				}
			}
		})
	}
}

func TestScannerErrorStays(t *testing.T) {
	s := new(Scanner)
	s.Reset(apiOf(t, chatPath))
	err := s.Write([]byte("]"))
	if err == nil || !errors.Is(s.Write([]byte("{}")), err) {
		t.Error("a later Write must return the first error")
	}
	if _, again := s.Close(); !errors.Is(again, err) {
		t.Error("Close must return the first error")
	}
	s.Reset(apiOf(t, chatPath))
	if _, err := scan(s, apiOf(t, chatPath), []byte(`{"model":"m"}`), all); err != nil {
		t.Errorf("after Reset: %v", err)
	}
}

// TestScannerRewrite: with a model alias only the top-level model's value changes.
func TestScannerRewrite(t *testing.T) {
	const body = `{"metadata":{"model":"fast"}, "model" : "fast" ,"messages":[{"role":"user","content":"model fast"}],"x":1.50}`
	r := mustScan(t, chatPath, body)
	got := body[:r.ModelStart] + string(r.ModelLiteral(`Org/"M"-1.5`)) + body[r.ModelEnd:]
	want := strings.Replace(body, `"model" : "fast"`, `"model" : "Org/\"M\"-1.5"`, 1)
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestScannerRecordings: the recorded requests of real clients, as a golden file.
func TestScannerRecordings(t *testing.T) {
	var out strings.Builder
	for _, r := range recordings(t) {
		api, lookup := Lookup(r.method, r.path)
		if lookup != nil || api.Body != JSON || bytes.Contains(r.reqBody, []byte("40000 times)")) {
			continue
		}
		q, err := scan(new(Scanner), api, r.reqBody, all)
		if err != nil {
			fmt.Fprintf(&out, "%s: %v\n", r.name, err)
			continue
		}
		fmt.Fprintf(&out, "%s: model=%q stream=%v usage=%v max=%d n=%d prompts=%d bytes=%d blocks=%d ids=%v images=%d\n", r.name,
			q.Model, q.Stream, q.IncludeUsage, q.MaxTokens, q.N, q.Prompts, q.PromptBytes, len(q.Blocks), q.TokenIDs, q.Images)
	}
	golden(t, "requests.golden", out.String())
}

// chatBody makes a chat of about size bytes in messages of typical text.
func chatBody(size int) []byte {
	rnd := rand.New(rand.NewPCG(1, 1))
	words := strings.Fields("the quick brown fox jumps over a lazy dog while seven wizards make toxic brew for an evil queen and her jack")
	var b bytes.Buffer
	b.WriteString(`{"model": "Org/Model-1.5", "stream": true, "messages": [{"role": "system", "content": "`)
	inMessage := 0
	for b.Len() < size {
		word := words[rnd.IntN(len(words))]
		b.WriteString(word)
		inMessage += len(word) + 1
		if rnd.IntN(14) == 0 {
			b.WriteString(`.\n`)
		} else {
			b.WriteByte(' ')
		}
		if inMessage > 2000 {
			b.WriteString(`"}, {"role": "user", "content": "`)
			inMessage = 0
		}
	}
	b.WriteString(`"}], "max_tokens": 100}`)
	return b.Bytes()
}

// BenchmarkScan is scan and hash of a chat body. Budget: 100 us for 100 kB, no
// allocation but the Request's strings, and memory speed at 2 MB.
func BenchmarkScan(b *testing.B) {
	for _, size := range []int{4 << 10, 100_000, 2 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			body, api, s := chatBody(size), apiOf(b, chatPath), new(Scanner)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := scan(s, api, body, func(n int) int { return min(n, 32<<10) }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestScannerAllocations(t *testing.T) {
	body, api, s := chatBody(100_000), apiOf(t, chatPath), new(Scanner)
	run := func() {
		if _, err := scan(s, api, body, func(n int) int { return min(n, 4<<10) }); err != nil {
			t.Fatal(err)
		}
	}
	run()
	if n := testing.AllocsPerRun(10, run); n > 2 {
		t.Errorf("a body of 100 kB allocates %v times, want at most 2", n)
	}
	// An image of 20 MB is not kept.
	image := []byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("QUJD", 5<<20) + `"}}]}]}`)
	if n := testing.AllocsPerRun(1, func() {
		if _, err := scan(s, api, image, func(n int) int { return min(n, 32<<10) }); err != nil {
			t.Fatal(err)
		}
	}); n > 4 {
		t.Errorf("an image of 20 MB allocates %v times, want at most 4", n)
	}
}

// FuzzScanner compares with encoding/json on valid input.
func FuzzScanner(f *testing.F) {
	for _, tt := range bodies {
		f.Add([]byte(tt.body), uint64(3))
	}
	f.Add([]byte(`{"model":"\ud83d\ude00\ud83d","a":[-0.5e-3,{"b":[[]]}]}`), uint64(9))
	api, _ := Lookup("POST", chatPath)
	f.Fuzz(func(t *testing.T, body []byte, seed uint64) {
		whole, err := scan(new(Scanner), api, body, all)
		rnd := rand.New(rand.NewPCG(seed, 1))
		split, splitErr := scan(new(Scanner), api, body, func(n int) int { return 1 + rnd.IntN(min(n, 1+int(seed%40))) })
		if (err == nil) != (splitErr == nil) || err != nil && err.Error() != splitErr.Error() {
			t.Fatalf("split: %v, whole: %v", splitErr, err)
		}
		if err == nil && !cmp.Equal(*whole, *split) {
			t.Fatal(cmp.Diff(*whole, *split))
		}
		checkAgainstJSON(t, body, whole, err)
	})
}

func checkAgainstJSON(t *testing.T, body []byte, got *Request, err error) {
	var e *Error
	if errors.As(err, &e) && e.Reason == ReasonBadJSON {
		if json.Valid(body) && bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) && !strings.Contains(e.Message, "deeper") && !strings.Contains(e.Message, "more than") {
			t.Fatalf("valid JSON refused: %v", err)
		}
		return
	}
	if err != nil || !json.Valid(body) {
		return
	}
	var want map[string]json.RawMessage
	if err := json.Unmarshal(body, &want); err != nil {
		t.Fatalf("accepted what encoding/json refuses: %v", err)
	}
	var model *string
	if raw, ok := want["model"]; ok {
		if json.Unmarshal(raw, &model) != nil {
			t.Fatalf("accepted model %s", raw)
		}
	}
	if model == nil {
		empty := ""
		model = &empty
	}
	if got.HasModel != (*model != "") {
		t.Fatalf("has model: %v, encoding/json %q", got.HasModel, *model)
	}
	if !strings.Contains(*model, "\ufffd") && got.Model != *model {
		t.Fatalf("model %q, encoding/json %q", got.Model, *model)
	}
	if got.ModelEnd > 0 && !bytes.Equal(body[got.ModelStart:got.ModelEnd], want["model"]) {
		t.Fatalf("the literal is %q, encoding/json %q", body[got.ModelStart:got.ModelEnd], want["model"])
	}
	var stream bool
	if json.Unmarshal(want["stream"], &stream) == nil && string(want["stream"]) != "null" && stream != got.Stream {
		t.Fatalf("stream %v, encoding/json %v", got.Stream, stream)
	}
	checkChain(t, got.Blocks, got.PromptBytes)
}

func checkChain(t *testing.T, chain []prefix.Block, total int) {
	last := int32(0)
	for _, b := range chain {
		if b.End <= last {
			t.Fatalf("a block ends at %d behind %d", b.End, last)
		}
		last = b.End
	}
	if int(last) > total {
		t.Fatalf("the chain has %d bytes, all prompts %d", last, total)
	}
}

// TestChainOfTheEndless: ends grow with every block however much a client says that its prompt is worth, and what comes before it. An
// end that wraps around would make the index believe that an endpoint holds less than nothing.
func TestChainOfTheEndless(t *testing.T) {
	videos := strings.Repeat(`{"video":""},`, 1<<31/nominalVideo)
	tools := `"tools":["` + strings.Repeat("x", 1000) + `"],`
	for name, body := range map[string]string{
		"chat":   `{"model":"m",` + tools + `"messages":[{"role":"user","content":[` + videos + `{"text":"and"}]}]}`,
		"system": `{"model":"m",` + tools + `"system":[` + videos + `{"text":"and"}],"messages":[{"role":"user","content":"hello"}]}`,
	} {
		path := map[string]string{"chat": "/v1/chat/completions", "system": "/v1/messages"}[name]
		r := mustScan(t, path, body)
		checkChain(t, r.Blocks, r.PromptBytes)
		if len(r.Blocks) < 1<<31/nominalVideo-10 || r.PromptBytes <= 1<<31 {
			t.Errorf("%s: %d blocks, %d bytes", name, len(r.Blocks), r.PromptBytes)
		}
	}
}

// The census against counting one byte at a time, for every split.
func TestCensus(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		p := make([]byte, rnd.IntN(6000))
		for i := range p {
			if p[i] = byte('a' + rnd.IntN(3)); rnd.IntN(8) == 0 {
				p[i] = byte(rnd.IntN(256))
			}
		}
		var want, got census
		for _, b := range p {
			if b == want.last {
				want.same++
			}
			want.wide += int(b >> 7)
			want.last = b
		}
		for rest := p; len(rest) > 0; {
			n := 1 + rnd.IntN(len(rest))
			got.count(rest[:n])
			rest = rest[n:]
		}
		if got != want {
			t.Fatalf("%+v, want %+v for %d bytes", got, want, len(p))
		}
	}
}
