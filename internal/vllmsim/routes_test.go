package vllmsim

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// decodeJSON fails the test when body is not JSON.
func decodeJSON(t *testing.T, body string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("decoding %s: %v", body, err)
	}
	return v
}

func dig(v any, path ...any) any {
	for _, p := range path {
		switch k := p.(type) {
		case string:
			v = v.(map[string]any)[k]
		case int:
			v = v.([]any)[k]
		}
	}
	return v
}

const weatherTool = `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city","days"]}`

// TestToolCalls: with tools and a question the model calls the first tool, with the tool's result it answers with text, in
// all three dialects.
func TestToolCalls(t *testing.T) {
	cfg := tiny()
	cfg.ToolParser = true
	bubble(t, cfg, func(f *fixture) {
		tools := `"tools":[{"type":"function","function":{"name":"weather","parameters":` + weatherTool + `}}]`
		_, body := f.call(chatPath, `{"messages":[{"role":"user","content":"rain?"}],`+tools+`}`)
		choice := dig(decodeJSON(t, body), "choices", 0)
		f.want("finish reason", dig(choice, "finish_reason"), any("tool_calls"))
		f.want("tool", dig(choice, "message", "tool_calls", 0, "function", "name"), any("weather"))
		f.want("arguments", dig(choice, "message", "tool_calls", 0, "function", "arguments"), any(`{"city": "sim", "days": 1}`))
		arguments := ""
		for _, fr := range f.open(chatPath, `{"stream":true,"messages":[{"role":"user","content":"rain?"}],`+tools+`}`).all() {
			if calls, ok := dig(decodeOr(fr), "choices", 0, "delta", "tool_calls").([]any); ok {
				arguments += dig(calls, 0, "function", "arguments").(string)
			}
		}
		f.want("streamed arguments", arguments, `{"city": "sim", "days": 1}`)
		_, body = f.call(chatPath, `{"max_tokens":5,"messages":[{"role":"user","content":"rain?"},{"role":"assistant","content":null,"tool_calls":`+
			`[{"id":"c","type":"function","function":{"name":"weather","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"sun"}],`+tools+`}`)
		f.want("finish reason after the result", dig(decodeJSON(t, body), "choices", 0, "finish_reason"), any("length"))

		tools = `"tools":[{"name":"weather","input_schema":` + weatherTool + `}]`
		_, body = f.call("/v1/messages", `{"max_tokens":50,"messages":[{"role":"user","content":"rain?"}],`+tools+`}`)
		f.want("stop reason", dig(decodeJSON(t, body), "stop_reason"), any("tool_use"))
		f.want("input", dig(decodeJSON(t, body), "content", 0, "input", "city"), any("sim"))

		tools = `"tools":[{"type":"function","name":"weather","parameters":` + weatherTool + `}]`
		_, body = f.call("/v1/responses", `{"input":"rain?",`+tools+`}`)
		f.want("output", dig(decodeJSON(t, body), "output", 0, "type"), any("function_call"))
		f.want("status", dig(decodeJSON(t, body), "status"), any("completed"))
	})
}

func decodeOr(frame string) any {
	var v any
	if json.Unmarshal([]byte(frame), &v) != nil {
		v = map[string]any{}
	}
	if m, ok := v.(map[string]any); !ok || m["choices"] == nil || len(m["choices"].([]any)) == 0 {
		return map[string]any{"choices": []any{map[string]any{"delta": map[string]any{}}}}
	}
	return v
}

// TestStructuredOutput: a JSON schema gives a document that fits it.
func TestStructuredOutput(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		_, body := f.call(chatPath, `{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"w","schema":`+weatherTool+`}}}`)
		f.want("content", dig(decodeJSON(t, body), "choices", 0, "message", "content"), any(`{"city": "sim", "days": 1}`))
	})
}

// TestPoolingRoutes: embeddings, scores and ranks are deterministic, run through the engine, and take every input form.
func TestPoolingRoutes(t *testing.T) {
	cfg := tiny()
	cfg.Pooling = true
	bubble(t, cfg, func(f *fixture) {
		_, body := f.call("/v1/embeddings", `{"input":["a b c","d"],"dimensions":8}`)
		v := decodeJSON(t, body)
		f.want("vectors", len(dig(v, "data").([]any)), 2)
		f.want("dimensions", len(dig(v, "data", 0, "embedding").([]any)), 8)
		f.want("prompt tokens", dig(v, "usage", "prompt_tokens"), any(3.0))
		_, body = f.call("/v1/embeddings", `{"input":[1,2,3],"encoding_format":"base64"}`)
		raw, err := base64.StdEncoding.DecodeString(dig(decodeJSON(t, body), "data", 0, "embedding").(string))
		f.want("base64 bytes", fmt.Sprint(len(raw), err), fmt.Sprint(4*embeddingSize, nil))
		_, body = f.call("/v1/score", `{"text_1":"q","text_2":["a","b"]}`)
		first := dig(decodeJSON(t, body), "data", 1, "score")
		_, body = f.call("/score", `{"queries":"q","documents":["a","b"]}`)
		f.want("the same score", dig(decodeJSON(t, body), "data", 1, "score"), first)
		_, body = f.call("/v1/rerank", `{"query":"q","documents":["a",{"text":"b"},"c"],"top_n":2}`)
		results := dig(decodeJSON(t, body), "results").([]any)
		f.want("results", len(results), 2)
		f.want("descending", dig(results, 0, "relevance_score").(float64) >= dig(results, 1, "relevance_score").(float64), true)
		code, _ := f.call("/pooling", `{"input":"x"}`)
		f.want("/pooling", code, 200)
		code, _ = f.call("/classify", `{"input":"x"}`)
		f.want("/classify", code, 200)
		f.want("executed", f.s.Stats().Executed, int64(7))
	})
}

