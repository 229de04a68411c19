package acceptance

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"pointsman.dev/pointsman/internal/app"
	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/testkit/records"
)

// envoySims is the real Envoy in front of simulated model servers: pool chat has two of them for the model m; pool seen has one behind a
// relay, which runs one request at a time; pool going has one that a test may end. A client's header chooses the subset hint.
type envoySims struct {
	t       *testing.T
	g       *app.Gateway
	base    string
	client  *http.Client
	chat    []*sim
	going   *sim
	relay   *relay
	records records.Channel
}

// hinting is a filter of Envoy that makes the subset hint, a text or a list, of a header of the test.
const hinting = `                  - name: envoy.filters.http.header_to_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
                      request_rules:
                        - header: test-subset-text
                          on_header_present: {metadata_namespace: envoy.lb.subset_hint, key: x-gateway-destination-endpoint-subset, type: STRING}
                        - header: test-subset-list
                          on_header_present: {metadata_namespace: envoy.lb.subset_hint, key: x-gateway-destination-endpoint-subset, type: PROTOBUF_VALUE, encode: BASE64}
`

func newEnvoySims(t *testing.T) *envoySims {
	t.Helper()
	envoyPath(t)
	cfg := simConfig()
	cfg.MaxModelLen, cfg.NumBlocks, cfg.Speed = 1<<21, 1<<18, 1000
	e := &envoySims{t: t, client: client(t, 1), records: make(records.Channel, 256)}
	chat, urls := simFleet(t, 2, cfg)
	cfg.Model = []string{"seen"}
	behind := simAt(t, "127.0.0.1:0", cfg)
	cfg.Model, cfg.Speed = []string{"going"}, 1
	e.chat, e.going, e.relay = chat, simAt(t, "127.0.0.1:0", cfg), newRelay(t, behind.url)
	text := "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ndebug_headers: true\nextproc: {listen: \"127.0.0.1:0\", other_paths: true}\npools:\n" +
		"  - {name: chat, " + list(urls...) + "}\n" +
		"  - {name: seen, " + list(e.relay.URL) + ", queue: {max: 1}, full: {max_num_seqs: 1}}\n" +
		"  - {name: going, " + list(e.going.url) + "}\n"
	parsed, err := config.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if e.g, err = app.Start(t.Context(), parsed, slog.New(e.records)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.g.Close)
	eventually(t, 20*time.Second, func() string {
		for _, p := range statuses(t, e.g) {
			for _, s := range p.Endpoints {
				if s.ReportAge == nil || len(s.Models) == 0 {
					return s.Name + " is not known yet"
				}
			}
		}
		return ""
	})
	const filter = "                  - name: envoy.filters.http.ext_proc\n"
	e.base = envoy(t, append(urls, e.relay.URL, e.going.url), e.g.ExtProc(), filter, hinting+filter,
		"codec_type: AUTO", "http_protocol_options: {enable_trailers: true}", "explicit_http_config: {http_protocol_options: {}}",
		"explicit_http_config: {http_protocol_options: {enable_trailers: true}}")
	return e
}

// relay stands in front of a model server and shows what no simulated one does: headers and trailers as they arrive. While it has a
// gate, each event of a stream but the first waits for a word from there.
type relay struct {
	*httptest.Server
	mu      sync.Mutex
	header  http.Header // of the last POST
	trailer http.Header
	gate    chan bool
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{}
	forward := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(target) }, ModifyResponse: func(res *http.Response) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.gate != nil && strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
			res.Body = &gated{ReadCloser: res.Body, in: bufio.NewReader(res.Body), gate: r.gate}
		}
		return nil
	}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		forward.ServeHTTP(w, q)
		if q.Method == http.MethodPost {
			w.Header().Set(http.TrailerPrefix+"X-Behind", "the answer")
			w.Header().Set(http.TrailerPrefix+"X-Data-Parallel-Rank", "3")
			r.mu.Lock()
			r.header, r.trailer = q.Header, q.Trailer
			r.mu.Unlock()
		}
	}))
	t.Cleanup(func() { r.CloseClientConnections(); r.Close() })
	return r
}

