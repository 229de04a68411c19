package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// ending is one way for a request to end, as the client, the record and the endpoints see it.
type ending struct {
	name      string
	endpoints []http.HandlerFunc // nil: a closed port
	path      string             // default: chat
	body      string             // default: chatBody

	outcome  string
	status   int
	attempts string // "" when one
	reason   string // x-pointsman-reason
	noRetry  bool   // x-should-retry: false
	served   int    // requests that reached endpoints in all
	has, not string // in the body
	broken   bool   // the body must not end in good order
	header   [2]string
}

const busyBody = `{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}`
const drainBody = `{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","param":null,"code":500}}`
const longBody = `{"error":{"message":"This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens","type":"BadRequestError","param":"input_tokens","code":400}}`

func status(code int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		answerJSON(w, code, body)
	}
}

func stream(pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { answerStream(w, pieces...) }
}

func streamThenReset(pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answerStream(w, pieces...)
		reset(w)
	}
}

func resets(w http.ResponseWriter, r *http.Request) { reset(w) }

// truncates promises more than it sends.
func truncates(promised int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(promised))
		answerJSON(w, 200, okJSON[:50])
	}
}

func endings() []ending {
	goodStream := []string{delta("a"), delta("b"), finishStop, usageEvent, doneEvent}
	all := strings.Join(goodStream, "")
	noBlank := strings.ReplaceAll(all, "\n\n", "\n")
	return []ending{
		{name: "whole answer", endpoints: hs(answerOK), outcome: "ok", status: 200, served: 1, has: `"yes"`},
		{name: "whole stream", endpoints: hs(stream(goodStream...)), body: streamBody, outcome: "ok", status: 200, served: 1, has: all},
		{name: "stream without [DONE]", endpoints: hs(stream(delta("a"), finishStop)), body: streamBody, outcome: "ok", status: 200, served: 1, not: "error"},
		{name: "client's fault", endpoints: hs(status(400, `{"error":{"message":"temperature"}}`), answerOK), outcome: "client_error", status: 400, served: 1, has: "temperature"},
		{name: "too long", endpoints: hs(status(400, longBody)), outcome: "too_long", status: 400, served: 1, reason: "too_long", has: `"code":"context_length_exceeded"`},
		{name: "500", endpoints: hs(status(500, `{"error":{"message":"boom"}}`), status(500, `{"error":{"message":"boom"}}`)), outcome: "upstream_error", status: 500, served: 1, noRetry: true, has: "boom"},
		{name: "503 of another kind", endpoints: hs(status(503, `{"error":"x"}`), status(503, `{"error":"x"}`)), outcome: "upstream_error", status: 503, served: 1, noRetry: true},
		{name: "429 everywhere", endpoints: hs(status(429, `{"error":{"message":"slow down"}}`, "Retry-After", "7"), status(429, `{"error":{"message":"slow down"}}`, "Retry-After", "7")), outcome: "shed", status: 429, attempts: "2", served: 2, has: "slow down", header: [2]string{"Retry-After", "7"}},
		{name: "busy everywhere", endpoints: hs(status(503, busyBody), status(503, busyBody)), outcome: "shed", status: 503, attempts: "2", served: 2, has: "currently busy"},
		{name: "503 with Retry-After everywhere", endpoints: hs(status(503, "later", "Retry-After", "2"), status(503, "later", "Retry-After", "2")), outcome: "shed", status: 503, attempts: "2", served: 2, has: "later", header: [2]string{"Retry-After", "2"}},
		{name: "draining everywhere", endpoints: hs(status(500, drainBody), status(500, drainBody)), outcome: "upstream_error", status: 500, attempts: "2", served: 2},
		{name: "drained streams everywhere", endpoints: hs(stream(usageEvent, doneEvent), stream(usageEvent, doneEvent)), body: streamBody, outcome: "cut", status: 200, attempts: "2", served: 2, has: `"error"`, not: "[DONE]", broken: true},
		{name: "closed ports", endpoints: hs(nil, nil, nil), outcome: "no_endpoint", status: 503, attempts: "3", reason: "no_endpoint", has: "may be sent again", header: [2]string{"Retry-After", "1"}},
		{name: "reset before the answer", endpoints: hs(resets, resets), outcome: "upstream_error", status: 502, served: 1, reason: "upstream_error", noRetry: true, has: "not sent again"},
		{name: "stream reset", endpoints: hs(streamThenReset(delta("a"))), body: streamBody, outcome: "cut", status: 200, served: 1, has: delta("a") + `data: {"error":`, not: "[DONE]", broken: true},
		{name: "stream ends early", endpoints: hs(stream(delta("a"))), body: streamBody, outcome: "cut", status: 200, served: 1, has: delta("a") + `data: {"error":`, not: "[DONE]", broken: true},
		{name: "stream ends inside an event", endpoints: hs(stream(delta("a"), `data: {"id":`)), body: streamBody, outcome: "cut", status: 200, served: 1, has: "data: {\"id\":\n\ndata: {\"error\":", not: "[DONE]", broken: true},
		{name: "[DONE] without finish", endpoints: hs(stream(delta("a"), doneEvent)), body: streamBody, outcome: "cut", status: 200, served: 1, has: `"error"`, not: "[DONE]", broken: true},
		{name: "engine aborts", endpoints: hs(stream(delta("a"), delta("b")+finishAbort+doneEvent)), body: streamBody, outcome: "cut", status: 200, served: 1, has: delta("b") + `data: {"error":`, not: "abort\"}]", broken: true},
		{name: "stream without blank lines", endpoints: hs(stream(noBlank)), body: streamBody, outcome: "ok", status: 200, served: 1, has: noBlank, not: "error"},
		{name: "engine's error event", endpoints: hs(stream(delta("a"), "data: {\"error\": {\"message\": \"EngineCore encountered an issue.\", \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}\n\n", doneEvent)), body: streamBody, outcome: "cut", status: 200, served: 1, has: "EngineCore", not: "[DONE]", broken: true},
		{name: "body cut short", endpoints: hs(truncates(10_000)), outcome: "cut", status: 502, served: 1, reason: "cut", noRetry: true, has: "not sent again"},
		{name: "long body cut short", endpoints: hs(truncates(100_000)), outcome: "cut", status: 200, served: 1, broken: true},
		{name: "JSON cut short in good order", endpoints: hs(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, okJSON[:50])
			_ = http.NewResponseController(w).Flush()
		}), outcome: "cut", status: 200, served: 1, broken: true},
		{name: "engine aborts, not streamed", endpoints: hs(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, strings.Replace(okJSON, `"stop"`, `"abort"`, 1))
		}), outcome: "cut", status: 200, served: 1, broken: true},
		{name: "no body where JSON is usual", endpoints: hs(status(200, ""), status(200, "")), outcome: "upstream_error", status: 502, served: 1, reason: "upstream_error", noRetry: true, has: "no answer of this API"},
		{name: "unknown path", path: "/metrics", endpoints: hs(answerOK), outcome: "client_error", status: 404, attempts: "0", reason: "not_found"},
		{name: "control path", path: "/v1/../sleep", endpoints: hs(answerOK), outcome: "client_error", status: 404, attempts: "0", reason: "not_found"},
		{name: "unknown model", body: `{"model":"n","messages":[]}`, endpoints: hs(answerOK), outcome: "client_error", status: 404, attempts: "0", reason: "unknown_model", has: "model_not_found"},
		{name: "missing model", body: `{"messages":[]}`, endpoints: hs(answerOK), outcome: "client_error", status: 400, attempts: "0", reason: "missing_model"},
		{name: "duplicate model", body: `{"model":"m","model":"m","messages":[]}`, endpoints: hs(answerOK), outcome: "client_error", status: 400, attempts: "0", reason: "duplicate_key"},
		{name: "mistyped model", body: `{"model":7,"messages":[]}`, endpoints: hs(answerOK), outcome: "client_error", status: 400, attempts: "0", reason: "bad_type"},
		{name: "no JSON", body: `{"model":`, endpoints: hs(answerOK), outcome: "client_error", status: 400, attempts: "0", reason: "bad_json"},
		{name: "Anthropic's shape", path: "/v1/messages", body: `{"model":"n","max_tokens":1,"messages":[]}`, endpoints: hs(answerOK), outcome: "client_error", status: 404, attempts: "0", reason: "unknown_model", has: `{"type":"error","error":{"type":"not_found_error"`},
		{name: "too large", body: `{"model":"m","x":"` + strings.Repeat("a", 2<<20) + `"}`, endpoints: hs(answerOK), outcome: "client_error", status: 413, attempts: "0", reason: "too_large", has: "max_body"},
	}
}

