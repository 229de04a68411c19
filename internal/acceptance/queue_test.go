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
	eventually(t, patience, func() string {
		for _, e := range status(t, g).Endpoints {
			if e.MaxNumSeqs != 4 {
				return fmt.Sprintf("%s is not known to run four at once", e.Name)
			}
		}
		return ""
	})
	var most atomic.Int64 // at an engine, above what it runs at once
	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			for _, s := range sims {
				most.Store(max(most.Load(), int64(s.atOnce(t)-4)))
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	answers := make(chan answer, 1000)
	n := 0
	send := func() {
		i := n
		n++
		go func() {
			answers <- post(http.DefaultClient, g, "/v1/completions", map[string]any{"model": "m", "prompt": words(i, 50), "max_tokens": 100})
		}()
	}
	for range 48 {
		send()
	}
	eventually(t, patience, func() string { // as fast as the engines may be: one too many comes in the end
		if n < cap(answers) && status(t, g).Queue.Shed["queue_full"] == 0 {
			send()
			return "nobody was one too many"
		}
		return ""
	})
	served, shed := 0, 0
	for range n {
		a := <-answers
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
			t.Errorf("status %d, %v: %s", a.status, a.err, a.body)
		}
	}
	stop()
	watching.Wait()
	t.Logf("served %d, shed %d, at most %d at an engine above what it runs", served, shed, most.Load())
	if served < 48 || shed == 0 {
		t.Errorf("served %d, shed %d of %d; 8 run and 40 wait", served, shed, n)
	}
	if most.Load() > 1 {
		t.Errorf("%d requests waited at an engine", most.Load())
	}
	if q := status(t, g).Queue; q.Waiting != 0 || q.Shed["queue_full"] != int64(shed) {
		t.Errorf("afterwards: %+v", q)
	}
}

// atOnce is how many requests an engine has, running and in its own queue, by one look at its page.
func (s *sim) atOnce(t *testing.T) int {
	t.Helper()
	n := 0.0
	for line := range strings.Lines(read(t, s.url+"/metrics")) {
		if strings.HasPrefix(line, "vllm:num_requests_running{") || strings.HasPrefix(line, "vllm:num_requests_waiting{") {
			v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			if err != nil {
				t.Error(err)
			}
			n += v
		}
	}
	return int(n)
}

// Those who wait reach the engines in the order in which they came.
func TestQueueKeepsTheOrder(t *testing.T) {
	servers, urls := fleet(t, 2)
	order := make(chan string, 100)
	all := []*held{servers[0].hold(order), servers[1].hold(order)}
	g := gateway(t, list(urls...), "    queue: {max: 40}\n    full: {max_num_seqs: 1}\n", "")
	waitReady(t, g, 2)
	const n = 20
	answers := make(chan answer, n)
	bodies := make([]string, n)
	for i := range n {
		bodies[i] = fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%d"}]}`, i)
		go func() { answers <- post(client(t, 1), g, "/v1/chat/completions", bodies[i]) }()
		if i < 2 {
			if got := receive(t, order, "an idle engine got nothing"); got != bodies[i] {
				t.Errorf("an engine got %s, want %s", got, bodies[i])
			}
			continue
		}
		eventually(t, patience, func() string { return unless(status(t, g).Queue.Waiting == i-1, "the next does not wait") })
	}
	for i := 2; i < n; i++ {
		all[i%2].let(1)
		if got := receive(t, order, "nobody took the place"); got != bodies[i] {
			t.Errorf("number %d is %s", i, got)
		}
	}
	for _, h := range all {
		h.let(1)
	}
	for range n {
		mustOK(t, []answer{receive(t, answers, "not all are answered")})
	}
}

// A client that leaves while it waits leaves the queue, and no engine ever sees its request.
func TestWhoLeavesTheQueueReachesNoEngine(t *testing.T) {
	g, h, first, body := busyServer(t, "    queue: {max: 10}\n", "")
	ctx, leave := context.WithCancel(t.Context())
	var done sync.WaitGroup
	for range 5 {
		done.Go(func() {
			q, err := http.NewRequestWithContext(ctx, http.MethodPost, g.API()+"/v1/chat/completions", jsonBody(body))
			if err != nil {
				t.Error(err)
				return
			}
			q.Header.Set("Content-Type", "application/json")
			if r, err := http.DefaultClient.Do(q); err == nil {
				r.Body.Close()
				t.Errorf("status %d for a client that left", r.StatusCode)
			}
		})
	}
	eventually(t, patience, func() string { return unless(status(t, g).Queue.Waiting == 5, "not five wait") })
	leave()
	done.Wait()
	eventually(t, patience, func() string { return unless(status(t, g).Queue.Waiting == 0, "some wait whose clients left") })
	h.let(1)
	mustOK(t, []answer{<-first})
	if n := h.seen.Load(); n != 1 {
		t.Errorf("the engine saw %d requests, want 1", n)
	}
}

// Who has waited for queue.wait is told so, and no engine ever sees its request.
func TestWaitOfTheQueue(t *testing.T) {
	t.Parallel()
	g, h, first, body := busyServer(t, "    queue: {max: 10, wait: 700ms}\n", "")
	late := post(client(t, 1), g, "/v1/chat/completions", body)
	if late.status != 429 || late.header.Get("x-pointsman-reason") != "queue_timeout" || !strings.Contains(string(late.body), "queue.wait") || late.took < 700*time.Millisecond {
		t.Errorf("who waited for its time got %d %s after %v", late.status, late.body, late.took)
	}
	h.let(1)
	mustOK(t, []answer{<-first})
	if n := h.seen.Load(); n != 1 {
		t.Errorf("the engine saw %d requests, want 1", n)
	}
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
	t.Parallel()
	file := filepath.Join(t.TempDir(), "endpoints.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("[]")
	g := gateway(t, "file: "+file, "    hold: 10m\n    queue: {max: 6}\n    full: {max_num_seqs: 2}\n", "models:\n  - {name: m, pools: [chat]}\n")
	eventually(t, patience, func() string {
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
	eventually(t, patience, func() string {
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
	eventually(t, patience, func() string { return unless(len(status(t, g).Endpoints) == 0, "the endpoint is still there") })
	late := make(chan answer, 1)
	go func() { late <- post(http.DefaultClient, g, "/v1/chat/completions", body) }()
	addr := loopback.Free(t)
	write("[http://" + addr + "]")
	eventually(t, patience, func() string {
		return unless(status(t, g).Queue.Held == 1, "nobody is held for a server that is not up")
	})
	simAt(t, addr, smallSim())
	mustOK(t, []answer{<-late})
}
