package proxy

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
	"pointsman.dev/pointsman/internal/testkit/loopback"
	"pointsman.dev/pointsman/internal/testkit/records"
)

// rig is a gateway over real sockets in front of endpoints that the test plays.
type rig struct {
	t       testing.TB
	proxy   *Proxy
	current atomic.Pointer[Proxy] // what the listener serves
	pool    *pool.Pool
	dir     *pool.Directory
	server  *httptest.Server
	records records.Channel // access records, as their attributes
}

// newRig serves model "m" of one pool over the given endpoints.
func newRig(t testing.TB, endpoints []string, change ...func(*Config)) *rig {
	t.Helper()
	r := buildRig(t, endpoints, change...)
	r.current.Store(r.proxy)
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.current.Load().ServeHTTP(w, req) }))
	r.server.Config.ErrorLog = quiet() // aborted answers and panics are part of the tests
	r.server.Config.Protocols = new(http.Protocols)
	r.server.Config.Protocols.SetHTTP1(true)
	r.server.Config.Protocols.SetUnencryptedHTTP2(true)
	r.server.Start()
	t.Cleanup(func() {
		r.server.CloseClientConnections()
		r.server.Close()
		r.proxy.CloseIdle()
	})
	return r
}

// buildRig is newRig without a listener.
func buildRig(t testing.TB, endpoints []string, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, records: make(records.Channel, 4096)}
	r.pool = pool.New(pool.Config{Name: "p"}, nil, nil)
	targets := make([]discover.Target, len(endpoints))
	for i, e := range endpoints {
		targets[i].URL = e
	}
	r.pool.SetTargets(targets)
	r.dir = pool.NewDirectory()
	r.dir.Set([]*pool.Pool{r.pool}, []pool.Alias{{Name: "fast", Serves: "m"}})
	for _, e := range endpoints {
		r.pool.Learned(e, pool.Facts{Models: []pool.Model{{ID: "m", MaxModelLen: 4096}, {ID: "org/model-b"}}})
	}
	cfg := Config{Directory: r.dir, Metrics: telemetry.New(telemetry.Build{}), Access: telemetry.NewAccess(slog.New(r.records))}
	for _, c := range change {
		c(&cfg)
	}
	r.proxy = New(cfg)
	return r
}

// record returns the next access record.
func (r *rig) record() map[string]string {
	r.t.Helper()
	return r.records.Next(r.t)
}

// inFlight sums what the pool believes to be in flight.
func (r *rig) inFlight() int {
	n := 0
	for _, e := range r.pool.Status().Endpoints {
		n += int(e.InFlight)
	}
	return n
}

// idle waits until nothing is in flight.
func (r *rig) idle() {
	r.t.Helper()
	waitFor(r.t, "in-flight gauges at 0", func() bool { return r.inFlight() == 0 })
	if used := r.proxy.bodies.Used(); used != 0 {
		waitFor(r.t, "request bodies freed", func() bool { return r.proxy.bodies.Used() == 0 })
	}
}

// patience is how long a test waits for what is sure to come, however busy the machine is: only what hangs fails by it.
const patience = time.Minute

// waitFor polls; what it waits for has no event to wait on.
func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		pause(time.Millisecond)
	}
}

// quiet is a log for servers that are made to fail.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// pause lets other goroutines work.
func pause(d time.Duration) { <-time.After(d) }

func (r *rig) post(path, body string, header ...string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequest("POST", r.server.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := r.server.Client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

// clients speak HTTP/1.1 and HTTP/2, and leave every body as it is coded.
func (r *rig) clients() map[string]*http.Client {
	r.t.Helper()
	list := map[string]*http.Client{}
	for name, set := range map[string]func(*http.Protocols, bool){"HTTP/1.1": (*http.Protocols).SetHTTP1, "HTTP/2": (*http.Protocols).SetUnencryptedHTTP2} {
		tr := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols)}
		set(tr.Protocols, true)
		r.t.Cleanup(tr.CloseIdleConnections)
		list[name] = &http.Client{Transport: tr}
	}
	return list
}

// read returns the body and the error at its end.
func read(res *http.Response) (string, error) {
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

const (
	chat       = "/v1/chat/completions"
	chatBody   = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	streamBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`
	okJSON     = `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":1,"total_tokens":21,"prompt_tokens_details":{"cached_tokens":16}}}`
)

// Events of a chat stream.
func delta(text string) string {
	return `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"` + text + `"},"finish_reason":null}]}` + "\n\n"
}

const (
	finishStop  = `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	finishAbort = `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":""},"finish_reason":"abort"}]}` + "\n\n"
	usageEvent  = `data: {"id":"x","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":20,"completion_tokens":2,"total_tokens":22}}` + "\n\n"
	doneEvent   = "data: [DONE]\n\n"
)

// endpoint is a model server that the test plays, over HTTP.
type endpoint struct {
	*httptest.Server
	name   string
	served atomic.Int64
	mu     sync.Mutex
	sums   map[[32]byte]int // bodies by their hash
	left   chan struct{}    // one token per request whose context ended while it was handled
}

// newEndpoint reads each body to its end and then calls handle.
func newEndpoint(t testing.TB, handle http.HandlerFunc) *endpoint {
	t.Helper()
	return newEndpointWith(t, func(*http.Server) {}, handle)
}

func newEndpointWith(t testing.TB, change func(*http.Server), handle http.HandlerFunc) *endpoint {
	t.Helper()
	e := &endpoint{sums: map[[32]byte]int{}, left: make(chan struct{}, 4096)}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // half a body: not executed
		}
		e.served.Add(1)
		e.mu.Lock()
		e.sums[sha256.Sum256(body)]++
		e.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		handle(w, r)
	}))
	change(e.Config)
	e.Start()
	e.name = strings.TrimPrefix(e.URL, "http://")
	t.Cleanup(func() { e.CloseClientConnections(); e.Close() })
	return e
}

// bodies counts executed requests with this body.
func (e *endpoint) bodies(body string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sums[sha256.Sum256([]byte(body))]
}

// untilLeft blocks a handler until its client has gone.
func (e *endpoint) untilLeft(r *http.Request) {
	<-r.Context().Done()
	e.left <- struct{}{}
}

func answerOK(w http.ResponseWriter, r *http.Request) { answerJSON(w, 200, okJSON) }

func answerJSON(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Server", "uvicorn")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// answerStream sends each piece in a write of its own.
func answerStream(w http.ResponseWriter, pieces ...string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	rc := http.NewResponseController(w)
	_ = rc.Flush()
	for _, p := range pieces {
		_, _ = io.WriteString(w, p)
		_ = rc.Flush()
	}
}

// reset closes a handler's connection with a TCP reset.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}

// closedPort returns the URL of a port on which nothing listens.
func closedPort(t testing.TB) string {
	t.Helper()
	return "http://" + loopback.Free(t)
}

// rawRequest writes text to the gateway as it is and returns the connection.
func (r *rig) raw(text string) (net.Conn, *bufio.Reader) {
	r.t.Helper()
	c, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text); err != nil {
		r.t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

// rawPost is a chat request in bytes.
func rawPost(body string, headers ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: gw\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s", chat, len(body),
		strings.Join(append(headers, ""), "\r\n"), body)
}

func randomBytes(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	p := make([]byte, n)
	_, _ = r.Read(p)
	return p
}
