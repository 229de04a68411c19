package acceptance

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/app"
	"pointsman.dev/pointsman/internal/testkit/loopback"
	"pointsman.dev/pointsman/internal/vllmsim"
)

// smallSim runs four requests at once.
func smallSim() vllmsim.Config {
	c := simConfig()
	c.MaxNumSeqs, c.Speed = 4, 4
	return c
}

// Load far beyond what the servers run at once: with a queue none of them ever has a queue of its own to speak of, everybody who could wait is
// answered, in the order of arrival, and the others get 429 with a time to come back.
func TestQueueKeepsEnginesFree(t *testing.T) {
	sims, urls := simFleet(t, 2, smallSim())
	g := gateway(t, list(urls...), "    queue: {max: 40}\n", "")
	waitReady(t, g, 2)
	eventually(t, 5*time.Second, func() string {
		for _, e := range status(t, g).Endpoints {
			if e.MaxNumSeqs != 4 {
				return fmt.Sprintf("%s is not known to run four at once", e.Name)
			}
		}
		return ""
	})
	var most atomic.Int64 // waiting at an engine
	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			for _, s := range sims {
				most.Store(max(most.Load(), int64(waitingAt(t, s.url))))
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	const n = 60
	answers, ended := make([]answer, n), make([]time.Duration, n)
	begin := time.Now()
	var done sync.WaitGroup
	for i := range n {
		done.Go(func() {
			answers[i] = post(http.DefaultClient, g, "/v1/completions", map[string]any{"model": "m", "prompt": words(i, 50), "max_tokens": 100})
			ended[i] = time.Since(begin)
		})
		time.Sleep(5 * time.Millisecond) // so that the order of arrival is that of the numbers
	}
	done.Wait()
	stop()
	watching.Wait()
	served, shed := 0, 0
	for i, a := range answers {
		switch a.status {
		case 200:
			served++
		case 429:
			shed++
			if after, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || after < 1 || after > 60 {
				t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
			}
			if a.header.Get("x-should-retry") != "" || a.header.Get("x-pointsman-reason") != "queue_full" {
				t.Errorf("a shed answer says %v", a.header)
			}
		default:
			t.Errorf("request %d: status %d %s", i, a.status, a.body)
		}
	}
	// All ask for the same: eight are under way at once, so nobody may end more than a round before one who came earlier.
	last, late := time.Duration(0), 0
	for i, a := range answers {
		if a.status != 200 {
			continue
		}
		if ended[i]+300*time.Millisecond < last {
			late++
		}
		last = max(last, ended[i])
	}
	t.Logf("served %d, shed %d, at most %d waiting at an engine, %d out of order, in %v", served, shed, most.Load(), late, last)
	if served < 48 || shed == 0 || served+shed != n {
		t.Errorf("served %d, shed %d of %d; 8 run and 40 wait", served, shed, n)
	}
	if most.Load() > 1 {
		t.Errorf("%d requests waited at an engine", most.Load())
	}
	if late > 0 {
		t.Errorf("%d requests were overtaken", late)
	}
	if q := status(t, g).Queue; q.Waiting != 0 || q.Shed["queue_full"] != int64(shed) {
		t.Errorf("afterwards: %+v", q)
	}
}

// waitingAt reads an engine's own queue.
func waitingAt(t *testing.T, url string) int {
	t.Helper()
	for line := range strings.Lines(read(t, url+"/metrics")) {
		if strings.HasPrefix(line, "vllm:num_requests_waiting{") {
			v, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			return int(v)
		}
	}
	return 0
}

// A client that leaves while it waits leaves the queue, and no engine ever sees its request.
func TestWhoLeavesTheQueueReachesNoEngine(t *testing.T) {
	servers, urls := fleet(t, 1)
	seen := servers[0].answerSlowly(2500 * time.Millisecond)
	g := gateway(t, list(urls...), "    queue: {max: 10, wait: 700ms}\n    full: {max_num_seqs: 1}\n", "")
	waitReady(t, g, 1)
	body := chatBody([]message{{"user", "hello"}}, 4)
	var done sync.WaitGroup
	first := answer{}
	done.Go(func() { first = post(client(t, 1), g, "/v1/chat/completions", body) })
	eventually(t, 2*time.Second, func() string { return unless(seen.Load() == 1, "the first is not there") })
	leaving := &http.Client{Timeout: 300 * time.Millisecond}
	for range 5 {
		done.Go(func() {
			if r, err := leaving.Post(g.API()+"/v1/chat/completions", "application/json", jsonBody(body)); err == nil {
				r.Body.Close()
				t.Errorf("status %d within 300 ms", r.StatusCode)
			}
		})
	}
	eventually(t, time.Second, func() string { return unless(status(t, g).Queue.Waiting == 5, "not five wait") })
	eventually(t, 600*time.Millisecond, func() string { return unless(status(t, g).Queue.Waiting == 0, "some wait whose clients left") })
	patient := post(client(t, 1), g, "/v1/chat/completions", body)
	if patient.status != 429 || patient.header.Get("x-pointsman-reason") != "queue_timeout" || !strings.Contains(string(patient.body), "queue.wait") {
		t.Errorf("who waited for its time got %d %s", patient.status, patient.body)
	}
	done.Wait()
	mustOK(t, []answer{first})
	if n := seen.Load(); n != 1 {
		t.Errorf("the engine saw %d requests, want 1", n)
	}
}

// answerSlowly makes the server answer inference after d, and returns how many such requests it has seen.
func (s *scripted) answerSlowly(d time.Duration) *atomic.Int64 {
	seen := new(atomic.Int64)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.NotFound(w, r)
			return
		}
		seen.Add(1)
		io.Copy(io.Discard, r.Body)
		time.Sleep(d)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":1,"total_tokens":21}}`)
	})
	s.handle.Store(&h)
	return seen
}

