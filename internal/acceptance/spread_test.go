package acceptance

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/testkit/pace"
)

// Endpoints that are added while clients keep their connections get their share of the very next requests.
func TestEndpointsAddedAtRunTime(t *testing.T) {
	servers, urls := fleet(t, 4)
	for _, s := range servers { // no engine answers in less; without it the noise of the machine is all that there is to learn of
		s.delay.Store(int64(3 * time.Millisecond))
	}
	file := filepath.Join(t.TempDir(), "endpoints.yaml")
	write := func(n int) {
		text := "endpoints:\n"
		for _, u := range urls[:n] {
			text += "  - " + u + "\n"
		}
		if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(2)
	g := gateway(t, "file: "+file, "", "")
	waitReady(t, g, 2)
	c := client(t, 50)
	answers := make([]answer, 5000)
	run := func(from, to int) {
		parallel(to-from, 50, func(i int) {
			answers[from+i] = post(c, g, "/v1/chat/completions", chatBody([]message{{"user", words(from+i, 200)}}, 4))
		})
	}
	run(0, 2500)
	write(4)
	eventually(t, patience, func() string {
		if n := len(status(t, g).Endpoints); n != 4 {
			return fmt.Sprintf("%d endpoints", n)
		}
		return ""
	})
	run(2500, 5000)
	mustOK(t, answers)
	after := counts(answers[2500:])
	fresh := after[servers[2].name] + after[servers[3].name]
	t.Logf("after the change: %v", after)
	if fresh < 1000 {
		t.Errorf("the two new endpoints got %d of 2500, want at least 1000", fresh)
	}
}

// Between two reports only the ledger can spread a burst.
func TestBurstInsideOneReport(t *testing.T) {
	servers, urls := fleet(t, 4)
	all := make([]*held, len(servers))
	for i, s := range servers { // nobody is answered before all are there
		all[i] = s.hold(nil)
	}
	g := gateway(t, list(urls...), "", "")
	waitReady(t, g, 4)
	c := client(t, 100)
	answers := make([]answer, 80)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			answers[i] = post(c, g, "/v1/chat/completions", chatBody([]message{{"user", words(i, 300)}}, 50))
		})
	}
	eventually(t, patience, func() string {
		n := int64(0)
		for _, h := range all {
			n += h.seen.Load()
		}
		return unless(n == 80, fmt.Sprintf("%d of 80 are there", n))
	})
	for _, h := range all {
		h.let(80)
	}
	wg.Wait()
	mustOK(t, answers)
	got := counts(answers)
	t.Logf("%v", got)
	for _, s := range servers {
		if n := got[s.name]; n < 15 || n > 25 {
			t.Errorf("%s got %d of 80, want 15 to 25", s.name, n)
		}
	}
}

// Equal endpoints share requests that never overlap: noise must not choose one for good. Where a machine that does other things made
// one of them look slow for some time, the next requests tell.
func TestSequentialRequestsUseEveryEndpoint(t *testing.T) {
	servers, urls := fleet(t, 4)
	for _, s := range servers {
		s.delay.Store(int64(time.Millisecond))
	}
	g := gateway(t, list(urls...), "", "")
	waitReady(t, g, 4)
	c := client(t, 1)
	for round := range 10 {
		answers := make([]answer, 200)
		for i := range answers {
			answers[i] = post(c, g, "/v1/chat/completions", chatBody([]message{{"user", words(200*round+i, 100)}}, 4))
		}
		mustOK(t, answers)
		got := counts(answers)
		t.Logf("%v", got)
		if !slices.ContainsFunc(servers, func(s *scripted) bool { return got[s.name] < 20 }) {
			return
		}
	}
	t.Error("ten times one of the endpoints got less than 20 of 200 requests")
}

// A slow endpoint whose metrics show nothing, and one that shows a queue, keep almost nothing.
func TestSlowAndQueuedEndpoints(t *testing.T) {
	t.Run("10 times slower, nothing in its metrics", func(t *testing.T) {
		servers, urls := fleet(t, 4)
		for i, s := range servers {
			s.delay.Store(int64(20 * time.Millisecond)) // above what a busy machine adds
			if i == 0 {
				s.delay.Store(int64(200 * time.Millisecond))
			}
		}
		share(t, urls, 2000, servers[0].name, 0.04)
	})
	t.Run("a queue in its metrics", func(t *testing.T) {
		servers, urls := fleet(t, 4)
		for _, s := range servers {
			s.delay.Store(int64(5 * time.Millisecond))
		}
		page := fmt.Sprintf(idlePage, 6)
		servers[0].page.Store(&page)
		share(t, urls, 500, servers[0].name, 0.05)
	})
}

func share(t *testing.T, urls []string, n int, bad string, limit float64) {
	t.Helper()
	g := gateway(t, list(urls...), "", "")
	waitReady(t, g, 4)
	c := client(t, 12)
	answers := make([]answer, n)
	parallel(len(answers), 12, func(i int) {
		answers[i] = post(c, g, "/v1/chat/completions", chatBody([]message{{"user", words(i, 200)}}, 4))
	})
	mustOK(t, answers)
	got := counts(answers)
	t.Logf("%v, the odd one is %s", got, bad)
	if f := float64(got[bad]) / float64(len(answers)); f > limit {
		t.Errorf("it kept %.1f %% of the traffic, want at most %.0f %%", 100*f, 100*limit)
	}
}

// Load that goes straight to one endpoint is seen within a second, and moves new work away.
func TestForeignLoad(t *testing.T) {
	cfg := simConfig()
	cfg.Speed = 1
	sims, urls := simFleet(t, 4, cfg)
	g := gateway(t, list(urls...), "", "")
	waitReady(t, g, 4)
	direct := client(t, 40)
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		parallel(24, 24, func(i int) { // answers that outlast the test
			q, err := http.NewRequestWithContext(ctx, http.MethodPost, sims[0].url+"/v1/completions",
				jsonBody(map[string]any{"model": "m", "prompt": words(i, 8000), "max_tokens": 8000, "ignore_eos": true}))
			if err != nil {
				t.Error(err)
				return
			}
			q.Header.Set("Content-Type", "application/json")
			if r, err := direct.Do(q); err == nil {
				r.Body.Close()
			}
		})
	}()
	defer func() { end(); <-done }()
	pace.Within(t, time.Second, func() string {
		if e := endpointStatus(t, g, sims[0].name); e.Foreign < 12 {
			return fmt.Sprintf("foreign load is %d", e.Foreign)
		}
		return ""
	})
	c := client(t, 30)
	answers := make([]answer, 60)
	parallel(len(answers), 30, func(i int) {
		answers[i] = post(c, g, "/v1/completions", map[string]any{"model": "m", "prompt": words(1000+i, 2000), "max_tokens": 10})
	})
	mustOK(t, answers)
	got := counts(answers)
	t.Logf("%v, foreign on %s", got, sims[0].name)
	if got[sims[0].name] > 8 {
		t.Errorf("the loaded endpoint got %d of 60, its even share is 15", got[sims[0].name])
	}
}
