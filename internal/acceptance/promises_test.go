package acceptance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/app"
	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/pool"
)

// Explain of a live request: the terms add up to the cost and every gate is named, for every endpoint.
func TestExplainAddsUp(t *testing.T) {
	sims, urls := simFleet(t, 4, simConfig())
	g := gateway(t, list(urls...), "", "")
	waitReady(t, g, 4)
	a := post(client(t, 1), g, "/v1/chat/completions", chatBody([]message{{"user", words(1, 5000)}}, 20))
	mustOK(t, []answer{a})
	r, err := http.Get(g.Admin() + "/api/explain?id=" + a.header.Get("x-pointsman-request-id"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var e pool.Explanation
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil || r.StatusCode != 200 {
		t.Fatalf("status %d, %v", r.StatusCode, err)
	}
	if e.Endpoint != a.endpoint || len(e.Candidates) != len(sims) {
		t.Errorf("explained %s of %d endpoints, the answer came from %s", e.Endpoint, len(e.Candidates), a.endpoint)
	}
	for _, ep := range e.Candidates {
		sum := 0.0
		for _, term := range ep.Terms {
			sum += term.Seconds
		}
		if math.Abs(sum-ep.Cost) > 1e-9*max(1, math.Abs(sum)) || sum == 0 {
			t.Errorf("%s: the terms add up to %v, the cost is %v", ep.Endpoint, sum, ep.Cost)
		}
		names := ""
		for _, gate := range ep.Gates {
			names += gate.Name + " "
		}
		for _, want := range []string{"waiting", "max_num_seqs", "projected_kv"} {
			if !strings.Contains(names, want) {
				t.Errorf("%s: gate %s is not named in %q", ep.Endpoint, want, names)
			}
		}
	}
}

// Nothing that a client or an engine wrote reaches the log, at any level, and no key does.
func TestLogsHoldNoPromptsAnswersOrKeys(t *testing.T) {
	cfg := simConfig()
	_, urls := simFleet(t, 1, cfg)
	var mu sync.Mutex
	var buf bytes.Buffer
	log := slog.New(slog.NewJSONHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return buf.Write(p)
	}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	conf, err := config.Parse("t.yaml", []byte("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\npools:\n  - {name: chat, "+list(urls...)+"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	g, err := app.Start(t.Context(), conf, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	waitReady(t, g, 1)
	const secret, key = "the password is hunter2", "sk-live-0123456789"
	answers := [][]byte{}
	for _, body := range []string{
		`{"model":"m","max_tokens":20,"messages":[{"role":"user","content":"` + secret + `"}]}`,
		`{"model":"m","max_tokens":20,"messages":[{"role":"user","content":"` + secret,
		`{"model":"absent","messages":[{"role":"user","content":"` + secret + `"}]}`,
		`{"model":"m","temperature":-9,"messages":[{"role":"user","content":"` + secret + `"}]}`,
	} {
		req, _ := http.NewRequest("POST", g.API()+"/v1/chat/completions", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("Content-Type", "application/json")
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := io.ReadAll(r.Body)
		r.Body.Close()
		answers = append(answers, raw)
		if e := r.Header.Get("x-pointsman-endpoint"); e != "" || bytes.Contains(raw, []byte(strings.TrimPrefix(urls[0], "http://"))) {
			t.Errorf("the client was shown an endpoint's address: %q %s", e, raw)
		}
	}
	records := func() int {
		mu.Lock()
		defer mu.Unlock()
		return strings.Count(buf.String(), `"outcome"`)
	}
	// A record is written when its answer has gone out, which its client may know before.
	eventually(t, patience, func() string { return unless(records() == 4, "there are not four access records") })
	g.Close()
	var first struct{ Choices []struct{ Message message } }
	if err := json.Unmarshal(answers[0], &first); err != nil || len(first.Choices) == 0 {
		t.Fatalf("the first answer is not one: %s", answers[0])
	}
	got := buf.String()
	for what, text := range map[string]string{"prompt": "hunter2", "key": key, "answer": first.Choices[0].Message.Content} {
		if strings.Contains(got, text) {
			t.Errorf("the log holds the %s", what)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A vLLM that got SIGTERM goes silent on its open streams and never ends them: they are cut with an error event within
// seconds, and new requests go elsewhere.
func TestSilentStreamsOfATerminatedServerAreCut(t *testing.T) {
	t.Parallel()
	cfg := simConfig()
	cfg.Speed = 1
	sims, urls := simFleet(t, 2, cfg)
	g := gateway(t, list(urls...), "", "")
	waitReady(t, g, 2)
	type end struct {
		endpoint, last string
		took           time.Duration
	}
	ends := make([]end, 8)
	var started, done sync.WaitGroup
	started.Add(len(ends))
	for i := range ends {
		done.Go(func() {
			body := chatBody([]message{{"user", words(i, 500)}}, 400)
			body["stream"] = true
			r, err := http.Post(g.API()+"/v1/chat/completions", "application/json", jsonBody(body))
			if err != nil {
				t.Error(err)
				started.Done()
				return
			}
			defer r.Body.Close()
			in := bufio.NewReader(r.Body)
			in.ReadString('\n')
			started.Done()
			begin := time.Now()
			rest, _ := io.ReadAll(in)
			events := strings.Split(strings.TrimSpace(string(rest)), "\n\n")
			ends[i] = end{r.Header.Get("x-pointsman-endpoint"), events[len(events)-1], time.Since(begin)}
		})
	}
	started.Wait()
	sims[0].Terminate()
	done.Wait()
	cut := 0
	for _, e := range ends {
		if e.endpoint == sims[0].name {
			cut++
			if !strings.Contains(e.last, `"error"`) || strings.Contains(e.last, "[DONE]") || e.took > patience {
				t.Errorf("a stream of the ended server closed after %v with %q", e.took, e.last)
			}
		} else if e.last != "data: [DONE]" {
			t.Errorf("a stream of the other server closed with %q", e.last)
		}
	}
	if cut == 0 {
		t.Error("no stream was on the server that ended")
	}
	answers := make([]answer, 20)
	parallel(20, 4, func(i int) {
		answers[i] = post(http.DefaultClient, g, "/v1/chat/completions", chatBody([]message{{"user", words(100+i, 100)}}, 4))
	})
	mustOK(t, answers)
	t.Logf("%d streams cut", cut)
}

// Policy is the engine's own setting, found out: with prefix caching off, prefixes do not count.
func TestPolicyFollowsTheEngine(t *testing.T) {
	for _, caching := range []bool{true, false} {
		cfg := simConfig()
		cfg.PrefixCaching = caching
		_, urls := simFleet(t, 2, cfg)
		g := gateway(t, list(urls...), "", "")
		waitReady(t, g, 2)
		want := map[bool]string{true: "prefix", false: "least_request"}[caching]
		if got := status(t, g).Policy; got != want {
			t.Errorf("prefix caching %v: policy %s, want %s", caching, got, want)
		}
	}
	cfg := simConfig()
	cfg.PrefixCaching = false
	_, urls := simFleet(t, 2, cfg)
	g := gateway(t, list(urls...), "    policy: prefix\n", "")
	waitReady(t, g, 2)
	if w := status(t, g).Warnings; len(w) == 0 {
		t.Error("a policy that contradicts the engine brought no warning")
	}
}
