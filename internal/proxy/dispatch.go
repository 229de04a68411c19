package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"

	"pointsman.dev/pointsman/internal/flight"
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
	if err := x.waited(x.Pick(x.ctx)); err != nil {
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

// dispatch sends the request to the booked endpoint and, while nothing can have run, to others. It returns the answer
// that the client is to get.
func (x *exchange) dispatch() (*http.Response, error) {
	for {
		x.BeginAttempt()
		x.watch.follow(x.Booking.Gone())
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
		if x.Sent {
			x.Rec.Cause = x.private(err)
			return nil, errBroken()
		}
		x.Rec.Cause = x.private(err)
		kind := health.KindConnect
		if pool.Starved(err) {
			kind = health.KindOurs
		}
		if x.Repick(kind, telemetry.OutcomeUpstreamError) {
			continue
		}
		if x.slow(err) {
			x.EndAttempt(telemetry.OutcomeUpstreamError)
			continue
		}
		if err := x.unreachable(); err != nil {
			return nil, err
		}
	}
}

// slow says that err is a connection that was not made in time to an endpoint which is alive: it has more to do than to accept, or
// we have. Nobody else is left to ask, so the same one is tried again, at the pace of these attempts, until a limit ends the request.
func (x *exchange) slow(err error) bool {
	var timeout net.Error
	return !x.use.got && errors.As(err, &timeout) && timeout.Timeout() && x.Booking.Alive()
}

// refusedBy looks whether the endpoint took the request. If not, and there is another to ask, that one is booked and again is
// true; the error is what to tell the client instead of the answer.
func (x *exchange) refusedBy(res *http.Response) (again bool, err error) {
	kind, outcome, refused := x.refusal(res)
	switch {
	case refused && x.Repick(kind, outcome):
		res.Body.Close()
		x.fresh()
		return true, nil
	case refused:
		moved, err := x.leave(kind, outcome)
		if err == nil && !x.Booked {
			err = flight.NoEndpoint()
		}
		if moved || err != nil {
			res.Body.Close()
		}
		return moved, err
	case x.answer.TooLong:
		err := x.refusedForLength(res)
		return err == nil, err
	}
	return false, nil
}

// fresh forgets what the last endpoint's answer said.
func (x *exchange) fresh() {
	x.Sent, x.Result = false, pool.Result{}
	x.answer.Refused, x.answer.Denied, x.answer.TooLong = false, false, false
}

// errClientLeft ends an exchange whose client is gone.
var errClientLeft = errors.New("client left")

// private describes an error for the operator.
func (x *exchange) private(err error) string {
	return "sending to " + x.Booking.Endpoint().Name + ": " + err.Error()
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

// attempt sends the request to the booked endpoint, once, or twice if the first connection turns out to have been closed
// before it was used. x.Sent tells afterwards whether the endpoint can have seen the request.
func (x *exchange) attempt() (*http.Response, error) {
	t := x.p.transport(x.Rec.Pool)
	for again := false; ; again = true {
		res, err := x.send(t)
		if err == nil {
			x.Sent = true
			if res.StatusCode >= 400 {
				x.Booking.Headers(res.StatusCode, flight.RetryAfter(res.Header.Get("Retry-After")))
			}
			return res, nil
		}
		stale := x.use.stale(err)
		x.Sent = x.use.got && !stale && !x.use.unwritten()
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
	endpoint := x.Booking.Endpoint().URL
	r.URL = &url.URL{Scheme: endpoint.Scheme, Host: endpoint.Host, RawQuery: cmp.Or(x.Query, x.out.URL.RawQuery), Path: x.API.Forward}
	if key := x.Pool.APIKey(); key != "" {
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
	if err := x.upload.attach(&r, x.Body, trace); err != nil {
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
	x.Booking.Dispatched()
}

// refusal reads the body of an error answer and says whether it means that the endpoint did not take the request. The
// body stays readable. It also notes a prompt that is too long.
func (x *exchange) refusal(res *http.Response) (health.Kind, string, bool) {
	status := res.StatusCode
	if status < 400 {
		return 0, "", false
	}
	head, err := io.ReadAll(io.LimitReader(res.Body, flight.RefusalPeek))
	rest := res.Body
	if err != nil {
		res.Body = &splicedBody{Reader: io.MultiReader(bytes.NewReader(head), failingReader{err}), Closer: rest}
	} else {
		res.Body = &splicedBody{Reader: io.MultiReader(bytes.NewReader(head), rest), Closer: rest}
	}
	return x.answer.Refusal(&x.Flight, status, res.Header.Get("Retry-After"), head)
}

// splicedBody is a body whose beginning was read already.
type splicedBody struct {
	io.Reader
	io.Closer
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// again sends the request to another endpoint after an answer that turned out to be no answer, before the client saw any
// of its body. It returns nil when there is no other, or when the new answer cannot follow the head that was sent.
func (x *exchange) again(k health.Kind) *http.Response {
	if !x.Repick(k, telemetry.OutcomeUpstreamError) {
		return nil
	}
	x.fresh()
	res, err := x.follow()
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			x.Rec.Cause = err.Error()
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
	if res.StatusCode != http.StatusOK || flight.MediaType(res.Header.Get("Content-Type")) != flight.EventStream {
		res.Body.Close()
		return nil, errBroken()
	}
	return res, nil
}
