package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// A client that stops in the middle of its upload gets an answer that does not need the body at once, and does not keep its
// connection, after a time-out neither.
func TestUnfinishedUpload(t *testing.T) {
	for name, c := range map[string]struct {
		head   string
		status int
		after  time.Duration // when the answer comes
	}{
		"limit":       {"POST " + chat + " HTTP/1.1\r\nHost: gw\r\nContent-Length: 60\r\n\r\n{", 408, time.Minute},
		"not found":   {"POST /sleep HTTP/1.1\r\nHost: gw\r\nContent-Length: 60\r\n\r\n{", 404, 0},
		"chunked":     {"POST /sleep HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n3c\r\n{", 404, 0},
		"wrong verb":  {"PUT " + chat + " HTTP/1.1\r\nHost: gw\r\nContent-Length: 60\r\n\r\n{", 405, 0},
		"coding":      {"POST " + chat + " HTTP/1.1\r\nHost: gw\r\nContent-Encoding: br\r\nContent-Length: 60\r\n\r\n{", 415, 0},
		"no JSON":     {"POST " + chat + " HTTP/1.1\r\nHost: gw\r\nContent-Length: 60\r\n\r\n[", 400, 0},
		"unread":      {"GET /v1/models HTTP/1.1\r\nHost: gw\r\nContent-Length: 60\r\n\r\n[", 200, 0},
		"passed on":   {"POST /v1/responses/resp_1/cancel HTTP/1.1\r\nHost: gw\r\nContent-Length: 60\r\n\r\n{", 200, 0},
		"a preflight": {"OPTIONS " + chat + " HTTP/1.1\r\nHost: gw\r\nOrigin: http://x\r\nAccess-Control-Request-Method: POST\r\nContent-Length: 60\r\n\r\n{", 200, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					_, _ = io.WriteString(w, `{"id":"resp_1","object":"response","status":"completed"}`)
				}, func(cfg *Config) { cfg.Limit = time.Minute })
				defer b.stop()
				res, err := b.client.Post("http://gw/v1/responses", "application/json", strings.NewReader(`{"model":"m","input":"hello"}`))
				if err != nil {
					t.Fatal(err)
				}
				_, _ = read(res)
				conn, err := b.client.Transport.(*http.Transport).DialContext(context.Background(), "tcp", "gw:80")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				begun := time.Now()
				go func() { _, _ = io.WriteString(conn, c.head) }()
				_ = conn.SetReadDeadline(begun.Add(time.Hour))
				br := bufio.NewReader(conn)
				if res, err = http.ReadResponse(br, nil); err != nil {
					t.Fatal(err)
				}
				if _, err = read(res); err != nil || res.StatusCode != c.status {
					t.Errorf("status %d, %v", res.StatusCode, err)
				}
				if took := time.Since(begun); took < c.after || took > c.after+time.Second {
					t.Errorf("answered after %v, want %v", took, c.after)
				}
				b.idle() // nobody's place is held meanwhile
				var late net.Error
				_, err = br.ReadByte()
				if took := time.Since(begun); err == nil || errors.As(err, &late) && late.Timeout() || took > c.after+lingerTime+time.Second {
					t.Errorf("the connection was closed after %v (%v), want at most %v", took, err, c.after+lingerTime)
				}
			})
		})
	}
}

// TestBodyBehindAnswer: a body that comes whole after the answer that did not need it leaves the connection good for the next
// request, and is never read as one.
func TestBodyBehindAnswer(t *testing.T) {
	const inside = "GET /v1/models HTTP/1.1\r\nHost: gw\r\n\r\n"
	for name, c := range map[string]struct {
		head   string
		status int
	}{
		"not found": {"POST /sleep HTTP/1.1\r\nHost: gw\r\nContent-Length: %d\r\n\r\n", 404},
		"coding":    {"POST " + chat + " HTTP/1.1\r\nHost: gw\r\nContent-Encoding: br\r\nContent-Length: %d\r\n\r\n", 415},
		"unread":    {"GET /v1/models HTTP/1.1\r\nHost: gw\r\nContent-Length: %d\r\n\r\n", 200},
	} {
		t.Run(name, func(t *testing.T) {
			r, hidden := newRig(t, []string{newEndpoint(t, answerOK).URL}), inside
			conn, br := r.raw(fmt.Sprintf(c.head, len(hidden)))
			for _, want := range []int{c.status, http.StatusMethodNotAllowed} {
				res, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := read(res); err != nil || res.StatusCode != want || res.Close {
					t.Fatalf("status %d, %v, closes %v; want %d", res.StatusCode, err, res.Close, want)
				}
				_, _ = io.WriteString(conn, hidden+"DELETE /v1/models HTTP/1.1\r\nHost: gw\r\n\r\n")
				hidden = ""
			}
		})
	}
}

// TestRefusalLeavesOthers: a body that is refused while it comes does not end the HTTP/2 connection of other requests.
func TestRefusalLeavesOthers(t *testing.T) {
	r := newRig(t, []string{newEndpoint(t, answerOK).URL}, func(c *Config) { c.MaxBody = 1 << 10 })
	client := r.clients()["HTTP/2"]
	post := func(path string, size int) (status int, reused bool) {
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
		body := io.MultiReader(strings.NewReader(chatBody), strings.NewReader(strings.Repeat(" ", size))) // of unknown length
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "POST", r.server.URL+path, body)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = read(res)
		return res.StatusCode, reused
	}
	if status, _ := post(chat, 0); status != 200 {
		t.Errorf("status %d", status)
	}
	for _, c := range []struct {
		path   string
		status int
	}{{chat, 413}, {"/sleep", 404}, {chat, 413}} {
		if status, reused := post(c.path, 100_000); status != c.status || !reused {
			t.Errorf("%s: status %d, the same connection: %v", c.path, status, reused)
		}
	}
	if status, reused := post(chat, 0); status != 200 || !reused {
		t.Errorf("status %d, the same connection: %v", status, reused)
	}
}

// TestDiskFull: a body that finds no room on the disk, whole or not, is refused as the client's API has it, and the log names the
// directory.
func TestDiskFull(t *testing.T) {
	for path, want := range map[string]string{
		chat:           `"type":"server_error","param":null,"code":"internal"`,
		"/v1/messages": `"type":"overloaded_error"`,
	} {
		var said bytes.Buffer
		dir := t.TempDir()
		ep := newEndpoint(t, answerOK)
		r := newRig(t, []string{ep.URL}, func(c *Config) {
			c.BodyMemory, c.TempDir, c.Log = 64<<10, dir, slog.New(slog.NewTextHandler(&said, nil))
		})
		r.proxy.bodies.Create = func() (*os.File, error) { return os.OpenFile("/dev/full", os.O_RDWR, 0) }
		res := r.post(path, `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("x", 4<<20)+`"}]}`)
		text, err := read(res)
		if err != nil || res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || !strings.Contains(text, want) || strings.Contains(text, dir) {
			t.Errorf("%s: status %d %v, %v: %s", path, res.StatusCode, res.Header, err, text)
		}
		if rec := r.record(); rec["outcome"] != "shed" || rec["error_reason"] != "internal" || !strings.Contains(rec["cause"], dir) || ep.served.Load() != 0 {
			t.Errorf("%s: %v", path, rec)
		}
		r.idle()
		if !strings.Contains(said.String(), dir) || !strings.Contains(said.String(), "no space left") {
			t.Errorf("the log says %q", said.String())
		}
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
