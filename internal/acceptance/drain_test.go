package acceptance

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// ended is how a stream ended for its client.
type ended struct {
	status int
	rest   string // after the first line
	err    error
}

// open starts n streams of tokens each through p and returns when every one has its first line. The function waits for
// their ends.
func open(t *testing.T, p *program, n, tokens int) func() []ended {
	t.Helper()
	return openWith(t, http.DefaultClient, p, n, tokens)
}

func openWith(t *testing.T, client *http.Client, p *program, n, tokens int) func() []ended {
	t.Helper()
	ends := make([]ended, n)
	var started, done sync.WaitGroup
	started.Add(n)
	for i := range n {
		done.Go(func() {
			body := chatBody([]message{{"user", words(i, 400)}}, tokens)
			body["stream"] = true
			r, err := client.Post(p.api+"/v1/chat/completions", "application/json", jsonBody(body))
			if err != nil {
				started.Done()
				ends[i].err = err
				return
			}
			defer r.Body.Close()
			in := bufio.NewReader(r.Body)
			_, err = in.ReadString('\n')
			started.Done()
			rest, err2 := io.ReadAll(in)
			if err == nil {
				err = err2
			}
			ends[i] = ended{r.StatusCode, string(rest), err}
		})
	}
	started.Wait()
	return func() []ended { done.Wait(); return ends }
}

// ready waits until p is ready.
func ready(t *testing.T, p *program) {
	t.Helper()
	eventually(t, patience, func() string { return notStatus(p.admin+"/readyz", 200) })
}

// notStatus says what a GET got instead of status, "" if it got that.
func notStatus(url string, status int) string {
	r, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	if r.StatusCode != status {
		return r.Status
	}
	return ""
}

