package proxy

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/flight"
)

// ours are the headers that every request to an endpoint has, whatever its client says.
var ours = []string{"host", "content-length", "x-request-id", "accept-encoding", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"}

// FuzzWireHeaders writes a header of any name and value, and any word in Connection, to the gateway. What goes on to the endpoint
// is a request to a parser that forgives nothing, without the headers of the hop, without those that Connection names, and
// without those that steer.
func FuzzWireHeaders(f *testing.F) {
	for _, s := range [][3]string{{"X-A", "b", "close"}, {"X-Secret", "1", "X-Secret, keep-alive"}, {"Te", "trailers", "te"}, {"X-Data-Parallel-Rank", "3", ""}, {"Trailer", "X-T", "trailer"},
		{"Host", "other", ""}, {"Upgrade", "h2c", "Upgrade, HTTP2-Settings"}, {"Content-Length", "5", "content-length"}, {"X A", "b", ""}, {"X-A", "a\r\nX-B: c", ""}, {"Proxy-Connection", "x", ""},
		{"X-Request-Id", "evil", "x-request-id"}, {"Transfer-Encoding", "chunked", ""}, {"Authorization", "Bearer x", "authorization"}, {"X-A", "\xff", "X-\xff"}, {"Expect", "100-continue", ""}, {"X-A:", "b", ""}} {
		f.Add(s[0], s[1], s[2])
	}
	ep := newEndpoint(f, answerOK)
	y := newRelay(f, ep.URL)
	r := newRig(f, []string{y.url})
	f.Fuzz(func(t *testing.T, name, value, connection string) {
		r.t = t
		conn, br := r.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: gw\r\n%s: %s\r\nConnection: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n", chat, name, value, connection, len(chatBody), chatBody))
		conn.SetDeadline(time.Now().Add(patience))
		answers := 0
		for {
			res, err := http.ReadResponse(br, nil)
			if err != nil {
				break
			}
			if _, err := io.Copy(io.Discard, res.Body); err == nil && res.StatusCode == 200 {
				answers++
			}
		}
		conn.Close()
		seen := y.heads(t)
		if len(seen) != answers || answers > 1 {
			t.Fatalf("the endpoint saw %d requests, the client was answered %d", len(seen), answers)
		}
		for _, h := range seen {
			for word := range strings.SplitSeq(connection, ",") {
				word = strings.ToLower(strings.TrimSpace(word))
				if _, has := h[word]; has && !slices.Contains(ours, word) && strings.Trim(word, "abcdefghijklmnopqrstuvwxyz0123456789-_") == "" {
					t.Errorf("%q went on, which Connection names", word)
				}
			}
			for k := range h {
				if flight.Routing(k) {
					t.Errorf("%q went to the endpoint", k)
				}
			}
		}
	})
}
