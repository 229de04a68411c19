package llmapi

import (
	"slices"
	"strings"
	"testing"
)

// shared is the number of bytes of b's prompt that a's prompt covers.
func shared(t *testing.T, path, a, b string) (int, Request, Request) {
	t.Helper()
	x, y := mustScan(t, path, a), mustScan(t, path, b)
	n := 0
	for i := range min(len(x.Blocks), len(y.Blocks)) {
		if x.Blocks[i].Hash != y.Blocks[i].Hash {
			break
		}
		n = int(y.Blocks[i].End)
	}
	return n, x, y
}

func equal(t *testing.T, path, a, b string) bool {
	t.Helper()
	n, x, y := shared(t, path, a, b)
	return n > 0 && len(x.Blocks) == len(y.Blocks) && n == int(y.Blocks[len(y.Blocks)-1].End)
}

func msgs(s string) string { return `{"model":"m","messages":[` + s + `]}` }

// TestIdentityEqual: what makes no difference to an engine makes none here.
func TestIdentityEqual(t *testing.T) {
	user := func(content string) string { return msgs(`{"role":"user","content":` + content + `}`) }
	tests := []struct{ name, path, a, b string }{
		{"space", chatPath, user(`"hi"`), "\n{ \"model\" : \"m\",\t\"messages\":[ { \"role\":\"user\" , \"content\" : \"hi\" } ] }"},
		{"escapes", chatPath, user(`"a\nb\"c\u00e9\/\ud83d\ude00"`), user(`"a\u000ab\u0022cé/😀"`)},
		{"string and single text part", chatPath, user(`"hi"`), user(`[{"type":"text","text":"hi"}]`)},
		{"text before type", chatPath, user(`[{"text":"hi","type":"text"}]`), user(`[{"type":"text","text":"hi"}]`)},
		{"sampling", chatPath, `{"model":"m","temperature":0,"messages":[{"role":"user","content":"hi"}],"seed":1}`, `{"model":"m","messages":[{"role":"user","content":"hi"}],"user":"u"}`},
		{"null fields of an echoed answer", chatPath, msgs(`{"role":"assistant","content":"x","tool_calls":null,"refusal":null}`), msgs(`{"role":"assistant","content":"x"}`)},
		{"no tools and none", chatPath, `{"model":"m","tools":[],"documents":null,"messages":[{"role":"user","content":"hi"}]}`, user(`"hi"`)},
		{"position of tools and salt", chatPath,
			`{"model":"m","tools":[{"a":1}],"cache_salt":"s","messages":[{"role":"user","content":"hi"}]}`,
			`{"cache_salt":"s","messages":[{"role":"user","content":"hi"}],"model":"m","tools":[{"a":1}]}`},
		{"same image", chatPath, user(`[{"type":"image_url","image_url":{"url":"data:abc"}}]`), user(`[{"type":"image_url","image_url":{"url":"data:a\u0062c"}}]`)},
		{"input as string and as item", respPath, `{"input":"hi"}`, `{"input":[{"role":"user","content":"hi"}]}`},
		{"item ids", respPath, `{"input":[{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"x"}]}]}`, `{"input":[{"role":"assistant","content":"x"}]}`},
		{"instructions first or last", respPath, `{"instructions":"sys","input":"hi"}`, `{"input":"hi","instructions":"sys"}`},
		{"system as string and as block", msgPath, `{"system":"sys","messages":[{"role":"user","content":"hi"}]}`, `{"messages":[{"role":"user","content":"hi"}],"system":[{"type":"text","text":"sys"}]}`},
		{"caching marks", msgPath, msgs(`{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}`), msgs(`{"role":"user","content":"a"}`)},
		{"prompt ids", complPath, `{"prompt":[1,2]}`, `{"prompt":[[1,2]]}`},
	}
	for _, tt := range tests {
		if !equal(t, tt.path, tt.a, tt.b) {
			t.Errorf("%s: must be the same prompt:\n%s\n%s", tt.name, tt.a, tt.b)
		}
	}
}

