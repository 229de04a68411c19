package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pointsman.dev/pointsman/internal/body"
	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/telemetry"
)

// stream is one request on its way through the processor. Between two messages it may be touched by Server.look, so mu is held while
// a message is dealt with.
type stream struct {
	flight.Flight
	srv *Server
	set *settings
	out extprocv3.ExternalProcessor_ProcessServer
	mu  sync.Mutex

	requestMode, responseMode filterv3.ProcessingMode_BodySendMode

	asked    bool // the request's headers came
	waiting  bool // they are not answered yet: the pick waits for the body
	passing  bool // what follows of the request goes back as it comes
	answered bool // the answer's headers came
	listened bool // and it is read, being that of a request which was picked for
	over     bool // nothing more is to be said: refused, or the answer has ended
	settled  bool // the booking is released and the record written

	head   head
	coding body.Coding
	last   time.Duration // when something of the answer came last

	picks    []string // where the request may go, in this order
	fate     fate
	innocent bool // how it ended says nothing of the endpoint
	answer   answer
	reply    reply
}

// errOrder ends a stream whose messages make no sense.
var errOrder = status.Error(codes.InvalidArgument, "messages of a request came in an order that there is none")

// Process implements the service: one request.
func (s *Server) Process(out extprocv3.ExternalProcessor_ProcessServer) (err error) {
	x := &stream{srv: s, set: s.now.Load(), out: out}
	x.Begin(&x.set.desk, "", "")
	x.reply.init()
	s.enter(x)
	defer s.leave(x)
	defer func() {
		if p := recover(); p != nil {
			x.Rec.Cause = "panic"
			x.set.Log.Error("a request panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "internal error")
		}
		x.end()
	}()
	var in extprocv3.ProcessingRequest
	for {
		switch err := out.RecvMsg(&in); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case in.ObservabilityMode: // an answer is not expected, so there is nothing to decide
			continue
		}
		if done, err := x.take(&in); done || err != nil {
			return err
		}
	}
}

// take deals with one message. done says that the stream may end.
func (x *stream) take(in *extprocv3.ProcessingRequest) (done bool, err error) {
	x.mu.Lock()
	defer x.unlock()
	if x.over { // what still comes of a request that was refused
		return false, nil
	}
	switch m := in.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		if x.asked {
			return true, errOrder
		}
		err = x.requestHeaders(in, m.RequestHeaders)
	case *extprocv3.ProcessingRequest_RequestBody:
		err = x.requestBody(in, m.RequestBody)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		err = x.requestTrailers(in)
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		err = x.responseHeaders(in, m.ResponseHeaders)
	case *extprocv3.ProcessingRequest_ResponseBody:
		err = x.responseBody(m.ResponseBody)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		err = x.responseTrailers(m.ResponseTrailers.GetTrailers())
	}
	var refusal *llmapi.Error
	if errors.As(err, &refusal) {
		return false, x.refuse(refusal)
	}
	return false, err
}

// unlock ends the dealing with a message. CutAll passes over a stream that is at one: it is cut here.
func (x *stream) unlock() {
	x.mu.Unlock()
	if x.srv.cutting.Load() {
		x.look()
	}
}

// end releases what the stream holds and writes the record. It runs deferred, so on panics too.
func (x *stream) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.settle()
	x.Body.Release()
	x.Body = nil
	if x.Scanner != nil { // not before settle: the pool reads the blocks until then
		x.srv.scanners.Put(x.Scanner)
	}
	if x.answer.Tap != nil {
		x.srv.taps.Put(x.answer.Tap)
	}
}

// settle releases the booking and writes the record, once. Without an outcome by now the stream ended before the answer did.
func (x *stream) settle() {
	if x.settled {
		return
	}
	x.settled = true
	if x.Outcome == "" {
		x.brokeOff()
	}
	x.Release(x.innocent || x.srv.cutting.Load() && x.Outcome == telemetry.OutcomeCut)
	if x.asked {
		x.Record()
	}
}

// brokeOff finds the outcome of a request whose stream ended first. Envoy does not say why: its client left, or a timer of its own fired,
// or the connection to the endpoint broke. Only of an endpoint that is known to be gone it is plain.
func (x *stream) brokeOff() {
	x.Outcome = telemetry.OutcomeClientCancelled
	x.answer.Count()
	x.Result.Status, x.Rec.Status = x.answer.Status, x.answer.Status
	switch {
	case !x.listened:
	case x.answer.Said() && x.answer.Complete(), x.responseMode == filterv3.ProcessingMode_NONE:
		x.answer.Finish()
		return
	}
	if !x.Booked {
		return
	}
	select {
	case <-x.Booking.Gone():
		x.Outcome, x.Rec.Cause = telemetry.OutcomeUpstreamError, "the model server went away"
		if x.answered {
			x.Outcome = telemetry.OutcomeCut
		}
	default:
		x.Rec.Cause = "the stream ended before the answer did"
	}
}

func (s *Server) enter(x *stream) {
	s.mu.Lock()
	s.streams[x] = struct{}{}
	s.mu.Unlock()
}

func (s *Server) leave(x *stream) {
	s.mu.Lock()
	delete(s.streams, x)
	s.mu.Unlock()
}

// wait returns the context of a wait for an endpoint, which ends with the stream, and with the drain by errNotSent. release must be called.
func (x *stream) wait() (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(x.out.Context())
	stop := context.AfterFunc(x.srv.waits, func() { cancel(errNotSent) })
	return ctx, func() { stop(); cancel(nil) }
}

// errNotSent is the end of a wait that outlasted the drain.
var errNotSent = &llmapi.Error{Status: http.StatusServiceUnavailable, Reason: llmapi.ReasonShutdown, Code: "gateway_shutdown",
	Message: "the gateway is shutting down; the request waited for a model server, was not processed and may be sent again"}
