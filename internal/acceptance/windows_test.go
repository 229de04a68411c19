package acceptance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// Two windows, with names of their own, in front of the real program: a growing conversation is answered at every turn, by the small
// pool until the turn that no longer fits and by the large one from then on; what no window takes has the code. Old and new servers.
func TestTwoWindows(t *testing.T) {
	t.Parallel()
	for _, style := range []string{"vllm-0.8", "current"} {
		t.Run(style, func(t *testing.T) {
			server := func(name string, window int) (*sim, string) {
				cfg := simConfig()
				cfg.Model, cfg.MaxModelLen, cfg.MetricsStyle = []string{name}, window, style
				sims, urls := simFleet(t, 1, cfg)
				return sims[0], urls[0]
			}
			small, smallURL := server("chat-2k", 2048)
			large, largeURL := server("chat-16k", 16384)
			p := serveFile(t, fmt.Sprintf("pools:\n  - {name: small, endpoints: [%s]}\n  - {name: large, endpoints: [%s]}\n"+
				"models:\n  - {name: chat, pools: [{pool: small, serves: chat-2k}, {pool: large, serves: chat-16k}]}\n", smallURL, largeURL))
			eventually(t, patience, func() string {
				for _, s := range p.pools(t) {
					if !s.Ready {
						return s.Name + " is not ready"
					}
				}
				return ""
			})
			c := &http.Client{}
			text, moved := "", 0
			for turn := 1; turn <= 20; turn++ {
				text += words(turn, 600)
				before := large.Stats().Requests
				a := post(c, nil, p.api+"/v1/chat/completions", map[string]any{"model": "chat", "max_tokens": 8, "messages": []message{{"user", text}}})
				var got struct {
					Model string
					Usage struct {
						Prompt int `json:"prompt_tokens"`
					}
				}
				if err := json.Unmarshal(a.body, &got); err != nil || a.status != 200 {
					t.Fatalf("turn %d: status %d, %v: %s", turn, a.status, a.err, a.body)
				}
				limit := 2048
				if style != "current" {
					limit -= 8 // these count what was asked for
				}
				if fits := got.Usage.Prompt < limit; fits != (got.Model == "chat-2k") && got.Usage.Prompt != limit {
					t.Errorf("turn %d: %d tokens were answered by %s", turn, got.Usage.Prompt, got.Model)
				}
				if large.Stats().Requests > before {
					moved++
				}
			}
			if moved == 0 || moved == 20 || small.Stats().Requests == 0 {
				t.Errorf("%d of 20 turns went to the large pool", moved)
			}
			a := post(c, nil, p.api+"/v1/chat/completions", map[string]any{"model": "chat", "messages": []message{{"user", words(1, 200000)}}})
			if a.status != 400 || !strings.Contains(string(a.body), `"code":"context_length_exceeded"`) || !strings.Contains(string(a.body), "16384") {
				t.Errorf("status %d: %s", a.status, a.body)
			}
		})
	}
}