// TestAudio: the model comes from a form field.
func TestAudio(t *testing.T) {
	cfg := tiny()
	cfg.Pooling = true
	form := func(model string) string {
		return "--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n" + model +
			"\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--B--\r\n"
	}
	bubble(t, cfg, func(f *fixture) {
		code, body := f.call("/v1/audio/transcriptions", form("alias"), "Content-Type", "multipart/form-data; boundary=B")
		f.want("status", code, 200)
		f.want("has text", len(dig(decodeJSON(t, body), "text").(string)) > 0, true)
		code, _ = f.call("/v1/audio/transcriptions", form("nope"), "Content-Type", "multipart/form-data; boundary=B")
		f.want("unknown model", code, 404)
	})
}

// TestResponsesState: a response is known to the server that made it, and continues the conversation there.
func TestResponsesState(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		long := strings.Repeat("tell me a story ", 20)
		_, body := f.call("/v1/responses", `{"input":"`+long+`","max_output_tokens":40}`)
		id := dig(decodeJSON(t, body), "id").(string)
		code, again := f.get("/v1/responses/" + id)
		f.want("GET", code, 200)
		f.want("same object", again, body)
		_, next := f.call("/v1/responses", `{"input":"go on","max_output_tokens":4,"previous_response_id":"`+id+`"}`)
		if cached := field(t, next, "cached_tokens"); cached < 64 {
			t.Errorf("%d cached tokens in the next turn", cached)
		}
		code, _ = f.get("/v1/responses/resp_other")
		f.want("GET of an unknown one", code, 404)
	})
}

// TestAdapters: an adapter is listed, keeps its name in responses, and shares no block with the base model.
func TestAdapters(t *testing.T) {
	cfg := tiny()
	cfg.Adapters = []string{"sql"}
	bubble(t, cfg, func(f *fixture) {
		_, models := f.get("/v1/models")
		f.want("parent", dig(decodeJSON(t, models), "data", 2, "parent"), any("tiny"))
		prompt := strings.Repeat("select something ", 20)
		f.call(textPath, `{"prompt":"`+prompt+`","max_tokens":1}`)
		_, body := f.call(textPath, `{"model":"sql","prompt":"`+prompt+`","max_tokens":1}`)
		f.want("model", dig(decodeJSON(t, body), "model"), any("sql"))
		f.want("cached tokens", field(t, body, "cached_tokens"), 0)
		_, body = f.call(textPath, `{"model":"sql","prompt":"`+prompt+`","max_tokens":1}`)
		f.want("cached tokens the second time", field(t, body, "cached_tokens"), 64)
	})
}

// TestImages: the same image is the same prompt, another image is another; a text model refuses them.
func TestImages(t *testing.T) {
	cfg := tiny()
	cfg.Multimodal = true
	body := func(image string) string {
		return `{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + image + `"}}]}]}`
	}
	bubble(t, cfg, func(f *fixture) {
		f.call(chatPath, body("AAAA"))
		_, same := f.call(chatPath, body("AAAA"))
		_, other := f.call(chatPath, body("BBBB"))
		f.want("the same image", field(t, same, "cached_tokens") >= imageTokens-32, true)
		f.want("another image", field(t, other, "cached_tokens"), 0)
	})
}

// TestDetokenize: token ids of text give the text back.
func TestDetokenize(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		const text = "hello world, the quick brown fox"
		_, body := f.call("/tokenize", `{"prompt":"`+text+`"}`)
		tokens, err := json.Marshal(dig(decodeJSON(t, body), "tokens"))
		if err != nil {
			t.Fatal(err)
		}
		_, body = f.call("/detokenize", `{"tokens":`+string(tokens)+`}`)
		f.want("round trip", body, `{"prompt":"`+text+`"}`)
	})
}

