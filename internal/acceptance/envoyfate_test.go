package acceptance

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"pointsman.dev/pointsman/internal/app"
	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/testkit/loopback"
	"pointsman.dev/pointsman/internal/testkit/records"
)

// fates is a gateway as an external processor with model servers that do what a request says. A client's header says which endpoints a
// request may go to.
type fates struct {
	t        *testing.T
	g        *app.Gateway
	works    string // the URL of a model server
	hold     chan bool
	executed atomic.Int32 // requests that model servers have read
	records  records.Channel
}

// newFates begins one whose pool has these endpoints beside n model servers, which are returned.
func newFates(t *testing.T, n int, more ...string) (*fates, []*scripted) {
	t.Helper()
	envoyPath(t)
	servers, urls := fleet(t, n)
	f := &fates{t: t, works: urls[0], hold: make(chan bool), records: make(records.Channel, 64)}
	play := http.HandlerFunc(f.play)
	for _, s := range servers {
		s.handle.Store(&play)
	}
	cfg, err := config.Parse("test.yaml", []byte("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n"+processor+"pools:\n  - {name: chat, "+list(append(urls, more...)...)+"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if f.g, err = app.Start(t.Context(), cfg, slog.New(f.records)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.g.Close)
	waitReady(t, f.g, n)
	return f, servers
}

// play does what a request's header says.
func (f *fates) play(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		return // a probe of the gateway
	}
	_, _ = io.Copy(io.Discard, r.Body)
	f.executed.Add(1)
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
	say := map[string]string{"nonsense": "HELLO\r\n\r\n", "head": head, "half": head + `{"id"`}[r.Header.Get("Test-Play")]
	switch r.Header.Get("Test-Play") {
	case "":
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, "{\"pick\":%q}", r.Header.Get("x-gateway-destination-endpoint"))
		return
	case "hang", "hang in a stream": // in the middle of the answer
		kind, half := "application/json", `{"id"`
		if r.Header.Get("Test-Play") != "hang" {
			kind, half = "text/event-stream", "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n"
		}
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, half)
		_ = http.NewResponseController(w).Flush()
		f.hold <- true
		<-r.Context().Done()
		f.hold <- true
		return
	case "wait":
		f.hold <- true
		<-f.hold
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, say)
	if say == "" {
		_ = conn.(*net.TCPConn).SetLinger(0)
	}
}

// envoy starts one that knows these endpoints.
func (f *fates) envoy(endpoints []string, pairs ...string) string {
	f.t.Helper()
	const filter = "                  - name: envoy.filters.http.ext_proc\n"
	return envoy(f.t, endpoints, f.g.ExtProc(), append([]string{filter, hinting + filter}, pairs...)...)
}

// ask sends a request by way of an Envoy, and returns the answer and the gateway's record. endpoint is the only one that it may go to, ""
// for any; play is what the model server does.
func (f *fates) ask(base, endpoint, play string) told {
	f.t.Helper()
	return f.askFor(base, wordy(500), endpoint, play)
}

func (f *fates) askFor(base, body, endpoint, play string) told {
	f.t.Helper()
	f.records.Drop()
	a := f.send(base, body, endpoint, play)
	a.record = f.records.Next(f.t)
	return a
}

func (f *fates) send(base, body, endpoint, play string) told {
	f.t.Helper()
	header := map[string]string{}
	if endpoint != "" {
		header["test-subset-text"] = strings.TrimPrefix(endpoint, "http://")
	}
	if play != "" {
		header["Test-Play"] = play
	}
	return tell(f.t, client(f.t, 1), http.MethodPost, base+"/v1/chat/completions", strings.NewReader(body), header)
}

// modesOf are the changes of the shipped configuration that make it one of another body mode.
func modesOf(request, response string) []string {
	trailers := "SKIP"
	if request == "FULL_DUPLEX_STREAMED" {
		trailers = "SEND"
	}
	return []string{"request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: " + request, "response_body_mode: FULL_DUPLEX_STREAMED", "response_body_mode: " + response,
		"trailer_mode: SEND", "trailer_mode: " + trailers}
}

