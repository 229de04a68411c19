package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// bubble is a rig inside a synctest bubble: everything runs over pipes and on fake time.
type bubble struct {
	*rig
	client *http.Client
	gone   chan time.Duration // when each request's context ended at the endpoint
	stop   func()
}

func newBubble(t *testing.T, handle http.HandlerFunc, change func(*Config)) *bubble {
	b := &bubble{gone: make(chan time.Duration, 64)}
	front, back := loopback.NewPipes(), loopback.NewPipes()
	begun := time.Now()
	upstream := &http.Server{ErrorLog: quiet(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		go func() {
			<-r.Context().Done()
			b.gone <- time.Since(begun)
		}()
		handle(w, r)
	})}
	b.rig = buildRig(t, []string{"http://10.0.0.3:8000"}, func(c *Config) {
		c.Transport = func(string) http.RoundTripper { return NewTransport(TransportConfig{Dial: back.Dial}) }
	}, change)
	gateway := &http.Server{Handler: b.proxy, ErrorLog: quiet()}
	var wg sync.WaitGroup
	wg.Go(func() { _ = upstream.Serve(back) })
	wg.Go(func() { _ = gateway.Serve(front) })
	tr := &http.Transport{DialContext: front.Dial}
	b.client = &http.Client{Transport: tr}
	b.stop = func() {
		tr.CloseIdleConnections()
		gateway.Close()
		upstream.Close()
		b.proxy.CloseIdle()
		wg.Wait()
	}
	return b
}

func (b *bubble) post(body string) (int, http.Header, string, error) {
	res, err := b.client.Post("http://gw"+chat, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, nil, "", err
	}
	text, err := read(res)
	return res.StatusCode, res.Header, text, err
}

// timed is one case of a limit.
type timed struct {
	name   string
	change func(*Config)
	body   string
	handle func(w http.ResponseWriter, r *http.Request)

	status  int
	took    time.Duration // until the client knew; 0: not checked
	outcome string
	has     string
	broken  bool
}

func sleepOr(r *http.Request, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-r.Context().Done():
		return false
	}
}

