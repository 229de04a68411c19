package acceptance

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A cutCase is one way in which an answer does not reach its end.
type cutCase struct {
	name           string
	top            string                    // configuration
	play           func(w *wire, d *dialect) // what the engine does
	during         func(r *cutRig)           // what happens beside it once the client has all that passes
	passed         func(d *dialect) string   // the engine's bytes that the client gets; nil: those of the events, or none
	open           bool                      // they end inside an event
	added          func(d *dialect) string   // the event that the gateway adds
	own            bool                      // the engine has said it itself: nothing is added
	status         int                       // of an answer of the gateway's own; 0: the engine's 200
	clean          bool                      // nothing is wrong for the client, or the answer is one of the gateway's own
	not            func(d *dialect) bool     // APIs that do not have it
	outcome, state string                    // of the request; of the endpoint afterwards, "" when there is nobody left to ask
}

const (
	cutReset   = "the model server's connection broke before the answer was complete"
	cutEnd     = "the model server ended the stream before the answer was complete"
	cutGone    = "the model server went away while it worked on the request; the request may have been processed and was not sent again"
	cutDrain   = "the gateway is shutting down and its drain time is over"
	cutIdle    = "the model server's stream was silent for longer than the gateway's limit: 1s (idle in the configuration of pointsman)"
	cutTotal   = "the request took longer than the gateway's time limit: 1s (limit in the configuration of pointsman)"
	cutFirst   = "the model server sent nothing within the gateway's limit for the first byte: 300ms (first_byte in the configuration of pointsman)"
	cutWhole   = "the model server's answer broke off before it was whole; the request may have been processed to its end and was not sent again"
	cutNoReply = "the model server closed the connection before it answered; the request may have been processed and was not sent again"
)

// event is the error event with which the gateway ends a stream.
func event(code, typ, message string) func(*dialect) string {
	return func(d *dialect) string { return d.cut(code, typ, message) }
}

func (d *dialect) hasAbort() bool { return d.abort != "" }