// TestEnvoyOwnAnswers: an error that Envoy itself makes tells a client's library not to send the request again exactly if a model server may
// have it.
func TestEnvoyOwnAnswers(t *testing.T) {
	ln := loopback.Cramped(t)
	t.Cleanup(func() { ln.Close() })
	refuses, silent := "http://"+loopback.Free(t), "http://"+ln.Addr().String()
	f, _ := newFates(t, 1, refuses, silent)
	all := []string{f.works, refuses, silent}
	for _, mode := range [][2]string{{"FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"}, {"BUFFERED", "STREAMED"}, {"BUFFERED", "BUFFERED"}, {"BUFFERED", "NONE"}} {
		t.Run(mode[0]+"/"+mode[1], func(t *testing.T) {
			f.t = t
			pairs := modesOf(mode[0], mode[1])
			base := f.envoy(all, pairs...)
			hasty := f.envoy(all, append(pairs, "STATIC\n      connect_timeout: 1s", "STATIC\n      connect_timeout: 0.3s")...)
			timed := f.envoy(all, append(pairs, "timeout: 0s", "timeout: 0.5s")...)
			closed := f.envoy(all, append(pairs, "max_connections: 65536, max_pending_requests: 65536, max_requests: 65536", "max_requests: 0")...)
			for _, c := range []struct {
				name, base, endpoint, play string
				status                     int
				final                      bool
				outcome                    string
			}{
				{"reset", base, f.works, "reset", 503, true, "upstream_error"},
				{"no HTTP", base, f.works, "nonsense", 502, true, "upstream_error"},
				{"refused", base, refuses, "", 503, false, "upstream_error"},
				{"no connection", hasty, silent, "", 503, false, "upstream_error"},
				{"route's timeout, connecting", timed, silent, "", 504, false, "upstream_error"},
				{"circuit breaker", closed, f.works, "", 503, false, "upstream_error"},
			} {
				a := f.ask(c.base, c.endpoint, c.play)
				if a.status != c.status || (a.header.Get("x-should-retry") == "false") != c.final || len(a.header.Values("x-should-retry")) > 1 || a.record["outcome"] != c.outcome {
					t.Errorf("%s: %d %v %s, record %v", c.name, a.status, a.header, a.body, a.record)
				}
			}
			for _, play := range []string{"head", "half"} { // Envoy answers 502 as long as nothing has gone out, and past the processor
				if a := f.ask(base, f.works, play); a.status != 200 && a.header.Get("x-should-retry") != "false" || a.status == 200 && a.err == nil {
					t.Errorf("%s: %d %v, %v", play, a.status, a.header, a.err)
				}
			}
		})
	}
}

// TestEnvoyRouteTimeout: who is told 504 because a route's time is over is told that the request may have been executed.
func TestEnvoyRouteTimeout(t *testing.T) {
	f, _ := newFates(t, 1)
	base := f.envoy([]string{f.works}, "timeout: 0s", "timeout: 3s")
	answer := make(chan told, 1)
	go func() { answer <- f.ask(base, f.works, "wait") }()
	receive(t, f.hold, "the model server has no request")
	a := receive(t, answer, "no answer")
	f.hold <- true
	if a.status != 504 || a.header.Get("x-should-retry") != "false" || a.record["outcome"] != "timeout" {
		t.Errorf("%d %v, record %v", a.status, a.header, a.record)
	}
}

// TestEnvoyProcessorLost: who is told 500 because the processor ended is told whether a model server may have the request.
func TestEnvoyProcessorLost(t *testing.T) {
	f, _ := newFates(t, 1)
	base := f.envoy([]string{f.works})
	answer := make(chan told, 1)
	go func() { answer <- f.send(base, wordy(500), f.works, "wait") }()
	receive(t, f.hold, "the model server has no request")
	f.g.Close()
	if a := receive(t, answer, "no answer"); a.status != 500 || a.header.Get("x-should-retry") != "false" {
		t.Errorf("one that runs: %d %v", a.status, a.header)
	}
	f.hold <- true
	if a := f.send(base, wordy(500), f.works, ""); a.status != 500 || a.header.Get("x-should-retry") != "" || f.executed.Load() != 1 {
		t.Errorf("one that was not sent: %d %v, %d executed", a.status, a.header, f.executed.Load())
	}
}

