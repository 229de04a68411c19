package vllmsim

import (
	"context"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// route is one path: its handler per method.
type route struct {
	name    string // handler label of the http_* metrics; "" = not counted
	methods map[string]func(*exchange)
	allow   string
}

// exchange is one HTTP request and its answer.
type exchange struct {
	s      *Server
	w      http.ResponseWriter
	r      *http.Request
	ctx    context.Context
	param  string // the path's variable part
	start  time.Time
	fault  *Fault // request fault that still has to happen
	status int
	length int // content-length of the answer, 0 for streams
	frames int
}

func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{s: s, w: w, r: r, ctx: r.Context(), start: time.Now()}
	defer func() {
		if thrown := recover(); thrown != nil && thrown != (earlyEnd{}) {
			panic(thrown)
		}
	}()
	if strings.HasPrefix(r.URL.Path, "/vllmsim/") {
		x.control()
		return
	}
	if s.cfg.APIKey != "" && guarded(r.URL.Path) && r.Header.Get("Authorization") != "Bearer "+s.cfg.APIKey {
		x.raw(http.StatusUnauthorized, "application/json", []byte(`{"error":"Unauthorized"}`), false, true)
		return
	}
	rt, param, ok := s.lookup(r.URL.Path)
	name := rt.name
	if !ok || rt.methods[r.Method] == nil {
		name = "none"
	}
	if name != "" {
		defer func() { s.bookHTTP(name, x) }()
	}
	if !ok {
		x.json(http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
		return
	}
	x.param = param
	h, ok := rt.methods[r.Method]
	if !ok {
		x.w.Header()["allow"] = []string{rt.allow}
		x.json(http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
		return
	}
	h(x)
}

func guarded(path string) bool {
	for _, prefix := range []string{"/v1", "/v2", "/inference", "/cohere"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

func (s *Server) lookup(path string) (route, string, bool) {
	if rt, ok := s.routes[path]; ok {
		return rt, "", true
	}
	if id, ok := strings.CutPrefix(path, "/v1/responses/"); ok && id != "" {
		if base, isCancel := strings.CutSuffix(id, "/cancel"); isCancel {
			rt, ok := s.routes["/v1/responses/{id}/cancel"]
			return rt, base, ok
		}
		rt, ok := s.routes["/v1/responses/{id}"]
		return rt, id, ok && !strings.Contains(id, "/")
	}
	return route{}, "", false
}

// readBody reads the whole body; false when the client went away meanwhile.
func (x *exchange) readBody() ([]byte, bool) {
	body, err := io.ReadAll(x.r.Body)
	return body, err == nil
}

// head writes the status line and headers with the names in lower case, as uvicorn sends them. net/http adds the framing
// headers itself.
func (x *exchange) head(status int, contentType string, length int, vary, requestID bool) {
	h := x.w.Header()
	h["Date"], h["Content-Type"] = nil, nil // keep net/http from adding its own spelling
	h["date"] = []string{time.Now().UTC().Format(http.TimeFormat)}
	h["server"] = []string{"uvicorn"}
	if contentType != "" {
		h["content-type"] = []string{contentType}
	}
	if length >= 0 {
		h["Content-Length"] = []string{strconv.Itoa(length)}
		x.length = length
	}
	if vary && !x.s.old() {
		h["vary"] = []string{"Origin"}
	}
	if requestID && x.s.cfg.RequestIDHeaders {
		id := x.r.Header.Get("X-Request-Id")
		if id == "" {
			id = randomHex(16)
		}
		h["x-request-id"] = []string{id}
	}
	x.status = status
	x.w.WriteHeader(status)
}

func (x *exchange) raw(status int, contentType string, body []byte, vary, requestID bool) {
	x.head(status, contentType, len(body), vary, requestID)
	_, _ = x.w.Write(body) // the client may be gone
}

func (x *exchange) json(status int, body []byte) {
	x.raw(status, "application/json", body, true, true)
}

// empty answers without a body and without a content type, as /health does.
func (x *exchange) empty(status int) { x.raw(status, "", nil, true, true) }

func (x *exchange) fail(e *apiError, anthropic bool) {
	if e.kind == "detail" {
		x.json(e.status, append(appendJSONString([]byte(`{"detail":`), e.message), '}'))
		return
	}
	x.raw(e.status, "application/json", e.body(x.s.old(), anthropic), !e.bare, !e.bare)
}

// openStream sends the headers of an event stream; they leave before the first token, also while the request waits.
func (x *exchange) openStream() {
	x.head(http.StatusOK, "text/event-stream; charset=utf-8", -1, true, true)
	_ = http.NewResponseController(x.w).Flush()
}

// frame sends b as one HTTP chunk, unless the request's fault strikes first: then it does not return.
func (x *exchange) frame(b []byte) {
	if x.fault != nil && x.fault.After >= 0 && x.frames >= x.fault.After {
		x.strike()
	}
	x.frames++
	if _, err := x.w.Write(b); err == nil {
		_ = http.NewResponseController(x.w).Flush()
	}
}

// strike makes the request's fault happen. It returns only for faults that let the request go on.
func (x *exchange) strike() {
	f := x.fault
	x.fault = nil
	switch f.Kind {
	case FaultReset:
		x.reset()
	case FaultCut:
		panic(http.ErrAbortHandler)
	case FaultHang:
		<-x.ctx.Done()
		panic(http.ErrAbortHandler)
	case FaultEarlyEnd:
		panic(earlyEnd{})
	}
}

// earlyEnd is thrown by a fault in the middle of a stream and caught by serveHTTP: the handler returns as if it had finished.
type earlyEnd struct{}

func (x *exchange) reset() {
	conn, _, err := http.NewResponseController(x.w).Hijack()
	if err == nil {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}
	panic(http.ErrAbortHandler)
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return hex.EncodeToString(b)
}

// methods builds a route.
func methods(name string, handlers map[string]func(*exchange)) route {
	allow := make([]string, 0, len(handlers))
	for m := range handlers {
		allow = append(allow, m)
	}
	slices.Sort(allow)
	return route{name: name, methods: handlers, allow: strings.Join(allow, ", ")}
}
