package extproc

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pointsman.dev/pointsman/internal/body"
	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// Shorter names of Envoy's body modes.
const (
	modeNone    = filterv3.ProcessingMode_NONE
	modeStream  = filterv3.ProcessingMode_STREAMED
	modeBuffer  = filterv3.ProcessingMode_BUFFERED
	modePartial = filterv3.ProcessingMode_BUFFERED_PARTIAL
	modeDuplex  = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// requestHeaders begins the request. It is picked for at once where no body will be seen, else once that is whole.
func (x *stream) requestHeaders(in *extprocv3.ProcessingRequest, h *extprocv3.HttpHeaders) error {
	x.asked = true
	x.requestMode, x.responseMode = modeDuplex, modeDuplex // a gateway that does not say follows the inference extension
	if p := in.GetProtocolConfig(); p != nil {
		x.requestMode, x.responseMode = p.RequestBodyMode, p.ResponseBodyMode
	}
	x.head.read(h.GetHeaders(), flight.Routing)
	q := &x.head
	x.Rec.ID, x.Rec.Method = q.id, q.method
	if !flight.SaneID(q.id) {
		x.Rec.ID = flight.NewID()
	}
	x.RawQuery, x.Coded, x.Retried, x.Rewrite = q.query, q.coding != "", q.retried, q.rewrite
	x.hints(in)
	if err := x.lookup(); err != nil {
		return err
	}
	if x.API.Kind == llmapi.Models || x.API.Kind == llmapi.Model {
		return x.models()
	}
	if q.length > x.set.MaxBody {
		return body.TooLarge(x.set.MaxBody)
	}
	switch {
	case h.GetEndOfStream():
		return x.decide(true)
	case x.requestMode == modeNone, x.requestMode == modeStream:
		return x.decideBlind()
	case x.API.Kind == llmapi.Realtime:
		return x.socket()
	}
	x.Body = x.srv.bodies.Body()
	if x.API.Body != llmapi.NoBody {
		coding, err := body.CodingOf(q.coding)
		if err != nil {
			return err
		}
		x.coding = coding
		x.Scanner = x.srv.scanners.Get().(*llmapi.Scanner)
		x.Scanner.Reset(x.API)
	}
	if x.requestMode == modeDuplex {
		x.waiting = true
		return nil
	}
	return x.reply.requestHeaders(x.out, nil) // Envoy sends no body before
}

// socket picks for a connection that leaves HTTP, both directions of which then pass as they come. Nothing will be sent on it before
// the endpoint has answered.
func (x *stream) socket() error {
	if x.requestMode != modeDuplex {
		return &llmapi.Error{Status: http.StatusNotFound, Reason: llmapi.ReasonNotFound, Type: "invalid_request_error",
			Message: "a WebSocket does not pass the proxy in front: Envoy waits for its end (body modes BUFFERED and BUFFERED_PARTIAL)"}
	}
	x.passing = true
	return x.decide(true)
}

// lookup finds the API that the request is for.
func (x *stream) lookup() error {
	q := &x.head
	if q.method == http.MethodOptions && q.origin != "" && q.askedMethod != "" {
		api, err := llmapi.Lookup(q.askedMethod, q.path)
		x.API, x.Rec.Path = api, api.Path
		if err != nil {
			return err
		}
		x.API.Kind, x.API.Body = llmapi.Preflight, llmapi.NoBody
		x.anywhere()
		return nil
	}
	api, err := llmapi.Lookup(q.method, q.path)
	x.API, x.Rec.Path = api, api.Path
	if err == nil {
		return nil
	}
	if api.Path == "" {
		x.Rec.UnknownPath = q.path
		if x.set.OtherPaths || x.set.Conformance {
			x.anywhere()
			return nil
		}
	}
	return err
}

// anywhere makes the request one that any pool may take.
func (x *stream) anywhere() {
	for _, p := range x.set.Directory.Pools() {
		x.Target = append(x.Target, pool.Choice{Pool: p})
	}
}

// requestBody takes a piece of the body.
func (x *stream) requestBody(in *extprocv3.ProcessingRequest, b *extprocv3.HttpBody) error {
	if !x.asked {
		return errOrder
	}
	x.hints(in)
	if x.requestMode == modeStream || x.requestMode == modeNone {
		x.Rec.BytesIn += int64(len(b.GetBody()))
		return x.reply.requestBody(x.out)
	}
	if x.passing {
		x.passing = !b.GetEndOfStream()
		x.Rec.BytesIn += int64(len(b.GetBody()))
		return x.reply.requestChunk(x.out, b.GetBody(), b.GetEndOfStream())
	}
	if x.Body == nil && x.requestMode == modeDuplex && x.Booked {
		return nil // Envoy, since 1.35, says the last piece of some large bodies twice
	}
	if x.Body == nil {
		return errOrder // the body had ended
	}
	if err := x.keep(b.GetBody()); err != nil {
		return err
	}
	if b.GetEndOfStream() || x.requestMode != modeDuplex {
		return x.decide(b.GetEndOfStream())
	}
	return nil
}

// keep stores and reads a piece of the body.
func (x *stream) keep(b []byte) error {
	see := func([]byte) error { return nil }
	if x.Scanner != nil && !x.coding.Packed() {
		see = x.Scanner.Write
	}
	err := x.Body.Write(b, x.head.length, x.set.MaxBody, see)
	x.Rec.BytesIn = x.Body.Size()
	return x.bodyError(err)
}

// bodyError turns what went wrong with a body into what the client is told.
func (x *stream) bodyError(err error) error {
	var e *llmapi.Error
	switch {
	case err == nil, errors.As(err, &e):
		return err
	case errors.Is(err, body.ErrTooLarge):
		return body.TooLarge(x.set.MaxBody)
	}
	x.set.Log.Error("cannot keep a request body", "error", err)
	x.Rec.Cause = err.Error()
	return body.NoRoom()
}

// requestTrailers ends a body that did not say that it ended.
func (x *stream) requestTrailers(in *extprocv3.ProcessingRequest) error {
	if !x.asked {
		return errOrder
	}
	x.hints(in)
	if x.waiting {
		return x.decide(false)
	}
	return x.reply.requestTrailers(x.out)
}

// decide picks an endpoint and says so. whole says that nothing of the request follows, else trailers or the rest of a body that was
// larger than Envoy's buffer do.
func (x *stream) decide(whole bool) error {
	if err := x.read(whole); err != nil {
		return err
	}
	if x.Target == nil {
		if err := x.Resolve(); err != nil {
			return err
		}
	}
	if err := x.choose(); err != nil {
		return err
	}
	return x.forward(whole)
}

// read closes the scan of the body.
func (x *stream) read(whole bool) (err error) {
	switch {
	case x.Scanner == nil && x.API.Body == llmapi.JSON && x.Target == nil: // no body at all
		x.Scanner = x.srv.scanners.Get().(*llmapi.Scanner)
		x.Scanner.Reset(x.API)
	case x.Scanner == nil:
		return nil
	case x.coding.Packed():
		buf := x.srv.chunks.Get().(*[chunkSize]byte)
		err = x.Body.Unpack(x.coding, buf[:], x.set.MaxBody, x.Scanner.Write)
		x.srv.chunks.Put(buf)
	}
	if err == nil {
		x.Req, err = x.Scanner.Close()
	}
	if err != nil && !whole && x.requestMode == modePartial {
		return partial()
	}
	return x.bodyError(err)
}

// partial is what a client is told whose body is larger than what Envoy shows of it.
func partial() *llmapi.Error {
	return &llmapi.Error{Status: http.StatusRequestEntityTooLarge, Reason: llmapi.ReasonTooLarge, Type: "invalid_request_error", Code: "request_too_large",
		Message: "the request body is larger than the buffer of the proxy in front (per_connection_buffer_limit_bytes of Envoy, in its body mode BUFFERED_PARTIAL)"}
}

// decideBlind picks an endpoint for a request whose body will be seen too late or not at all: the model is said by a header, or
// there is only one.
func (x *stream) decideBlind() error {
	if x.Rewrite == "" {
		x.Rewrite = x.head.model
	}
	if list := x.set.Directory.List(); x.Rewrite == "" && len(list) == 1 {
		x.Rewrite = list[0].ID
	}
	if x.Target == nil {
		if err := x.Resolve(); err != nil {
			return err
		}
	}
	if err := x.choose(); err != nil {
		return err
	}
	return x.forward(true)
}

// choose books an endpoint, for which it waits where the pool has a queue.
func (x *stream) choose() error {
	if len(x.Target) == 0 {
		return flight.NoEndpoint()
	}
	ctx, release := x.wait()
	defer release()
	err := x.Pick(ctx)
	var e *llmapi.Error
	switch {
	case err == nil && x.srv.cutting.Load(): // the place of one that was cut: too late
		return errNotSent
	case err == nil:
	case errors.As(err, &e), !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		return err
	default:
		x.Outcome = telemetry.OutcomeClientCancelled
		return status.FromContextError(err).Err()
	}
	x.BeginAttempt()
	x.picks = append(x.picks[:0], x.Booking.Endpoint().URL.Host)
	var next [fallbacks]*pool.Endpoint
	for _, e := range x.Booking.Next(next[:0], fallbacks) {
		x.picks = append(x.picks, e.URL.Host)
	}
	return nil
}

// fallbacks is how many endpoints the pick names beside the first one.
const fallbacks = 2

// forward tells Envoy of the pick, and gives the body back.
func (x *stream) forward(whole bool) error {
	where := x.pick()
	m := x.mutation(where)
	pick := x.pickMetadata(where)
	x.Sent = true
	if x.requestMode == modeBuffer || x.requestMode == modePartial {
		if x.Body != nil {
			return x.forwardBuffered(m, pick)
		}
		return x.reply.picked(x.out, m, pick)
	}
	x.waiting = false
	if x.Body == nil {
		return x.reply.picked(x.out, m, pick)
	}
	defer x.drop()
	if !whole {
		all, err := x.all()
		if err != nil {
			return err
		}
		return x.reply.pickedInstead(x.out, m, pick, all)
	}
	if err := x.reply.picked(x.out, m, pick); err != nil {
		return err
	}
	return x.sendBody()
}

// forwardBuffered answers the one message that held the whole body.
func (x *stream) forwardBuffered(m *extprocv3.HeaderMutation, pick metadata) error {
	defer x.drop()
	var changed []byte
	if x.renamed() {
		var err error
		if changed, err = x.all(); err != nil {
			return err
		}
		setLength(m, len(changed))
	}
	return x.reply.pickedWithBody(x.out, m, pick, changed)
}

// all is the body as it goes out.
func (x *stream) all() ([]byte, error) {
	r, err := x.Body.Open()
	if err != nil {
		return nil, x.bodyError(err)
	}
	defer func() { _ = r.Close() }()
	b := make([]byte, x.Body.Length())
	return b, x.bodyError(readFull(r, b))
}

// renamed reports whether the body names another model than the client did.
func (x *stream) renamed() bool { return x.Body != nil && x.Body.Replaced() }

// drop gives up the body.
func (x *stream) drop() {
	x.Body.Release()
	x.Body = nil
}

// sendBody gives the body back in pieces.
func (x *stream) sendBody() error {
	r, err := x.Body.Open()
	if err != nil {
		return x.bodyError(err)
	}
	defer func() { _ = r.Close() }()
	buf := x.srv.chunks.Get().(*[chunkSize]byte)
	defer x.srv.chunks.Put(buf)
	left := x.Body.Length()
	if left == 0 {
		return x.reply.requestChunk(x.out, nil, true)
	}
	for left > 0 {
		piece := buf[:min(left, chunkSize)]
		if err := readFull(r, piece); err != nil {
			return status.Error(codes.Internal, fmt.Sprintf("giving a request body back: %v", err))
		}
		left -= int64(len(piece))
		if err := x.reply.requestChunk(x.out, piece, left == 0); err != nil {
			return err
		}
	}
	return nil
}

// chunkSize is what one message carries of a body. Envoy takes twice as much, but gRPC encodes into buffers of 32 KiB, and for what is
// longer into such of 1 MiB, which it clears each time: that cost more than all the rest.
const chunkSize = 31 << 10