// streamCases are the ways in which a stream breaks.
func streamCases() []cutCase {
	begin := func(w *wire, d *dialect) { w.say(streamHead); w.chunks(d.events...) }
	drained := func(r *cutRig) { go r.g.Drain(context.Background(), 0, 50*time.Millisecond) }
	gone := func(r *cutRig) { r.engine.sick.Store(true) }
	return []cutCase{
		{name: "reset", play: func(w *wire, d *dialect) { begin(w, d); w.wait(); w.reset() },
			added: event("upstream_reset", "server_error", cutReset), outcome: "cut", state: "ejected"},
		{name: "reset inside an event", play: func(w *wire, d *dialect) { begin(w, d); w.chunks(d.open); w.wait(); w.reset() },
			passed: func(d *dialect) string { return d.sofar() + d.open }, open: true,
			added: event("upstream_reset", "server_error", cutReset), outcome: "cut", state: "ejected"},
		{name: "no last chunk", play: begin,
			added: event("upstream_reset", "server_error", cutReset), outcome: "cut", state: "ejected"},
		{name: "early end", play: func(w *wire, d *dialect) { begin(w, d); w.say(lastChunk) },
			added: event("upstream_eof", "server_error", cutEnd), outcome: "cut", state: "ejected"},
		{name: "early end inside an event", play: func(w *wire, d *dialect) { begin(w, d); w.chunks(d.open); w.say(lastChunk) },
			passed: func(d *dialect) string { return d.sofar() + d.open }, open: true,
			added: event("upstream_eof", "server_error", cutEnd), outcome: "cut", state: "ejected"},
		{name: "early end by closing", play: func(w *wire, d *dialect) {
			w.say("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + d.sofar())
		}, added: event("upstream_eof", "server_error", cutEnd), outcome: "cut", state: "ejected"},
		{name: "idle limit", top: "idle: 1s\n", play: func(w *wire, d *dialect) { begin(w, d); w.hang() },
			added: event("stream_idle_timeout", "timeout_error", cutIdle), outcome: "timeout", state: "ready"},
		{name: "first byte limit", top: "first_byte: 300ms\n", play: func(w *wire, d *dialect) { w.say(streamHead); w.hang() },
			passed: func(*dialect) string { return "" },
			added:  event("first_byte_timeout", "timeout_error", cutFirst), outcome: "timeout", state: "ready"},
		{name: "total limit", top: "limit: 1s\n", play: func(w *wire, d *dialect) { begin(w, d); w.hang() },
			added: event("total_timeout", "timeout_error", cutTotal), outcome: "timeout", state: "ready"},
		{name: "total limit inside an event", top: "limit: 1s\n", play: func(w *wire, d *dialect) { begin(w, d); w.chunks(d.open); w.hang() },
			passed: func(d *dialect) string { return d.sofar() + d.open }, open: true,
			added: event("total_timeout", "timeout_error", cutTotal), outcome: "timeout", state: "ready"},
		{name: "endpoint gone", play: func(w *wire, d *dialect) { begin(w, d); w.hang() }, during: gone,
			added: event("upstream_gone", "server_error", cutGone), outcome: "cut", state: "gone"},
		{name: "drain end", play: func(w *wire, d *dialect) { begin(w, d); w.hang() }, during: drained,
			added: event("gateway_shutdown", "server_error", cutDrain), outcome: "cut"},
		{name: "engine's error event", play: func(w *wire, d *dialect) { begin(w, d); w.chunks(d.broken, "data: [DONE]\n\n"); w.say(lastChunk) },
			passed: func(d *dialect) string { return d.sofar() + d.broken }, own: true, outcome: "cut", state: "ejected"},
		{name: "engine's error event alone", play: func(w *wire, d *dialect) { begin(w, d); w.chunks(d.broken); w.say(lastChunk) },
			passed: func(d *dialect) string { return d.sofar() + d.broken }, own: true, outcome: "cut", state: "ejected"},
		{name: "engine's error event first", play: func(w *wire, d *dialect) { w.say(streamHead); w.chunks(d.broken, "data: [DONE]\n\n"); w.say(lastChunk) },
			passed: func(d *dialect) string { return d.broken }, own: true, outcome: "upstream_error", state: "ejected"},
		{name: "abort", play: func(w *wire, d *dialect) { begin(w, d); w.chunks(d.abort, "data: [DONE]\n\n"); w.say(lastChunk) },
			not:   func(d *dialect) bool { return !d.hasAbort() },
			added: event("engine_abort", "server_error", cutEnd), outcome: "cut", state: "ejected"},
		{name: "[DONE] without a finish reason", play: func(w *wire, d *dialect) { begin(w, d); w.chunks("data: [DONE]\n\n"); w.say(lastChunk) },
			added: event("engine_abort", "server_error", cutEnd), outcome: "cut", state: "ejected"},
		{name: "reset before the head", play: func(w *wire, _ *dialect) { w.reset() }, status: 502, clean: true,
			added: func(d *dialect) string { return d.body("upstream_error", "server_error", cutNoReply) }, outcome: "upstream_error", state: "ejected"},
		{name: "control: whole", play: func(w *wire, d *dialect) { begin(w, d); w.chunks(d.finish...); w.say(lastChunk) },
			passed: func(d *dialect) string { return d.sofar() + strings.Join(d.finish, "") }, own: true, clean: true, outcome: "ok", state: "ready"},
	}
}

// pieceCases are the ways in which an answer in one piece breaks.
func pieceCases() []cutCase {
	half := func(d *dialect) string { return d.whole[:len(d.whole)/2] }
	whole := func(d *dialect) string { return d.whole }
	begin := func(w *wire, d *dialect) { w.say(sized(len(d.whole)) + half(d)) }
	drained := func(r *cutRig) { go r.g.Drain(context.Background(), 0, 50*time.Millisecond) }
	gone := func(r *cutRig) { r.engine.sick.Store(true) }
	own := func(reason, typ, message string) func(d *dialect) string {
		return func(d *dialect) string { return d.body(reason, typ, message) }
	}
	return []cutCase{
		{name: "reset before the head", play: func(w *wire, _ *dialect) { w.reset() }, status: 502, clean: true,
			added: own("upstream_error", "server_error", cutNoReply), outcome: "upstream_error", state: "ejected"},
		{name: "closed before the head", play: func(*wire, *dialect) {}, status: 502, clean: true,
			added: own("upstream_error", "server_error", cutNoReply), outcome: "upstream_error", state: "ejected"},
		{name: "short of its length", play: begin, status: 502, clean: true,
			added: own("upstream_eof", "server_error", cutWhole), outcome: "cut", state: "ejected"},
		{name: "short of its length, reset", play: func(w *wire, d *dialect) { begin(w, d); w.settle(); w.reset() }, status: 502, clean: true,
			added: own("upstream_reset", "server_error", cutWhole), outcome: "cut", state: "ejected"},
		{name: "half a JSON value", play: func(w *wire, d *dialect) { w.say(sized(len(half(d))) + half(d)) }, status: 502, clean: true,
			added: own("upstream_eof", "server_error", cutWhole), outcome: "cut", state: "ejected"},
		{name: "long, short of its length", play: func(w *wire, d *dialect) { w.say(sized(100_000) + half(d)) },
			passed: half, own: true, outcome: "cut", state: "ejected"},
		{name: "chunked, no last chunk", play: func(w *wire, d *dialect) { w.say(chunkedJSON); w.chunks(half(d)) },
			passed: half, own: true, outcome: "cut", state: "ejected"},
		{name: "chunked, reset", play: func(w *wire, d *dialect) { w.say(chunkedJSON); w.chunks(half(d)); w.wait(); w.reset() },
			passed: half, own: true, outcome: "cut", state: "ejected"},
		{name: "chunked, half a JSON value", play: func(w *wire, d *dialect) { w.say(chunkedJSON); w.chunks(half(d)); w.say(lastChunk) },
			passed: half, own: true, outcome: "cut", state: "ejected"},
		{name: "control: idle limit", top: "idle: 100ms\nfirst_byte: 100ms\n", play: func(w *wire, d *dialect) {
			time.Sleep(300 * time.Millisecond) // silence is what an answer in one piece begins with
			w.say(sized(len(d.whole)) + d.whole)
		}, passed: whole, own: true, clean: true, outcome: "ok", state: "ready"},
		{name: "total limit", top: "limit: 1s\n", play: func(w *wire, _ *dialect) { w.hang() }, status: 504, clean: true,
			added: own("total_timeout", "timeout_error", cutTotal), outcome: "timeout", state: "ready"},
		{name: "total limit in the body", top: "limit: 1s\n", play: func(w *wire, d *dialect) { begin(w, d); w.hang() },
			status: 504, clean: true, added: own("total_timeout", "timeout_error", cutTotal), outcome: "timeout", state: "ready"},
		{name: "endpoint gone", play: func(w *wire, _ *dialect) { w.hang() }, during: gone, status: 502, clean: true,
			added: own("upstream_gone", "server_error", cutGone), outcome: "upstream_error", state: "gone"},
		{name: "drain end", play: func(w *wire, _ *dialect) { w.hang() }, during: drained, status: 503, clean: true,
			added: own("gateway_shutdown", "server_error", cutDrain), outcome: "cut"},
		{name: "an error in a 200", play: func(w *wire, d *dialect) { w.say(sized(len(d.failed)) + d.failed) },
			passed: func(d *dialect) string { return d.failed }, own: true, clean: true, outcome: "upstream_error", state: "ejected"},
		{name: "abort", play: func(w *wire, d *dialect) { w.say(sized(len(d.aborted)) + d.aborted) },
			not: func(d *dialect) bool { return d.aborted == "" }, status: 502, clean: true,
			added: own("engine_abort", "server_error", cutWhole), outcome: "cut", state: "ejected"},
	}
}

var cutModes = []string{"both", "error_event", "abort"}

// TestCut is the table of what a client gets when its answer breaks: every API, every cause, streamed or not, HTTP/1.1 and
// HTTP/2, every cut_stream, through the whole gateway.
func TestCut(t *testing.T) {
	type row struct {
		c      *cutCase
		d      *dialect
		stream bool
		http2  bool
		mode   string
	}
	var rows []row
	kinds, streams, pieces := dialects(), streamCases(), pieceCases()
	for _, stream := range []bool{true, false} {
		cases := pieces
		if stream {
			cases = streams
		}
		for i := range cases {
			for k := range kinds {
				if c := &cases[i]; c.not == nil || !c.not(&kinds[k]) {
					for _, mode := range cutModes {
						rows = append(rows, row{c, &kinds[k], stream, false, mode}, row{c, &kinds[k], stream, true, mode})
					}
				}
			}
		}
	}
	t.Logf("%d combinations", len(rows))
	parallel(len(rows), 32, func(i int) {
		r := rows[i]
		t.Run(fmt.Sprintf("%s/%s/stream=%v/http2=%v/%s", r.c.name, r.d.name, r.stream, r.http2, r.mode), func(t *testing.T) {
			r.c.run(t, r.d, r.stream, r.http2, r.mode)
		})
	})
}

func (c *cutCase) run(t *testing.T, d *dialect, stream, http2 bool, mode string) {
	r := newCutRig(t, "cut_stream: "+mode+"\n"+c.top, func(w *wire) { c.play(w, d) })
	body, want, wantEnd := d.request, "", "abnormal"
	if stream {
		body = d.streaming()
	}
	switch {
	case c.passed != nil:
		want = c.passed(d)
	case stream && c.status == 0:
		want = d.sofar()
	}
	if c.during != nil {
		go c.beside(r, stream)
	}
	a := r.ask(http2, d.path, body, want)
	switch {
	case c.own, mode == "abort" && c.status == 0:
	case c.open:
		want += "\n\n" + c.added(d)
	default:
		want += c.added(d)
	}
	if c.clean || stream && mode == "error_event" {
		wantEnd = "clean"
	}
	c.check(t, r, &a, want, wantEnd, http2)
}

// beside does what happens beside the answer: when the client has what passes of a stream, or while the engine works.
func (c *cutCase) beside(r *cutRig, stream bool) {
	<-r.asked
	if stream {
		<-r.seen
	}
	c.during(r)
}

func (c *cutCase) check(t *testing.T, r *cutRig, a *got, want, wantEnd string, http2 bool) {
	t.Helper()
	if a.body != want {
		t.Errorf("the client got\n%q\nwant\n%q", a.body, want)
	}
	if e := a.ends(http2); e != wantEnd {
		t.Errorf("the end is %s, want %s", e, wantEnd)
	}
	status := c.status
	if status == 0 {
		status = http.StatusOK
	}
	if a.status != status {
		t.Errorf("status %d, want %d", a.status, status)
	}
	if final := a.header.Get("X-Should-Retry"); status >= 500 && final != "false" {
		t.Errorf("x-should-retry is %q", final)
	}
	rec := r.record()
	if rec["outcome"] != c.outcome || rec["attempts"] != "" || rec["status"] != fmt.Sprint(status) { // attempts: left out when it is 1
		t.Errorf("record %v, want outcome %s", rec, c.outcome)
	}
	if c.state == "" {
		return
	}
	if n := metric(t, r.g, "pointsman_requests_total", `outcome="`+c.outcome+`"`); n != 1 {
		t.Errorf("%v requests with outcome %s", n, c.outcome)
	}
	if n, all := metric(t, r.g, "pointsman_attempts_total", `outcome="`+c.outcome+`"`), metric(t, r.g, "pointsman_attempts_total"); n != 1 || all != 1 {
		t.Errorf("%v of %v attempts with outcome %s", n, all, c.outcome)
	}
	e := endpointStatus(t, r.g, r.engine.name)
	if c.outcome == "timeout" && a.took > 1500*time.Millisecond && e.Cause == "a request ran into a limit" {
		return // on a machine on which the limit's second took longer: that much silence is held against an endpoint
	}
	if e.State != c.state || e.InFlight != 0 {
		t.Errorf("the endpoint is %s (%s), %d in flight, want %s", e.State, e.Cause, e.InFlight, c.state)
	}
}
