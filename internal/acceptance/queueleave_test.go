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
	eventually(t, patience, func() string {
		return unless(status(t, g).Queue.Waiting == n, fmt.Sprintf("%d do not wait", n))
	})
	return out
}

// What a reload does to those that wait.
func TestReloadWhileRequestsWait(t *testing.T) {
	const n = 4
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
		{"an endpoint comes", "[{name: chat, endpoints: [%[1]s, %[2]s], full: {max_num_seqs: 1}, queue: {max: 9}}]", 200, true, 1},
		{"another endpoint", "[{name: chat, endpoints: [%[2]s], queue: {max: 9}}]", 200, true, 1},
		{"the pool is gone", "[{name: other, endpoints: [%[2]s]}]", 503, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			servers, urls := fleet(t, 2)
			busy := servers[0].hold(nil)
			g := gateway(t, list(urls[0]), "    queue: {max: 9}\n    full: {max_num_seqs: 1}\n", "")
			waitReady(t, g, 1)
			body := chatBody([]message{{"user", "hello"}}, 4)
			first := make(chan answer, 1)
			go func() { first <- post(client(t, 1), g, "/v1/chat/completions", body) }()
			eventually(t, patience, func() string { return unless(busy.seen.Load() == 1, "the first is not there") })
			waiting := waiters(t, g, body, n)
			cfg, err := config.Parse("test.yaml", []byte("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\npools: "+fmt.Sprintf(c.pools, urls[0], urls[1])+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			g.Reload(cfg)
			if !c.soon {
				busy.let(1 + n)
			}
			for range n {
				a := receive(t, waiting, "the busy server keeps them")
				if a.err != nil || a.status != c.status || c.status != 200 && a.header.Get("Retry-After") == "" {
					t.Errorf("status %d, %v, %v: %s", a.status, a.err, a.header, a.body)
				}
			}
			if c.soon {
				busy.let(1)
			}
			mustOK(t, []answer{receive(t, first, "the first is not answered")})
			if got := busy.seen.Load(); got != c.seen {
				t.Errorf("the busy server saw %d requests, want %d", got, c.seen)
			}
		})
	}
}

// A second signal ends the wait of those that a drain would still serve.
func TestSecondSignalWithAQueue(t *testing.T) {
	g, h, first, body := busyServer(t, "    queue: {max: 10}\n", "")
	waiting := waiters(t, g, body, 3)
	ctx, second := context.WithCancel(context.Background())
	drained := make(chan int, 1)
	go func() { drained <- g.Drain(ctx, 0, time.Hour) }()
	eventually(t, patience, func() string { return notStatus(g.Admin()+"/readyz", 503) })
	second()
	receive(t, drained, "the drain goes on")
	for range 3 {
		if a := receive(t, waiting, "some still wait"); a.status != 503 || a.header.Get("x-pointsman-reason") != "shutdown" || !strings.Contains(string(a.body), "not processed") {
			t.Errorf("who waited got %d %v: %s", a.status, a.err, a.body)
		}
	}
	<-first
	if n := h.seen.Load(); n != 1 {
		t.Errorf("the engine saw %d requests", n)
	}
}

// Two thousand clients of every kind wait and leave: no engine sees them, and nothing of them stays.
func TestThousandsLeaveTheQueue(t *testing.T) {
	g, h, first, _ := busyServer(t, "    queue: {max: 500}\n", "")
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
	const at = 250 // once
	for range 8 {
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range at {
			all.Go(func() {
				k := kinds[i%len(kinds)]
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.API()+k.path, strings.NewReader(k.body))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Content-Type", "application/json")
				if a, err := (&http.Client{Transport: []*http.Transport{old, two}[i/len(kinds)%2]}).Do(r); err == nil {
					t.Errorf("%s: status %d", k.path, a.StatusCode)
					a.Body.Close()
				}
			})
		}
		eventually(t, patience, func() string { return unless(status(t, g).Queue.Waiting == at, "not all wait") })
		leave()
		all.Wait()
		eventually(t, patience, func() string { return unless(status(t, g).Queue.Waiting == 0, "some wait whose clients left") })
	}
	old.CloseIdleConnections()
	two.CloseIdleConnections()
	eventually(t, patience, func() string {
		if n, f := runtime.NumGoroutine(), openFiles(t); n > before+10 || f > files+10 {
			return fmt.Sprintf("%d goroutines, %d before; %d files, %d before", n, before, f, files)
		}
		return ""
	})
	h.let(1)
	mustOK(t, []answer{<-first})
	if n := h.seen.Load(); n != 1 {
		t.Errorf("the engine saw %d requests", n)
	}
	if st := status(t, g); st.InFlight != 0 || st.Queue.Waiting != 0 {
		t.Errorf("left over: %d in flight, %+v", st.InFlight, st.Queue)
	}
}

// An endpoint that comes while a hundred wait gets what it has room for, and no more at a time.
func TestNoHerdAtANewEndpoint(t *testing.T) {
	servers, urls := fleet(t, 2)
	busy := servers[0].hold(nil)
	var now, most atomic.Int64
	var lock sync.Mutex
	four := make(chan struct{}) // closed when four are at the new one
	fresh := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.NotFound(w, r)
			return
		}
		lock.Lock()
		most.Store(max(most.Load(), now.Add(1)))
		if most.Load() == 4 {
			select {
			case <-four:
			default:
				close(four)
			}
		}
		lock.Unlock()
		<-four
		time.Sleep(20 * time.Millisecond) // in which more could come
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
	eventually(t, patience, func() string { return unless(busy.seen.Load() == 4, "the first are not there") })
	waiting := waiters(t, g, body, 100)
	cfg, err := config.Parse("test.yaml", fmt.Appendf(nil, text, strings.Join(urls, ", ")))
	if err != nil {
		t.Fatal(err)
	}
	g.Reload(cfg)
	begun := time.Now()
	for range 100 {
		mustOK(t, []answer{receive(t, waiting, "the new one does not serve them all")})
	}
	t.Logf("100 were served in %v, at most %d at once", time.Since(begun), most.Load())
	if most.Load() != 4 || busy.seen.Load() != 4 {
		t.Errorf("at most %d at once at the new one, which runs 4; the busy one saw %d", most.Load(), busy.seen.Load())
	}
	busy.let(4)
	for range 4 {
		mustOK(t, []answer{<-running})
	}
}

// A stream's first_byte counts while it waits, too, and is what the answer names.
func TestFirstByteInTheQueue(t *testing.T) {
	t.Parallel()
	g, h, first, body := busyServer(t, "    queue: {max: 10}\n",
		"models:\n  - {name: m, pools: [chat]}\n  - {name: hasty, serves: m, pools: [chat], first_byte: 1s}\n")
	late := post(client(t, 1), g, "/v1/chat/completions", map[string]any{"model": "hasty", "stream": true, "messages": body["messages"]})
	if late.took < time.Second {
		t.Errorf("it ended after %v, want 1 s", late.took)
	}
	if late.status != 504 || !strings.Contains(string(late.body), "(first_byte of the model") || !strings.Contains(string(late.body), "was not processed") ||
		late.header.Get("x-should-retry") == "false" {
		t.Errorf("status %d %v: %s", late.status, late.header, late.body)
	}
	h.let(1)
	mustOK(t, []answer{<-first})
	if n := h.seen.Load(); n != 1 {
		t.Errorf("the engine saw %d requests, want 1", n)
	}
	for _, e := range status(t, g).Endpoints {
		if e.State != "ready" {
			t.Errorf("the endpoint is %s because of a request that it never saw", e.State)
		}
	}
}