// TestEnvoyUnknownEndpoint: an endpoint that Envoy does not know is passed over and not blamed; one that it has tried is.
func TestEnvoyUnknownEndpoint(t *testing.T) {
	f, servers := newFates(t, 2)
	base := f.envoy([]string{servers[1].URL})
	passed := 0
	for i := range 20 {
		a := f.askFor(base, saying("m", i, 2000, ""), "", "")
		if a.status != 200 || a.record["attempts"] != "" || a.record["endpoint"] != servers[1].name {
			t.Errorf("%d, record %v", a.status, a.record)
		}
		if strings.Contains(string(a.body), `"`+servers[0].name) {
			passed++
		}
		for _, e := range status(t, f.g).Endpoints {
			if e.State != "ready" && e.State != "warming" {
				t.Fatalf("%s is %s: %s", e.Name, e.State, e.Cause)
			}
		}
	}
	if passed == 0 {
		t.Error("the endpoint that Envoy does not know was never picked")
	}
}

// TestEnvoyGone: an answer that is under way when its model server is gone without a word ends soon, as one that nobody takes for whole, and
// nothing is executed twice.
func TestEnvoyGone(t *testing.T) {
	for _, c := range []struct {
		mode, play string
		event      bool // the client is told by an error event, else its connection breaks
	}{
		{"FULL_DUPLEX_STREAMED", "hang", false}, {"STREAMED", "hang", false}, {"STREAMED", "hang in a stream", false}, {"FULL_DUPLEX_STREAMED", "hang in a stream", true},
	} {
		t.Run(c.mode+"/"+c.play, func(t *testing.T) {
			f, servers := newFates(t, 2)
			request := "BUFFERED"
			if c.mode == "FULL_DUPLEX_STREAMED" {
				request = c.mode
			}
			base := f.envoy([]string{servers[0].URL, servers[1].URL}, modesOf(request, c.mode)...)
			answer := make(chan told, 1)
			go func() { answer <- f.ask(base, f.works, c.play) }()
			receive(t, f.hold, "the model server has no request")
			servers[0].sick.Store(true)
			a := receive(t, answer, "the answer does not end")
			if a.status != 200 || (a.err == nil) != c.event || strings.Contains(string(a.body), `"upstream_gone"`) != c.event {
				t.Errorf("%d, %v: %q", a.status, a.err, a.body)
			}
			if a.record["outcome"] != "cut" || a.record["error_reason"] != "upstream_error" || f.executed.Load() != 1 {
				t.Errorf("executed %d times, record %v", f.executed.Load(), a.record)
			}
			receive(t, f.hold, "the model server still works for a client that was told")
		})
	}
}

// TestEnvoyInFlight: a request is booked as long as its model server works on it, whatever Envoy shows of the answer.
func TestEnvoyInFlight(t *testing.T) {
	for _, mode := range [][2]string{{"FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"}, {"FULL_DUPLEX_STREAMED", "STREAMED"}, {"FULL_DUPLEX_STREAMED", "NONE"}, {"BUFFERED", "NONE"}} {
		t.Run(mode[0]+"/"+mode[1], func(t *testing.T) {
			f, servers := newFates(t, 1)
			base := f.envoy([]string{servers[0].URL}, modesOf(mode[0], mode[1])...)
			booked := func(n int) {
				t.Helper()
				eventually(t, patience, func() string {
					return unless(status(t, f.g).InFlight == n, fmt.Sprintf("%d are booked, want %d", status(t, f.g).InFlight, n))
				})
			}
			for _, play := range []string{"wait", "hang"} {
				answer := make(chan told, 1)
				go func() { answer <- f.send(base, wordy(500), f.works, play) }()
				receive(t, f.hold, "the model server has no request")
				for range 3 { // each is a whole round through Envoy and the processor, behind whatever the first one has set off
					if a := f.send(base, wordy(600), f.works, ""); a.status != 200 {
						t.Errorf("status %d", a.status)
					}
				}
				booked(1)
				if play == "wait" {
					f.hold <- true
				} else {
					servers[0].CloseClientConnections()
					receive(t, f.hold, "the model server still has a request")
				}
				receive(t, answer, "no answer")
				booked(0)
			}
		})
	}
}
