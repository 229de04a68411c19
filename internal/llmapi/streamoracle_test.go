package llmapi

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// facts is all that a Stream says.
type facts struct {
	First, Finished, Done, Aborted, NoChoices, Choice bool
	Events, Tokens                                    int
	Usage                                             Usage
	HasUsage                                          bool
	Error                                             string
	Code                                              int
	HasError                                          bool
	Cut                                               string // CutEvent
	Tail                                              int    // of Broken
	Broken                                            bool
}

func factsOf(s *Stream) facts {
	f := facts{First: s.FirstToken(), Finished: s.Finished(), Done: s.Done(), Aborted: s.Aborted(),
		NoChoices: s.NoChoices(), Choice: s.Choice(), Events: s.Events(), Tokens: s.Tokens()}
	f.Usage, f.HasUsage = s.Usage()
	f.Error, f.Code, f.HasError = s.ErrorEvent()
	f.Tail, f.Broken = s.Broken()
	if !f.Broken { // else both depend on what the client got
		f.Tail, f.Cut = 0, string(s.CutEvent(&Error{Status: 502, Reason: ReasonCut, Message: "cut"}))
	}
	return f
}

// A reference reads a whole response with encoding/json and the grammar of the
// event stream specification, and takes the same facts as a Stream.
type reference struct {
	kind      Kind
	anthropic bool
	stream    bool
	got       facts
	usage     Usage
	frames    int
	seen      map[int]bool // choice: finished
	far       int          // choices beyond maxChoices
	farDone   int
	ended     bool
	vague     bool // duplicate keys: which one counts is not defined
}

func refer(k Kind, d Dialect, stream bool, body string) *reference {
	r := &reference{kind: k, anthropic: d == Anthropic, stream: stream, seen: map[int]bool{}}
	if stream {
		r.lines(body)
	} else if v := r.decode(body); v != nil {
		r.got.Events++
		r.event(v, "")
	}
	f := &r.got
	f.Tokens = r.usage.Output + r.frames
	if f.HasUsage {
		f.Usage = r.usage
		f.Usage.Output = f.Tokens
	}
	f.Finished = r.ended
	choices := len(r.seen)+r.far > 0
	if choices {
		f.Finished = r.choicesDone() || r.ended
	}
	f.NoChoices = stream && r.chatty() && f.Done && !f.HasError && !choices
	f.Choice = choices || !r.chatty() && f.Events > 0
	return r
}

func (r *reference) choicesDone() bool {
	for _, done := range r.seen {
		if !done {
			return false
		}
	}
	return r.farDone >= r.far
}

func (r *reference) chatty() bool {
	return r.kind == Chat || r.kind == Completions || r.kind == Generate
}

func (r *reference) lines(body string) {
	body = strings.TrimPrefix(body, byteOrderMark)
	lines := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(body), "\n")
	var name string
	var data []string
	var told bool
	var last any
	for i, line := range lines {
		cut := i == len(lines)-1 // what follows the last line break, perhaps nothing
		if line == "" && !cut {
			if len(data) > 0 {
				if !told {
					r.got.Events++
				}
				if name == "error" {
					top, _ := last.(map[string]any)
					r.fail(top)
				}
			}
			name, data, told, last = "", nil, false, nil
			continue
		}
		field, value, colon := strings.Cut(line, ":")
		if cut && !colon {
			continue
		}
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			name = value
		case "data":
			if told { // no blank line came between
				data, told, last = nil, false, nil
			}
			data = append(data, value)
			whole := strings.Join(data, "\n")
			if mark := strings.ToLower(strings.TrimLeft(whole, " \t\n")); strings.HasPrefix(mark, "[done]") {
				r.got.Done, told = true, true
				r.got.Events++
			} else if v := r.decode(whole); v != nil {
				told, last = true, v
				r.got.Events++
				r.event(v, name)
			}
		}
	}
}

// decode returns the object or the array that text begins with, nil if it does not.
func (r *reference) decode(text string) any {
	text, deep := lenient(text)
	if deep {
		return nil
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return nil
	}
	switch v.(type) {
	case map[string]any, []any:
		r.vague = r.vague || ambiguous(json.NewDecoder(strings.NewReader(text)))
		return v
	}
	return nil
}