// TestSchemaErrors: mistyped fields are refused with the validator's words.
func TestSchemaErrors(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		for body, want := range map[string]string{
			`{"messages":[],"stream":"maybe"}`: `1 validation error:\n  {'type': 'bool_parsing', 'loc': 'body.stream', 'msg': 'Input should be a valid boolean, unable to interpret input', 'input': 'maybe'}`,
			`{"messages":[],"n":1.5}`:          `1 validation error:\n  {'type': 'int_from_float', 'loc': 'body.n', 'msg': 'Input should be a valid integer, got a number with a fractional part', 'input': '1.5'}`,
			`{"messages":[],"model":7}`:        `1 validation error:\n  {'type': 'string_type', 'loc': 'body.model', 'msg': 'Input should be a valid string', 'input': '7'}`,
			`{"model":["x"],"n":"a"}`: `3 validation errors:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 2 items>'}\n  ` +
				`{'type': 'string_type', 'loc': 'body.model', 'msg': 'Input should be a valid string', 'input': '<list of 1 items>'}\n  ` +
				`{'type': 'int_parsing', 'loc': 'body.n', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'a'}`,
		} {
			code, got := f.call(chatPath, body)
			f.want("status of "+body, code, 400)
			if !strings.Contains(got, want) {
				t.Errorf("%s:\n got %s\nwant %s", body, got, want)
			}
		}
	})
}

func TestJSONSyntax(t *testing.T) {
	for body, want := range map[string]string{
		`{"a": }`:         "Expecting value 6",
		`{"a": 1,}`:       "Expecting property name enclosed in double quotes 8",
		`{"a" 1}`:         "Expecting ':' delimiter 5",
		`{"a": 1 "b"}`:    "Expecting ',' delimiter 8",
		`{"a": "x`:        "Unterminated string starting at 6",
		`{"ä": 1} x`:      "Extra data 9",
		`{"a": "\q"}`:     `Invalid \\escape 7`,
		"{\"a\": \"\n\"}": "Invalid control character at 7",
		`[1, 2`:           "Expecting ',' delimiter 5",
		`nope`:            "Expecting value 0",
	} {
		msg, pos := jsonSyntax([]byte(body))
		if got := fmt.Sprint(msg, " ", pos); got != want {
			t.Errorf("jsonSyntax(%s) = %s, want %s", body, got, want)
		}
	}
}

// FuzzDecode: no body makes the decoder fail in another way than with an error.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"messages":[]}`, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}`, `[1,`, `{"a":"\u12`, "\xff", `{"n":1e999}`} {
		f.Add([]byte(s))
	}
	s, err := New(tiny())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		fs, e := s.decode(body, chatSchema())
		if e != nil {
			if !json.Valid(e.body(false, false)) || !json.Valid(e.body(true, false)) {
				t.Errorf("the error for %q is not JSON", body)
			}
			return
		}
		messages, _ := chatMessages(fs["messages"])
		s.lex.encode(renderSegments("", messages, true))
	})
}

func TestMetricNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0.0", 23: "23.0", 999999: "999999.0", 1e6: "1e+06", 1796192194.89: "1.79619219489e+09",
		4723253248: "4.723253248e+09", 0.0138888: "0.0138888", 1e-5: "1e-05", 0.00018: "0.00018", 2560: "2560.0"} {
		if got := string(appendMetric(nil, v)); got != want {
			t.Errorf("appendMetric(%v) = %s, want %s", v, got, want)
		}
	}
}

// TestStyles: every style serves a page with the names of its age.
func TestStyles(t *testing.T) {
	for style, names := range map[string][2]string{
		"vllm-0.8":  {"vllm:gpu_cache_usage_perc", "vllm:prompt_tokens_by_source_total"},
		"vllm-0.12": {"vllm:inter_token_latency_seconds_count", "vllm:gpu_cache_usage_perc"},
		"current":   {"vllm:admission_rejections_total", "vllm:time_per_output_token_seconds_count"},
		"sglang":    {"sglang:token_usage", "vllm:num_requests_running"},
	} {
		cfg := tiny()
		cfg.MetricsStyle = style
		bubble(t, cfg, func(f *fixture) {
			f.call(textPath, `{"prompt":"x","max_tokens":5}`)
			_, page := f.get("/metrics")
			f.want(style+" has "+names[0], strings.Contains(page, "\n"+names[0]), true)
			f.want(style+" has "+names[1], strings.Contains(page, "\n"+names[1]), false)
		})
	}
}

func TestConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"checking metrics-style": func(c *Config) { c.MetricsStyle = "vllm-9" },
		"checking profile":       func(c *Config) { c.Profile = "none" },
		"checking num-blocks":    func(c *Config) { c.NumBlocks = 3 },
		"checking speed":         func(c *Config) { c.Speed = -1 },
		"checking merge":         func(c *Config) { c.Merge = 1 },
	} {
		cfg := tiny()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %s...", err, want)
		}
	}
}

// TestBodyIsNotText: a compressed body is not decompressed.
func TestBodyIsNotText(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		code, body := f.call(chatPath, "\x1f\x8b\x08\x00rubbish", "Content-Encoding", "gzip")
		f.want("status", code, 400)
		f.want("body", body, `{"detail":"There was an error parsing the body"}`)
		code, _ = f.call(chatPath, `{"messages":[{"role":"user","content":"hi"}],"n":1000000000,"max_tokens":1}`)
		f.want("status of a billion answers", code, 400)
	})
}
