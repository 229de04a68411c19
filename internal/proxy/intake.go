package proxy

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/telemetry"
)

// intake reads the request's body to its end, scanning what it asks for on the way. It answers by itself and returns
// false when the body cannot go on.
func (x *exchange) intake() bool {
	if x.api.Body == llmapi.NoBody {
		return true
	}
	x.body = x.p.bodies.newBody()
	x.scanner = x.p.scanners.Get().(*llmapi.Scanner)
	x.scanner.Reset(x.api)
	coding := strings.ToLower(strings.TrimSpace(strings.Join(x.in.Header.Values("Content-Encoding"), ",")))
	see, unpack := x.scanner.Write, unpackers[coding]
	switch {
	case coding == "" || coding == "identity":
	case unpack != nil:
		see = func([]byte) error { return nil } // scanned when it is all here
	default:
		x.refuse(&llmapi.Error{Status: http.StatusUnsupportedMediaType, Reason: llmapi.ReasonBadForm, Param: "Content-Encoding",
			Message: fmt.Sprintf("request bodies may be plain, gzip or zstd; Content-Encoding %.40q is not known here", coding)})
		return false
	}
	x.watch.uploading.Store(true)
	err := errTooLarge
	if x.in.ContentLength <= x.p.cfg.MaxBody {
		err = x.body.fill(x.in.Body, x.in.ContentLength, x.p.cfg.MaxBody, see)
	}
	x.watch.uploading.Store(false)
	x.rec.BytesIn = x.body.size
	if err == nil && unpack != nil {
		err = x.scanPacked(coding, unpack)
	}
	if err == nil {
		x.req, err = x.scanner.Close()
	}
	if err != nil {
		x.intakeFailed(err)
		return false
	}
	return true
}

// unpackers open the codings that a request body may come in.
var unpackers = map[string]func(io.Reader) (io.ReadCloser, error){
	"gzip":   func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
	"x-gzip": func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
	"zstd":   newZstd,
}

// zstdWindow bounds what one body makes the decoder hold: RFC 8878 tells encoders for the web to stay within 8 MiB.
const zstdWindow = 8 << 20

func newZstd(r io.Reader) (io.ReadCloser, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
	if err != nil {
		return nil, err
	}
	return z.IOReadCloser(), nil
}

// scanPacked scans what a compressed body holds. The body itself goes on as it came. The content is bounded by max_body
// too: a small bomb is refused like a large body.
func (x *exchange) scanPacked(coding string, unpack func(io.Reader) (io.ReadCloser, error)) error {
	r, err := x.body.open()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	z, err := unpack(r)
	if err != nil {
		return badPacked(coding)
	}
	defer func() { _ = z.Close() }()
	buf := x.p.reverse.BufferPool.Get()
	defer x.p.reverse.BufferPool.Put(buf)
	for total := int64(0); ; {
		n, err := z.Read(buf)
		if total += int64(n); total > x.p.cfg.MaxBody {
			return errTooLarge
		}
		if e := x.scanner.Write(buf[:n]); n > 0 && e != nil {
			return e
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return badPacked(coding)
		}
	}
}

func badPacked(coding string) error {
	return &llmapi.Error{Status: http.StatusBadRequest, Reason: llmapi.ReasonBadForm, Param: "Content-Encoding",
		Message: "the request body is not the " + coding + " stream that its Content-Encoding announces"}
}

// intakeFailed answers a request whose body was not taken.
func (x *exchange) intakeFailed(err error) {
	var e *llmapi.Error
	cut := x.watch.cut.Load()
	switch {
	case errors.As(err, &e):
		x.refuseEarly(e)
	case errors.Is(err, errTooLarge):
		x.refuseEarly(tooLarge(x.p.cfg.MaxBody))
	case cut != nil:
		x.commit()
		_ = http.NewResponseController(x.w).EnableFullDuplex()
		x.failCut(cut)
		x.linger()
	case errors.Is(err, errReadingBody):
		// The client went away, or sent something that is no HTTP body. If it still listens it learns that.
		x.outcome, x.rec.Cause = telemetry.OutcomeClientCancelled, err.Error()
		if x.clientGone() {
			panic(http.ErrAbortHandler)
		}
		e := &llmapi.Error{Status: http.StatusBadRequest, Reason: llmapi.ReasonBadForm, Message: "the request body ended early or is malformed"}
		x.writeError(e)
	default: // our own disk
		x.p.cfg.Log.Error("cannot keep a request body", "error", err)
		x.rec.Cause = err.Error()
		x.refuse(&llmapi.Error{Status: http.StatusInternalServerError, Reason: llmapi.ReasonInternal, Message: "the gateway could not keep the request body"})
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
	rc := http.NewResponseController(x.w)
	_ = rc.EnableFullDuplex() // HTTP/1: answer while the body is still coming; an error means that it is so anyway
	x.refuse(e)
	if x.in.Header.Get("Expect") == "" { // else the client waits for our word before it sends
		x.linger()
	}
}

// linger sends what was answered and reads on.
func (x *exchange) linger() {
	rc := http.NewResponseController(x.w)
	_ = rc.Flush()
	_ = rc.SetReadDeadline(time.Now().Add(lingerTime))
	if _, err := io.CopyN(io.Discard, x.in.Body, lingerBytes); errors.Is(err, io.EOF) {
		_ = rc.SetReadDeadline(time.Time{})
	}
}

func tooLarge(limit int64) *llmapi.Error {
	return &llmapi.Error{Status: http.StatusRequestEntityTooLarge, Reason: llmapi.ReasonTooLarge, Type: "invalid_request_error", Code: "request_too_large",
		Message: fmt.Sprintf("the request body is larger than the %s that this gateway (pointsman) accepts. This is the limit max_body in its "+
			"configuration, not a lack of capacity: sending it again will not help.", byteSize(limit))}
}

// byteSize writes a size as people and the configuration do.
func byteSize(n int64) string {
	for _, u := range []struct {
		name string
		size int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.size && n%u.size == 0 {
			return fmt.Sprintf("%d %s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
