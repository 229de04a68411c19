package acceptance

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// h2c is a client that speaks HTTP/2 in clear text over one connection.
func h2c() *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: tr}
}

// HTTP/2: streams of one connection finish after the client was told to go away, and a request within drain_delay is served
// on that connection or, by the client's own choice, on another.
func TestTermFinishesStreamsOfHTTP2(t *testing.T) {
	t.Parallel()
	p := drained(t, "limit: 20m\ndrain_delay: 10m\n")
	client := h2c()
	streams := openWith(t, client, p, 20, 200)
	signal(t, p, syscall.SIGTERM)
	eventually(t, patience, func() string { return notStatus(p.admin+"/readyz", 503) })
	for range 3 {
		if a := post(client, nil, p.api+"/v1/chat/completions", chatBody([]message{{"user", "hello"}}, 4)); a.status != 200 {
			t.Errorf("a request within drain_delay: status %d, %v", a.status, a.err)
		}
	}
	for i, e := range streams() {
		if e.err != nil || e.status != 200 || !strings.HasSuffix(e.rest, "data: [DONE]\n\n") {
			t.Errorf("stream %d ended with %v: %.200s", i, e.err, e.rest)
		}
	}
	signal(t, p, syscall.SIGTERM) // ends the delay
	exits(t, p)
}

// HTTP/2 with a drain that is too short: every stream gets its error event, then a reset.
func TestTermCutsStreamsOfHTTP2(t *testing.T) {
	t.Parallel()
	p := drained(t, "drain_delay: 0\ndrain: 300ms\n")
	streams := openWith(t, h2c(), p, 20, 5000)
	signal(t, p, syscall.SIGTERM)
	mustBeCut(t, streams())
	exits(t, p)
}

// A WebSocket that opens within drain_delay works: the word to reconnect is for HTTP.
func TestWebSocketWithinDelay(t *testing.T) {
	t.Parallel()
	servers, urls := fleet(t, 1)
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		if kind, data, err := c.Read(r.Context()); err == nil {
			_ = c.Write(r.Context(), kind, data)
		}
	})
	servers[0].handle.Store(&echo)
	p := serveFile(t, "limit: 20m\ndrain_delay: 10m\npools:\n  - {name: a, "+list(urls...)+"}\n")
	ready(t, p)
	signal(t, p, syscall.SIGTERM)
	p.waitLog(t, "msg=draining")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, strings.Replace(p.api, "http", "ws", 1)+"/v1/realtime?model=m", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Read(ctx); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	c.CloseNow()
	signal(t, p, syscall.SIGTERM) // ends the delay
	exits(t, p)
}

