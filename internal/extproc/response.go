package extproc

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/telemetry"
)

// answer is what is learnt of the endpoint's answer on its way.
type answer struct {
	flight.Answer
	retryAfter string
	error      []byte                    // beginning of the body of an error
	held       *extprocv3.HeaderMutation // of the headers, which wait for the body: it says what a 503 means
	cut        bool                      // the client was told that the answer is not complete: nothing more goes out
}

// responseHead is what is read of an answer's headers.
type responseHead struct {
	status                          int
	contentType, coding, retryAfter string
	private                         []string // names that are not for clients
	length                          bool     // content-length is there
}

func (h *responseHead) read(in *extprocv3.HttpHeaders, endpoint string) {
	for _, hv := range in.GetHeaders().GetHeaders() {
		name := hv.GetKey()
		switch name {
		case ":status":
			h.status, _ = strconv.Atoi(value(hv))
			continue
		case "content-type":
			h.contentType = value(hv)
		case "content-encoding":
			h.coding = value(hv)
		case "retry-after":
			h.retryAfter = value(hv)
		case "content-length":
			h.length = true
		case "server", "alt-svc":
			h.private = append(h.private, name)
			continue
		}
		if private(hv, endpoint) {
			h.private = append(h.private, name)
		}
	}
}

// private reports whether a header or a trailer tells of the endpoint.
func private(hv *corev3.HeaderValue, endpoint string) bool {
	return flight.Private(hv.GetKey()) || endpoint != "" && strings.Contains(value(hv), endpoint)
}

// responseHeaders begins the answer.
func (x *stream) responseHeaders(in *extprocv3.ProcessingRequest, h *extprocv3.HttpHeaders) error {
	if !x.Booked || x.answered {
		x.answered = true // of a request that we were not asked about
		return x.reply.responseHeaders(x.out, nil)
	}
	x.answered, x.listened = true, true
	x.fate = readFate(in)
	x.follow()
	x.last = x.Now()
	var q responseHead
	q.read(h, x.Rec.Endpoint)
	a := &x.answer
	a.retryAfter = q.retryAfter
	var tap *llmapi.Stream
	if x.responseMode != modeNone && !h.GetEndOfStream() && flight.Readable(q.status, q.coding) {
		tap = x.srv.taps.Get().(*llmapi.Stream)
	}
	a.Attach(&x.Flight, q.status, q.contentType, tap)
	x.Rec.Status = q.status
	x.tellHead(&q)
	m := x.responseMutation(&q)
	if h.GetEndOfStream() {
		x.finish()
	} else if q.status == 503 && x.fate.details == "" && x.responseMode == modeDuplex && flight.MediaType(q.contentType) == "text/plain" {
		a.held = m
		return nil
	}
	return x.reply.responseHeaders(x.out, m)
}

// tellHead tells the booking of the answer's head, if that says something of its endpoint.
func (x *stream) tellHead(q *responseHead) {
	own := x.fate.own()
	if x.innocent || own && !x.fate.sent {
		return
	}
	x.Booking.Dispatched()
	if !own && q.status >= 400 {
		x.Booking.Headers(q.status, flight.RetryAfter(q.retryAfter))
	}
}

// responseMutation is what changes in the answer's headers.
func (x *stream) responseMutation(q *responseHead) *extprocv3.HeaderMutation {
	m := &extprocv3.HeaderMutation{RemoveHeaders: q.private}
	set(m, headerID, x.Rec.ID)
	if x.answer.Stream && q.length {
		m.RemoveHeaders = append(m.RemoveHeaders, "content-length") // it would cut off what may have to be said at the end
	}
	if x.final(q.status) {
		set(m, headerNoRetry, "false")
	}
	if x.set.DebugHeaders {
		set(m, headerEndpoint, x.Rec.Endpoint)
		set(m, headerPick, x.Rec.PickReason)
	}
	if x.set.Conformance {
		set(m, headerServed, x.Rec.Endpoint)
	}
	return m
}

// final reports whether a client must not send the request again after this status, though its library would by itself: the request may
// have been executed.
func (x *stream) final(status int) bool {
	switch {
	case !wouldRetry(status):
		return false
	case x.fate.own():
		return x.fate.sent
	}
	return status != 429 && status != 503 // those two refuse, mostly
}

// responseBody passes a piece of the answer on.
func (x *stream) responseBody(b *extprocv3.HttpBody) error {
	piece, end := b.GetBody(), b.GetEndOfStream()
	if !x.listened {
		return x.pass(piece, piece, end)
	}
	x.Rec.BytesOut += int64(len(piece))
	x.last = x.Now()
	if x.answer.cut {
		return x.pass(piece, nil, end)
	}
	out := x.observe(piece)
	if end || x.responseMode == modeBuffer {
		out = append(out[:len(out):len(out)], x.finish()...)
	} else if x.responseMode == modePartial {
		x.responseMode = modeNone // it was larger than Envoy's buffer, and the rest is not shown
		return x.reply.responseBody(x.out)
	}
	if err := x.letGo(); err != nil {
		return err
	}
	return x.pass(piece, out, end)
}

