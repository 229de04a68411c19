package scrape

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/pool"
)

// completion is what arrives of a synthetic request.
type completion struct {
	Model     string `json:"model"`
	Prompt    string `json:"prompt"`
	MaxTokens int    `json:"max_tokens"`
}

// coldEngine is a server that has computed nothing; answer replies to completions.
func coldEngine(answer func(w http.ResponseWriter, c completion)) (serve http.HandlerFunc, got func() []completion) {
	var mu sync.Mutex
	var all []completion
	return func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/v1/completions":
				var c completion
				if json.NewDecoder(r.Body).Decode(&c) != nil || r.Header.Get("Authorization") != "Bearer secret" {
					http.Error(w, "bad", http.StatusBadRequest)
					return
				}
				mu.Lock()
				all = append(all, c)
				mu.Unlock()
				answer(w, c)
			case "/metrics":
				fmt.Fprint(w, page, "vllm:prompt_tokens_total 0\n")
			default:
				engine(w, r)
			}
		}, func() []completion {
			mu.Lock()
			defer mu.Unlock()
			return all
		}
}

func TestFreshEndpointIsWarmedUp(t *testing.T) {
	n := newNetwork()
	serve, got := coldEngine(func(w http.ResponseWriter, _ completion) {
		time.Sleep(3 * time.Second) // it compiles
		fmt.Fprint(w, `{}`)
	})
	n.serve("a:8000", serve)
	cfg := pool.Config{Name: "chat", APIKey: "secret", Warm: []pool.WarmRequest{{Prompt: 10, Output: 2}, {Prompt: 1000, Output: 1, AtOnce: 5}}}
	run(t, n, cfg, []string{"a:8000"}, 5*time.Second, func(p *pool.Pool) {
		if st := p.Status().Endpoints[0].State; st != "warming" {
			t.Errorf("it is %s while it compiles", st)
		}
		if most := n.together("a:8000/v1/completions"); most != 5 {
			t.Errorf("%d requests side by side, want the five of the second shape", most)
		}
		time.Sleep(5 * time.Second)
		if st := p.Status().Endpoints[0].State; st != "ready" {
			t.Errorf("it is %s after it compiled", st)
		}
		time.Sleep(time.Minute)
		all := got()
		if len(all) != 6 {
			t.Fatalf("%d requests, want six", len(all))
		}
		prompts := map[string]bool{}
		for i, c := range all {
			tokens, most := 10, 2
			if i > 0 {
				tokens, most = 1000, 1
			}
			if c.Model != "tiny" || len(strings.Fields(c.Prompt)) != tokens || c.MaxTokens != most {
				t.Errorf("request %d: %d words for %q, %d tokens", i, len(strings.Fields(c.Prompt)), c.Model, c.MaxTokens)
			}
			prompts[c.Prompt[:20]] = true
		}
		if len(prompts) != 6 {
			t.Errorf("%d different prompts", len(prompts))
		}
	})
}

func TestRefusedWarmUpEndsIt(t *testing.T) {
	n := newNetwork()
	serve, got := coldEngine(func(w http.ResponseWriter, _ completion) { http.Error(w, "no completions here", http.StatusNotFound) })
	n.serve("a:8000", serve)
	cfg := pool.Config{Name: "chat", APIKey: "secret", Warm: []pool.WarmRequest{{Prompt: 10, Output: 2}, {Prompt: 20, Output: 1}}}
	run(t, n, cfg, []string{"a:8000"}, 5*time.Second, func(p *pool.Pool) {
		if st := p.Status().Endpoints[0].State; st != "ready" || len(got()) != 2 {
			t.Errorf("it is %s after %d requests that were refused", st, len(got()))
		}
	})
}