// close gives the relay a gate, which is open once the function that is returned was called.
func (r *relay) close() (gate chan bool, open func()) {
	gate = make(chan bool)
	r.mu.Lock()
	r.gate = gate
	r.mu.Unlock()
	return gate, sync.OnceFunc(func() {
		r.mu.Lock()
		r.gate = nil
		r.mu.Unlock()
		close(gate)
	})
}

// gated is a stream of events that come one by one, each but the first one at a word from the gate.
type gated struct {
	io.ReadCloser
	in    *bufio.Reader
	gate  chan bool
	event []byte
	begun bool
}

func (g *gated) Read(p []byte) (int, error) {
	if len(g.event) == 0 {
		if g.begun {
			<-g.gate
		}
		g.begun = true
		for !strings.HasSuffix(string(g.event), "\n\n") {
			line, err := g.in.ReadBytes('\n')
			if g.event = append(g.event, line...); err != nil && len(g.event) == 0 {
				return 0, err
			} else if err != nil {
				break
			}
		}
	}
	n := copy(p, g.event)
	g.event = g.event[n:]
	return n, nil
}

// told is one answer through Envoy, read to its end, and the gateway's record of it.
type told struct {
	answer
	trailer http.Header
	record  map[string]string
}

// ask sends a body, whose readers end it, and waits for answer and record.
func (e *envoySims) ask(method, path string, body io.Reader, header map[string]string) told {
	e.t.Helper()
	e.records.Drop()
	a := e.send(method, path, body, header)
	a.record = e.records.Next(e.t)
	return a
}

func (e *envoySims) send(method, path string, body io.Reader, header map[string]string) told {
	e.t.Helper()
	return tell(e.t, e.client, method, e.base+path, body, header)
}

// tell sends a request and reads the answer to its end.
func tell(t *testing.T, c *http.Client, method, url string, body io.Reader, header map[string]string) (a told) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		r.Header.Set(k, v)
	}
	res, err := c.Do(r)
	if err != nil {
		t.Errorf("%s %s %v: %v", method, r.URL.Path, header, err)
		return told{}
	}
	defer res.Body.Close()
	a.status, a.endpoint, a.header = res.StatusCode, res.Header.Get("x-pointsman-endpoint"), res.Header
	a.body, a.err = io.ReadAll(res.Body)
	a.trailer = res.Trailer
	return a
}

// saying is a chat of about n bytes that asks for some tokens.
func saying(model string, seed, n int, more string) string {
	return fmt.Sprintf(`{"model":%q,"max_tokens":8,%s"messages":[{"role":"user","content":%q}]}`, model, more, words(seed, n))
}

const streamed = `"stream":true,"stream_options":{"include_usage":true},`