func timedCases() []timed {
	everyMinute := func(n int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			answerStream(w, delta("first"))
			for range n {
				if !sleepOr(r, time.Minute) {
					return
				}
				answerStream(w, delta("x"))
			}
			answerStream(w, finishStop, doneEvent)
		}
	}
	after := func(d time.Duration) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if sleepOr(r, d) {
				answerOK(w, r)
			}
		}
	}
	streamAfter := func(d time.Duration) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			answerStream(w)
			if sleepOr(r, d) {
				answerStream(w, delta("a"), finishStop)
			}
		}
	}
	none := func(*Config) {}
	return []timed{
		{name: "55 minutes of silence, not streamed", change: none, body: chatBody, handle: after(55 * time.Minute), status: 200, took: 55 * time.Minute, outcome: "ok"},
		{name: "61 minutes of silence, not streamed", change: none, body: chatBody, handle: after(61 * time.Minute), status: 504, took: 60 * time.Minute, outcome: "timeout", has: "1h0m0s (limit in the configuration"},
		{name: "59 minutes of events", change: none, body: streamBody, handle: everyMinute(59), status: 200, took: 59 * time.Minute, outcome: "ok", has: "[DONE]"},
		{name: "59 minutes with long gaps and keep-alives", change: func(c *Config) { c.KeepAlive = 15 * time.Second }, body: streamBody, handle: func(w http.ResponseWriter, r *http.Request) {
			answerStream(w)
			time.Sleep(29 * time.Minute)
			answerStream(w, delta("first"))
			time.Sleep(30 * time.Minute)
			answerStream(w, finishStop, doneEvent)
		}, status: 200, took: 59 * time.Minute, outcome: "ok", has: string(commentLine) + delta("first") + string(commentLine)},
		{name: "61 minutes with keep-alives", change: func(c *Config) { c.KeepAlive = 15 * time.Second }, body: streamBody, handle: streamAfter(61 * time.Minute), status: 200, took: 60 * time.Minute, outcome: "timeout", has: string(commentLine) + `data: {"error":{"message":"the request took longer than the gateway's time limit: 1h0m0s (limit in the configuration of pointsman)"`, broken: true},
		{name: "55 minutes of silence, not streamed, with keep-alives", change: func(c *Config) { c.KeepAlive = 15 * time.Second }, body: chatBody, handle: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(55 * time.Minute)
			_, _ = io.WriteString(w, okJSON)
		}, status: 200, took: 55 * time.Minute, outcome: "ok", has: okJSON},
		{name: "61 minutes of events", change: none, body: streamBody, handle: everyMinute(61), status: 200, took: 60 * time.Minute, outcome: "timeout", has: "total_timeout", broken: true},
		{name: "first byte in time", change: func(c *Config) { c.FirstByte = 5 * time.Minute }, body: streamBody, handle: streamAfter(4 * time.Minute), status: 200, took: 4 * time.Minute, outcome: "ok"},
		{name: "first byte late", change: func(c *Config) { c.FirstByte = 5 * time.Minute }, body: streamBody, handle: streamAfter(6 * time.Minute), status: 200, took: 5 * time.Minute, outcome: "timeout", has: "first_byte_timeout", broken: true},
		{name: "head of a stream late", change: func(c *Config) { c.FirstByte = 5 * time.Minute }, body: streamBody, handle: after(6 * time.Minute), status: 504, took: 5 * time.Minute, outcome: "timeout", has: "5m0s (first_byte in the configuration"},
		{name: "first byte is for streams", change: func(c *Config) { c.FirstByte = 5 * time.Minute }, body: chatBody, handle: after(50 * time.Minute), status: 200, took: 50 * time.Minute, outcome: "ok"},
		{name: "idle", change: func(c *Config) { c.Idle = 30 * time.Second }, body: streamBody, handle: everyMinute(2), status: 200, took: 30 * time.Second, outcome: "timeout", has: "stream_idle_timeout", broken: true},
		{name: "idle to the millisecond", change: func(c *Config) { c.Idle = 1500 * time.Millisecond }, body: streamBody, handle: everyMinute(2), status: 200, took: 1500 * time.Millisecond, outcome: "timeout", has: "1.5s (idle in", broken: true},
	}
}

// TestLimits runs hours of waiting on fake time: what passes, what is cut when, and what the client is told.
func TestLimits(t *testing.T) {
	for _, c := range timedCases() {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, c.handle, c.change)
				begun := time.Now()
				status, h, body, err := b.post(c.body)
				took := time.Since(begun).Round(time.Microsecond)
				if status != c.status || (err != nil) != c.broken || !strings.Contains(body, c.has) || c.has == okJSON && body != okJSON {
					t.Errorf("status %d, %v, body %s", status, err, body)
				}
				if took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
				if c.outcome == "timeout" {
					if left := <-b.gone; left-took > time.Second {
						t.Errorf("the endpoint's connection stayed open %v longer", left-took)
					}
					if status == 504 && (h.Get("x-should-retry") != "false" || h.Get("x-pointsman-reason") != "timeout") {
						t.Errorf("headers %v", h)
					}
				}
				if rec := <-b.records; rec["outcome"] != c.outcome {
					t.Errorf("record %v", rec)
				}
				b.idle()
				b.stop()
			})
		})
	}
}