var escape = regexp.MustCompile(`^\\(["\\/bfnrt]|u[0-9a-fA-F]{4})`)

// lenient replaces control characters in strings, which encoding/json refuses and
// a Stream does not. It reports whether the text nests too deep for a Stream.
func lenient(text string) (string, bool) {
	out := []byte(text)
	inside, depth, deep := false, 0, false
	for i := 0; i < len(out); i++ {
		c := out[i]
		switch {
		case inside && c == '\\':
			n := len(escape.FindString(text[i:]))
			i += max(n, 1) - 1
		case inside && c < ' ':
			out[i] = '?'
		case c == '"':
			inside = !inside
		case !inside && (c == '{' || c == '['):
			depth++
			deep = deep || depth > maxDepth
		case !inside && (c == '}' || c == ']'):
			if depth--; depth == 0 {
				return string(out), deep
			}
		}
	}
	return string(out), deep
}

// ambiguous reports whether an object has a key twice, or one that is very long.
func ambiguous(dec *json.Decoder) bool {
	t, _ := dec.Token()
	switch t {
	case json.Delim('{'):
		keys := map[any]bool{}
		for dec.More() {
			k, _ := dec.Token()
			if keys[k] || ambiguous(dec) {
				return true
			}
			keys[k] = true
		}
		dec.Token()
	case json.Delim('['):
		for dec.More() {
			if ambiguous(dec) {
				return true
			}
		}
		dec.Token()
	}
	return false
}

func refObject(v any, key string) map[string]any {
	m, _ := v.(map[string]any)
	o, _ := m[key].(map[string]any)
	return o
}

func refText(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}

// short is text as far as a Stream compares it.
func refShort(m map[string]any, key string) string {
	if s := refText(m, key); len(s) <= 128 {
		return s
	}
	return ""
}

func refCount(m map[string]any, key string) int {
	n, ok := m[key].(json.Number)
	if !ok || strings.ContainsAny(n.String(), ".eE") {
		return -1
	}
	if len(n) > 15 {
		return 1 << 40
	}
	i, err := strconv.Atoi(n.String())
	if err != nil || i < 0 {
		return -1
	}
	return min(i, 1<<40)
}

func refHolds(v any) bool {
	switch v := v.(type) {
	case string:
		return v != ""
	case map[string]any:
		return len(v) > 0
	case []any:
		return slices.ContainsFunc(v, func(e any) bool { return e != nil })
	}
	return false
}

var contentKeys = []string{"content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call", "audio",
	"text", "thinking", "partial_json"}

func hasContent(delta map[string]any) bool {
	return slices.ContainsFunc(contentKeys, func(k string) bool { return refHolds(delta[k]) })
}

func hasBlank(delta map[string]any) bool {
	return slices.ContainsFunc(contentKeys, func(k string) bool { return delta[k] == "" })
}

func (r *reference) event(v any, name string) {
	top, _ := v.(map[string]any)
	typ := refShort(top, "type")
	if refText(top, "type") == "" {
		typ = name
	}
	frames, ends := r.takeChoices(top)
	if !r.chatty() && (hasContent(refObject(v, "delta")) || refText(top, "delta") != "") &&
		(typ == "content_block_delta" || len(typ) > 6 && strings.HasSuffix(typ, ".delta")) {
		frames++
	}
	r.frames += frames
	r.got.First = r.got.First || frames+ends > 0
	for _, from := range []map[string]any{top, refObject(v, "response"), refObject(v, "message")} {
		r.takeUsage(refObject(from, "usage"), typ == "message_start")
	}
	if !r.stream && r.usage.Output > 0 {
		r.got.First = true
	}
	failed := false
	_, isText := top["error"].(string)
	if isText && refText(top, "error") != "" || len(refObject(v, "error")) > 0 || len(refObject(refObject(v, "response"), "error")) > 0 ||
		typ == "error" || typ == "response.failed" || refText(top, "object") == "error" {
		r.fail(top)
		failed = true
	}
	switch {
	case r.stream && r.terminal(typ):
		r.ended, r.got.Done = true, true
		r.got.First = r.got.First || !failed
	case !r.stream && !r.chatty() && !failed:
		r.ended = true
	}
}

