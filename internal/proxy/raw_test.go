package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// rawCase is a request in bytes and what must become of it.
type rawCase struct {
	name   string
	send   string
	status int // of the first answer; 0: the connection may end without one
	served int // requests that reach the endpoint
}

func rawCases() []rawCase {
	post := "POST " + chat + " HTTP/1.1\r\nHost: gw\r\n"
	n := len(chatBody)
	smuggled := "POST " + chat + " HTTP/1.1\r\nHost: gw\r\nContent-Length: 5\r\n\r\nabcde"
	return []rawCase{
		{"plain", rawPost(chatBody), 200, 1},
		{"length and chunked", post + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", n, n, chatBody), -1, -1},
		{"two lengths", post + fmt.Sprintf("Content-Length: %d\r\nContent-Length: 5\r\n\r\n%s", n, chatBody), 400, 0},
		{"list of lengths", post + fmt.Sprintf("Content-Length: %d, 5\r\n\r\n%s", n, chatBody), 400, 0},
		{"signed length", post + fmt.Sprintf("Content-Length: +%d\r\n\r\n%s", n, chatBody), 400, 0},
		{"hex length", post + "Content-Length: 0x10\r\n\r\n" + chatBody, 400, 0},
		{"negative length", post + "Content-Length: -1\r\n\r\n" + chatBody, 400, 0},
		{"odd coding", post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501, 0},
		{"two codings", post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, 0},
		{"coding twice", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 501, 0},
		{"space before colon", post + fmt.Sprintf("Content-Length : %d\r\n\r\n%s", n, chatBody), 400, 0},
		{"folded header", post + fmt.Sprintf("Content-Length: %d\r\nX-A: b\r\n c\r\n\r\n%s", n, chatBody), -1, -1},
		{"bad chunk size", post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", 400, 0},
		{"chunk without end", post + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%sXX0\r\n\r\n", n, chatBody), 400, 0},
		{"no host", "POST " + chat + fmt.Sprintf(" HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s", n, chatBody), 400, 0},
		{"two hosts", post + fmt.Sprintf("Host: other\r\nContent-Length: %d\r\n\r\n%s", n, chatBody), 400, 0},
		{"control byte in a header", post + fmt.Sprintf("X-A: a\x00b\r\nContent-Length: %d\r\n\r\n%s", n, chatBody), 400, 0},
		{"hop-by-hop length", post + fmt.Sprintf("Connection: content-length\r\nContent-Length: %d\r\n\r\n%s", n, chatBody), 200, 1},
		{"HTTP/1.0", fmt.Sprintf("POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", chat, n, chatBody), 200, 1},
		{"absolute form", fmt.Sprintf("POST http://other:1%s HTTP/1.1\r\nHost: gw\r\nContent-Length: %d\r\n\r\n%s", chat, n, chatBody), 200, 1},
		{"body behind a length of 0", post + "Content-Length: 0\r\n\r\n" + smuggled, 400, 0},
		{"no body", post + "\r\n", 400, 0},
		{"GET with a body", "GET " + chat + " HTTP/1.1\r\nHost: gw\r\nContent-Length: 2\r\n\r\n{}", 405, 0},
		{"CONNECT", "CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: gw\r\n\r\n", 404, 0},
		{"TRACE", "TRACE " + chat + " HTTP/1.1\r\nHost: gw\r\n\r\n", 405, 0},
	}
}

// TestRawRequests holds what comes out of odd framings. -1 leaves the status to net/http, which must not let the endpoint
// see more requests than there were.
func TestRawRequests(t *testing.T) {
	for _, c := range rawCases() {
		t.Run(c.name, func(t *testing.T) {
			ep := newEndpoint(t, answerOK)
			r := newRig(t, []string{ep.URL})
			conn, br := r.raw(c.send)
			res, err := http.ReadResponse(br, nil)
			switch {
			case err != nil:
				t.Fatalf("no answer: %v", err)
			case c.status >= 0 && res.StatusCode != c.status:
				t.Errorf("status %d, want %d", res.StatusCode, c.status)
			}
			_ = conn.(*net.TCPConn).CloseWrite() // not before the answer: it counts as leaving
			_, _ = io.Copy(io.Discard, br)
			if n := int(ep.served.Load()); n != c.served && (c.served >= 0 || n > 1) {
				t.Errorf("the endpoint served %d, want %d", n, c.served)
			}
			r.idle()
		})
	}
}

// TestPipelined keeps two requests in one packet apart and in order.
func TestPipelined(t *testing.T) {
	ep := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		answerJSON(w, 200, string(b))
	})
	r := newRig(t, []string{ep.URL})
	second := strings.Replace(chatBody, "hello", "second", 1)
	_, br := r.raw(rawPost(chatBody) + rawPost(second))
	for _, want := range []string{chatBody, second} {
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := read(res); err != nil || body != want {
			t.Errorf("%q, %v; want %q", body, err, want)
		}
	}
}

// TestExpectContinue answers the head before the body comes: go on, or too large.
func TestExpectContinue(t *testing.T) {
	ep := newEndpoint(t, answerOK)
	r := newRig(t, []string{ep.URL}, func(c *Config) { c.MaxBody = 1 << 20 })
	head := "POST " + chat + " HTTP/1.1\r\nHost: gw\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
	conn, br := r.raw(fmt.Sprintf(head, len(chatBody)))
	if line, err := br.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100") {
		t.Fatalf("%q, %v", line, err)
	}
	_, _ = br.ReadString('\n')
	if _, err := io.WriteString(conn, chatBody); err != nil {
		t.Fatal(err)
	}
	if res, err := http.ReadResponse(br, nil); err != nil || res.StatusCode != 200 {
		t.Errorf("%v, %v", res, err)
	}
	_, br = r.raw(fmt.Sprintf(head, 2<<20))
	if res, err := http.ReadResponse(br, nil); err != nil || res.StatusCode != 413 {
		t.Errorf("%v, %v", res, err)
	}
}