// TestIdentityDiffers: all that an engine's own prefix hash covers.
func TestIdentityDiffers(t *testing.T) {
	chat := func(fields string) string { return `{"model":"m",` + fields + `}` }
	hi := `"messages":[{"role":"user","content":"hi"}]`
	groups := []struct {
		name, path string
		bodies     []string
	}{
		{"content", chatPath, []string{
			msgs(`{"role":"user","content":"hi"}`), msgs(`{"role":"user","content":"hi "}`), msgs(`{"role":"system","content":"hi"}`),
			msgs(`{"role":"user","content":""}`), msgs(`{"role":"user","content":null}`), msgs(`{"role":"user"}`), msgs(`{"role":"user","content":[]}`),
			msgs(`{"role":"user","content":"hi"},{"role":"user","content":""}`), msgs(`{"role":"user","content":"h"},{"role":"user","content":"i"}`),
			msgs(`{"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}`),
			msgs(`{"role":"user","content":[{"type":"refusal","text":"hi"}]}`),
			msgs(`{"role":"user","content":"hi","name":"bob"}`), msgs(`{"role":"user","content":"hi","name":"eve"}`),
			msgs(`{"role":"user","content":"\ud800"}`), msgs(`{"role":"user","content":"\ud801"}`), msgs(`{"role":"user","content":"\udc00"}`),
		}},
		{"tool calls", chatPath, []string{
			msgs(`{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]}`),
			msgs(`{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"g","arguments":"{}"}}]}`),
			msgs(`{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":1}"}}]}`),
			msgs(`{"role":"assistant","content":null,"tool_calls":[]}`), msgs(`{"role":"assistant","content":null}`),
			msgs(`{"role":"tool","tool_call_id":"1","content":"4"}`), msgs(`{"role":"tool","tool_call_id":"2","content":"4"}`),
		}},
		{"media", chatPath, []string{
			msgs(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:a"}}]}`),
			msgs(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:b"}}]}`),
			msgs(`{"role":"user","content":[{"type":"audio_url","audio_url":{"url":"data:a"}}]}`),
			msgs(`{"role":"user","content":[{"type":"video_url","video_url":{"url":"data:a"}}]}`),
			msgs(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:a"}},{"type":"image_url","image_url":{"url":"data:b"}}]}`),
			msgs(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:b"}},{"type":"image_url","image_url":{"url":"data:a"}}]}`),
			msgs(`{"role":"user","content":"data:a"}`),
		}},
		{"what stands before", chatPath, []string{
			chat(hi), chat(`"tools":[{"f":1},{"g":1}],` + hi), chat(`"tools":[{"g":1},{"f":1}],` + hi), chat(`"tools":[{"f":1}],` + hi),
			chat(`"documents":[{"f":1}],` + hi), chat(`"cache_salt":"a",` + hi), chat(`"cache_salt":"b",` + hi), chat(`"chat_template":"x",` + hi),
			chat(`"chat_template_kwargs":{"enable_thinking":true},` + hi), chat(`"chat_template_kwargs":{"enable_thinking":false},` + hi),
			chat(`"reasoning_effort":"low",` + hi), chat(`"reasoning_effort":"high",` + hi), chat(`"functions":[{"f":1}],` + hi),
			chat(`"truncate_prompt_tokens":5,` + hi), chat(`"add_special_tokens":false,` + hi), chat(`"add_special_tokens":true,` + hi),
			`{"model":"lora-a",` + hi + `}`, `{"model":"lora-b",` + hi + `}`, `{` + hi + `}`,
		}},
		{"tools in Messages", msgPath, []string{
			chat(hi), chat(`"system":"a",` + hi), chat(`"system":"b",` + hi), chat(`"system":"a","tools":[{"name":"f"}],` + hi), chat(`"thinking":{"type":"enabled"},` + hi),
			msgs(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"4"}]}`), msgs(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"5"}]}`),
			msgs(`{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"a":1}}]}`), msgs(`{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"a":2}}]}`),
			msgs(`{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"a"}}]}`),
			msgs(`{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"b"}}]}`),
		}},
		{"responses", respPath, []string{
			`{"input":"hi"}`, `{"input":"hi","instructions":"a"}`, `{"input":"hi","reasoning":{"effort":"low"}}`, `{"input":[{"role":"developer","content":"hi"}]}`,
			`{"input":[{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}]}`, `{"input":[{"type":"function_call_output","call_id":"1","output":"1"}]}`,
			`{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:a"}]}]}`, `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:b"}]}]}`,
		}},
		{"prompts", complPath, []string{`{"prompt":"12"}`, `{"prompt":[1,2]}`, `{"prompt":[2,1]}`, `{"prompt":[12]}`, `{"prompt":"2"}`}},
	}
	for _, g := range groups {
		seen := map[uint64]string{}
		for _, body := range g.bodies {
			r := mustScan(t, g.path, body)
			if len(r.Blocks) == 0 {
				t.Errorf("%s: no block for %s", g.name, body)
				continue
			}
			last := r.Blocks[len(r.Blocks)-1].Hash
			if other, ok := seen[last]; ok {
				t.Errorf("%s: must differ:\n%s\n%s", g.name, other, body)
			}
			seen[last] = body
		}
	}
}

// TestIdentityNextTurn: the next turn of a conversation continues the former one
// to the byte, in each API that has conversations.
func TestIdentityNextTurn(t *testing.T) {
	system := strings.Repeat("You are a patient assistant. ", 40)
	tools := `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],`
	tests := []struct{ name, path, first, second string }{
		{"chat", chatPath, msgs(`{"role":"system","content":"` + system + `"},{"role":"user","content":"hi"}`),
			msgs(`{"role":"system","content":"` + system + `"},{"role":"user","content":"hi"},{"role":"assistant","content":"yes?"},{"role":"user","content":"bye"}`)},
		{"chat with tools", chatPath, `{"model":"m",` + tools + `"messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}]}`,
			`{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"},{"role":"assistant","content":"yes?"}],` + tools + `"x":1}`},
		{"responses", respPath, `{"instructions":"` + system + `","input":"hi"}`, `{"input":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"output_text","text":"yes?"}]},{"role":"user","content":"bye"}],"instructions":"` + system + `"}`},
		{"messages", msgPath, `{"system":"` + system + `","messages":[{"role":"user","content":"hi"}]}`,
			`{"system":[{"type":"text","text":"` + system + `"}],"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yes?"},{"role":"user","content":"bye"}]}`},
	}
	for _, tt := range tests {
		n, first, _ := shared(t, tt.path, tt.first, tt.second)
		if n != first.PromptBytes {
			t.Errorf("%s: the second turn finds %d bytes of the first, want all %d", tt.name, n, first.PromptBytes)
		}
	}
}

// TestIdentitySharedSystem: another question behind the same system prompt finds
// the system prompt, with its tools, and nothing of the question.
func TestIdentitySharedSystem(t *testing.T) {
	system := strings.Repeat("Answer in one word. ", 100) // 2000 bytes
	tools := `"tools":[{"name":"` + strings.Repeat("f", 500) + `"}],`
	tests := []struct {
		name, path, a, b string
		atLeast, atMost  int
	}{
		{"chat", chatPath, msgs(`{"role":"system","content":"` + system + `"},{"role":"user","content":"one"}`), msgs(`{"role":"system","content":"` + system + `"},{"role":"user","content":"two"}`), 2000, 2020},
		{"chat with tools", chatPath, `{` + tools + `"messages":[{"role":"system","content":"` + system + `"},{"role":"user","content":"one"}]}`,
			`{` + tools + `"messages":[{"role":"system","content":"` + system + `"},{"role":"user","content":"two"}]}`, 2500, 2540},
		{"messages with tools", msgPath, `{"system":"` + system + `",` + tools + `"messages":[{"role":"user","content":"one"}]}`,
			`{"system":"` + system + `",` + tools + `"messages":[{"role":"user","content":"two"}]}`, 2500, 2540},
		{"responses", respPath, `{"instructions":"` + system + `","input":"one"}`, `{"instructions":"` + system + `","input":"two"}`, 2000, 2020},
	}
	for _, tt := range tests {
		if n, _, _ := shared(t, tt.path, tt.a, tt.b); n < tt.atLeast || n > tt.atMost {
			t.Errorf("%s: %d bytes are shared, want %d to %d", tt.name, n, tt.atLeast, tt.atMost)
		}
	}
}

// TestIdentityLongestOfAList: of a list of prompts the longest one is followed.
func TestIdentityLongestOfAList(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for _, body := range []string{`{"prompt":["a","` + long + `","b"]}`, `{"prompt":["` + long + `","a","b"]}`, `{"prompt":["a","b","` + long + `"]}`} {
		if !equalChains(mustScan(t, complPath, body), mustScan(t, complPath, `{"prompt":"`+long+`"}`)) {
			t.Errorf("%.30s...: not the chain of the longest prompt", body)
		}
	}
}

func equalChains(a, b Request) bool {
	if len(a.Blocks) != len(b.Blocks) || len(a.Blocks) == 0 {
		return false
	}
	for i := range a.Blocks {
		if a.Blocks[i] != b.Blocks[i] {
			return false
		}
	}
	return true
}

// TestRename: the chain of a renamed request is that of one which asked by that name, in every API.
func TestRename(t *testing.T) {
	for path, rest := range map[string]string{
		chatPath:  `"tools":[{"a":1}],"messages":[{"role":"system","content":"sys"},{"role":"user","content":"hi"}]`,
		complPath: `"prompt":["a","a longer one"]`,
		respPath:  `"instructions":"sys","input":"hi"`,
		msgPath:   `"system":"sys","messages":[{"role":"user","content":"hi"}]`,
	} {
		var s Scanner
		r, err := scan(&s, apiOf(t, path), []byte(`{"model":"alias",`+rest+`}`), all)
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(10, func() { s.Rename("m") }); n > 0 {
			t.Errorf("%s: %v allocations", path, n)
		}
		want := mustScan(t, path, `{"model":"m",`+rest+`}`)
		if !slices.Equal(r.Blocks, want.Blocks) || r.PromptBytes != want.PromptBytes || len(r.Blocks) == 0 {
			t.Errorf("%s: %v and %d bytes, want %v and %d", path, r.Blocks, r.PromptBytes, want.Blocks, want.PromptBytes)
		}
	}
}
