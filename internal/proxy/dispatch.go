package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strconv"
	"time"

	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// dispatcher is ReverseProxy's transport: it picks an endpoint, sends the request, and picks again as long as no endpoint
// can have begun to work on it.
type dispatcher struct{}

// RoundTrip implements http.RoundTripper. Errors are *llmapi.Error, *cutCause, or mean that the client left.
func (dispatcher) RoundTrip(out *http.Request) (*http.Response, error) {
	x := exchangeOf(out)
	x.out = out
	if err := x.pick(); err != nil {
		return nil, err
	}
	res, err := x.dispatch()
	if err != nil {
		return nil, err
	}
	if err := x.proper(res); err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		x.attach(res)
		if err := x.answer.gather(); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// pick books an endpoint of the first pool that the request may fit and that has one. A pool that is full is passed over only
// if it may overflow, and only while a later one is not full.
func (x *exchange) pick() error {
	first := x.first()
	full, last := -1, error(errNoEndpoint())
	for i := first; i < len(x.target); i++ {
		c := &x.target[i]
		if i > first && c.Window > 0 && c.Window < x.target[first].Window {
			continue // never to a smaller window
		}
		x.picked.Spare = full >= 0 || i < len(x.target)-1 && c.Pool.Overflows()
		err := x.pickFrom(i)
		switch {
		case err == nil:
			x.notePool(full >= 0, i > first)
			return nil
		case errors.Is(err, pool.ErrFull) && full < 0:
			full = i
		case !errors.Is(err, pool.ErrFull) && !errors.Is(err, pool.ErrNoEndpoint):
			last = err
		}
	}
	if full < 0 {
		return last
	}
	x.picked.Spare = false
	if err := x.pickFrom(full); !errors.Is(err, pool.ErrNoEndpoint) {
		return err
	}
	return last
}

// notePool records why the pool that was picked from is not the first.
func (x *exchange) notePool(full, later bool) {
	switch {
	case full:
		x.rec.Window = telemetry.WindowOverflow
	case later && x.rec.Window == "":
		x.rec.Window = telemetry.WindowNoEndpoint
	}
}

// pickFrom books an endpoint of one choice, whose name for the model the request then has.
func (x *exchange) pickFrom(i int) error {
	begun := time.Now()
	x.at = i
	c := x.choice()
	if err := x.rename(c); err != nil {
		return err
	}
	if err := c.Pool.PickInto(&x.booking, &x.picked); err != nil {
		return err
	}
	x.booked, x.pool, x.picked.Spare = true, c.Pool, false
	x.rec.Pool = c.Pool.Name()
	x.rec.PickTime = time.Since(begun)
	x.notePick(x.rec.PickTime)
	return nil
}

// notePick records the pick that was just made.
func (x *exchange) notePick(took time.Duration) {
	x.watch.follow(x.booking.Gone())
	x.rec.PickReason = x.booking.Reason().String()
	x.rec.PredictedHit, x.rec.PromptTokens = x.booking.PredictedHit(), x.booking.PromptTokens()
	if m := x.p.cfg.Metrics; m != nil {
		m.Pick(x.rec.Pool, x.rec.PickReason, took)
	}
}

// repick moves the booking to an endpoint that was not tried, because of k; outcome is that of the attempt it gives up.
func (x *exchange) repick(k health.Kind, outcome string) bool {
	begun := time.Now()
	if !x.booking.Repick(k) {
		return false
	}
	x.endAttempt(outcome)
	x.notePick(time.Since(begun))
	return true
}

func errNoEndpoint() *llmapi.Error {
	return &llmapi.Error{Status: http.StatusServiceUnavailable, Reason: llmapi.ReasonNoEndpoint, RetryAfter: time.Second,
		Message: "no model server is available for this model at the moment; the request was not processed and may be sent again"}
}

// dispatch sends the request to the booked endpoint and, while nothing can have run, to others. It returns the answer
// that the client is to get.
func (x *exchange) dispatch() (*http.Response, error) {
	for {
		x.beginAttempt()
		res, err := x.attempt()
		if err == nil {
			again, refusal := x.refusedBy(res)
			if refusal != nil {
				return nil, refusal
			}
			if again {
				continue
			}
			return res, nil
		}
		if x.ctx.Err() != nil {
			return nil, x.cancelled()
		}
		if x.sent {
			x.rec.Cause = x.private(err)
			return nil, errBroken()
		}
		x.rec.Cause = x.private(err)
		if !x.repick(health.KindConnect, telemetry.OutcomeUpstreamError) && !x.leave(health.KindConnect, telemetry.OutcomeUpstreamError) {
			return nil, errUnreachable()
		}
	}
}

// refusedBy looks whether the endpoint took the request. If not, and there is another to ask, that one is booked and again is
// true; the error is what to tell the client instead of the answer.
func (x *exchange) refusedBy(res *http.Response) (again bool, err error) {
	kind, outcome, refused := x.refusal(res)
	switch {
	case refused && x.repick(kind, outcome):
		res.Body.Close()
		x.fresh()
		return true, nil
	case refused && x.leave(kind, outcome):
		res.Body.Close()
		return true, nil
	case refused && !x.booked:
		res.Body.Close()
		return false, errNoEndpoint()
	case x.answer.tooLong:
		err := x.refusedForLength(res)
		return err == nil, err
	}
	return false, nil
}

// fresh forgets what the last endpoint's answer said.
func (x *exchange) fresh() {
	x.sent, x.result = false, pool.Result{}
	x.answer.refused, x.answer.denied, x.answer.tooLong = false, false, false
}

// errClientLeft ends an exchange whose client is gone.
var errClientLeft = errors.New("client left")

// private describes an error for the operator.
func (x *exchange) private(err error) string {
	return "sending to " + x.booking.Endpoint().Name + ": " + err.Error()
}

// cancelled says who ended the exchange: the watch, or the client by leaving.
func (x *exchange) cancelled() error {
	if c := x.watch.cut.Load(); c != nil {
		return c
	}
	return errClientLeft
}

func errBroken() *llmapi.Error {
	return &llmapi.Error{Status: http.StatusBadGateway, Reason: llmapi.ReasonUpstreamError,
		Message: "the model server closed the connection before it answered; the request may have been processed and was not sent again"}
}

func errUnreachable() *llmapi.Error {
	e := errNoEndpoint()
	e.Message = "no model server could be reached; the request was not processed and may be sent again"
	return e
}

// attempt sends the request to the booked endpoint, once, or twice if the first connection turns out to have been closed
// before it was used. x.sent tells afterwards whether the endpoint can have seen the request.
func (x *exchange) attempt() (*http.Response, error) {
	t := x.p.transport(x.rec.Pool)
	for again := false; ; again = true {
		res, err := x.send(t)
		if err == nil {
			x.sent = true
			if res.StatusCode >= 400 {
				x.booking.Headers(res.StatusCode, retryAfter(res.Header))
			}
			return res, nil
		}
		stale := x.use.stale(err)
		x.sent = x.use.got && !stale && !x.use.unwritten()
		if !stale || again || x.ctx.Err() != nil {
			return nil, err
		}
		closeIdle(t) // the others are as old, or older: the next attempt makes a new connection
	}
}

// send makes one round trip.
func (x *exchange) send(t http.RoundTripper) (*http.Response, error) {
	x.upload.end(x.use.got)
	x.use, x.upload = connUse{}, new(upload)
	r := *x.out
	endpoint := x.booking.Endpoint().URL
	r.URL = &url.URL{Scheme: endpoint.Scheme, Host: endpoint.Host, RawQuery: cmp.Or(x.query, x.out.URL.RawQuery), Path: x.api.Forward}
	if key := x.pool.APIKey(); key != "" {
		r.Header = maps.Clone(r.Header) // another pool may be asked later, with another key or with the client's own
		setKey(r.Header, key)
	}
	trace := &httptrace.ClientTrace{GotConn: x.gotConn}
	if outer := httptrace.ContextClientTrace(x.out.Context()); outer != nil && outer.Got1xxResponse != nil {
		trace.Got1xxResponse = func(code int, h textproto.MIMEHeader) error {
			cleanResponse(http.Header(h), endpoint.Host)
			return outer.Got1xxResponse(code, h)
		}
	}
	if err := x.upload.attach(&r, x.body, trace); err != nil {
		return nil, err
	}
	res, err := t.RoundTrip(r.WithContext(httptrace.WithClientTrace(x.ctx, trace)))
	if err == nil && x.use.unasked() {
		_ = x.use.conn.Close()
		res.Body.Close()
		return nil, errUnasked
	}
	return res, err
}

var errUnasked = errors.New("the endpoint had sent an answer before it was asked")

func (x *exchange) gotConn(info httptrace.GotConnInfo) {
	x.use.begin(info)
	x.booking.Dispatched()
}

// refusalPeek is how much of an error's body is looked at.
const refusalPeek = 16 << 10

// refusal reads the body of an error answer and says whether it means that the endpoint did not take the request. The
// body stays readable. It also notes a prompt that is too long.
func (x *exchange) refusal(res *http.Response) (health.Kind, string, bool) {
	status := res.StatusCode
	if status < 400 {
		return 0, "", false
	}
	head, err := io.ReadAll(io.LimitReader(res.Body, refusalPeek))
	rest := res.Body
	if err != nil {
		res.Body = &splicedBody{Reader: io.MultiReader(bytes.NewReader(head), failingReader{err}), Closer: rest}
	} else {
		res.Body = &splicedBody{Reader: io.MultiReader(bytes.NewReader(head), rest), Closer: rest}
	}
	switch {
	case llmapi.Drainish(status, head):
		x.answer.refused, x.result.Drain = true, true
		return health.KindDrain, telemetry.OutcomeUpstreamError, true
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable && res.Header.Get("Retry-After") != "", llmapi.EngineBusy(status, head):
		x.answer.refused = true
		x.result.RetryAfter = retryAfter(res.Header)
		return health.KindBusy, telemetry.OutcomeShed, true
	case (status == http.StatusUnauthorized || status == http.StatusForbidden) && x.pool.APIKey() != "":
		x.answer.denied = true
		return health.KindDenied, telemetry.OutcomeUpstreamError, x.rec.Attempts == 1 // the key is the pool's: others may refuse it too
	case x.tooLong(status, head):
		x.answer.tooLong = true
	}
	return 0, "", false
}

// tooLong reports whether an answer says that the request does not fit into the model's window.
func (x *exchange) tooLong(status int, body []byte) bool {
	if x.req != nil {
		return llmapi.RefusedForLength(status, body, x.req)
	}
	return llmapi.IsContextLength(status, body)
}

// splicedBody is a body whose beginning was read already.
type splicedBody struct {
	io.Reader
	io.Closer
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// retryAfter reads a Retry-After of seconds or of a date; 0 means none.
func retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if v == "" {
		return 0
	}
	if n, err := strconv.Atoi(v); err == nil {
		return max(0, min(time.Duration(n), 86400)*time.Second)
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, min(time.Until(at), 24*time.Hour))
	}
	return 0
}

// again sends the request to another endpoint after an answer that turned out to be no answer, before the client saw any
// of its body. It returns nil when there is no other, or when the new answer cannot follow the head that was sent.
func (x *exchange) again(k health.Kind) *http.Response {
	if !x.repick(k, telemetry.OutcomeUpstreamError) {
		return nil
	}
	x.fresh()
	res, err := x.follow()
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			x.rec.Cause = err.Error()
		}
		return nil
	}
	return res
}

// follow asks the endpoint that is booked for a stream that can follow the head which the client has.
func (x *exchange) follow() (*http.Response, error) {
	res, err := x.dispatch()
	if err != nil {
		return nil, err
	}
	if err := x.proper(res); err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK || !isEventStream(res.Header) {
		res.Body.Close()
		return nil, errBroken()
	}
	return res, nil
}