// TestGoneEndpoint: a vLLM that got SIGTERM goes silent on what is open and never closes it. Its answers are cut within
// seconds once its health says so, and not before.
func TestGoneEndpoint(t *testing.T) {
	for _, body := range []string{streamBody, chatBody} {
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
				if body == streamBody {
					answerStream(w, delta("a"))
				}
				<-r.Context().Done()
			}, func(*Config) {})
			const url = "http://10.0.0.3:8000"
			ctx, cancel := context.WithCancel(t.Context())
			go func() { _ = b.pool.Run(ctx) }()
			b.pool.HealthProbe(url, 200, nil)
			begun := time.Now()
			go func() {
				time.Sleep(20 * time.Second)
				for ctx.Err() == nil { // as the poller does when a stream is open and silent
					b.pool.HealthProbe(url, 503, nil)
					time.Sleep(500 * time.Millisecond)
				}
			}()
			status, _, text, err := b.post(body)
			took := time.Since(begun)
			if took < 20*time.Second || took > 30*time.Second {
				t.Errorf("cut after %v; the endpoint went away after 20 s", took)
			}
			if body == streamBody && (status != 200 || err == nil || !strings.Contains(text, "upstream_gone")) || body == chatBody && status != 502 {
				t.Errorf("status %d, %v, %s", status, err, text)
			}
			<-b.gone
			b.idle()
			cancel()
			b.stop()
			time.Sleep(time.Second)
		})
	}
}

// TestCutAll ends what is in flight with error events, within a second.
func TestCutAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
			answerStream(w, delta("a"))
			<-r.Context().Done()
		}, func(*Config) {})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				begun := time.Now()
				status, _, text, err := b.post(streamBody)
				if status != 200 || err == nil || !strings.Contains(text, "gateway_shutdown") || strings.Contains(text, "[DONE]") {
					t.Errorf("status %d, %v, %s", status, err, text)
				}
				if took := time.Since(begun); took < 10*time.Second || took > 11*time.Second {
					t.Errorf("ended after %v", took)
				}
			})
		}
		time.Sleep(10 * time.Second)
		if n := b.inFlight(); n != 20 {
			t.Errorf("%d in flight", n)
		}
		b.proxy.CutAll()
		wg.Wait()
		b.idle()
		if st := b.pool.Status().Endpoints[0].State; st != "ready" {
			t.Errorf("the endpoint is %s: our own end says nothing of it", st)
		}
		b.stop()
	})
}

// TestSlowUpload: a client that takes longer than the limit to send its body is told so.
func TestSlowUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, answerOK, func(c *Config) { c.Limit = 5 * time.Minute })
		r, w := io.Pipe()
		go func() {
			for range 100 {
				if _, err := io.WriteString(w, " "); err != nil {
					return
				}
				time.Sleep(10 * time.Second)
			}
		}()
		begun := time.Now()
		res, err := b.client.Post("http://gw"+chat, "application/json", r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := read(res)
		if res.StatusCode != 408 || !strings.Contains(body, "limit") || time.Since(begun) != 5*time.Minute {
			t.Errorf("status %d after %v: %s", res.StatusCode, time.Since(begun), body)
		}
		w.CloseWithError(errors.New("over"))
		if rec := <-b.records; rec["outcome"] != "timeout" {
			t.Errorf("record %v", rec)
		}
		b.idle()
		b.stop()
		time.Sleep(time.Minute) // the writer sees that it is over
	})
}

// TestStalledClient: a client that stops reading costs no more than the idle limit, and is not blamed on the endpoint.
func TestStalledClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
			answerStream(w)
			time.Sleep(time.Millisecond) // ReverseProxy's first flush is over: it takes a mutex, on which fake time does not pass
			for r.Context().Err() == nil {
				answerStream(w, delta(strings.Repeat("a", 1000)))
			}
		}, func(c *Config) { c.Idle = time.Minute })
		res, err := b.client.Post("http://gw"+chat, "application/json", strings.NewReader(streamBody))
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if rec := <-b.records; rec["outcome"] != "client_cancelled" {
			t.Errorf("record %v", rec)
		}
		if took := time.Since(begun); took > time.Minute+lastWords+time.Second {
			t.Errorf("held for %v", took)
		}
		res.Body.Close()
		b.idle()
		b.stop()
	})
}
