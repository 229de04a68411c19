package proxy

import (
	"net/http"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/telemetry"
)

// counted sums the samples of a counter whose labels hold every one of pairs (name, value).
func counted(t *testing.T, m *telemetry.Metrics, name string, pairs ...string) float64 {
	t.Helper()
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	samples:
		for _, s := range f.GetMetric() {
			have := map[string]string{}
			for _, l := range s.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			for i := 0; i+1 < len(pairs); i += 2 {
				if have[pairs[i]] != pairs[i+1] {
					continue samples
				}
			}
			sum += s.GetCounter().GetValue()
		}
	}
	return sum
}

// TestRetriesAreCounted: a request that a client sends again is counted by how far the earlier attempt had got, and what was
// computed for nothing is counted by why.
func TestRetriesAreCounted(t *testing.T) {
	for name, c := range map[string]struct {
		first   http.HandlerFunc // nil: nobody sent it before
		body    string
		second  string // in place of body
		reached string
		wasted  string // reason of the first attempt
		tokens  float64
		prefill float64 // of the second: 20 tokens, of which 16 were cached
	}{
		"after a cut stream":           {first: streamThenReset(delta("a"), delta("b")), body: streamBody, reached: "tokens", wasted: "cut", tokens: 2, prefill: 4},
		"after an aborted answer":      {first: status(200, strings.Replace(okJSON, `"stop"`, `"abort"`, 1)), body: chatBody, reached: "tokens", wasted: "cut", tokens: 1, prefill: 4},
		"after a reset":                {first: resets, body: chatBody, reached: "endpoint", prefill: 4},
		"after a 500":                  {first: status(500, `{"error":{"message":"boom"}}`), body: chatBody, reached: "endpoint", prefill: 4},
		"after a refusal":              {first: status(429, "{}"), body: chatBody, reached: "nothing"},
		"after a drain":                {first: status(500, drainBody), body: chatBody, reached: "nothing"},
		"after an answer":              {first: answerOK, body: chatBody, reached: "unknown"},
		"of which nothing is known":    {body: chatBody, reached: "unknown"},
		"after the cut of another one": {first: streamThenReset(delta("a")), body: streamBody, second: strings.Replace(streamBody, "hello", "hullo", 1), reached: "unknown", wasted: "cut", tokens: 1},
	} {
		t.Run(name, func(t *testing.T) {
			handle := c.first
			ep := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Stainless-Retry-Count") == "0" {
					handle(w, r)
					return
				}
				answerOK(w, r)
			})
			metrics := telemetry.New(telemetry.Build{})
			r := newRig(t, []string{ep.URL}, func(cfg *Config) { cfg.Metrics = metrics })
			if c.first != nil {
				_, _ = read(r.post(chat, c.body, "x-stainless-retry-count", "0"))
				if rec := r.record(); rec["retry_reached"] != "" {
					t.Errorf("the first attempt counts as a retry: %v", rec)
				}
				r.idle()
			}
			again := c.body
			if c.second != "" {
				again = c.second
			}
			_, _ = read(r.post(chat, again, "x-stainless-retry-count", "1"))
			if rec := r.record(); rec["retry_reached"] != c.reached {
				t.Errorf("record %v, want reached %s", rec, c.reached)
			}
			r.idle()
			if n, all := counted(t, metrics, "pointsman_client_retries_total", "model", "m", "reached", c.reached), counted(t, metrics, "pointsman_client_retries_total"); n != 1 || all != 1 {
				t.Errorf("%v of %v retries are counted as %s", n, all, c.reached)
			}
			if n, all := counted(t, metrics, "pointsman_wasted_tokens_total", "reason", c.wasted), counted(t, metrics, "pointsman_wasted_tokens_total"); n != c.tokens || all != c.tokens+c.prefill {
				t.Errorf("%v wasted tokens with reason %q, %v in all, want %v and %v", n, c.wasted, all, c.tokens, c.tokens+c.prefill)
			}
			if n := counted(t, metrics, "pointsman_wasted_tokens_total", "reason", "repeated_prefill"); n != c.prefill {
				t.Errorf("%v tokens of repeated prefill, want %v", n, c.prefill)
			}
		})
	}
}
