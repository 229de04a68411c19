package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// A client that stops in the middle of its upload does not keep its connection: not after a time-out, nor after an answer that did
// not need the body.
func TestUnfinishedUpload(t *testing.T) {
	for name, c := range map[string]struct {
		head   string
		status int
		closed time.Duration // at the latest
	}{
		"limit":     {"POST " + chat + " HTTP/1.1\r\nHost: gw\r\nContent-Length: 60\r\n\r\n{", 408, time.Minute + lingerTime},
		"not found": {"POST /sleep HTTP/1.1\r\nHost: gw\r\nContent-Length: 60\r\n\r\n{", 404, lingerTime},
		"coding":    {"POST " + chat + " HTTP/1.1\r\nHost: gw\r\nContent-Encoding: br\r\nContent-Length: 60\r\n\r\n{", 415, lingerTime},
		"no JSON":   {"POST " + chat + " HTTP/1.1\r\nHost: gw\r\nContent-Length: 60\r\n\r\n[", 400, lingerTime},
		"unread":    {"GET /v1/models HTTP/1.1\r\nHost: gw\r\nContent-Length: 60\r\n\r\n[", 200, lingerTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, answerOK, func(cfg *Config) { cfg.Limit = time.Minute })
				defer b.stop()
				conn, err := b.client.Transport.(*http.Transport).DialContext(context.Background(), "tcp", "gw:80")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				begun := time.Now()
				go func() { _, _ = io.WriteString(conn, c.head) }()
				_ = conn.SetReadDeadline(begun.Add(time.Hour))
				br := bufio.NewReader(conn)
				res, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err = read(res); err != nil || res.StatusCode != c.status {
					t.Errorf("status %d, %v", res.StatusCode, err)
				}
				var late net.Error
				_, err = br.ReadByte()
				if name == "no JSON" && res.Header.Get("Connection") == "" && !res.Close {
					t.Error("the connection stays, and the rest of the body would be read as the next request")
				}
				if took := time.Since(begun); err == nil || errors.As(err, &late) && late.Timeout() || took > c.closed+time.Second {
					t.Errorf("the connection was closed after %v (%v), want at most %v", took, err, c.closed)
				}
			})
		})
	}
}

// What net/http cannot write is no answer, and does not end in a panic.
func TestImpossibleStatus(t *testing.T) {
	url := loopback.Serve(t, func(c net.Conn) {
		defer c.Close()
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		_, _ = io.WriteString(c, "HTTP/1.1 099 Odd\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
	})
	r := newRig(t, []string{url})
	res := r.post(chat, chatBody)
	if body, err := read(res); res.StatusCode != 502 || res.Header.Get("x-should-retry") != "false" || err != nil {
		t.Errorf("status %d %v, %v: %s", res.StatusCode, res.Header, err, body)
	}
	if rec := r.record(); rec["outcome"] != "upstream_error" {
		t.Errorf("record %v", rec)
	}
	r.idle()
}

// An address is given away by its host alone, too.
func TestNoAddressInHeaders(t *testing.T) {
	for _, c := range []struct {
		endpoint, value string
		kept            bool
	}{
		{"10.0.0.3:8000", "1.1 10.0.0.3", false}, {"10.0.0.3:8000", "http://10.0.0.3:8000/x", false}, {"10.0.0.3:8000", "1.1 gateway", true},
		{"[fd00::3]:8000", "fd00::3", false}, {"vllm-0.models.svc:8000", "vllm-0.models.svc", false}, {"vllm:8000", "vllm", true}, {"vllm:8000", "vllm:8000", false},
	} {
		h := http.Header{"X-Served-By": {c.value}}
		cleanResponse(h, c.endpoint)
		if kept := len(h) > 0; kept != c.kept {
			t.Errorf("%s in an answer of %s: kept %v", c.value, c.endpoint, kept)
		}
	}
}
