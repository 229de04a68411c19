package proxy

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/vllmsim"
)

// startSim runs one simulated vLLM on loopback.
func startSim(t *testing.T) (*vllmsim.Server, string) {
	t.Helper()
	cfg := vllmsim.DefaultConfig()
	cfg.Model, cfg.Profile = []string{"m"}, "instant"
	s, err := vllmsim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(ctx, ln) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s, "http://" + ln.Addr().String()
}

// TestThroughSimulator sends each kind of request to simulated vLLM servers, with and without faults, and counts what
// they executed.
func TestThroughSimulator(t *testing.T) {
	a, urlA := startSim(t)
	b, urlB := startSim(t)
	r := newRig(t, []string{urlA, urlB})
	calls := []struct{ name, path, body, fault, outcome, has string }{
		{"chat", chat, chatBody, "", "ok", `"finish_reason"`},
		{"chat stream", chat, streamBody, "", "ok", "[DONE]"},
		{"completion", "/v1/completions", `{"model":"m","prompt":"a b c","max_tokens":4}`, "", "ok", "text_completion"},
		{"completion stream", "/v1/completions", `{"model":"m","prompt":"a b c","max_tokens":4,"stream":true}`, "", "ok", "[DONE]"},
		{"messages", "/v1/messages", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}]}`, "", "ok", `"stop_reason"`},
		{"messages stream", "/v1/messages", `{"model":"m","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"x"}]}`, "", "ok", "message_stop"},
		{"responses", "/v1/responses", `{"model":"m","input":"x","max_output_tokens":16}`, "", "ok", `"completed"`},
		{"responses stream", "/v1/responses", `{"model":"m","input":"x","max_output_tokens":16,"stream":true}`, "", "ok", "response.completed"},
		{"embeddings", "/v1/embeddings", `{"model":"m","input":"x"}`, "", "ok", "embedding"},
		{"tokenize", "/tokenize", `{"model":"m","prompt":"x"}`, "", "ok", "tokens"},
		{"bad value", chat, `{"model":"m","temperature":-5,"messages":[{"role":"user","content":"x"}]}`, "", "client_error", "error"},
		{"cut stream", chat, streamBody, "cut;after=3", "cut", `data: {"error":`},
		{"reset stream", chat, streamBody, "reset;after=3", "cut", `data: {"error":`},
		{"early end", chat, streamBody, "early-end;after=3", "cut", `data: {"error":`},
		{"messages cut", "/v1/messages", `{"model":"m","max_tokens":50,"stream":true,"messages":[{"role":"user","content":"x"}]}`, "cut;after=3", "cut", "event: error\ndata: {\"type\":\"error\""},
		{"responses cut", "/v1/responses", `{"model":"m","input":"x","max_output_tokens":50,"stream":true}`, "early-end;after=3", "cut", "event: response.failed"},
		{"reset before", chat, chatBody, "reset", "upstream_error", `"upstream_error"`},
		{"500", chat, chatBody, "500", "upstream_error", "error"},
	}
	sent := int64(0)
	for _, c := range calls {
		t.Run(c.name, func(t *testing.T) {
			var header []string
			if c.fault != "" {
				header = []string{"x-vllmsim-fault", c.fault}
			}
			res := r.post(c.path, c.body, header...)
			body, err := read(res)
			if !strings.Contains(body, c.has) || c.outcome == "cut" && err == nil {
				t.Errorf("status %d, %v, lacks %q: %s", res.StatusCode, err, c.has, body)
			}
			rec := r.record()
			if rec["outcome"] != c.outcome {
				t.Errorf("record %v, want outcome %s", rec, c.outcome)
			}
			if c.outcome == "ok" && strings.Contains(c.path, "completions") && rec["stream"] == "true" && rec["ttft_seconds"] == "" {
				t.Errorf("a stream without a time to first token: %v", rec)
			}
			sent++
		})
	}
	sa, sb := a.Stats(), b.Stats()
	if got := sa.Requests + sb.Requests; got > sent {
		t.Errorf("%d requests were sent, %d arrived", sent, got)
	}
	r.idle()
}

// TestKeptConnections: requests over a kept connection, with pauses around the moment at which the endpoint closes it. No
// request is executed twice. One fails only when its bytes had already arrived there as the connection was closed: from
// here that looks like a crash in the middle of the work. On a busy machine more come to that than on an idle one.
func TestKeptConnections(t *testing.T) {
	ep := newEndpointWith(t, func(s *http.Server) { s.IdleTimeout = time.Millisecond }, answerOK)
	r := newRig(t, []string{ep.URL})
	const n = 400
	failed := 0
	for i := range n {
		res := r.post(chat, chatBody)
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if res.StatusCode != 200 {
			failed++
			if rec := r.record(); !strings.Contains(rec["cause"], "reset by peer") && !strings.HasSuffix(rec["cause"], "EOF") {
				t.Errorf("status %d, record %v", res.StatusCode, rec)
			}
			continue
		}
		r.record()
		pause(time.Duration(700+i) * time.Microsecond)
	}
	if executed := ep.bodies(chatBody); executed+failed != n || failed > n/4 {
		t.Errorf("%d requests: %d executed, %d failed", n, executed, failed)
	}
	r.idle()
}
