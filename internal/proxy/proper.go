package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"pointsman.dev/pointsman/internal/flight"
	"pointsman.dev/pointsman/internal/llmapi"
)

// What answers at an endpoint's address need not be a model server: a login page, another program's greeting, a redirect.
// Such an answer comes fast, so that it would look like a good one from an idle endpoint. Nothing of an answer has gone to
// the client before its head and, where that does not tell, its first byte were seen here.

// proper returns nil when the head and the first byte of res may begin an answer of the API. The body stays readable.
func (x *exchange) proper(res *http.Response) error {
	if res.StatusCode < http.StatusContinue { // net/http takes any three digits, and panics when it is to write them
		return x.improper(res, "")
	}
	if res.StatusCode >= http.StatusBadRequest || res.StatusCode == http.StatusSwitchingProtocols || x.API.Kind == llmapi.Preflight {
		return nil
	}
	stored := x.API.Kind == llmapi.Response // reading, cancelling and deleting: an empty answer may be right
	if res.StatusCode >= http.StatusMultipleChoices || x.API.Kind == llmapi.Realtime || isPage(flight.MediaType(res.Header.Get("Content-Type"))) {
		return x.improper(res, "")
	}
	if stored {
		return nil
	}
	if res.StatusCode == http.StatusNoContent || res.StatusCode == http.StatusResetContent {
		return x.improper(res, "")
	}
	return x.opens(res)
}

// opens looks at the first byte where the head does not tell whether this is an answer.
func (x *exchange) opens(res *http.Response) error {
	kind := flight.MediaType(res.Header.Get("Content-Type"))
	text := x.API.Kind == llmapi.Audio && kind != "" // transcripts are plain text, subtitles or JSON; silence makes an empty one
	known := text || isData(kind)
	if known && (res.ContentLength > 0 || text || kind == flight.EventStream && res.ContentLength < 0) {
		return nil
	}
	var first [1]byte
	_, err := io.ReadFull(res.Body, first[:])
	if err != nil && !errors.Is(err, io.EOF) {
		x.Rec.Cause = x.private(err)
		res.Body.Close()
		if x.ctx.Err() != nil {
			return x.cancelled()
		}
		return errBroken()
	}
	if err != nil || !known && !strings.ContainsRune("{[d:e \r\n\t", rune(first[0])) { // JSON, or an event's "data:", ":" or "event:"
		return x.improper(res, "an empty body or none of its format")
	}
	res.Body = &splicedBody{Reader: io.MultiReader(bytes.NewReader(first[:]), res.Body), Closer: res.Body}
	return nil
}

// isPage reports a type that is for people only.
func isPage(kind string) bool { return kind == "text/html" || kind == "application/xhtml+xml" }

// isData reports a type in which engines answer: JSON in its forms, events, and vectors as they lie in memory.
func isData(kind string) bool {
	return kind == "application/json" || kind == flight.EventStream || kind == "application/octet-stream" || kind == "application/x-ndjson" ||
		strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")
}

// improper gives up an answer that is none. The request may have been processed all the same.
func (x *exchange) improper(res *http.Response, what string) error {
	res.Body.Close()
	x.Result.Status = res.StatusCode
	said := fmt.Sprintf("status %d, content type %.60q", res.StatusCode, flight.MediaType(res.Header.Get("Content-Type")))
	if what != "" {
		said += ", " + what
	}
	x.Rec.Cause = "asking " + x.Booking.Endpoint().Name + ": no answer of this API: " + said
	return &llmapi.Error{Status: http.StatusBadGateway, Reason: llmapi.ReasonUpstreamError,
		Message: "what came from the model server is no answer of this API (" + said + "); the request may have been processed and was not sent again"}
}
