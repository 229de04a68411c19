package llmapi

import (
	"net/url"
	"path"
	"strings"
	"testing"
)

func TestLookup(t *testing.T) {
	tests := []struct {
		method, path string
		kind         Kind
		canonical    string
		forward      string
	}{
		{"POST", "/v1/chat/completions", Chat, "/v1/chat/completions", "/v1/chat/completions"},
		{"POST", "/v1/completions", Completions, "/v1/completions", "/v1/completions"},
		{"POST", "/v1/responses", Responses, "/v1/responses", "/v1/responses"},
		{"GET", "/v1/responses/resp_1", Response, "/v1/responses/{id}", "/v1/responses/resp_1"},
		{"DELETE", "/v1/responses/resp_1", Response, "/v1/responses/{id}", "/v1/responses/resp_1"},
		{"POST", "/v1/responses/resp_1/cancel", Response, "/v1/responses/{id}/cancel", "/v1/responses/resp_1/cancel"},
		{"POST", "/v1/messages", Messages, "/v1/messages", "/v1/messages"},
		{"POST", "/v1/messages/count_tokens", CountTokens, "/v1/messages/count_tokens", "/v1/messages/count_tokens"},
		{"POST", "/v1/embeddings", Embeddings, "/v1/embeddings", "/v1/embeddings"},
		{"POST", "/pooling", Pooling, "/pooling", "/pooling"},
		{"POST", "/classify", Classify, "/classify", "/classify"},
		{"POST", "/v1/score", Score, "/v1/score", "/v1/score"},
		{"POST", "/score", Score, "/score", "/score"},
		{"POST", "/v2/rerank", Rerank, "/v2/rerank", "/v2/rerank"},
		{"POST", "/tokenize", Tokenize, "/tokenize", "/tokenize"},
		{"POST", "/detokenize", Detokenize, "/detokenize", "/detokenize"},
		{"POST", "/v1/audio/transcriptions", Audio, "/v1/audio/transcriptions", "/v1/audio/transcriptions"},
		{"GET", "/v1/realtime", Realtime, "/v1/realtime", "/v1/realtime"},
		{"GET", "/v1/models", Models, "/v1/models", "/v1/models"},
		{"HEAD", "/v1/models", Models, "/v1/models", "/v1/models"},
		{"GET", "/v1/models/tiny", Model, "/v1/models/{id}", "/v1/models"},
		{"POST", "/inference/v1/generate", Generate, "/inference/v1/generate", "/inference/v1/generate"},
		{"POST", "/v1/chat/completions/render", Render, "/v1/chat/completions/render", "/v1/chat/completions/render"},
	}
	for _, tt := range tests {
		api, err := Lookup(tt.method, tt.path)
		if err != nil || api.Kind != tt.kind || api.Path != tt.canonical || api.Forward != tt.forward {
			t.Errorf("%s %s: %+v %v", tt.method, tt.path, api, err)
		}
		if (api.Dialect == Anthropic) != strings.HasPrefix(tt.path, "/v1/messages") {
			t.Errorf("%s: dialect %d", tt.path, api.Dialect)
		}
	}
}

func TestLookupModelID(t *testing.T) {
	for raw, want := range map[string]string{
		"tiny": "tiny", "Org/Model-1.5": "Org/Model-1.5", "Org%2FModel-1.5": "Org/Model-1.5", "a%20b": "a b", "a..b": "a..b", "m%C3%A9": "mé",
	} {
		if api, err := Lookup("GET", "/v1/models/"+raw); err != nil || api.ModelID != want {
			t.Errorf("%s: %q %v, want %q", raw, api.ModelID, err, want)
		}
	}
	for _, raw := range []string{"", "..", "../sleep", "a/../b", "a//b", "a/", "%2e%2e/x", "%2e%2e%2fsleep", "%zz", "a%00b", "a%0ab", `a\b`, strings.Repeat("a", 1025)} {
		if api, err := Lookup("GET", "/v1/models/"+raw); err == nil || err.Status != 404 {
			t.Errorf("%q: %+v %v, want 404", raw, api, err)
		}
	}
}

func TestLookupWrongMethod(t *testing.T) {
	for _, tt := range []struct{ method, path, allow string }{
		{"GET", "/v1/chat/completions", "POST"}, {"post", "/v1/completions", "POST"}, {"DELETE", "/v1/models", "GET, HEAD"},
		{"POST", "/v1/models/x", "GET, HEAD"}, {"POST", "/v1/responses/r", "GET, DELETE"}, {"GET", "/v1/responses/r/cancel", "POST"}, {"OPTIONS", "/v1/messages", "POST"}, {"", "/tokenize", "POST"},
	} {
		api, err := Lookup(tt.method, tt.path)
		if err == nil || err.Status != 405 || err.Reason != ReasonMethodNotAllowed || err.Allow != tt.allow {
			t.Errorf("%s %s: %+v, want 405 with Allow %s", tt.method, tt.path, err, tt.allow)
		}
		if (api.Dialect == Anthropic) != strings.HasPrefix(tt.path, "/v1/messages") {
			t.Errorf("%s %s: dialect %d", tt.method, tt.path, api.Dialect)
		}
	}
}