// TestEnvoySims is what a client gets through the real Envoy from simulated model servers, row by row.
func TestEnvoySims(t *testing.T) {
	e := newEnvoySims(t)
	t.Run("split inside the model's name", e.split)
	t.Run("one connection, two servers", e.spread)
	t.Run("every event at once", e.unbuffered)
	t.Run("trailers, and a destination of the client's", e.trailers)
	t.Run("full", e.full)
	t.Run("the server goes away", e.goes)
	one, two := e.chat[0].name, e.chat[1].name
	text := func(s string) map[string]string { return map[string]string{"test-subset-text": s} }
	fault := func(s string) map[string]string { return map[string]string{"x-vllmsim-fault": s} }
	for i, c := range []struct {
		name, path, body string
		header           map[string]string
		status           int
		at               string // the endpoint, "": any
		has              string // in the answer
		broken           bool   // the connection to the server breaks: so does the client's, or it is told 502 if nothing went out yet
		final            bool   // the client's library is told not to send it again
		outcome          string
	}{
		{name: "1 kB", body: saying("m", 1, 1_000, ""), outcome: "ok"},
		{name: "100 kB", body: saying("m", 2, 100_000, ""), outcome: "ok"},
		{name: "1 MB", body: saying("m", 3, 1_000_000, ""), outcome: "ok"},
		{name: "5 MB", body: saying("m", 4, 5_000_000, ""), outcome: "ok"},
		{name: "stream", body: saying("m", 5, 1_000, streamed), has: "data: [DONE]", outcome: "ok"},
		{name: "stream, 5 MB", body: saying("m", 6, 5_000_000, streamed), has: "data: [DONE]", outcome: "ok"},
		{name: "subset, text", body: saying("m", 7, 1_000, ""), header: text(" " + two), at: two, outcome: "ok"},
		{name: "subset, text, the other", body: saying("m", 7, 1_000, ""), header: text(one), at: one, outcome: "ok"},
		{name: "subset, list", body: saying("m", 7, 1_000, ""), header: listed(t, two, "10.9.9.9:1"), at: two, outcome: "ok"},
		{name: "subset, list, the other", body: saying("m", 7, 1_000, ""), header: listed(t, one), at: one, outcome: "ok"},
		{name: "subset unknown", body: saying("m", 7, 1_000, ""), header: text("10.9.9.9:1"), status: 503, has: `"type":"server_error"`, outcome: "no_endpoint"},
		{name: "subset empty, Anthropic", path: "/v1/messages", body: saying("m", 7, 1_000, ""), header: listed(t), status: 503, has: `"type":"overloaded_error"`,
			outcome: "no_endpoint"},
		{name: "no JSON", body: "no healthy upstream", status: 400, has: `"code":"bad_json"`, outcome: "client_error"},
		{name: "no model, Anthropic", path: "/v1/messages", body: `{"max_tokens":1}`, status: 400, has: `{"type":"error","error":{"type":"invalid_request_error"`, outcome: "client_error"},
		{name: "clean early end", body: saying("m", 8, 1_000, streamed), header: fault("early-end;after=3"), has: `"code":"upstream_eof"`, outcome: "cut"},
		{name: "no last chunk", body: saying("m", 9, 1_000, streamed), header: fault("cut;after=3"), broken: true, outcome: "client_cancelled"},
		{name: "reset", body: saying("m", 10, 1_000, streamed), header: fault("reset;after=3"), broken: true, outcome: "client_cancelled"},
		{name: "reset before the head", body: saying("m", 11, 1_000, ""), header: fault("reset"), status: 503, has: "connection termination", final: true, outcome: "upstream_error"},
		{name: "the engine's refusal", body: saying("m", 11, 1_000, ""), header: fault("429;retry-after=2"), status: 429, outcome: "shed"},
		{name: "header only", path: "/version", header: text(two), at: two, has: `"version"`, outcome: "ok"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := e.executed(c.body)
			method, path, body := http.MethodPost, "/v1/chat/completions", io.Reader(strings.NewReader(c.body))
			if c.body == "" {
				method, body = http.MethodGet, nil
			}
			if c.path != "" {
				path = c.path
			}
			a := e.ask(method, path, body, c.header)
			broken := a.err != nil || a.status == 502 && strings.HasPrefix(string(a.body), "upstream connect error")
			if a.status != max(c.status, 200) && !broken || broken != c.broken || !strings.Contains(string(a.body), c.has) || c.at != "" && a.endpoint != c.at {
				t.Errorf("row %d: status %d at %q, %v: %.300q", i, a.status, a.endpoint, a.err, a.body)
			}
			if (a.header.Get("x-should-retry") == "false") != (c.final || a.status == 502) || a.record["outcome"] != c.outcome || c.status != 429 && c.status >= 400 && a.header.Get("x-pointsman-reason") != a.record["error_reason"] {
				t.Errorf("record %v, headers %v", a.record, a.header)
			}
			if c.outcome != "ok" || c.body == "" {
				return
			}
			if n := e.executed(c.body) - before; n != 1 {
				t.Errorf("%d requests of these %d bytes were executed", n, len(c.body))
			}
			if p, o := usage(a.body); p == "" || a.record["prompt_tokens"] != p || a.record["output_tokens"] != o {
				t.Errorf("the answer says %s and %s tokens, record %v", p, o, a.record)
			}
		})
	}
	eventually(t, 10*time.Second, func() string {
		for _, p := range statuses(t, e.g) {
			if p.InFlight != 0 {
				return fmt.Sprintf("%d requests still booked in %s", p.InFlight, p.Name)
			}
		}
		return ""
	})
}

