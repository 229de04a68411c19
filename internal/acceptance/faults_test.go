package acceptance

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/testkit/loopback"
	"pointsman.dev/pointsman/internal/testkit/pace"
)

// One dead endpoint among four costs no request, no time, and hardly a dial; when it comes back it serves again.
func TestDeadEndpoint(t *testing.T) {
	servers, urls := fleet(t, 3)
	dead := scriptedAt(t, loopback.Free(t)) // nobody else takes its port while it is away
	servers, urls = append(servers, dead), append(urls, dead.URL)
	for _, s := range servers {
		s.delay.Store(int64(2 * time.Millisecond))
	}
	g := gateway(t, list(urls...), "", "")
	waitReady(t, g, 4)
	c := client(t, 6)
	send := func(n int) []answer {
		answers := make([]answer, n)
		parallel(n, 6, func(i int) {
			answers[i] = post(c, g, "/v1/chat/completions", chatBody([]message{{"user", words(i, 200)}}, 4))
		})
		return answers
	}
	send(40)
	addr := dead.Listener.Addr().String()
	dead.CloseClientConnections()
	dead.Close()
	// The address refuses, as that of a dead process does. A listener that counts would not, so the gateway's own count of
	// the requests' attempts is taken; the polls of its pages, which no request waits for, are not in it.
	before := attempts(t, g, dead.name)
	answers := send(180)
	mustOK(t, answers)
	tried := attempts(t, g, dead.name) - before
	var moved, others time.Duration // the slowest of those that were tried there, and of the others at the same time
	for _, a := range answers {
		if earlierPicks(t, g, a.header.Get("x-pointsman-request-id")) > 0 {
			moved = max(moved, a.took)
		} else {
			others = max(others, a.took)
		}
	}
	t.Logf("slowest %v, of those that were not tried there %v, %d attempts at the dead address", moved, others, tried)
	if moved > others+60*time.Millisecond {
		t.Errorf("the slowest that was tried at the dead address took %v, the slowest of the others %v", moved, others)
	}
	if tried > 5 {
		t.Errorf("the dead address was tried %d times, want at most 5", tried)
	}
	back := scriptedAt(t, addr)
	back.delay.Store(int64(2 * time.Millisecond))
	start := time.Now()
	pace.Within(t, 3*time.Second, func() string {
		send(12)
		if back.served.Load() == 0 {
			return "the endpoint that came back got nothing"
		}
		return ""
	})
	t.Logf("served again after %v", time.Since(start))
}

// earlierPicks is how many endpoints a request was at before the one that answered it.
func earlierPicks(t *testing.T, g gw, id string) int {
	t.Helper()
	var x struct{ Earlier []any }
	if err := json.Unmarshal([]byte(read(t, g.Admin()+"/api/explain?id="+id)), &x); err != nil {
		t.Fatal(err)
	}
	return len(x.Earlier)
}

// attempts is pointsman_attempts_total of one endpoint.
func attempts(t *testing.T, g gw, endpoint string) int {
	t.Helper()
	return int(metric(t, g, "pointsman_attempts_total", `endpoint="`+endpoint+`"`))
}

type gw interface{ Admin() string }

// metric sums the samples of a series whose labels contain every part.
func metric(t *testing.T, g gw, name string, parts ...string) float64 {
	t.Helper()
	r, err := http.Get(g.Admin() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
lines:
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		for _, p := range parts {
			if !strings.Contains(line, p) {
				continue lines
			}
		}
		var v float64
		fmt.Sscan(line[strings.LastIndexByte(strings.TrimSpace(line), ' ')+1:], &v)
		sum += v
	}
	return sum
}

// An endpoint that fails every request after dispatch costs at most one of them.
func TestOneBadEndpoint(t *testing.T) {
	faults := map[string]http.HandlerFunc{
		"500": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error":{"message":"boom"}}`, http.StatusInternalServerError)
		},
		"503": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error":{"message":"down"}}`, http.StatusServiceUnavailable)
		},
		"reset": func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			conn, _, _ := http.NewResponseController(w).Hijack()
			conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
		},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			servers, urls := fleet(t, 4)
			for _, s := range servers {
				s.delay.Store(int64(5 * time.Millisecond))
			}
			servers[0].handle.Store(&fault)
			g := gateway(t, list(urls...), "", "")
			waitReady(t, g, 4)
			c := client(t, 4)
			failed, begun := 0, time.Now()
			answers := make([]answer, 100)
			for i := range answers { // one after another: a fault is known before the next pick
				answers[i] = post(c, g, "/v1/chat/completions", chatBody([]message{{"user", words(i, 200)}}, 4))
				if answers[i].status != 200 {
					failed++
				}
			}
			took := time.Since(begun)
			t.Logf("%d failed in %v, %v", failed, took, counts(answers))
			if failed > 1+int(took/(5*time.Second)) { // it gets a trial after 5 s, and after longer pauses from then on
				t.Errorf("%d requests failed in %v, want at most 1", failed, took)
			}
		})
	}
}

