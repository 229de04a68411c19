package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/telemetry"
)

// exchange is one request from its arrival to the end of its answer.
type exchange struct {
	flight.Flight

	p     *Proxy
	w     http.ResponseWriter
	shown shown // w as ReverseProxy has it
	in    *http.Request

	ctx    context.Context // ends with the client, with a limit, or with the exchange
	cancel context.CancelCauseFunc
	watch  watch

	before, after *exchange // in the roster

	limitText []string // the limit as its header says it

	taken    bool // the client's body was read to its end
	hopeless bool // there is no reading on

	upload *upload       // of the last round trip
	out    *http.Request // as ReverseProxy prepared it, for each attempt
	use    connUse       // connection of the last attempt
	copied bool          // ReverseProxy has copied the whole answer
	answer answer
}

// begin starts the record and the timers of a request.
func (p *Proxy) begin(w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{p: p, w: w, shown: shown{ResponseWriter: w}, in: r, limitText: p.limitText}
	x.Begin(&p.desk, requestID(r.Header), r.Method)
	x.RawQuery, x.Coded = r.URL.RawQuery, r.Header.Get("Content-Encoding") != ""
	if v := r.Header[flight.HeaderClientRetry]; len(v) > 0 {
		x.Retried = v[0]
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	x.ctx, x.cancel = context.WithValue(ctx, exchangeKey{}, x), cancel
	if x.unread() { // net/http would read the body before an answer that does not need it, for as long as it takes to come
		_ = http.NewResponseController(w).EnableFullDuplex() // an error means that it is so anyway
	}
	p.roster.add(x)
	x.watch.begin(x)
	x.ownHeaders()
	return x
}

var closing = []string{"close"}

// ownHeaders sets what every answer carries, the endpoint's and our own.
func (x *exchange) ownHeaders() {
	h := x.w.Header()
	h[headerRequestID] = []string{x.Rec.ID}
	h[headerLimit] = x.limitText
	if x.p.leaving.Load() || x.vague() {
		h["Connection"] = closing // HTTP/2: net/http sends GOAWAY for it
	}
	x.share()
}

// vague reports whether another proxy may see the end of the request elsewhere than net/http does. That takes a chunked body
// whatever Content-Length stands beside it, and hides it from us; and it reads HTTP/1.0 past a Transfer-Encoding. RFC 9112, 6.1
// has such a connection closed: what follows on it may be a part of this request.
func (x *exchange) vague() bool {
	return x.in.ProtoMajor == 1 && (x.in.ProtoMinor == 0 || x.in.ContentLength < 0)
}

// end releases everything that the exchange holds and writes its record. It runs deferred, so on panics too.
func (x *exchange) end() {
	v := recover()
	if v != nil {
		x.panicked(v)
		defer panic(http.ErrAbortHandler)
	}
	x.watch.end()
	if x.answer.torn && !x.in.ProtoAtLeast(1, 1) {
		x.reset()
	}
	x.settle()
	c := x.watch.cut.Load()
	x.Release(c != nil && c.reason == llmapi.ReasonShutdown || x.Rec.ErrorReason == llmapi.ReasonInternal)
	x.cancel(errEnded)
	x.Body.Release()
	x.upload.end(x.use.got)
	x.sendRest()
	x.record()
	x.p.roster.remove(x)
	if x.Scanner != nil { // not before Done: the pool reads the blocks until then
		x.p.scanners.Put(x.Scanner)
	}
	x.answer.release()
	if x.answer.Tap != nil {
		x.p.taps.Put(x.answer.Tap)
	}
	if v == nil && !x.readRest() {
		panic(http.ErrAbortHandler)
	}
}

// panicked notes a bug of ours: net/http would say it at the debug level only. http.ErrAbortHandler is how an answer is broken off.
func (x *exchange) panicked(v any) {
	if v == http.ErrAbortHandler { //nolint:errorlint // the very value
		return
	}
	x.Outcome, x.Rec.ErrorReason, x.Rec.Cause = telemetry.OutcomeUpstreamError, llmapi.ReasonInternal, "the gateway panicked"
	x.p.cfg.Log.Error("the gateway panicked", "request_id", x.Rec.ID, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
}

var errEnded = errors.New("request ended")

// sendRest sends what net/http would keep until the handler returns: the client need not wait for our records. The booking has
// ended by then, or its next request would find its last one still in flight.
func (x *exchange) sendRest() {
	if f, ok := x.w.(http.Flusher); ok && x.copied && x.answer.length > 0 && x.answer.socket == nil {
		f.Flush()
	}
}

// reset breaks the connection of an HTTP/1.0 client, to which a plain close would be the good end of its answer. nginx is one
// unless it is told otherwise.
func (x *exchange) reset() {
	rc := http.NewResponseController(x.w)
	_ = rc.Flush()
	c, _, err := rc.Hijack()
	if err != nil {
		return // there is nothing else that would tell this client
	}
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if t, ok := c.(interface{ SetLinger(seconds int) error }); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// settle finds the outcome of an exchange that nobody judged: ReverseProxy gave up writing to the client.
func (x *exchange) settle() {
	if x.Outcome != "" {
		return
	}
	if c := x.watch.cut.Load(); c != nil {
		x.Outcome, x.Rec.ErrorReason, x.Rec.Cause = c.outcome, c.reason, c.message
		return
	}
	if x.answer.socket != nil {
		x.Outcome = telemetry.OutcomeOK
		return
	}
	x.Outcome = telemetry.OutcomeClientCancelled
	x.answer.Count() // the write failed, so the end of the answer was never read
}

// record hands the finished record to metrics and access log.
func (x *exchange) record() {
	r := &x.Rec
	if r.BytesOut = x.answer.bytes; x.answer.socket != nil {
		r.BytesOut = x.answer.socket.bytes.Load()
	}
	if r.Status == 0 && x.answer.begun {
		r.Status = x.answer.Status
	}
	x.Record()
}

// clientGone reports whether the client went away (and not one of our own limits ended the exchange).
func (x *exchange) clientGone() bool { return x.in.Context().Err() != nil }
