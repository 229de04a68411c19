package acceptance

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/app"
)

// busyServer has one place, which a first request has taken for hold when it returns. The gateway knows it and lets others wait.
func busyServer(t *testing.T, hold time.Duration, poolYAML, topYAML string) (g *app.Gateway, seen func() int64, first chan answer, body map[string]any) {
	t.Helper()
	servers, urls := fleet(t, 1)
	count := servers[0].answerSlowly(hold)
	g = gateway(t, list(urls...), poolYAML+"    full: {max_num_seqs: 1}\n", topYAML)
	waitReady(t, g, 1)
	body = chatBody([]message{{"user", "hello"}}, 4)
	first = make(chan answer, 1)
	go func() { first <- post(client(t, 1), g, "/v1/chat/completions", body) }()
	eventually(t, 2*time.Second, func() string { return unless(count.Load() == 1, "the first is not there") })
	return g, count.Load, first, body
}

// A gateway that drains serves those who wait, in their order, as long as it has time; whom it has no time for gets an answer that says that nothing has
// run, and never reaches an engine.
func TestDrainWithAQueue(t *testing.T) {
	for _, c := range []struct {
		name     string
		patience time.Duration
		served   int
	}{
		{"time for all", 20 * time.Second, 3},
		{"no time", 300 * time.Millisecond, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, seen, first, body := busyServer(t, 900*time.Millisecond, "    queue: {max: 10}\n", "")
			answers := make([]answer, 3)
			var done sync.WaitGroup
			for i := range answers {
				done.Go(func() { answers[i] = post(client(t, 1), g, "/v1/chat/completions", body) })
			}
			eventually(t, 2*time.Second, func() string { return unless(status(t, g).Queue.Waiting == 3, "not three wait") })
			begun := time.Now()
			g.Drain(context.Background(), 0, c.patience)
			if took := time.Since(begun); took > c.patience+4*time.Second {
				t.Errorf("the drain took %v", took)
			}
			done.Wait()
			served := 0
			for _, a := range answers {
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
			if n := seen(); n != int64(1+c.served) {
				t.Errorf("the engine saw %d requests, want %d", n, 1+c.served)
			}
		})
	}
}

// The limit holds in the queue, too; the answer names the key and says that nothing has run.
func TestLimitInTheQueue(t *testing.T) {
	g, seen, first, body := busyServer(t, 2500*time.Millisecond, "    queue: {max: 10}\n",
		"models:\n  - {name: m, pools: [chat]}\n  - {name: hasty, serves: m, pools: [chat], limit: 1s}\n")
	hasty := map[string]any{"model": "hasty", "messages": body["messages"]}
	begun := time.Now()
	late := post(client(t, 1), g, "/v1/chat/completions", hasty)
	took := time.Since(begun)
	if late.status != 504 || !strings.Contains(string(late.body), "limit of the model") && !strings.Contains(string(late.body), "(limit") ||
		!strings.Contains(string(late.body), "was not processed") || late.header.Get("x-should-retry") == "false" {
		t.Errorf("status %d %v: %s", late.status, late.header, late.body)
	}
	if took < 900*time.Millisecond || took > 2*time.Second {
		t.Errorf("it ended after %v, want 1 s", took)
	}
	mustOK(t, []answer{<-first})
	if n := seen(); n != 1 {
		t.Errorf("the engine saw %d requests, want 1", n)
	}
}

// A pool with overflow and a queue hands on before anybody waits; when the larger one is full as well, it is the first pool that the request waits for.
func TestOverflowBeforeQueue(t *testing.T) {
	servers, urls := fleet(t, 2)
	small, large := servers[0].answerSlowly(1500*time.Millisecond), servers[1].answerSlowly(3*time.Second)
	top := fmt.Sprintf("  - {name: large, endpoints: [%s], queue: {max: 10}, full: {max_num_seqs: 1}}\nmodels:\n  - {name: m, pools: [chat, large]}\n", urls[1])
	g := gateway(t, list(urls[0]), "    queue: {max: 10}\n    overflow: true\n    full: {max_num_seqs: 1}\n"+top, "")
	eventually(t, 10*time.Second, func() string {
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
	eventually(t, time.Second, func() string { return unless(small.Load() == 1, "the small pool was not asked first") })
	go send()
	eventually(t, time.Second, func() string { return unless(large.Load() == 1, "the second did not overflow") })
	go send()
	eventually(t, time.Second, func() string {
		return unless(status(t, g).Queue.Waiting == 1, "the third does not wait for the small pool")
	})
	for range 3 {
		if a := <-answers; a.status != http.StatusOK {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
	if small.Load() != 2 || large.Load() != 1 {
		t.Errorf("small served %d, large %d", small.Load(), large.Load())
	}
}