func hs(h ...http.HandlerFunc) []http.HandlerFunc { return h }

// TestEndings drives every way for a request to end by its answer and checks what the client got, what was recorded,
// that nothing was executed twice, and that nothing stays booked.
func TestEndings(t *testing.T) {
	for _, e := range endings() {
		t.Run(e.name, func(t *testing.T) {
			var urls []string
			var played []*endpoint
			for _, h := range e.endpoints {
				if h == nil {
					urls = append(urls, closedPort(t))
					continue
				}
				ep := newEndpoint(t, h)
				played, urls = append(played, ep), append(urls, ep.URL)
			}
			r := newRig(t, urls, func(c *Config) { c.MaxBody = 1 << 20 })
			if e.path == "" {
				e.path = chat
			}
			if e.body == "" {
				e.body = chatBody
			}
			res := r.post(e.path, e.body, "x-request-id", "me-1")
			body, err := read(res)
			e.check(t, res, body, err)
			e.checkRecord(t, r.record())
			served, most := 0, 0
			for _, ep := range played {
				served += int(ep.served.Load())
				most = max(most, ep.bodies(e.body))
			}
			if served != e.served || most > 1 {
				t.Errorf("endpoints served %d, one of them %d times; want %d", served, most, e.served)
			}
			r.idle()
		})
	}
}