// letGo answers the headers if they wait for the body, of which a piece is there now.
func (x *stream) letGo() error {
	m := x.answer.held
	if m == nil {
		return nil
	}
	x.answer.held = nil
	if x.fate.readBody(x.answer.Status, x.answer.error); x.final(x.answer.Status) {
		set(m, headerNoRetry, "false")
	}
	return x.reply.responseHeaders(x.out, m)
}

// observe reads a piece beside the copy and returns what of it may go out.
func (x *stream) observe(piece []byte) []byte {
	a := &x.answer
	if len(piece) > 0 {
		a.Empty = false
	}
	if a.Tap == nil {
		if a.Status >= 400 && len(a.error) < flight.RefusalPeek {
			a.error = append(a.error, piece[:min(len(piece), flight.RefusalPeek-len(a.error))]...)
		}
		return piece
	}
	a.Read(piece)
	if !a.Stream {
		return piece
	}
	a.Note()
	if !a.Judged {
		return piece
	}
	if tail, ok := a.Tap.Broken(); ok { // the engine itself says so
		out := piece[:len(piece)-min(len(piece), tail)]
		return append(out[:len(out):len(out)], x.cut(flight.EndedEarly("engine_abort"), telemetry.OutcomeCut, false)...)
	}
	return piece
}

// finish settles an answer that ended in good order, and returns what is to be added if it is not whole.
func (x *stream) finish() []byte {
	a := &x.answer
	if x.settled || a.cut {
		return nil
	}
	a.Count()
	x.Result.Status = a.Status
	switch {
	case a.Status >= 400:
		x.refused()
	case x.fate.own(): // a redirect, or what a route says by itself
		x.innocent = true
	}
	if a.Complete() {
		if x.Outcome == "" {
			a.Finish()
		}
		x.settle()
		return nil
	}
	return x.cut(flight.EndedEarly("upstream_eof"), telemetry.OutcomeCut, false)
}

// refused looks at an error.
func (x *stream) refused() {
	a, f := &x.answer, &x.fate
	f.readBody(a.Status, a.error)
	if !f.own() {
		a.Refusal(&x.Flight, a.Status, a.retryAfter, a.error)
		return
	}
	x.Result.Status = 0
	x.Outcome, x.Rec.Cause = telemetry.OutcomeUpstreamError, "Envoy's own answer: "+f.details
	switch {
	case f.unreached():
		x.Result.Unreached = true
		x.Rec.Cause = "no connection to the endpoint came about"
	case !f.sent:
		x.innocent = true
	case strings.Contains(f.details, "timeout"):
		x.Outcome = telemetry.OutcomeTimeout
	}
}

// cut ends the answer as e tells the client; ours says that the gateway ended it. It returns what the client is to be sent.
func (x *stream) cut(e *llmapi.Error, outcome string, ours bool) []byte {
	x.answer.Count()
	x.Result.Status = x.answer.Status
	if t := x.answer.Tap; t != nil && t.NoChoices() {
		x.Result.Drain = true // a draining engine's answer in place of one
	}
	x.answer.cut = true
	last := x.answer.Cut(e, outcome, e.Message, ours)
	x.settle()
	return last
}

// pass lets out go on in place of piece.
func (x *stream) pass(piece, out []byte, end bool) error {
	if x.responseMode == modeDuplex {
		return x.reply.responseChunk(x.out, out, end)
	}
	if len(out) == len(piece) && (len(out) == 0 || &out[0] == &piece[0]) {
		return x.reply.responseBody(x.out)
	}
	return x.reply.responseInstead(x.out, out)
}

// responseTrailers ends an answer that did not say that it ended.
func (x *stream) responseTrailers(trailers *corev3.HeaderMap) error {
	var m *extprocv3.HeaderMutation
	if x.listened {
		m = &extprocv3.HeaderMutation{}
		for _, hv := range trailers.GetHeaders() {
			if private(hv, x.Rec.Endpoint) {
				m.RemoveHeaders = append(m.RemoveHeaders, hv.GetKey())
			}
		}
		last := x.finish()
		if err := x.letGo(); err != nil {
			return err
		}
		if len(last) > 0 && x.responseMode == modeDuplex {
			if err := x.reply.responseChunk(x.out, last, false); err != nil {
				return err
			}
		}
	}
	return x.reply.responseTrailers(x.out, m)
}
