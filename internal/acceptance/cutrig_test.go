package acceptance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/app"
	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/testkit/records"
)

// wire is the engine's side of one connection, on which a test writes what it likes.
type wire struct {
	net.Conn
	seen <-chan struct{} // closed when the client has what was sent before the end
}

// say writes s as it is.
func (w *wire) say(s string) { _, _ = io.WriteString(w, s) }

// chunks sends each part as a chunk of its own.
func (w *wire) chunks(parts ...string) {
	for _, p := range parts {
		w.say(fmt.Sprintf("%x\r\n%s\r\n", len(p), p))
	}
}

const (
	streamHead  = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
	chunkedJSON = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
	lastChunk   = "0\r\n\r\n"
)

// sized is the head of an answer of n bytes.
func sized(n int) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", n)
}

// wait returns when the client has what was sent. A reset may overtake bytes.
func (w *wire) wait() {
	select {
	case <-w.seen:
	case <-time.After(patience):
	}
}

// settle waits until the gateway has read what was sent: its client, whom wait asks, does not see any of it.
func (w *wire) settle() {
	for end := time.Now().Add(patience); w.unread() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// unread reports whether bytes are on their way to the other end of the connection, or lie there unread, by the system's own list.
func (w *wire) unread() bool {
	here, there := w.LocalAddr().(*net.TCPAddr).Port, w.RemoteAddr().(*net.TCPAddr).Port
	list, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		time.Sleep(100 * time.Millisecond) // this system has none
		return false
	}
	for line := range strings.Lines(string(list)) {
		f := strings.Fields(line)
		from, to := fmt.Sprintf("0100007F:%04X", here), fmt.Sprintf("0100007F:%04X", there)
		if len(f) < 5 || (f[1] != from || f[2] != to) && (f[1] != to || f[2] != from) {
			continue
		}
		if f[4] != "00000000:00000000" { // sent and not acknowledged, received and not read
			return true
		}
	}
	return false
}

// reset closes the connection with a TCP reset.
func (w *wire) reset() {
	_ = w.Conn.(*net.TCPConn).SetLinger(0)
	_ = w.Close()
}

// hang says nothing more until the gateway leaves.
func (w *wire) hang() { _, _ = io.Copy(io.Discard, w.Conn) }

// cutRig is one gateway in front of one engine for one request.
type cutRig struct {
	t       *testing.T
	g       *app.Gateway
	engine  *scripted
	records records.Channel
	asked   chan struct{} // closed when the engine has the request
	seen    chan struct{} // closed when the client has what passes of the answer
}

// newCutRig lets play answer the request. top is YAML of the configuration.
func newCutRig(t *testing.T, top string, play func(*wire)) *cutRig {
	t.Helper()
	r := &cutRig{t: t, engine: newScripted(t, nil), records: make(records.Channel, 16), asked: make(chan struct{}), seen: make(chan struct{})}
	handle := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method != http.MethodPost { // the gateway looks what kind of server this is
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.Copy(io.Discard, q.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		close(r.asked)
		play(&wire{conn, r.seen})
	})
	r.engine.handle.Store(&handle)
	cfg, err := config.Parse("test.yaml", []byte("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n"+top+"pools:\n  - {name: chat, "+list(r.engine.URL)+"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if r.g, err = app.Start(t.Context(), cfg, slog.New(r.records)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.g.Close)
	waitReady(t, r.g, 1)
	return r
}

// record returns the next access record.
func (r *cutRig) record() map[string]string {
	r.t.Helper()
	return r.records.Next(r.t)
}

// got is what a client has got of an answer.
type got struct {
	status int
	header http.Header
	body   string
	err    error // at the end of the body; nil: a clean one
	took   time.Duration
}

// ask sends one request and reads the answer to its end. It closes seen when the answer's first bytes equal prefix.
func (r *cutRig) ask(http2 bool, path, body, prefix string) got {
	r.t.Helper()
	req, err := http.NewRequest("POST", r.g.API()+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	begun := time.Now()
	res := r.send(http2, req)
	defer res.Body.Close()
	a := got{status: res.StatusCode, header: res.Header}
	var all strings.Builder
	buf := make([]byte, 4096)
	told := false
	for a.err == nil {
		if !told && all.Len() >= len(prefix) {
			told = true
			close(r.seen)
		}
		var n int
		n, a.err = res.Body.Read(buf)
		all.Write(buf[:n])
	}
	if errors.Is(a.err, io.EOF) {
		a.err = nil
	}
	a.body, a.took = all.String(), time.Since(begun)
	return a
}

// send sends q: over HTTP/1.1 on a bare connection, so that nothing between hides its end, or over HTTP/2 by prior knowledge.
func (r *cutRig) send(http2 bool, q *http.Request) *http.Response {
	r.t.Helper()
	if http2 {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetUnencryptedHTTP2(true)
		r.t.Cleanup(tr.CloseIdleConnections)
		res, err := tr.RoundTrip(q)
		if err != nil {
			r.t.Fatal(err)
		}
		return res
	}
	conn, err := net.Dial("tcp", q.URL.Host)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if err = q.Write(conn); err != nil {
		r.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), q)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

// ends says how the answer's connection ended: clean, or abnormal in the way of the protocol (no last chunk or too few
// bytes; RST_STREAM).
func (a *got) ends(http2 bool) string {
	switch {
	case a.err == nil:
		return "clean"
	case !http2 && errors.Is(a.err, io.ErrUnexpectedEOF):
		return "abnormal"
	case http2 && strings.Contains(a.err.Error(), "stream error") && strings.Contains(a.err.Error(), "INTERNAL_ERROR"):
		return "abnormal"
	}
	return a.err.Error()
}