func (e *ending) check(t *testing.T, res *http.Response, body string, err error) {
	t.Helper()
	if res.StatusCode != e.status {
		t.Errorf("status %d, want %d", res.StatusCode, e.status)
	}
	if (err != nil) != e.broken {
		t.Errorf("reading the body: %v; broken wanted: %v", err, e.broken)
	}
	if !strings.Contains(body, e.has) || e.not != "" && strings.Contains(body, e.not) {
		t.Errorf("body lacks %q or has %q:\n%s", e.has, e.not, body)
	}
	if strings.Contains(body, "127.0.0.1") {
		t.Errorf("the body shows an address: %s", body)
	}
	h := res.Header
	if h.Get("x-pointsman-request-id") != "me-1" || h.Get("x-pointsman-endpoint") != "" || h.Get("server") != "" {
		t.Errorf("headers %v", h)
	}
	if h.Get("x-pointsman-reason") != e.reason {
		t.Errorf("reason %q, want %q", h.Get("x-pointsman-reason"), e.reason)
	}
	if (h.Get("x-should-retry") == "false") != e.noRetry {
		t.Errorf("x-should-retry %q, want false: %v", h.Get("x-should-retry"), e.noRetry)
	}
	if k := e.header[0]; k != "" && h.Get(k) != e.header[1] {
		t.Errorf("%s: %q, want %q", k, h.Get(k), e.header[1])
	}
}

func (e *ending) checkRecord(t *testing.T, rec map[string]string) {
	t.Helper()
	if rec["outcome"] != e.outcome || rec["status"] != fmt.Sprint(e.status) || rec["attempts"] != e.attempts {
		t.Errorf("record %v: want outcome %s, status %d, attempts %q", rec, e.outcome, e.status, e.attempts)
	}
}

// TestGoesElsewhere covers what may be tried at another endpoint: the client sees nothing of it.
func TestGoesElsewhere(t *testing.T) {
	good := stream(delta("a"), finishStop, doneEvent)
	for name, bad := range map[string]http.HandlerFunc{
		"closed port": nil, "429": status(429, "{}"), "503 with Retry-After": status(503, "{}", "Retry-After", "2"), "busy": status(503, busyBody), "draining": status(500, drainBody),
		"drained stream": stream(usageEvent, doneEvent), "drained stream in one": stream(usageEvent + doneEvent), "bare end": stream(doneEvent),
	} {
		t.Run(name, func(t *testing.T) {
			var order []string
			var urls []string
			for range 4 { // one good endpoint among bad ones
				if bad == nil {
					urls = append(urls, closedPort(t))
					continue
				}
				urls = append(urls, newEndpoint(t, bad).URL)
			}
			ep := newEndpoint(t, good)
			r := newRig(t, append(urls, ep.URL), func(c *Config) { c.DebugHeaders = true })
			res := r.post(chat, streamBody)
			body, err := read(res)
			if err != nil || res.StatusCode != 200 || body != delta("a")+finishStop+doneEvent {
				t.Errorf("status %d, %v, body %q", res.StatusCode, err, body)
			}
			if ep.bodies(streamBody) != 1 {
				t.Errorf("the good endpoint got the body %d times; order %v", ep.bodies(streamBody), order)
			}
			if rec := r.record(); rec["outcome"] != "ok" || rec["endpoint"] != ep.name {
				t.Errorf("record %v", rec)
			}
			r.idle()
		})
	}
}

// panics is a transport that fails as badly as code can.
type panics struct{}

func (panics) RoundTrip(*http.Request) (*http.Response, error) { panic("broken transport") }

// TestPanicReleases proves that a booking survives no panic.
func TestPanicReleases(t *testing.T) {
	ep := newEndpoint(t, answerOK)
	r := newRig(t, []string{ep.URL}, func(c *Config) { c.Transport = func(string) http.RoundTripper { return panics{} } })
	if res, err := http.Post(r.server.URL+chat, "application/json", strings.NewReader(chatBody)); err == nil {
		res.Body.Close()
		t.Errorf("status %d from a handler that panicked", res.StatusCode)
	}
	r.record()
	r.idle()
}