// listed makes a header that becomes a subset hint in the form of a list.
func listed(t *testing.T, addresses ...string) map[string]string {
	t.Helper()
	all := &structpb.ListValue{}
	for _, a := range addresses {
		all.Values = append(all.Values, structpb.NewStringValue(a))
	}
	raw, err := proto.Marshal(structpb.NewListValue(all))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"test-subset-list": base64.StdEncoding.EncodeToString(raw)}
}

// executed is how often the two servers of pool chat have run a request with exactly this body.
func (e *envoySims) executed(body string) (n int64) {
	sum := sha256.Sum256([]byte(body))
	for _, s := range e.chat {
		n += s.Stats().ByBody[hex.EncodeToString(sum[:])]
	}
	return n
}

var promptTokens, outputTokens = regexp.MustCompile(`"prompt_tokens":(\d+)`), regexp.MustCompile(`"completion_tokens":(\d+)`)

// usage is what an answer says of its tokens, "" if nothing.
func usage(body []byte) (prompt, output string) {
	last := func(r *regexp.Regexp) string {
		all := r.FindAllSubmatch(body, -1)
		if len(all) == 0 {
			return ""
		}
		return string(all[len(all)-1][1])
	}
	return last(promptTokens), last(outputTokens)
}

// split sends a body in two pieces, the first of which ends in the middle of the model's name, behind 50 kB of prompt.
func (e *envoySims) split(t *testing.T) {
	body := fmt.Sprintf(`{"max_tokens":8,"messages":[{"role":"user","content":%q}],"model":"m"}`, words(20, 50_000))
	in, out := io.Pipe()
	go func() {
		_, _ = io.WriteString(out, body[:len(body)-3]) // returns when the client has taken it
		_, _ = io.WriteString(out, body[len(body)-3:])
		_ = out.Close()
	}()
	a := e.ask(http.MethodPost, "/v1/chat/completions", in, nil)
	if n := e.executed(body); a.status != 200 || n != 1 || a.record["outcome"] != "ok" {
		t.Errorf("status %d, executed %d times, record %v: %.300q", a.status, n, a.record, a.body)
	}
}

// spread sends different prompts over one connection.
func (e *envoySims) spread(t *testing.T) {
	at := map[string]int{}
	for i := range 20 {
		at[e.ask(http.MethodPost, "/v1/chat/completions", strings.NewReader(saying("m", 30+i, 20_000, "")), nil).endpoint]++
	}
	if len(at) != 2 || slices.Min(slices.Collect(maps.Values(at))) < 5 {
		t.Errorf("20 different prompts over one connection went to %v", at)
	}
}

// unbuffered lets each event out of the server only when the client has the one before.
func (e *envoySims) unbuffered(t *testing.T) {
	gate, open := e.relay.close()
	defer open()
	res, err := askEnvoy(t, e.client, e.base+"/v1/chat/completions", saying("seen", 60, 100, streamed))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines, events, last := bufio.NewScanner(res.Body), 0, ""
	for last != "data: [DONE]" && lines.Scan() {
		if last = lines.Text(); strings.HasPrefix(last, "data: {") {
			events++
			gate <- true
		}
	}
	if lines.Err() != nil || last != "data: [DONE]" || events < 10 {
		t.Errorf("%d events, the last line is %q, %v", events, last, lines.Err())
	}
}

