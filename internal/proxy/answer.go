package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"

	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/telemetry"
)

// answer is the body of an endpoint's answer as ReverseProxy reads it: the same bytes, read beside the copy for usage,
// progress and completeness. When the answer breaks off it gives the error event that says so.
type answer struct {
	flight.Answer
	x      *exchange
	src    io.ReadCloser
	length int64 // announced; -1: none
	bytes  int64 // passed on

	begun  bool          // the head went to the client
	socket *upgradedConn // not nil: not HTTP any more

	res     *http.Response // for its trailers
	hold    bool           // nothing of the body may go out yet: the next bytes may show that this is no answer
	held    []byte         // what was held back
	pending []byte         // goes out before anything else
	buffer  []byte         // of a body that was read before its head went out; see gather
	partial bool           // the last read did not fill its buffer: what follows may take a while
	end     error          // given after pending; nil while the answer goes on
	torn    bool           // the end is to look abnormal
}

// attach makes res the answer of x.
func (x *exchange) attach(res *http.Response) {
	a := &x.answer
	a.x, a.res, a.src, a.length = x, res, res.Body, res.ContentLength
	var tap *llmapi.Stream
	if flight.Readable(res.StatusCode, res.Header.Get("Content-Encoding")) {
		tap = x.p.taps.Get().(*llmapi.Stream)
	}
	a.Attach(&x.Flight, res.StatusCode, res.Header.Get("Content-Type"), tap)
	a.hold = a.Judged
	x.watch.streaming.Store(a.Stream)
	x.watch.turn.Lock() // until the first read: the head goes first
	if a.Stream && a.Tap != nil {
		x.watch.began()
	}
	if !a.hold {
		x.commit()
	}
	res.Body = a
}

// commit gives up the request's body: from here on no other endpoint will be asked.
func (x *exchange) commit() {
	x.Body.Release()
	x.Body = nil
}

// Close implements io.Closer.
func (a *answer) Close() error { return a.src.Close() }

// Read implements io.Reader for the goroutine that copies to the client.
func (a *answer) Read(p []byte) (int, error) {
	if n := a.give(p); n > 0 {
		return n, nil
	}
	if a.partial && a.bytes < a.length && !a.Stream {
		_ = http.NewResponseController(a.x.w).Flush() // ReverseProxy flushes the other kinds
	}
	for a.end == nil {
		out := a.next(p)
		if a.hold && !a.remark() {
			a.held = append(a.held, out...)
			continue
		}
		if len(a.held) > 0 {
			a.pending = append(append(a.held, out...), a.pending...)
			a.held = nil
			return a.give(p), nil
		}
		if len(out) > 0 {
			a.bytes += int64(len(out))
			return len(out), nil
		}
		if n := a.give(p); n > 0 {
			return n, nil
		}
	}
	return 0, a.end
}

// next reads the next piece of the answer into p and returns what of it may go out. At the end it sets end.
func (a *answer) next(p []byte) []byte {
	a.x.watch.turn.Unlock()
	n, err := a.src.Read(p)
	a.x.watch.turn.Lock()
	a.partial = n < len(p)
	out := p[:n]
	if n > 0 {
		a.Empty = false
		a.x.watch.last.set(max(1, a.x.Now()))
		if a.Tap != nil {
			out, err = a.observe(out, err)
		}
	}
	if err != nil {
		out = a.finish(out, err)
	}
	return out
}

// give copies from what is pending.
func (a *answer) give(p []byte) int {
	n := copy(p, a.pending)
	a.pending = a.pending[n:]
	a.bytes += int64(n)
	return n
}

// maxHeld bounds what is held back while an answer has not shown whether it is one.
const maxHeld = 16 << 10

// observe reads b beside the copy. It returns the part of b that may go out, and errEngineCut when the stream says by
// itself that it is not complete.
func (a *answer) observe(b []byte, err error) ([]byte, error) {
	x, t := a.x, a.Tap
	a.Answer.Read(b)
	if !a.Stream {
		return b, err
	}
	if a.hold && (a.shows() || len(a.held)+len(b) > maxHeld) {
		if a.goesOn(b) {
			return nil, nil
		}
		a.hold = false
		x.commit()
	}
	a.Note()
	if !a.Judged {
		return b, err
	}
	if tail, ok := t.Broken(); ok {
		return a.withhold(b, tail), errEngineCut
	}
	return b, err
}

// shows reports whether the stream has shown that it is an answer, or that it never will be one that another endpoint
// could give. A draining vLLM sends at most a usage event and the end marker.
func (a *answer) shows() bool {
	_, _, bad := a.Tap.ErrorEvent()
	return a.Tap.Choice() || bad
}

// remark reports whether all there is so far are comments: they say nothing, so they need not be held back, and they keep
// the connection alive.
func (a *answer) remark() bool { return a.Tap.Events() == 0 && a.Tap.Between() }

// withhold returns b without the last tail bytes of the answer. Those that are in held go too; what is out is out.
func (a *answer) withhold(b []byte, tail int) []byte {
	a.held = a.held[:len(a.held)-min(len(a.held), max(0, tail-len(b)))]
	return b[:len(b)-min(len(b), tail)]
}