// read is the body of a page.
func read(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return string(raw)
}

func unless(ok bool, why string) string {
	if ok {
		return ""
	}
	return why
}

// A pool scaled to zero: the gateway is ready, what it is asked for waits, an autoscaler can see it, and it is answered when the first
// server is up. Names that nobody configured start nothing.
func TestScaleFromZero(t *testing.T) {
	file := filepath.Join(t.TempDir(), "endpoints.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("[]")
	g := gateway(t, "file: "+file, "    hold: 20s\n    queue: {max: 6}\n    full: {max_num_seqs: 2}\n", "models:\n  - {name: m, pools: [chat]}\n")
	eventually(t, 5*time.Second, func() string {
		r, err := http.Get(g.Admin() + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return unless(r.StatusCode == 200, "a gateway that holds is not ready")
	})
	body := chatBody([]message{{"user", "hello"}}, 20)
	var done sync.WaitGroup
	answers := make([]answer, 6)
	for i := range answers {
		done.Go(func() { answers[i] = post(http.DefaultClient, g, "/v1/chat/completions", body) })
	}
	eventually(t, 2*time.Second, func() string {
		page := read(t, g.Admin()+"/metrics")
		return unless(strings.Contains(page, `pointsman_queued_requests{pool="chat"} 6`) && strings.Contains(page, `pointsman_held_requests{pool="chat"} 6`), "six do not show")
	})
	if a := post(http.DefaultClient, g, "/v1/chat/completions", body); a.status != 429 {
		t.Errorf("the seventh got %d", a.status)
	}
	if a := post(http.DefaultClient, g, "/v1/chat/completions", map[string]any{"model": "stray", "messages": []message{{"user", "hello"}}}); a.status != 404 {
		t.Errorf("a model that nobody named got %d", a.status)
	}
	_, urls := simFleet(t, 1, smallSim())
	write("[" + urls[0] + "]")
	done.Wait()
	mustOK(t, answers)
	scaledToZeroAgain(t, g, write, body)
}

// scaledToZeroAgain goes by what the last server listed, and by a server that is listed and does not answer yet.
func scaledToZeroAgain(t *testing.T, g *app.Gateway, write func(string), body map[string]any) {
	write("[]")
	eventually(t, 3*time.Second, func() string { return unless(len(status(t, g).Endpoints) == 0, "the endpoint is still there") })
	late := make(chan answer, 1)
	go func() { late <- post(http.DefaultClient, g, "/v1/chat/completions", body) }()
	addr := loopback.Free(t)
	write("[http://" + addr + "]")
	eventually(t, 3*time.Second, func() string {
		return unless(status(t, g).Queue.Held == 1, "nobody is held for a server that is not up")
	})
	simAt(t, addr, smallSim())
	mustOK(t, []answer{<-late})
}
