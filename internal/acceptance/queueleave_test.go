package acceptance

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/app"
	"pointsman.dev/pointsman/internal/config"
)

// waiters sends n requests that have to wait, and returns when they do.
func waiters(t *testing.T, g *app.Gateway, body map[string]any, n int) <-chan answer {
	t.Helper()
	out := make(chan answer, n)
	for range n {
		go func() { out <- post(client(t, 1), g, "/v1/chat/completions", body) }()
	}
	eventually(t, 5*time.Second, func() string {
		return unless(status(t, g).Queue.Waiting == n, fmt.Sprintf("%d do not wait", n))
	})
	return out
}

// What a reload does to those that wait.
func TestReloadWhileRequestsWait(t *testing.T) {
	const hold, n = 1500 * time.Millisecond, 4
	for _, c := range []struct {
		name   string
		pools  string // %[1]s is the busy server, %[2]s an idle one
		status int
		soon   bool // before the busy one is free
		seen   int64
	}{
		{"the queue is off", "[{name: chat, endpoints: [%[1]s], full: {max_num_seqs: 1}}]", 200, false, 1 + n},
		{"the queue is shorter", "[{name: chat, endpoints: [%[1]s], full: {max_num_seqs: 2}, queue: {max: 1}}]", 200, false, 1 + n},
		{"the wait is shorter", "[{name: chat, endpoints: [%[1]s], full: {max_num_seqs: 1}, queue: {max: 9, wait: 100ms}}]", 429, true, 1},
		{"an endpoint comes", "[{name: chat, endpoints: [%[1]s, %[2]s], full: {max_num_seqs: 9}, queue: {max: 9}}]", 200, true, 1},
		{"another endpoint", "[{name: chat, endpoints: [%[2]s], queue: {max: 9}}]", 200, true, 1},
		{"the pool is gone", "[{name: other, endpoints: [%[2]s]}]", 503, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			servers, urls := fleet(t, 2)
			busy := servers[0].answerSlowly(hold)
			g := gateway(t, list(urls[0]), "    queue: {max: 9}\n    full: {max_num_seqs: 1}\n", "")
			waitReady(t, g, 1)
			body := chatBody([]message{{"user", "hello"}}, 4)
			first := make(chan answer, 1)
			begun := time.Now()
			go func() { first <- post(client(t, 1), g, "/v1/chat/completions", body) }()
			eventually(t, 2*time.Second, func() string { return unless(busy.Load() == 1, "the first is not there") })
			waiting := waiters(t, g, body, n)
			cfg, err := config.Parse("test.yaml", []byte("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\npools: "+fmt.Sprintf(c.pools, urls[0], urls[1])+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			g.Reload(cfg)
			for range n {
				a := <-waiting
				if a.err != nil || a.status != c.status || c.status != 200 && a.header.Get("Retry-After") == "" {
					t.Errorf("status %d, %v, %v: %s", a.status, a.err, a.header, a.body)
				}
			}
			if took := time.Since(begun); c.soon && took > hold+time.Second {
				t.Errorf("it took %v", took)
			}
			mustOK(t, []answer{<-first})
			if got := busy.Load(); c.name != "an endpoint comes" && got != c.seen {
				t.Errorf("the busy server saw %d requests, want %d", got, c.seen)
			}
		})
	}
}

// A second signal ends the wait of those that a drain would still serve.
func TestSecondSignalWithAQueue(t *testing.T) {
	g, seen, first, body := busyServer(t, 4*time.Second, "    queue: {max: 10}\n", "")
	waiting := waiters(t, g, body, 3)
	ctx, second := context.WithCancel(context.Background())
	time.AfterFunc(300*time.Millisecond, second)
	begun := time.Now()
	g.Drain(ctx, 0, time.Minute)
	if took := time.Since(begun); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
	for range 3 {
		if a := <-waiting; a.status != 503 || a.header.Get("x-pointsman-reason") != "shutdown" || !strings.Contains(string(a.body), "not processed") {
			t.Errorf("who waited got %d %v: %s", a.status, a.err, a.body)
		}
	}
	<-first
	if n := seen(); n != 1 {
		t.Errorf("the engine saw %d requests", n)
	}
}

// Two thousand clients of every kind wait and leave: no engine sees them, and nothing of them stays.
func TestThousandsLeaveTheQueue(t *testing.T) {
	g, seen, first, _ := busyServer(t, 12*time.Second, "    queue: {max: 500}\n", "")
	before, files := runtime.NumGoroutine(), openFiles(t)
	old := &http.Transport{}
	two := &http.Transport{Protocols: new(http.Protocols)}
	two.Protocols.SetUnencryptedHTTP2(true)
	kinds := []struct{ path, body string }{
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hello"}]}`},
		{"/v1/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`},
		{"/v1/embeddings", `{"model":"m","input":"hello"}`},
		{"/v1/messages", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"` + strings.Repeat("hello ", 20_000) + `"}]}`},
	}
	var waited, most atomic.Int64
	parallel(2000, 250, func(i int) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		k := kinds[i%len(kinds)]
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.API()+k.path, strings.NewReader(k.body))
		if err != nil {
			t.Error(err)
			return
		}
		r.Header.Set("Content-Type", "application/json")
		a, err := (&http.Client{Transport: []*http.Transport{old, two}[i/len(kinds)%2]}).Do(r)
		if err == nil {
			t.Errorf("%s: status %d", k.path, a.StatusCode)
			a.Body.Close()
			return
		}
		waited.Add(1)
		if i%100 == 0 {
			most.Store(max(most.Load(), int64(status(t, g).Queue.Waiting)))
		}
	})
	old.CloseIdleConnections()
	two.CloseIdleConnections()
	if waited.Load() != 2000 || most.Load() < 20 {
		t.Errorf("%d waited, at most %d were seen at once", waited.Load(), most.Load())
	}
	eventually(t, 2*time.Second, func() string { return unless(status(t, g).Queue.Waiting == 0, "some wait whose clients left") })
	eventually(t, 8*time.Second, func() string {
		if n, f := runtime.NumGoroutine(), openFiles(t); n > before+10 || f > files+10 {
			return fmt.Sprintf("%d goroutines, %d before; %d files, %d before", n, before, f, files)
		}
		return ""
	})
	mustOK(t, []answer{<-first})
	if n := seen(); n != 1 {
		t.Errorf("the engine saw %d requests", n)
	}
	if st := status(t, g); st.InFlight != 0 || st.Queue.Waiting != 0 {
		t.Errorf("left over: %d in flight, %+v", st.InFlight, st.Queue)
	}
}

// An endpoint that comes while a hundred wait gets what it has room for, and no more at a time.
func TestNoHerdAtANewEndpoint(t *testing.T) {
	servers, urls := fleet(t, 2)
	busy := servers[0].answerSlowly(6 * time.Second)
	var now, most atomic.Int64
	var lock sync.Mutex
	fresh := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.NotFound(w, r)
			return
		}
		lock.Lock()
		most.Store(max(most.Load(), now.Add(1)))
		lock.Unlock()
		time.Sleep(20 * time.Millisecond)
		now.Add(-1)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}]}`)
	})
	servers[1].handle.Store(&fresh)
	text := "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\npools: [{name: chat, endpoints: [%s], full: {max_num_seqs: 4}, queue: {max: 200}}]\n"
	g := gateway(t, list(urls[0]), "    queue: {max: 200}\n    full: {max_num_seqs: 4}\n", "")
	waitReady(t, g, 1)
	body := chatBody([]message{{"user", "hello"}}, 4)
	running := make(chan answer, 4)
	for range 4 {
		go func() { running <- post(client(t, 1), g, "/v1/chat/completions", body) }()
	}
	eventually(t, 2*time.Second, func() string { return unless(busy.Load() == 4, "the first are not there") })
	waiting := waiters(t, g, body, 100)
	cfg, err := config.Parse("test.yaml", fmt.Appendf(nil, text, strings.Join(urls, ", ")))
	if err != nil {
		t.Fatal(err)
	}
	g.Reload(cfg)
	begun := time.Now()
	for range 100 {
		mustOK(t, []answer{<-waiting})
	}
	t.Logf("100 were served in %v, at most %d at once", time.Since(begun), most.Load())
	if most.Load() != 4 || busy.Load() != 4 {
		t.Errorf("at most %d at once at the new one, which runs 4; the busy one saw %d", most.Load(), busy.Load())
	}
	for range 4 {
		mustOK(t, []answer{<-running})
	}
}