// errEngineCut ends a stream in which the engine itself said that it is not complete.
var errEngineCut = &cutCause{reason: llmapi.ReasonCut, outcome: telemetry.OutcomeCut, code: "engine_abort", status: http.StatusBadGateway,
	message: flight.EndedEarly("").Message}

// finish settles the answer, which ended with err, and returns what of the last bytes may go out. What is to follow them
// it leaves in pending and end.
func (a *answer) finish(last []byte, err error) []byte {
	x := a.x
	a.Count()
	x.Result.Status = a.Status
	if (errors.Is(err, io.EOF) || len(last) == 0 && a.Said()) && a.Complete() {
		a.hold, a.end = false, io.EOF
		a.Finish()
		cleanResponse(a.res.Trailer, x.Booking.Endpoint().Name)
		return last
	}
	if x.clientGone() && x.watch.cut.Load() == nil {
		x.Outcome, a.end, a.hold = telemetry.OutcomeClientCancelled, context.Canceled, false
		return nil
	}
	if a.hold && a.other() {
		return nil
	}
	if a.hold = false; x.clientGone() && x.watch.cut.Load() == nil { // meanwhile
		x.Outcome, a.end = telemetry.OutcomeClientCancelled, context.Canceled
		return nil
	}
	a.cut(err)
	return last
}

// other tries another endpoint for a stream of which the client saw the head only and which held no answer: that of a
// draining engine. The body of the new answer continues here.
func (a *answer) other() bool {
	if !a.Tap.NoChoices() {
		return false
	}
	x := a.x
	a.src.Close()
	x.Result.Drain = true
	res := x.again(health.KindDrain)
	if res == nil {
		return false
	}
	a.src, a.held = res.Body, a.held[:0]
	a.Restart()
	return true
}

// goesOn asks a larger pool in place of one whose engine says by the first event of its stream, which is held back and ends in b, that
// the request is too long for it. Without a larger one the client is told so in the words that it knows.
func (a *answer) goesOn(b []byte) bool {
	message, _, bad := a.Tap.ErrorEvent()
	x := a.x
	if !bad || !a.Judged || a.Tap.FirstToken() || !llmapi.IsContextLength(http.StatusOK, append(a.held, b...)) {
		return false
	}
	a.src.Close()
	moved, err := x.moveUp()
	var res *http.Response
	switch {
	case err != nil:
	case moved:
		res, err = x.follow()
	default:
		x.Result.Status = a.Status
		err = x.tooLongError(message)
	}
	if err != nil {
		a.failLate(err)
		return true
	}
	a.src, a.held = res.Body, a.held[:0]
	a.Restart()
	return true
}

// failLate ends a stream of which the client saw the head only with the error that there is instead of an answer.
func (a *answer) failLate(err error) {
	x := a.x
	var e *llmapi.Error
	var c *cutCause
	switch {
	case errors.As(err, &c):
		e = c.as()
	case !errors.As(err, &e):
		e = errBroken()
	}
	x.Outcome, x.Rec.ErrorReason, x.Rec.Cause = flight.OutcomeOf(e), e.Reason, err.Error()
	if errors.Is(err, errClientLeft) || c != nil && c.status == 0 {
		x.Outcome = telemetry.OutcomeClientCancelled
	}
	a.Tap.Reset(x.API.Kind, x.API.Dialect, true)
	a.hold, a.held, a.pending, a.end = false, nil, a.Tap.CutEvent(e), context.Canceled
	if x.p.cfg.CutStream == CutErrorEvent {
		a.end = io.EOF
	}
}

// cut ends an answer that broke off: with an error event if it is a stream, and abnormally where that is wanted.
func (a *answer) cut(err error) {
	x := a.x
	c := x.watch.cut.Load()
	if c == nil && !errors.As(err, &c) {
		c = a.brokeOff(err)
	}
	event := a.Cut(c.as(), c.outcome, err.Error(), x.watch.cut.Load() != nil)
	how := x.p.cfg.CutStream
	a.end, a.torn = context.Canceled, true // ReverseProxy aborts the connection, and logs nothing
	if a.Stream && a.Tap != nil && how != CutAbort {
		a.pending = event
		if how == CutErrorEvent {
			a.end, a.torn = io.EOF, false
		}
	}
	a.src.Close()
}

// brokeOff describes the end of an answer by its error.
func (a *answer) brokeOff(err error) *cutCause {
	c := &cutCause{reason: llmapi.ReasonCut, outcome: telemetry.OutcomeCut, code: "upstream_reset", status: http.StatusBadGateway,
		message: "the model server's connection broke before the answer was complete"}
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF) && !a.Stream:
		c.code, c.message = "upstream_eof", errEngineCut.message
	case errors.Is(err, errEngineCut):
		c.code = errEngineCut.code
	}
	if !a.Stream {
		c.message = "the model server's answer broke off before it was whole; the request may have been processed to its end and was not sent again"
	}
	return c
}
