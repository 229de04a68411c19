package llmapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func (f facts) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "events=%d tokens=%d", f.Events, f.Tokens)
	for _, w := range []struct {
		is   bool
		name string
	}{{f.First, "first"}, {f.Finished, "finished"}, {f.Done, "done"}, {f.Aborted, "aborted"}, {f.NoChoices, "no-choices"}} {
		if w.is {
			b.WriteString(" " + w.name)
		}
	}
	if f.HasUsage {
		fmt.Fprintf(&b, " usage=%d/%d", f.Usage.Prompt, f.Usage.Output)
		if f.Usage.HasCached {
			fmt.Fprintf(&b, "/%d", f.Usage.Cached)
		}
	}
	if f.HasError {
		fmt.Fprintf(&b, " error=%d %.60q", f.Code, f.Error)
	}
	return b.String()
}

func readStream(k Kind, d Dialect, stream bool, pieces ...string) facts {
	s := new(Stream)
	s.Reset(k, d, stream)
	for _, p := range pieces {
		s.Write([]byte(p))
	}
	return factsOf(s)
}

// all gives a body in one piece.
func all(n int) int { return n }

func readBody(k Kind, d Dialect, stream bool, body []byte) *Stream {
	s := new(Stream)
	s.Reset(k, d, stream)
	s.Write(body)
	return s
}

// everySplit checks that body says the same in one piece, cut in two at every
// place, and byte by byte, and that this is what the reference says.
func everySplit(t *testing.T, k Kind, d Dialect, stream bool, body string) facts {
	t.Helper()
	whole := readStream(k, d, stream, body)
	for i := range len(body) {
		if cut := readStream(k, d, stream, body[:i], body[i:]); cut != whole {
			t.Fatalf("cut at byte %d:\n%s", i, cmp.Diff(whole, cut))
		}
	}
	if bytewise := readStream(k, d, stream, strings.Split(body, "")...); bytewise != whole && isASCII(body) {
		t.Fatalf("byte by byte:\n%s", cmp.Diff(whole, bytewise))
	}
	if want := plainFacts(refer(k, d, stream, body).got); plainFacts(whole) != want {
		t.Fatalf("against the reference:\n%s", cmp.Diff(want, plainFacts(whole)))
	}
	return whole
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0
}

// TestStreamRecordings compares the facts of every recorded answer with a golden
// file and with the reference, and shows that no split makes a difference.
func TestStreamRecordings(t *testing.T) {
	var out strings.Builder
	for _, r := range recordings(t) {
		api, err := Lookup(r.method, r.path)
		if err != nil || r.status == 0 {
			continue
		}
		form := "json"
		if r.sse {
			form = "sse"
		}
		fmt.Fprintf(&out, "%s %d %s: %s\n", r.name, r.status, form, everySplit(t, api.Kind, api.Dialect, r.sse, string(r.respBody)))
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
		if got := readBody(Responses, OpenAI, r.sse, r.respBody).ResponseID(); got != want {
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
		if got := readBody(tt.kind, OpenAI, true, []byte(tt.body)).Choice(); got != tt.want {
			t.Errorf("%q: %v, want %v", tt.body, got, tt.want)
		}
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
		got, ok := readBody(api.Kind, api.Dialect, true, r.respBody).Usage()
		if got != want || ok != wantOK {
			t.Errorf("%s: usage %+v %v, want %+v %v", r.name, got, ok, want, wantOK)
		}
		n++
	}
	if n < 10 {
		t.Errorf("compared %d streams", n)
	}
}
