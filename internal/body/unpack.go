package body

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
)

// Coding is a Content-Encoding that a request body may come in.
type Coding struct {
	name   string
	unpack func(io.Reader) (io.ReadCloser, error) // nil: the body is plain
}

// Packed reports whether a body in this coding must be unpacked to be read.
func (c Coding) Packed() bool { return c.unpack != nil }

// CodingOf returns the coding that a Content-Encoding header names: none, gzip or zstd. Another one is an *llmapi.Error with
// status 415.
func CodingOf(header string) (Coding, *llmapi.Error) {
	switch name := strings.ToLower(strings.TrimSpace(header)); name {
	case "", "identity":
		return Coding{}, nil
	case "gzip", "x-gzip":
		return Coding{name, func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }}, nil
	case "zstd":
		return Coding{name, newZstd}, nil
	default:
		return Coding{}, &llmapi.Error{Status: http.StatusUnsupportedMediaType, Reason: llmapi.ReasonBadForm, Param: "Content-Encoding",
			Message: fmt.Sprintf("request bodies may be plain, gzip or zstd; Content-Encoding %.40q is not known here", name)}
	}
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

// Unpack shows see what the compressed body holds, read through buf. The body itself stays as it came. The content is bounded by
// max bytes: a small bomb is refused like a large body, with ErrTooLarge. What is no such stream is an *llmapi.Error.
func (b *Stored) Unpack(c Coding, buf []byte, max int64, see func([]byte) error) error {
	r, err := b.Open()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	z, err := c.unpack(r)
	if err != nil {
		return c.bad()
	}
	defer func() { _ = z.Close() }()
	for total := int64(0); ; {
		n, err := z.Read(buf)
		if total += int64(n); total > max {
			return ErrTooLarge
		}
		if e := see(buf[:n]); n > 0 && e != nil {
			return e
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return c.bad()
		}
	}
}

func (c Coding) bad() error {
	return &llmapi.Error{Status: http.StatusBadRequest, Reason: llmapi.ReasonBadForm, Param: "Content-Encoding",
		Message: "the request body is not the " + c.name + " stream that its Content-Encoding announces"}
}

// TooLarge is what a client is told whose body, or what it unpacks to, is larger than limit bytes.
func TooLarge(limit int64) *llmapi.Error {
	return &llmapi.Error{Status: http.StatusRequestEntityTooLarge, Reason: llmapi.ReasonTooLarge, Type: "invalid_request_error", Code: "request_too_large",
		Message: fmt.Sprintf("the request body is larger than the %s that this gateway (pointsman) accepts. This is the limit max_body in its "+
			"configuration, not a lack of capacity: sending it again will not help.", byteSize(limit))}
}

// NoRoom is what a client is told whose body could not be kept because of an error that is none of those above: the disk is full. Nothing
// ran, and a moment later, or at another replica, there may be room.
func NoRoom() *llmapi.Error {
	return &llmapi.Error{Status: http.StatusServiceUnavailable, Reason: llmapi.ReasonInternal, RetryAfter: time.Second,
		Message: "the gateway has no room to keep a request body of this size; the request was not processed and may be sent again"}
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
