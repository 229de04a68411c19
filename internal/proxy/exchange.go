package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"time"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// exchange is one request from its arrival to the end of its answer.
type exchange struct {
	p     *Proxy
	w     http.ResponseWriter
	shown shown // w as ReverseProxy has it
	in    *http.Request
	start time.Time

	ctx    context.Context // ends with the client, with a limit, or with the exchange
	cancel context.CancelCauseFunc
	watch  watch

	api     llmapi.API
	scanner *llmapi.Scanner
	req     *llmapi.Request // what the body says; nil when there is none
	body    *storedBody
	query   string // in place of the client's; "": that one

	before, after *exchange // in the roster

	limitText []string // the limit as its header says it

	target  pool.Target
	at      int // the choice that is asked
	picked  pool.Request
	pool    *pool.Pool
	booking pool.Booking
	booked  bool

	upload    *upload       // of the last round trip
	out       *http.Request // as ReverseProxy prepared it, for each attempt
	use       connUse       // connection of the last attempt
	attempted bool          // an attempt is open, not yet counted
	sent      bool          // the request may have reached an engine
	copied    bool          // ReverseProxy has copied the whole answer
	answer    answer

	rec     telemetry.Record
	result  pool.Result
	outcome string // of telemetry; "" until it is known
}

// begin starts the record and the timers of a request.
func (p *Proxy) begin(w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{p: p, w: w, shown: shown{ResponseWriter: w}, in: r, start: time.Now(), limitText: p.limitText}
	x.rec = telemetry.Record{ID: requestID(r.Header), Method: r.Method, Start: x.start, CachedTokens: -1}
	ctx, cancel := context.WithCancelCause(r.Context())
	x.ctx, x.cancel = context.WithValue(ctx, exchangeKey{}, x), cancel
	p.roster.add(x)
	x.watch.begin(x)
	x.ownHeaders()
	return x
}

var closing = []string{"close"}

// ownHeaders sets what every answer carries, the endpoint's and our own.
func (x *exchange) ownHeaders() {
	h := x.w.Header()
	h[headerRequestID] = []string{x.rec.ID}
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
	x.watch.end()
	if x.answer.torn && !x.in.ProtoAtLeast(1, 1) {
		x.reset()
	}
	x.settle()
	if x.booked {
		x.endAttempt(x.outcome)
		x.result.Outcome = poolOutcomes[x.outcome]
		if c := x.watch.cut.Load(); c != nil && c.reason == llmapi.ReasonShutdown {
			x.result.Outcome = pool.ClientCancelled // our own end says nothing of the endpoint
		}
		if x.api.Kind == llmapi.Preflight && x.result.Outcome == pool.OK {
			x.result.Outcome = pool.ClientError // no work was done from which to learn
		}
		x.booking.Done(x.result)
		x.teach()
	}
	x.cancel(errEnded)
	x.body.release()
	x.upload.end(x.use.got)
	x.sendRest()
	x.record()
	x.p.roster.remove(x)
	if x.scanner != nil { // not before Done: the pool reads the blocks until then
		x.p.scanners.Put(x.scanner)
	}
	x.answer.release()
	if x.answer.tap != nil {
		x.p.taps.Put(x.answer.tap)
	}
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

// poolOutcomes says what an outcome means for the endpoint.
var poolOutcomes = map[string]pool.Outcome{
	telemetry.OutcomeOK:              pool.OK,
	telemetry.OutcomeClientError:     pool.ClientError,
	telemetry.OutcomeTooLong:         pool.ClientError,
	telemetry.OutcomeClientCancelled: pool.ClientCancelled,
	telemetry.OutcomeUpstreamError:   pool.UpstreamError,
	telemetry.OutcomeNoEndpoint:      pool.UpstreamError,
	telemetry.OutcomeCut:             pool.Cut,
	telemetry.OutcomeTimeout:         pool.Timeout,
	telemetry.OutcomeShed:            pool.Shed,
}

// settle finds the outcome of an exchange that nobody judged: ReverseProxy gave up writing to the client.
func (x *exchange) settle() {
	if x.outcome != "" {
		return
	}
	if c := x.watch.cut.Load(); c != nil {
		x.outcome, x.rec.ErrorReason, x.rec.Cause = c.outcome, c.reason, c.message
		return
	}
	if x.answer.socket != nil {
		x.outcome = telemetry.OutcomeOK
		return
	}
	x.outcome = telemetry.OutcomeClientCancelled
	x.answer.count() // the write failed, so the end of the answer was never read
}

// record hands the finished record to metrics and access log.
func (x *exchange) record() {
	r := &x.rec
	r.Outcome = x.outcome
	r.Duration = x.now()
	r.Stream = x.req != nil && x.req.Stream
	if r.BytesOut = x.answer.bytes; x.answer.socket != nil {
		r.BytesOut = x.answer.socket.bytes.Load()
	}
	if r.Status == 0 && x.answer.begun {
		r.Status = x.answer.status
	}
	if x.result.HasUsage {
		u := &x.result.Usage
		r.PromptTokens, r.OutputTokens = u.Prompt, u.Output
		if u.HasCached {
			r.CachedTokens = u.Cached
		}
	} else {
		r.OutputTokens, r.Estimate = x.result.Tokens, 0 // there is nothing to compare it with
	}
	x.noteRetry()
	if m := x.p.cfg.Metrics; m != nil {
		m.Done(r)
	}
	x.p.cfg.Access.Log(r)
}

// beginAttempt notes the attempt that is about to be made.
func (x *exchange) beginAttempt() {
	x.attempted = true
	x.rec.Attempts++
	x.rec.Endpoint = x.booking.Endpoint().Name
}

// endAttempt counts the attempt that is open, if one is.
func (x *exchange) endAttempt(outcome string) {
	if !x.attempted {
		return
	}
	x.attempted = false
	if m := x.p.cfg.Metrics; m != nil {
		m.Attempt(x.rec.Pool, x.rec.Endpoint, outcome)
	}
}

// clientGone reports whether the client went away (and not one of our own limits ended the exchange).
func (x *exchange) clientGone() bool { return x.in.Context().Err() != nil }
