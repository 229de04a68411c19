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
	x.commit()
	switch {
	case errors.As(err, &e):
		x.refuse(e)
	case errors.Is(err, body.ErrTooLarge):
		x.refuse(body.TooLarge(x.p.cfg.MaxBody))
	case cut != nil:
		x.failCut(cut)
	case errors.Is(err, body.ErrReading):
		// The client went away, or sent something that is no HTTP body. If it still listens it learns that.
		x.Outcome, x.Rec.Cause, x.hopeless = telemetry.OutcomeClientCancelled, err.Error(), true
		if x.clientGone() {
			panic(http.ErrAbortHandler)
		}
		e := &llmapi.Error{Status: http.StatusBadRequest, Reason: llmapi.ReasonBadForm, Message: "the request body ended early or is malformed"}
		x.writeError(e)
	default: // our own disk
		x.p.cfg.Log.Error("cannot keep a request body", "error", err)
		x.Rec.Cause = err.Error()
		x.refuse(body.NoRoom())
	}
}

// An answer may go out before the request's body was read: it did not need it, or it refuses it. A client that writes everything
// before it reads would find its connection reset and never see why, so what is still to come is read for a while.
const (
	lingerBytes = 256 << 20
	lingerTime  = 10 * time.Second
	smallRest   = 256 << 10 // so much is read for the sake of the connection
)

// unread reports whether a part of the request's body may be to come.
func (x *exchange) unread() bool { return !x.taken && x.in.Body != http.NoBody }

// hangsUp reports whether the answer is to announce the end of the connection: more is to come than it is worth. One of HTTP/2 is
// that of other requests, too.
func (x *exchange) hangsUp() bool {
	return x.in.ProtoMajor == 1 && x.unread() && (x.hopeless || x.in.ContentLength < 0 || x.in.ContentLength-x.Rec.BytesIn > smallRest)
}

// readRest sends what was answered and reads what is left of the body. It returns false when that did not come and the connection
// is to be broken, lest what comes later be taken for a request.
func (x *exchange) readRest() bool {
	if !x.unread() || x.answer.socket != nil || x.in.ProtoMajor != 1 {
		return true // in HTTP/2 the end of the handler ends the stream, and tells the client that the rest is not wanted
	}
	rc := http.NewResponseController(x.w)
	if err := rc.Flush(); err != nil {
		return false
	}
	waits := x.in.Header.Get("Expect") != "" // for our word before it sends; net/http closes such a connection
	if !x.hopeless && (!waits || x.Rec.BytesIn > 0) {
		_ = rc.SetReadDeadline(time.Now().Add(lingerTime))
		if _, err := io.CopyN(io.Discard, x.in.Body, lingerBytes); errors.Is(err, io.EOF) {
			_ = rc.SetReadDeadline(time.Time{})
			return true
		}
	}
	_ = rc.SetReadDeadline(time.Now()) // net/http would read on, for ever
	return waits || x.w.Header().Get("Connection") == "close"
}
