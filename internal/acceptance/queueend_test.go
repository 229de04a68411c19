package acceptance

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/app"
)

// busyServer has one place, which a first request has taken, and keeps until h lets it go. The gateway knows it and lets others wait.
func busyServer(t *testing.T, poolYAML, topYAML string) (g *app.Gateway, h *held, first chan answer, body map[string]any) {
	t.Helper()
	servers, urls := fleet(t, 1)
	h = servers[0].hold(nil)
	g = gateway(t, list(urls...), poolYAML+"    full: {max_num_seqs: 1}\n", topYAML)
	waitReady(t, g, 1)
	body = chatBody([]message{{"user", "hello"}}, 4)
	first = make(chan answer, 1)
	go func() { first <- post(client(t, 1), g, "/v1/chat/completions", body) }()
	eventually(t, patience, func() string { return unless(h.seen.Load() == 1, "the first is not there") })
	return g, h, first, body
}

// A gateway that drains serves those who wait, in their order, as long as it has time; whom it has no time for gets an answer that says that nothing has
// run, and never reaches an engine.
func TestDrainWithAQueue(t *testing.T) {
	for _, c := range []struct {
		name   string
		drain  time.Duration
		served int
	}{
		{"time for all", time.Hour, 3},
		{"no time", 300 * time.Millisecond, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, h, first, body := busyServer(t, "    queue: {max: 10}\n", "")
			answers := waiters(t, g, body, 3)
			drained := make(chan int, 1)
			go func() { drained <- g.Drain(context.Background(), 0, c.drain) }()
			if c.served > 0 {
				eventually(t, patience, func() string { return notStatus(g.Admin()+"/readyz", 503) })
				h.let(1 + c.served)
			}
			receive(t, drained, "the drain does not end")
			served := 0
			for range 3 {
				a := <-answers
				if a.status == 200 {
					served++
				} else if a.status != 503 || a.header.Get("x-pointsman-reason") != "shutdown" || !strings.Contains(string(a.body), "not processed") || a.header.Get("x-should-retry") == "false" {
					t.Errorf("who waited got %d %v: %s", a.status, a.header, a.body)
				}
			}
			if served != c.served {
				t.Errorf("%d of 3 served, want %d", served, c.served)
			}
			<-first
			if n := h.seen.Load(); n != int64(1+c.served) {
				t.Errorf("the engine saw %d requests, want %d", n, 1+c.served)
			}
		})
	}
}

// The limit holds in the queue, too; the answer names the key and says that nothing has run.
func TestLimitInTheQueue(t *testing.T) {
	t.Parallel()
	g, h, first, body := busyServer(t, "    queue: {max: 10}\n",
		"models:\n  - {name: m, pools: [chat]}\n  - {name: hasty, serves: m, pools: [chat], limit: 1s}\n")
	hasty := map[string]any{"model": "hasty", "messages": body["messages"]}
	late := post(client(t, 1), g, "/v1/chat/completions", hasty)
	if late.status != 504 || !strings.Contains(string(late.body), "limit of the model") && !strings.Contains(string(late.body), "(limit") ||
		!strings.Contains(string(late.body), "was not processed") || late.header.Get("x-should-retry") == "false" {
		t.Errorf("status %d %v: %s", late.status, late.header, late.body)
	}
	if late.took < time.Second {
		t.Errorf("it ended after %v, want 1 s", late.took)
	}
	h.let(1)
	mustOK(t, []answer{<-first})
	if n := h.seen.Load(); n != 1 {
		t.Errorf("the engine saw %d requests, want 1", n)
	}
}

// A pool with overflow and a queue hands on before anybody waits; when the larger one is full as well, it is the first pool that the request waits for.
func TestOverflowBeforeQueue(t *testing.T) {
	servers, urls := fleet(t, 2)
	small, large := servers[0].hold(nil), servers[1].hold(nil)
	top := fmt.Sprintf("  - {name: large, endpoints: [%s], queue: {max: 10}, full: {max_num_seqs: 1}}\nmodels:\n  - {name: m, pools: [chat, large]}\n", urls[1])
	g := gateway(t, list(urls[0]), "    queue: {max: 10}\n    overflow: true\n    full: {max_num_seqs: 1}\n"+top, "")
	eventually(t, patience, func() string {
		for _, s := range statuses(t, g) {
			if !s.Ready {
				return s.Name + " is not ready"
			}
		}
		return ""
	})
	body := chatBody([]message{{"user", "hello"}}, 4)
	body["model"] = "m"
	answers := make(chan answer, 3)
	send := func() { answers <- post(client(t, 1), g, "/v1/chat/completions", body) }
	go send()
	eventually(t, patience, func() string { return unless(small.seen.Load() == 1, "the small pool was not asked first") })
	go send()
	eventually(t, patience, func() string { return unless(large.seen.Load() == 1, "the second did not overflow") })
	go send()
	eventually(t, patience, func() string {
		return unless(status(t, g).Queue.Waiting == 1, "the third does not wait for the small pool")
	})
	small.let(2)
	for range 2 {
		mustOK(t, []answer{receive(t, answers, "the small pool does not answer both")})
	}
	large.let(1)
	mustOK(t, []answer{receive(t, answers, "the large pool does not answer")})
	if small.seen.Load() != 2 || large.seen.Load() != 1 {
		t.Errorf("small served %d, large %d", small.seen.Load(), large.seen.Load())
	}
}
