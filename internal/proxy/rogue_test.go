package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// TestRogueEndpoint: an endpoint that sends more than it was asked for cannot make its surplus the answer of another client's
// request.
func TestRogueEndpoint(t *testing.T) {
	forged := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{\"evil\":1}"
	for name, tail := range map[string]string{"another answer": forged, "two more": forged + forged, "half an answer": forged[:40], "bytes": "xyz"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, []string{loopback.Serve(t, func(c net.Conn) { answersTooMuch(c, tail) })})
			for i := range 100 {
				id := fmt.Sprintf("r%d", i)
				res := r.post(chat, chatBody, "X-Request-Id", id)
				if body, _ := read(res); strings.Contains(body, "evil") || res.StatusCode == 200 && !strings.Contains(body, id) {
					t.Fatalf("%s was answered %d %s", id, res.StatusCode, body)
				}
				r.record()
			}
			r.idle()
		})
	}
}

func answersTooMuch(c net.Conn, tail string) {
	defer c.Close()
	br := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		body := fmt.Sprintf(`{"id":%q,"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":""},"finish_reason":"stop"}]}`, req.Header.Get("X-Request-Id"))
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s%s", len(body), body, tail)
	}
}

// TestUnasked: what had been read before the first byte of a request was written is no answer to it.
func TestUnasked(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	c := &upstreamConn{Conn: near}
	go func() {
		_, _ = io.WriteString(far, "early")
		_, _ = io.ReadFull(far, make([]byte, 6))
		_, _ = io.WriteString(far, "answer")
	}()
	var u connUse
	u.begin(httptrace.GotConnInfo{Conn: c, Reused: true})
	buf := make([]byte, 16)
	if _, err := c.Read(buf); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a request of two writes
		if _, err := c.Write([]byte("ask")); err != nil || !u.unasked() {
			t.Fatalf("%v: an answer before the request counts", err)
		}
	}
	if _, err := c.Read(buf); err != nil || u.unasked() {
		t.Errorf("%v: the answer does not count", err)
	}
}