// trailers looks at what arrives at the server and what comes back behind the answer.
func (e *envoySims) trailers(t *testing.T) {
	e.records.Drop()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.base+"/v1/chat/completions", io.MultiReader(strings.NewReader(saying("seen", 61, 900_000, streamed))))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Gateway-Destination-Endpoint", e.chat[0].name)
	r.Header.Set("X-Data-Parallel-Rank", "3")
	r.Trailer = http.Header{"X-After": {"the body"}}
	res, err := e.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || !strings.HasSuffix(string(text), "data: [DONE]\n\n") || res.Trailer.Get("X-Behind") != "the answer" || len(res.Trailer) != 1 {
		t.Errorf("%v, trailers %v: %.300q", err, res.Trailer, text)
	}
	if rec := e.records.Next(t); rec["outcome"] != "ok" || rec["endpoint"] != strings.TrimPrefix(e.relay.URL, "http://") {
		t.Errorf("record %v", rec)
	}
	e.relay.mu.Lock()
	defer e.relay.mu.Unlock()
	if h := e.relay.header; e.relay.trailer.Get("X-After") != "the body" || h.Get("X-Data-Parallel-Rank") != "" ||
		h.Get("X-Gateway-Destination-Endpoint") != strings.TrimPrefix(e.relay.URL, "http://") {
		t.Errorf("arrived with %v and trailers %v", h, e.relay.trailer)
	}
}

// full fills a server that runs one request at a time and the queue in front of it: the next request is refused, the others end well.
func (e *envoySims) full(t *testing.T) {
	_, open := e.relay.close()
	defer open()
	e.client = client(t, 8)
	answers := make(chan told, 2)
	begin := func(i int) {
		answers <- e.send(http.MethodPost, "/v1/chat/completions", strings.NewReader(saying("seen", 70+i, 1_000, streamed)), nil)
	}
	seen := func(check func(running, waiting int) bool, what string) {
		t.Helper()
		eventually(t, 10*time.Second, func() string {
			for _, p := range statuses(t, e.g) {
				if p.Name == "seen" {
					return unless(check(p.InFlight, p.Queue.Waiting), what)
				}
			}
			return "no such pool"
		})
	}
	go begin(0)
	seen(func(n, _ int) bool { return n == 1 }, "the first one does not run")
	go begin(1)
	seen(func(_, n int) bool { return n == 1 }, "the second one does not wait")
	a := e.send(http.MethodPost, "/v1/messages", strings.NewReader(saying("seen", 72, 1_000, "")), nil)
	if a.status != 429 || a.header.Get("Retry-After") == "" || a.header.Get("x-pointsman-reason") != "queue_full" || !strings.Contains(string(a.body), `"type":"rate_limit_error"`) {
		t.Errorf("one too many is told %d %v %s", a.status, a.header, a.body)
	}
	open()
	for range 2 {
		if a := <-answers; a.status != 200 || a.err != nil || !strings.HasSuffix(string(a.body), "data: [DONE]\n\n") {
			t.Errorf("status %d, %v: %.300q", a.status, a.err, a.body)
		}
	}
}

// goes ends a server as Kubernetes does, in the middle of a stream, which then says nothing more and never ends.
func (e *envoySims) goes(t *testing.T) {
	e.records.Drop()
	res, err := askEnvoy(t, e.client, e.base+"/v1/chat/completions", strings.Replace(saying("going", 80, 1_000, streamed), `"max_tokens":8`, `"max_tokens":100000`, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	in := bufio.NewReader(res.Body)
	if _, err = in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	e.going.Terminate()
	text, err := io.ReadAll(in)
	if err != nil || !strings.Contains(string(text), `"code":"upstream_gone"`) {
		t.Errorf("%v: %.300q", err, text[max(0, len(text)-300):])
	}
	if rec := e.records.Next(t); rec["outcome"] != "cut" || rec["error_reason"] != "upstream_error" {
		t.Errorf("record %v", rec)
	}
}