// Four endpoints that all failed for a moment are used at once when they recover.
func TestAllFailedThenRecovered(t *testing.T) {
	servers, urls := fleet(t, 4)
	g := gateway(t, list(urls...), "", "")
	waitReady(t, g, 4)
	c := client(t, 8)
	fault := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"error":{"message":"boom"}}`, http.StatusInternalServerError)
	})
	for _, s := range servers {
		s.handle.Store(&fault)
	}
	for i := range 40 {
		if a := post(c, g, "/v1/chat/completions", chatBody([]message{{"user", words(i, 200)}}, 4)); a.status < 500 {
			t.Fatalf("status %d while every endpoint fails: %s", a.status, a.body)
		}
	}
	for _, s := range servers {
		s.handle.Store(nil)
	}
	answers := make([]answer, 40)
	parallel(len(answers), 8, func(i int) {
		answers[i] = post(c, g, "/v1/chat/completions", chatBody([]message{{"user", words(1000+i, 200)}}, 4))
	})
	mustOK(t, answers)
	t.Logf("%v", counts(answers))
}

// Whatever ends a request, nothing stays booked, and goroutines and file descriptors return.
func TestNothingLeaks(t *testing.T) {
	cfg := simConfig()
	cfg.Speed = 5
	sims, urls := simFleet(t, 3, cfg)
	deadURL := "http://" + loopback.Free(t)
	g := gateway(t, list(append(urls, deadURL)...), "", "")
	waitReady(t, g, 3)
	warm := client(t, 20)
	parallel(60, 20, func(i int) { post(warm, g, "/v1/chat/completions", chatBody([]message{{"user", words(i, 100)}}, 4)) })
	warm.CloseIdleConnections()
	settle(t, g)
	goroutines, files := runtime.NumGoroutine(), openFiles(t)

	tr := &http.Transport{MaxIdleConnsPerHost: 64}
	c := &http.Client{Transport: tr}
	var aborted, finished atomic.Int64
	parallel(1000, 40, func(i int) {
		leaves := time.Duration(rand.IntN(120)) * time.Millisecond
		if i%5 == 0 {
			leaves = patience // some live to see their answer
		}
		ctx, cancel := context.WithTimeout(t.Context(), leaves)
		defer cancel()
		if abortOne(ctx, c, g.API(), i) {
			aborted.Add(1)
		} else {
			finished.Add(1)
		}
	})
	parallel(100, 10, func(i int) {
		req, _ := http.NewRequest("POST", g.API()+"/v1/chat/completions", jsonBody(chatBody([]message{{"user", words(i, 100)}}, 4)))
		req.Header.Set("x-vllmsim-fault", "reset")
		if r, err := c.Do(req); err == nil {
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
	})
	for _, s := range sims { // refused: the listeners go away one after another
		s.stop()
	}
	parallel(100, 10, func(i int) { post(c, g, "/v1/chat/completions", chatBody([]message{{"user", words(i, 100)}}, 4)) })
	tr.CloseIdleConnections()

	t.Logf("%d aborted, %d finished before their abort", aborted.Load(), finished.Load())
	if aborted.Load() < 300 || finished.Load() < 20 {
		t.Errorf("%d aborted and %d finished: the test shows too little of one of them", aborted.Load(), finished.Load())
	}
	pace.Within(t, time.Second, func() string {
		if n := metric(t, g, "pointsman_in_flight_requests"); n != 0 {
			return fmt.Sprintf("%v requests in flight", n)
		}
		return ""
	})
	eventually(t, patience, func() string {
		http.DefaultClient.CloseIdleConnections()
		// The three vllmsim servers ended, so their goroutines are gone: fewer than at the start is what is left.
		if n := runtime.NumGoroutine(); n > goroutines+5 {
			return fmt.Sprintf("%d goroutines, %d at the start", n, goroutines)
		}
		if n := openFiles(t); n > files+5 {
			return fmt.Sprintf("%d open files, %d at the start", n, files)
		}
		return ""
	})
}

// abortOne sends a request that its context may end at any moment: in the upload, before headers, in the stream.
func abortOne(ctx context.Context, c *http.Client, url string, i int) bool {
	body := chatBody([]message{{"user", words(i, 100+i%7*3000)}}, 5+i%40)
	body["stream"] = i%2 == 0
	req, _ := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat/completions", &slowReader{r: jsonBody(body), every: i%3 == 0, ctx: ctx})
	req.Header.Set("Content-Type", "application/json")
	r, err := c.Do(req)
	if err != nil {
		return true
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return err != nil
}

// slowReader uploads in pieces, so that an abort can fall between them.
type slowReader struct {
	r     io.Reader
	every bool
	ctx   context.Context
}

func (s *slowReader) Read(p []byte) (int, error) {
	if s.every {
		select {
		case <-time.After(3 * time.Millisecond):
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		}
		p = p[:min(len(p), 2000)]
	}
	return s.r.Read(p)
}

func settle(t *testing.T, g gw) {
	t.Helper()
	http.DefaultClient.CloseIdleConnections()
	last, same := 0, 0
	eventually(t, patience, func() string {
		if n := runtime.NumGoroutine(); n != last {
			last, same = n, 0
		} else {
			same++
		}
		if same < 20 {
			return fmt.Sprintf("%d goroutines, still changing", last)
		}
		return ""
	})
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("counting open files: %v", err)
	}
	return len(entries)
}
