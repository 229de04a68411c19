package proxy

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/testkit/pace"
)

// leaving is a moment at which a client goes away.
type leaving struct {
	name   string
	body   string
	handle func(e *endpoint, w http.ResponseWriter, r *http.Request) // nil: no endpoint gets the request
	begun  bool                                                      // the client has the head
	tokens bool                                                      // and the engine has made some
	change func(*Config)
}

func leavings() []leaving {
	silent := func(e *endpoint, w http.ResponseWriter, r *http.Request) { e.untilLeft(r) }
	return []leaving{
		{name: "uploading", body: streamBody},
		{name: "connecting", body: streamBody, change: func(c *Config) {
			c.Transport = func(string) http.RoundTripper {
				return NewTransport(TransportConfig{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}})
			}
		}},
		{name: "before the head of a stream", body: streamBody, handle: silent},
		{name: "before the head of an answer", body: chatBody, handle: silent},
		{name: "in the prefill", body: streamBody, begun: true, handle: func(e *endpoint, w http.ResponseWriter, r *http.Request) {
			answerStream(w)
			e.untilLeft(r)
		}},
		{name: "in a silent stream", body: streamBody, begun: true, tokens: true, handle: func(e *endpoint, w http.ResponseWriter, r *http.Request) {
			answerStream(w, delta("a"))
			e.untilLeft(r)
		}},
		{name: "while events flow", body: streamBody, begun: true, tokens: true, handle: func(e *endpoint, w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				answerStream(w, delta("a"))
				pause(time.Millisecond)
			}
			e.untilLeft(r)
		}},
		{name: "inside an answer", body: chatBody, begun: true, handle: inside("100000")},
		{name: "inside a short answer", body: chatBody, handle: inside("1000")}, // its head waits for its body
	}
}

// inside stops inside an answer of a length.
func inside(length string) func(*endpoint, http.ResponseWriter, *http.Request) {
	return func(e *endpoint, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", length)
		answerJSON(w, 200, okJSON[:50])
		_ = http.NewResponseController(w).Flush()
		e.untilLeft(r)
	}
}

// TestClientLeaves covers the client going away in each phase, over both protocols: the endpoint's connection is closed
// within a second, nothing is tried again, the endpoint is not blamed, and nothing stays booked.
func TestClientLeaves(t *testing.T) {
	for _, c := range leavings() {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2"} {
			t.Run(c.name+" "+proto, func(t *testing.T) { c.run(t, proto) })
		}
	}
}

func (c *leaving) run(t *testing.T, proto string) {
	arrived := make(chan struct{}, 1)
	play := func(e **endpoint) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			arrived <- struct{}{}
			if c.handle != nil {
				c.handle(*e, w, r)
			}
		}
	}
	var a, b *endpoint // either may be picked, the other must not be asked
	a = newEndpoint(t, play(&a))
	b = newEndpoint(t, play(&b))
	change := c.change
	if change == nil {
		change = func(*Config) {}
	}
	r := newRig(t, []string{a.URL, b.URL}, change)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var body io.Reader = strings.NewReader(c.body)
	if c.name == "uploading" {
		pr, pw := io.Pipe()
		defer pw.Close()
		go io.WriteString(pw, c.body[:20])
		body = pr
	}
	req, err := http.NewRequestWithContext(ctx, "POST", r.server.URL+chat, body)
	if err != nil {
		t.Fatal(err)
	}
	head := make(chan error, 1)
	go func() {
		res, err := r.clients()[proto].Do(req)
		if err == nil {
			defer res.Body.Close()
			if c.tokens {
				_, err = io.ReadFull(res.Body, make([]byte, len(delta("a"))))
			}
		}
		head <- err
		<-ctx.Done()
	}()
	switch {
	case c.handle != nil:
		<-arrived
	default:
		waitFor(t, "the request's arrival", func() bool { n, _ := r.proxy.InFlight(); return n == 1 && (c.name == "uploading" || r.inFlight() == 1) })
	}
	if c.begun {
		if err := <-head; err != nil {
			t.Fatal(err)
		}
	}
	left := pace.Start(t)
	cancel()
	if c.handle != nil {
		select {
		case <-a.left:
		case <-b.left:
		case <-time.After(patience):
			t.Error("the endpoint's connection stays open")
		}
	}
	rec := r.record()
	if took := left.Elapsed(); took > time.Second {
		t.Errorf("ended %v after the client had left", took)
	}
	if n := rec["attempts"]; rec["outcome"] != "client_cancelled" || c.handle != nil && n != "" && n != "1" {
		t.Errorf("record %v", rec)
	}
	if n := rec["output_tokens"]; c.tokens && (n == "" || n == "0") {
		t.Errorf("what was generated does not count: %v", rec) // whether the read or the write failed first
	}
	if n := a.served.Load() + b.served.Load(); c.handle != nil && n != 1 || c.handle == nil && n != 0 {
		t.Errorf("the endpoints served %d", n)
	}
	r.idle()
	for _, e := range r.pool.Status().Endpoints {
		if e.State == "ejected" {
			t.Errorf("%s is ejected", e.Name)
		}
	}
}

// TestClientLeavesAtTheLastEvent: the official clients close when they have read [DONE], while the last chunk of the framing
// is still under way. Nobody cancelled anything, and the endpoint did its work.
func TestClientLeavesAtTheLastEvent(t *testing.T) {
	var ep *endpoint
	ep = newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		answerStream(w, delta("a"), finishStop, "data: [DONE]\n\n")
		ep.untilLeft(r)
	})
	r := newRig(t, []string{ep.URL})
	c, br := r.raw(rawPost(streamBody))
	for line := ""; !strings.Contains(line, "[DONE]"); {
		var err error
		if line, err = br.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	if rec := r.record(); rec["outcome"] != "ok" {
		t.Errorf("record %v", rec)
	}
	r.idle()
}
