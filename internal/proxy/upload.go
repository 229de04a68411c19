package proxy

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"pointsman.dev/pointsman/internal/body"
)

// upload is the body of one round trip, on its way to an endpoint.
type upload struct {
	body   *body.Stored
	reader *body.Reader // nil: the transport reads the memory itself
	closed atomic.Bool
}

// attach gives r the body to send. With a body in one piece of memory the transport is handed a bytes.Reader: it knows
// that it need not send the head ahead of such a body, which saves a write, and a packet, per request. That reader has no
// Close to tell when the transport is done, so the trace does.
//
// There is no GetBody: with one the transport would send the request again by itself, after a reset too, when a client's
// header calls it idempotent.
func (u *upload) attach(r *http.Request, b *body.Stored, trace *httptrace.ClientTrace) error {
	r.Body, r.GetBody, r.ContentLength = nil, nil, 0
	if b == nil || b.Length() == 0 {
		return nil
	}
	r.ContentLength = b.Length()
	if memory, ok := b.Whole(); ok && b.Hold() {
		u.body = b
		r.Body = io.NopCloser(bytes.NewReader(memory))
		trace.WroteRequest = func(httptrace.WroteRequestInfo) { u.close() }
		return nil
	}
	reader, err := b.Open()
	if err != nil {
		return err
	}
	u.reader, r.Body = reader, reader
	return nil
}

func (u *upload) close() {
	if u.body != nil && u.closed.CompareAndSwap(false, true) {
		u.body.Unhold()
	}
}

// end gives the body back when no round trip is under way any more. reached says that the transport had a connection for
// it. A transport that did not say that it is done with the memory keeps it: it may be writing still, because the
// endpoint answered before it had read everything.
func (u *upload) end(reached bool) {
	if u == nil {
		return
	}
	if u.reader != nil {
		_ = u.reader.Close()
		return
	}
	if u.body != nil && !u.closed.Load() && reached {
		u.body.Lose()
	}
	u.close()
}