// A stream's first_byte counts while it waits, too, and is what the answer names.
func TestFirstByteInTheQueue(t *testing.T) {
	g, seen, first, body := busyServer(t, 2500*time.Millisecond, "    queue: {max: 10}\n",
		"models:\n  - {name: m, pools: [chat]}\n  - {name: hasty, serves: m, pools: [chat], first_byte: 1s}\n")
	begun := time.Now()
	late := post(client(t, 1), g, "/v1/chat/completions", map[string]any{"model": "hasty", "stream": true, "messages": body["messages"]})
	if took := time.Since(begun); took < 900*time.Millisecond || took > 2400*time.Millisecond {
		t.Errorf("it ended after %v, want 1 s", took)
	}
	if late.status != 504 || !strings.Contains(string(late.body), "(first_byte of the model") || !strings.Contains(string(late.body), "was not processed") ||
		late.header.Get("x-should-retry") == "false" {
		t.Errorf("status %d %v: %s", late.status, late.header, late.body)
	}
	mustOK(t, []answer{<-first})
	if n := seen(); n != 1 {
		t.Errorf("the engine saw %d requests, want 1", n)
	}
	for _, e := range status(t, g).Endpoints {
		if e.State != "ready" {
			t.Errorf("the endpoint is %s because of a request that it never saw", e.State)
		}
	}
}