func (r *reference) takeChoices(top map[string]any) (frames, ends int) {
	choices, _ := top["choices"].([]any)
	for _, c := range choices {
		c, ok := c.(map[string]any)
		if !ok {
			continue
		}
		i, reason := max(refCount(c, "index"), 0), refText(c, "finish_reason")
		if reason != "" {
			ends++
		}
		switch {
		case i < maxChoices:
			r.seen[i] = r.seen[i] || reason != ""
		case reason != "":
			r.farDone++
			fallthrough
		default:
			r.far = max(r.far, i-maxChoices+1)
		}
		r.got.Aborted = r.got.Aborted || reason == "abort"
		n := 0
		if refText(c, "text") != "" || hasContent(refObject(c, "delta")) || hasContent(refObject(c, "message")) {
			n = 1
		} else if _, role := refObject(c, "delta")["role"]; !role && reason == "" {
			if _, role = refObject(c, "message")["role"]; !role && (c["text"] == "" || hasBlank(refObject(c, "delta")) || hasBlank(refObject(c, "message"))) {
				n = 1 // an output whose text the engine holds back
			}
		}
		ids, _ := c["token_ids"].([]any)
		listed := 0
		for _, id := range ids {
			if id != nil {
				listed++
			}
		}
		frames += max(n, listed)
	}
	return frames, ends
}

func (r *reference) terminal(typ string) bool {
	switch r.kind {
	case Responses, Response:
		return slices.Contains([]string{"response.completed", "response.incomplete", "response.failed", "response.cancelled"}, typ)
	case Messages:
		return typ == "message_stop"
	}
	return !r.chatty() && typ == "transcript.text.done"
}

func (r *reference) takeUsage(m map[string]any, start bool) {
	first := func(keys ...string) int {
		n := -1
		for _, k := range keys {
			n = max(n, refCount(m, k))
		}
		return n
	}
	prompt, output := first("prompt_tokens", "input_tokens"), first("completion_tokens", "output_tokens")
	read, made := refCount(m, "cache_read_input_tokens"), refCount(m, "cache_creation_input_tokens")
	if max(prompt, output, read, made) < 0 {
		return
	}
	cached := max(refCount(refObject(m, "prompt_tokens_details"), "cached_tokens"), refCount(refObject(m, "input_tokens_details"), "cached_tokens"))
	if r.anthropic {
		cached = read
	}
	u := Usage{Prompt: max(prompt, 0), Output: max(output, 0), Cached: max(cached, 0), HasCached: cached >= 0}
	if r.anthropic {
		if u.Prompt += max(read, 0) + max(made, 0); u.Prompt == 0 {
			u.Prompt, u.Cached, u.HasCached = r.usage.Prompt, r.usage.Cached, r.usage.HasCached
		}
	}
	switch {
	case start && r.anthropic:
		u.Output = 0
	case output < 0:
		u.Output = r.usage.Output
	}
	if output >= 0 && !start {
		r.frames = 0
	}
	r.usage, r.got.HasUsage = u, true
}

func (r *reference) fail(top map[string]any) {
	if r.got.HasError {
		return
	}
	r.got.HasError = true
	inner := refObject(top, "error")
	if inner == nil {
		inner = refObject(refObject(top, "response"), "error")
	}
	r.got.Error = refText(inner, "message")
	if s := refText(top, "error"); s != "" {
		r.got.Error = s
	}
	if r.got.Error == "" {
		r.got.Error = refText(top, "message")
	}
	if len(r.got.Error) > maxMessage {
		r.got.Error = r.got.Error[:maxMessage]
	}
	if r.got.Code = statusIn(inner); r.got.Code == 0 {
		r.got.Code = statusIn(top)
	}
}

func statusIn(m map[string]any) int {
	if n := refCount(m, "code"); n > 0 {
		return n
	}
	if n, err := strconv.ParseUint(refShort(m, "code"), 10, 16); err == nil {
		return int(n)
	}
	if n := statusOf(refShort(m, "type")); n != 0 {
		return n
	}
	return statusOf(refShort(m, "code"))
}

// plainFacts makes messages equal that differ in what is no text only.
func plainFacts(f facts) facts {
	f.Error = strings.Map(func(r rune) rune {
		if r < ' ' || r == '?' || r == utf8.RuneError {
			return -1
		}
		return r
	}, f.Error)
	f.Cut, f.Tail, f.Broken = "", 0, false
	return f
}