func signal(t *testing.T, p *program, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// exits waits for the program's end, which must be success.
func exits(t *testing.T, p *program) {
	t.Helper()
	end := make(chan error, 1)
	go func() { end <- p.cmd.Wait() }()
	if err := receive(t, end, "the program is still there"); err != nil {
		t.Errorf("the program ended with %v", err)
	}
}

// drained is a gateway in front of simulated servers at their real speed: a token takes some 20 ms.
func drained(t *testing.T, top string) *program {
	t.Helper()
	cfg := simConfig()
	cfg.Speed = 1
	_, urls := simFleet(t, 2, cfg)
	p := serveFile(t, top+"pools:\n  - {name: a, endpoints: ["+strings.Join(urls, ", ")+"]}\n")
	ready(t, p)
	return p
}

// SIGTERM: not ready at once, requests served for drain_delay and told to reconnect, running streams finish, success.
func TestTermFinishesStreams(t *testing.T) {
	t.Parallel()
	p := drained(t, "drain_delay: 5s\n") // less than the streams take
	kept := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	if a := post(kept, nil, p.api+"/v1/chat/completions", chatBody([]message{{"user", "hello"}}, 4)); a.status != 200 {
		t.Fatalf("status %d", a.status)
	}
	streams := open(t, p, 20, 300)
	signal(t, p, syscall.SIGTERM)
	eventually(t, patience, func() string { return notStatus(p.admin+"/readyz", 503) })
	if not := notStatus(p.admin+"/healthz", 200); not != "" {
		t.Errorf("/healthz: %s: a kubelet would kill it", not)
	}
	r, err := kept.Post(p.api+"/v1/chat/completions", "application/json", jsonBody(chatBody([]message{{"user", "hello"}}, 4)))
	if err != nil {
		t.Fatalf("a request within drain_delay: %v", err)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	r.Body.Close()
	if r.StatusCode != 200 || !r.Close {
		t.Errorf("a request within drain_delay: status %d, told to reconnect: %v", r.StatusCode, r.Close)
	}
	eventually(t, patience, func() string { // the client has its answer a moment before the gateway has done with it
		if n := gaugeOf(t, p, "pointsman_draining_requests"); n != 20 {
			return fmt.Sprintf("pointsman_draining_requests is %v, want 20", n)
		}
		return ""
	})
	for i, e := range streams() {
		if e.err != nil || e.status != 200 || !strings.HasSuffix(e.rest, "data: [DONE]\n\n") {
			t.Errorf("stream %d ended with %v: %.200s", i, e.err, e.rest)
		}
	}
	exits(t, p)
	if line := p.waitLog(t, "msg=draining"); !strings.Contains(line, "in_flight.requests=20") || !strings.Contains(line, "in_flight.oldest=") {
		t.Errorf("the log says %s", line)
	}
	p.waitLog(t, "msg=drained")
}

// gaugeOf reads a metric without labels from the admin page.
func gaugeOf(t *testing.T, p *program, name string) float64 {
	t.Helper()
	r, err := http.Get(p.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	raw, _ := io.ReadAll(r.Body)
	for line := range strings.Lines(string(raw)) {
		var v float64
		if n, _ := fmt.Sscanf(line, name+" %g", &v); n == 1 {
			return v
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

// mustBeCut demands that every stream got its error event and an end that a client notices.
func mustBeCut(t *testing.T, ends []ended) {
	t.Helper()
	for i, e := range ends {
		events := strings.Split(strings.TrimRight(e.rest, "\n"), "\n\n")
		var last struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(events[len(events)-1], "data: ")), &last); err != nil || last.Error.Code != "gateway_shutdown" {
			t.Errorf("stream %d ends with %q", i, events[len(events)-1])
		}
		if e.err == nil || strings.Contains(e.rest, "[DONE]") || strings.Contains(e.rest, `"finish_reason":"`) {
			t.Errorf("stream %d looks complete: %v", i, e.err)
		}
	}
}

// With a drain that is too short for them, streams end with an error event each, and the program with success.
func TestTermCutsWhatIsLeft(t *testing.T) {
	t.Parallel()
	p := drained(t, "drain_delay: 0\ndrain: 500ms\n")
	streams := open(t, p, 20, 5000)
	begun := time.Now()
	signal(t, p, syscall.SIGTERM)
	mustBeCut(t, streams())
	exits(t, p)
	if took := time.Since(begun); took < 500*time.Millisecond {
		t.Errorf("it took %v with a drain of 500ms", took)
	}
	if line := p.waitLog(t, "some requests were cut"); !strings.Contains(line, "cut=20") {
		t.Errorf("the log says %s", line)
	}
}

// A second SIGTERM cuts at once, in the delay or in the drain, with error events all the same.
func TestSecondTermCutsAtOnce(t *testing.T) {
	t.Parallel()
	for _, delay := range []string{"0", "10m"} {
		p := drained(t, "limit: 20m\ndrain: 10m\ndrain_delay: "+delay+"\n")
		streams := open(t, p, 5, 5000)
		signal(t, p, syscall.SIGTERM)
		p.waitLog(t, "msg=draining")
		signal(t, p, syscall.SIGTERM)
		mustBeCut(t, streams())
		exits(t, p)
	}
}

// limit on the real program in real time: an answer in one piece becomes a 504 that names the key, a stream ends with an
// error event; both after the limit, which every answer advertises.
func TestLimitOfTheProgram(t *testing.T) {
	t.Parallel()
	p := drained(t, "limit: 5s\n")
	client := &http.Client{Timeout: patience}
	var all sync.WaitGroup
	all.Go(func() {
		begun := time.Now()
		a := post(client, nil, p.api+"/v1/chat/completions", chatBody([]message{{"user", "one piece"}}, 5000))
		if took := time.Since(begun); a.status != 504 || !strings.Contains(string(a.body), "5s (limit in the configuration") || took < 5*time.Second {
			t.Errorf("status %d after %v: %s", a.status, took, a.body)
		}
		if a.header.Get("X-Pointsman-Limit") != "5" || a.header.Get("X-Should-Retry") != "false" {
			t.Errorf("headers %v", a.header)
		}
	})
	all.Go(func() {
		begun := time.Now()
		e := open(t, p, 1, 5000)()[0]
		if took := time.Since(begun); e.err == nil || !strings.Contains(e.rest, "total_timeout") || strings.Contains(e.rest, "[DONE]") || took < 5*time.Second {
			t.Errorf("%v after %v: %.300s", e.err, took, e.rest[max(0, len(e.rest)-300):])
		}
	})
	all.Wait()
}

// A WebSocket is drained like any other request, although net/http has let go of its connection.
func TestTermWaitsForWebSockets(t *testing.T) {
	t.Parallel()
	servers, urls := fleet(t, 1)
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	})
	servers[0].handle.Store(&echo)
	for _, leaves := range []bool{true, false} {
		drain := map[bool]string{true: "10m", false: "2s"}[leaves]
		p := serveFile(t, "limit: 20m\ndrain_delay: 0\ndrain: "+drain+"\npools:\n  - {name: a, "+list(urls...)+"}\n")
		ready(t, p)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		c, _, err := websocket.Dial(ctx, strings.Replace(p.api, "http", "ws", 1)+"/v1/realtime?model=m", nil)
		if err != nil {
			t.Fatal(err)
		}
		say := func() error {
			if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
				return err
			}
			_, got, err := c.Read(ctx)
			if err == nil && string(got) != "hello" {
				return fmt.Errorf("got %q", got)
			}
			return err
		}
		if err := say(); err != nil {
			t.Fatal(err)
		}
		signal(t, p, syscall.SIGTERM)
		begun := time.Now()
		p.waitLog(t, "msg=draining")
		if leaves {
			eventually(t, patience, func() string { // a drain that does not see it ends the program
				return unless(gaugeOf(t, p, "pointsman_draining_requests") == 1, "the drain does not count it")
			})
			if err := say(); err != nil {
				t.Errorf("during the drain: %v", err)
			}
			c.Close(websocket.StatusNormalClosure, "")
			exits(t, p)
		} else {
			if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != websocket.StatusGoingAway || !strings.Contains(err.Error(), "gateway_shutdown") {
				t.Errorf("after the drain: %v", err)
			}
			exits(t, p)
			if took := time.Since(begun); took < 2*time.Second {
				t.Errorf("cut after %v with a drain of 2s", took)
			}
		}
		c.CloseNow()
		cancel()
	}
}
