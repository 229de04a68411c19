package proxy

import (
	"net/http"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/pool"
)

// TestRealtimeModel: an alias in the query of a WebSocket becomes what it serves, and a model that is named twice or not
// readable reaches no endpoint.
func TestRealtimeModel(t *testing.T) {
	got := make(chan string, 1)
	ep := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.URL.RawQuery
		answerJSON(w, 400, `{"error":{"message":"no upgrade"}}`)
	})
	r := newRig(t, []string{ep.URL})
	for query, want := range map[string]string{
		"model=m": "model=m", "model=fast": "model=m", "a=%20b&model=fast&c": "a=%20b&model=m&c", "mod%65l=fast": "model=m", "model=org%2Fmodel-b": "model=org%2Fmodel-b",
	} {
		res, err := http.Get(r.server.URL + "/v1/realtime?" + query)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := read(res); res.StatusCode != 400 || !strings.Contains(body, "no upgrade") {
			t.Fatalf("%s: status %d: %s", query, res.StatusCode, body)
		}
		if sent := <-got; sent != want {
			t.Errorf("%s: the endpoint got %s, want %s", query, sent, want)
		}
	}
	for query, reason := range map[string]string{
		"model=m&model=fast": "duplicate_key", "model=m&model=m": "duplicate_key", "model=m&mod%65l=m": "duplicate_key", "model=&model=m": "duplicate_key", "model=%zz": "bad_type",
	} {
		res, err := http.Get(r.server.URL + "/v1/realtime?" + query)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := read(res); res.StatusCode != 400 || res.Header.Get("x-pointsman-reason") != reason {
			t.Errorf("%s: status %d, %v: %s", query, res.StatusCode, res.Header, body)
		}
	}
	if n := ep.served.Load(); n != 5 {
		t.Errorf("the endpoint was asked %d times", n)
	}
}

// TestAliasSharesPrefix: what was asked under an alias is in the cache of the model that it stands for.
func TestAliasSharesPrefix(t *testing.T) {
	ep, other := newEndpoint(t, answerOK), newEndpoint(t, answerOK)
	r := newRig(t, []string{ep.URL, other.URL})
	ask := func(model string) string {
		text := strings.Repeat("one and the same prompt ", 200)
		res := r.post(chat, `{"model":"`+model+`","tools":[{"a":1}],"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"`+text+`"}]}`)
		if body, err := read(res); err != nil || res.StatusCode != 200 {
			t.Fatalf("status %d, %v: %s", res.StatusCode, err, body)
		}
		return r.record()["predicted_hit_tokens"]
	}
	ask("fast")
	aliased, plain := ask("fast"), ask("m")
	if plain == "0" || plain == "" || plain != aliased {
		t.Errorf("predicted hit %q by the model's name, %q by its alias", plain, aliased)
	}
	if foreign := ask("org/model-b"); foreign != "0" && foreign != "" {
		t.Errorf("another model is credited with %s tokens", foreign)
	}
}

// TestModelsUnknown: while no endpoint has listed its models, what is served is unknown rather than nothing, also when its
// metrics came first.
func TestModelsUnknown(t *testing.T) {
	for _, path := range []string{"/v1/models", "/v1/models/m"} {
		r := newRig(t, nil)
		r.dir.Set([]*pool.Pool{r.pool}, nil)
		const url = "http://127.0.0.1:1"
		r.pool.SetTargets([]discover.Target{{URL: url}})
		r.pool.Report(url, pool.EmptyReport())
		get := func() *http.Response {
			res, err := http.Get(r.server.URL + path)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			return res
		}
		if res := get(); res.StatusCode != 503 || res.Header.Get("x-pointsman-reason") != "no_endpoint" || res.Header.Get("Retry-After") == "" {
			t.Errorf("%s: status %d, %v", path, res.StatusCode, res.Header)
		}
		if rec := r.record(); rec["outcome"] != "no_endpoint" {
			t.Errorf("record %v", rec)
		}
		r.pool.Learned(url, pool.Facts{Models: []pool.Model{{ID: "m"}}})
		if res := get(); res.StatusCode != 200 {
			t.Errorf("%s: status %d when it is known", path, res.StatusCode)
		}
		r.record()
		r.pool.Learned(url, pool.Facts{Models: []pool.Model{}})
		if res := get(); res.StatusCode == 503 {
			t.Errorf("%s: status %d when the endpoint serves none", path, res.StatusCode)
		}
	}
}