// TestTooLargeIsReadable: a client that writes its whole body before it reads still sees the 413.
func TestTooLargeIsReadable(t *testing.T) {
	ep := newEndpoint(t, answerOK)
	r := newRig(t, []string{ep.URL}, func(c *Config) { c.MaxBody = 1 << 20 })
	const size = 24 << 20
	for name, head := range map[string]string{
		"length":  fmt.Sprintf("Content-Length: %d\r\n\r\n", size),
		"chunked": fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", size),
	} {
		conn, br := r.raw("POST " + chat + " HTTP/1.1\r\nHost: gw\r\n" + head)
		conn.SetDeadline(time.Now().Add(patience))
		w := bufio.NewWriter(conn)
		for range size >> 10 {
			if _, err := w.Write(bytes.Repeat([]byte{' '}, 1<<10)); err != nil {
				t.Fatalf("%s: writing everything first: %v", name, err)
			}
		}
		_ = w.Flush()
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != 413 {
			t.Fatalf("%s: %v, %v", name, res, err)
		}
		if body, _ := read(res); !strings.Contains(body, "max_body") || !strings.Contains(body, "1 MiB") {
			t.Errorf("%s: %s", name, body)
		}
	}
	if n := ep.served.Load(); n != 0 {
		t.Errorf("the endpoint served %d", n)
	}
	r.idle()
}

// TestManyHeaders passes 20 kB of headers.
func TestManyHeaders(t *testing.T) {
	got := make(chan *http.Request, 1)
	ep := newEndpoint(t, echo(got))
	r := newRig(t, []string{ep.URL})
	var headers []string
	for i := range 100 {
		headers = append(headers, fmt.Sprintf("X-Long-%d: %s", i, strings.Repeat("v", 200)))
	}
	_, br := r.raw(rawPost(chatBody, headers...))
	if res, err := http.ReadResponse(br, nil); err != nil || res.StatusCode != 200 {
		t.Fatalf("%v, %v", res, err)
	}
	if in := <-got; len(in.Header.Get("X-Long-99")) != 200 {
		t.Error("headers were lost")
	}
}