// Answers in one piece, and requests that are still being uploaded, are told what happened at the end of a drain.
func TestTermTellsWhoHasNoStream(t *testing.T) {
	t.Parallel()
	p := drained(t, "drain_delay: 0\ndrain: 500ms\n")
	var all sync.WaitGroup
	all.Go(func() {
		a := post(http.DefaultClient, nil, p.api+"/v1/chat/completions", chatBody([]message{{"user", "one piece"}}, 5000))
		if a.status != 503 || !strings.Contains(string(a.body), "shutting down") || a.header.Get("X-Should-Retry") != "false" || a.header.Get("X-Pointsman-Reason") != "shutdown" {
			t.Errorf("in one piece: status %d, %v: %s", a.status, a.header, a.body)
		}
	})
	upload, err := net.Dial("tcp", strings.TrimPrefix(p.api, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer upload.Close()
	if _, err = io.WriteString(upload, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = upload.SetReadDeadline(time.Now().Add(patience))
	in := bufio.NewReader(upload)
	if r, fault := http.ReadResponse(in, nil); fault != nil || r.StatusCode != http.StatusContinue { // it is being read
		t.Fatalf("the upload: %v, %v", r, fault)
	}
	if _, err = io.WriteString(upload, "{"); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, func() string {
		if n := inFlight(t, p); n < 1 {
			return "nothing is in flight"
		}
		return ""
	})
	signal(t, p, syscall.SIGTERM)
	r, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Errorf("the upload: %v", err)
	} else if body, _ := io.ReadAll(r.Body); r.StatusCode != 503 || !strings.Contains(string(body), "shutting down") {
		t.Errorf("the upload: status %d: %s", r.StatusCode, body)
	}
	all.Wait()
	exits(t, p)
}

// inFlight is how many requests the endpoints of p have.
func inFlight(t *testing.T, p *program) int {
	n := 0
	for _, s := range p.pools(t) {
		n += s.InFlight
	}
	return n
}

// A stream that began before a reload is drained like one that began after it.
func TestTermAfterReload(t *testing.T) {
	t.Parallel()
	p := drained(t, "drain_delay: 0\n")
	streams := open(t, p, 3, 300)
	p.write(t, "limit: 19s\ndrain_delay: 0\nkeepalive: 5s\npools:\n  - {name: b, endpoints: [http://127.0.0.1:1]}\n")
	signal(t, p, syscall.SIGHUP)
	p.waitLog(t, "configuration reloaded")
	signal(t, p, syscall.SIGTERM)
	for i, e := range streams() {
		if e.err != nil || !strings.HasSuffix(e.rest, "data: [DONE]\n\n") {
			t.Errorf("stream %d ended with %v: %.200s", i, e.err, e.rest)
		}
	}
	exits(t, p)
	if line := p.waitLog(t, "msg=draining"); !strings.Contains(line, "in_flight.requests=3") {
		t.Errorf("the log says %s", line)
	}
}

// Connections that are open and idle do not hold up the end: used ones not at all, unused ones for the 5 s within which net/http
// still expects their first request.
func TestTermWithIdleConnections(t *testing.T) {
	t.Parallel()
	p := drained(t, "limit: 20m\ndrain_delay: 0\n") // and drains as long, if they do
	for range 3 {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.api, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for _, client := range []*http.Client{{Transport: &http.Transport{}}, h2c()} {
		if a := post(client, nil, p.api+"/v1/chat/completions", chatBody([]message{{"user", "hello"}}, 4)); a.status != 200 {
			t.Fatalf("status %d", a.status)
		}
	}
	signal(t, p, syscall.SIGTERM)
	exits(t, p)
}

// A client that reads nothing holds up neither the drain of the others nor the end.
func TestTermWithClientThatReadsNothing(t *testing.T) {
	t.Parallel()
	servers, urls := fleet(t, 1)
	var written atomic.Int64
	endless := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		event := []byte(`data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 8000) + `"}}]}` + "\n\n")
		for r.Context().Err() == nil {
			if _, err := w.Write(event); err != nil {
				return
			}
			written.Add(1)
		}
	})
	servers[0].handle.Store(&endless)
	p := serveFile(t, "drain_delay: 0\ndrain: 500ms\npools:\n  - {name: a, "+list(urls...)+"}\n")
	ready(t, p)
	c, err := net.Dial("tcp", strings.TrimPrefix(p.api, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err = io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 41\r\n\r\n"+`{"model":"m","messages":[],"stream":true}`); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, func() string {
		if inFlight(t, p) != 1 {
			return "not in flight"
		}
		return ""
	})
	eventually(t, patience, func() string { // until every buffer is full
		before := written.Load()
		time.Sleep(100 * time.Millisecond)
		return unless(before > 0 && written.Load() == before, "the endpoint still gets rid of events")
	})
	begun := time.Now()
	signal(t, p, syscall.SIGTERM)
	exits(t, p)
	if took := time.Since(begun); took < 500*time.Millisecond {
		t.Errorf("ended after %v with a drain of 500ms", took)
	}
	eventually(t, patience, func() string {
		if n := servers[0].inFlight.Load(); n != 0 {
			return fmt.Sprintf("the endpoint still works on %d", n)
		}
		return ""
	})
}
