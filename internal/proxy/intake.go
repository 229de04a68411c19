package proxy

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/body"
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/telemetry"
)

// intake reads the request's body to its end, scanning what it asks for on the way. It answers by itself and returns
// false when the body cannot go on.
func (x *exchange) intake() bool {
	if x.API.Body == llmapi.NoBody {
		return true
	}
	coding, e := body.CodingOf(strings.Join(x.in.Header.Values("Content-Encoding"), ","))
	if e != nil {
		x.refuse(e)
		return false
	}
	x.Body = x.p.bodies.Body()
	x.Scanner = x.p.scanners.Get().(*llmapi.Scanner)
	x.Scanner.Reset(x.API)
	see := x.Scanner.Write
	if coding.Packed() {
		see = func([]byte) error { return nil } // scanned when it is all here
	}
	x.watch.uploading.Store(true)
	err := body.ErrTooLarge
	if x.in.ContentLength <= x.p.cfg.MaxBody {
		err = x.Body.Fill(x.in.Body, x.in.ContentLength, x.p.cfg.MaxBody, see)
	}
	x.watch.uploading.Store(false)
	x.Rec.BytesIn = x.Body.Size()
	x.taken = err == nil
	if err == nil && coding.Packed() {
		buf := x.p.buffers.Get()
		err = x.Body.Unpack(coding, buf, x.p.cfg.MaxBody, x.Scanner.Write)
		x.p.buffers.Put(buf)
	}
	if err == nil {
		x.Req, err = x.Scanner.Close()
	}
	if err != nil {
		x.intakeFailed(err)
		return false
	}
	return true
}

// intakeFailed answers a request whose body was not taken.
func (x *exchange) intakeFailed(err error) {
	var e *llmapi.Error
	cut := x.watch.cut.Load()
	switch {
	case errors.As(err, &e):
		x.refuseEarly(e)
	case errors.Is(err, body.ErrTooLarge):
		x.refuseEarly(body.TooLarge(x.p.cfg.MaxBody))
	case cut != nil:
		x.commit()
		x.hangUp = true
		_ = http.NewResponseController(x.w).EnableFullDuplex()
		x.failCut(cut)
		x.linger()
	case errors.Is(err, body.ErrReading):
		// The client went away, or sent something that is no HTTP body. If it still listens it learns that.
		x.Outcome, x.Rec.Cause = telemetry.OutcomeClientCancelled, err.Error()
		if x.clientGone() {
			panic(http.ErrAbortHandler)
		}
		e := &llmapi.Error{Status: http.StatusBadRequest, Reason: llmapi.ReasonBadForm, Message: "the request body ended early or is malformed"}
		x.writeError(e)
	default: // our own disk
		x.p.cfg.Log.Error("cannot keep a request body", "error", err)
		x.Rec.Cause = err.Error()
		x.refuseEarly(&llmapi.Error{Status: http.StatusInternalServerError, Reason: llmapi.ReasonInternal,
			Message: "the gateway could not keep the request body; the request was not processed and may be sent again"})
	}
}

const (
	lingerBytes = 256 << 20
	lingerTime  = 10 * time.Second
)

// refuseEarly answers a request whose body is still coming and then reads on for a while: a client that writes everything
// before it reads would otherwise find its connection reset and never see why.
func (x *exchange) refuseEarly(e *llmapi.Error) {
	x.commit()
	x.hangUp = x.in.ContentLength != x.Rec.BytesIn && !x.taken
	rc := http.NewResponseController(x.w)
	_ = rc.EnableFullDuplex() // HTTP/1: answer while the body is still coming; an error means that it is so anyway
	x.refuse(e)
	if x.in.Header.Get("Expect") == "" { // else the client waits for our word before it sends
		x.linger()
	}
}

// linger sends what was answered and reads on.
func (x *exchange) linger() {
	x.lingered = true
	rc := http.NewResponseController(x.w)
	_ = rc.Flush()
	_ = rc.SetReadDeadline(time.Now().Add(lingerTime))
	if _, err := io.CopyN(io.Discard, x.in.Body, lingerBytes); errors.Is(err, io.EOF) {
		_ = rc.SetReadDeadline(time.Time{})
	}
}

// boundRest limits how long net/http reads on when the exchange has ended before the body did: without a deadline a client that
// sends no more would keep its connection, and a goroutine of ours, for ever.
func (x *exchange) boundRest() {
	if x.taken || x.in.ProtoMajor != 1 || x.in.Body == http.NoBody {
		return
	}
	until := time.Now()
	if !x.lingered {
		until = until.Add(lingerTime)
	}
	_ = http.NewResponseController(x.w).SetReadDeadline(until) // an error means that the connection is not net/http's any more
}
