package proxy

import (
	"net/http"
)

// modifyResponse is ReverseProxy's hook on the head of an answer.
func modifyResponse(res *http.Response) error {
	x := exchangeOf(res.Request)
	h := res.Header
	cleanResponse(h, x.Booking.Endpoint().Name)
	cleanResponse(res.Trailer, x.Booking.Endpoint().Name) // the names; the values come at the end, see finish
	x.unshare(h)
	x.answer.begun, x.answer.Status = true, res.StatusCode
	x.Rec.Status = res.StatusCode
	if x.p.cfg.DebugHeaders {
		h[headerEndpoint] = []string{x.Booking.Endpoint().Name}
		h[headerPick] = []string{x.Rec.PickReason}
	}
	if x.answer.Stream {
		delete(h, "Content-Length") // it would cut off what may have to be said at the end
	}
	if wouldRetry(res.StatusCode) && !x.answer.Refused {
		h[headerNoRetry] = noRetry
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		return x.upgrade(res)
	}
	return nil
}

// wouldRetry reports whether the official clients send a request again by themselves after status.
func wouldRetry(status int) bool {
	return status >= 500 || status == http.StatusRequestTimeout || status == http.StatusConflict || status == http.StatusTooManyRequests
}