// control are paths of vLLM that change or show the server, as of 0.32 with every
// mode on, and of SGLang.
var control = []string{
	"/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/is_paused", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache",
	"/collective_rpc", "/server_info", "/start_profile", "/stop_profile", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/abort_requests",
	"/inference/v1/abort_requests", "/metrics", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json", "/load", "/health", "/ping", "/version", "/tokenizer_info",
	"/scale_elastic_ep", "/is_scaling_elastic_ep", "/fault_tolerance/status", "/fault_tolerance/apply", "/kv_event_sources", "/weight_info", "/release_kv_cache_memory",
	"/invocations", "/update_weights", "/init_weight_transfer_engine", "/v1/systemone", "/flush_cache", "/get_server_info", "/shutdown", "/",
}

// disguises of a path that some server or proxy on the way might undo.
var disguises = []func(p string) string{
	func(p string) string { return p },
	func(p string) string { return p + "/" },
	func(p string) string { return "/" + p },
	func(p string) string { return "/." + p },
	func(p string) string { return "/v1/.." + p },
	func(p string) string { return "/v1/models/.." + p },
	func(p string) string { return "/v1/models/../.." + p },
	func(p string) string { return "/v1/models/%2e%2e/%2e%2e" + p },
	func(p string) string { return "/v1/models/..%2f.." + p },
	func(p string) string { return "/v1/responses/.." + p },
	func(p string) string { return "/v1/responses/..%2f.." + p },
	func(p string) string { return "/v1/responses/x/../../.." + p },
	func(p string) string { return "/v1/chat/completions/../../.." + p },
	func(p string) string { return "/v1/chat/completions/..;/..;/.." + p },
	func(p string) string { return p + ";/v1/chat/completions" },
	func(p string) string { return p + "?/v1/chat/completions" },
	func(p string) string { return p + "%3f" },
	func(p string) string { return p + "%00" },
	func(p string) string { return strings.ToUpper(p) },
	func(p string) string { return strings.ReplaceAll(p, "/", "%2f") },
	func(p string) string { return strings.ReplaceAll(p, "/", "%252f") },
	func(p string) string { return strings.ReplaceAll(p, "/", `\`) },
	func(p string) string { return strings.ReplaceAll(p, "e", "%65") },
	func(p string) string { return p[1:] },
	func(p string) string { return "http://host" + p },
	func(p string) string { return " " + p },
	func(p string) string { return p + "\r\n" },
}

func TestLookupControlPathsInDisguise(t *testing.T) {
	for _, p := range control {
		for i, d := range disguises {
			for _, method := range []string{"GET", "POST", "PUT", "HEAD", "OPTIONS"} {
				api, err := Lookup(method, d(p))
				if err != nil {
					continue
				}
				if bad := reaches(api); bad != "" {
					t.Errorf("%s %s (disguise %d of %s) is forwarded as %s", method, d(p), i, p, bad)
				}
			}
		}
	}
}

// reaches returns the path that is forwarded when it is not plainly one of the
// table, however often a server on the way decodes and cleans it.
func reaches(api API) string {
	f := api.Forward
	if api.Kind == Models || api.Kind == Model {
		return "" // answered here
	}
	if f != path.Clean(f) || strings.ContainsAny(f, "%;?#\\ \r\n\x00") || f != strings.TrimSuffix(f, "/") {
		return f
	}
	if un, err := url.PathUnescape(f); err != nil || un != f {
		return f
	}
	for _, c := range control {
		if f == c || c != "/" && strings.HasSuffix(f, c) && api.Kind != Response {
			return f
		}
	}
	for _, r := range routes {
		if f == r.path {
			return ""
		}
	}
	if api.Kind == Response && strings.Count(f, "/") <= 4 && strings.HasPrefix(f, "/v1/responses/") {
		return ""
	}
	return f
}

func FuzzLookup(f *testing.F) {
	for _, p := range control {
		f.Add("POST", p)
	}
	for _, d := range disguises {
		f.Add("GET", d("/sleep"))
	}
	for _, r := range routes {
		f.Add(r.methods, r.path)
	}
	f.Fuzz(func(t *testing.T, method, raw string) {
		api, err := Lookup(method, raw)
		if err != nil {
			if err.Status != 404 && err.Status != 405 || err.Status == 405 && err.Allow == "" {
				t.Fatalf("%q %q: %+v", method, raw, err)
			}
			return
		}
		if bad := reaches(api); bad != "" {
			t.Fatalf("%q %q is forwarded as %q", method, raw, bad)
		}
		known := strings.Contains(api.Path, "{id}")
		for _, r := range routes {
			known = known || api.Path == r.path
		}
		if !known || len(api.Path) > 64 {
			t.Fatalf("%q is no bounded label", api.Path)
		}
	})
}

func TestLookupHint(t *testing.T) {
	for _, p := range []string{"//v1/chat/completions", "/v1/chat/completions/", "/chat/completions", "/v1/v1/chat/completions", "/V1/Chat/Completions", "/v1/chat/completion", "/v1/chat/complitions"} {
		if _, err := Lookup("POST", p); err == nil || err.Status != 404 || !strings.HasSuffix(err.Message, "did you mean /v1/chat/completions?") {
			t.Errorf("%s: %v", p, err)
		}
	}
	for _, p := range []string{"/health", "/metrics", "/healthz/"} {
		if _, err := Lookup("GET", p); err == nil || err.Message != "there is no such path: health and metrics are at the admin address" {
			t.Errorf("%s: %v", p, err)
		}
	}
	if _, err := Lookup("POST", "/sleep"); err == nil || err.Message != "there is no such path" {
		t.Errorf("/sleep: %v", err)
	}
}

// BenchmarkLookup finds the API of a path, once per request. Budget: 50 ns, 0 allocations.
func BenchmarkLookup(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Lookup("POST", "/v1/chat/completions"); err != nil {
			b.Fatal(err)
		}
	}
}
