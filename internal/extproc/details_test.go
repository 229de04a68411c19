package extproc

import (
	"bytes"
	"compress/gzip"
	"slices"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"pointsman.dev/pointsman/internal/pool"
)

// modes makes the first message of a request say its body modes.
func modes(m *extprocv3.ProcessingRequest, request, response filterv3.ProcessingMode_BodySendMode) *extprocv3.ProcessingRequest {
	m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: request, ResponseBodyMode: response}
	return m
}

// TestRefusalHeaders: a refusal says by which id the request is known, and what else a method may be.
func TestRefusalHeaders(t *testing.T) {
	r := newRig(t, endpoints(1))
	k := r.call()
	k.send(requestHeaders("GET", chat, true, "x-request-id", "my-id"))
	if i := k.refused(); i.Status.Code != 405 || mutated(i.Headers, "allow") != "POST" || mutated(i.Headers, headerID) != "my-id" {
		t.Errorf("%v", i)
	}
	if rec := r.record(); rec["request_id"] != "my-id" {
		t.Errorf("record %v", rec)
	}
}

// TestSteeredRoute: where a client's header is taken away the route is looked for again, on every path that a pick goes out on.
func TestSteeredRoute(t *testing.T) {
	for _, c := range []struct {
		name     string
		mode     filterv3.ProcessingMode_BodySendMode
		trailers bool
	}{{"FULL_DUPLEX_STREAMED", modeDuplex, false}, {"trailers", modeDuplex, true}, {"BUFFERED", modeBuffer, false}, {"STREAMED", modeStream, false}} {
		for _, header := range []string{"x-data-parallel-rank", "x-gateway-inference-objective"} { // the other one is nobody's to judge
			t.Run(c.name+"/"+header, func(t *testing.T) {
				r := newRig(t, endpoints(1))
				k := r.call()
				k.send(modes(requestHeaders("POST", chat, false, headerModel, "m", header, "3"), c.mode, modeDuplex))
				if c.mode == modeBuffer {
					k.recv()
				}
				if c.mode != modeStream {
					k.send(requestBody(chatBody, !c.trailers))
				}
				if c.trailers {
					k.send(requestTrailers())
				}
				m := k.recv()
				common := m.GetRequestHeaders().GetResponse()
				if c.mode == modeBuffer {
					common = m.GetRequestBody().GetResponse()
				}
				steers := header == "x-data-parallel-rank"
				if mutated(common.GetHeaderMutation(), headerDestination) == "" || common.GetClearRouteCache() != steers ||
					slices.Contains(common.GetHeaderMutation().GetRemoveHeaders(), header) != steers {
					t.Errorf("answered with %v", common)
				}
				k.end()
			})
		}
	}
}

// TestPoolsKey: the pool's own key takes the place of whatever key a client sends.
func TestPoolsKey(t *testing.T) {
	for _, key := range []string{"", "secret"} {
		r := newRigOf(t, pool.Config{Name: "p", APIKey: key}, endpoints(1))
		k := r.call()
		k.send(requestHeaders("POST", chat, false, "authorization", "Bearer mine", "x-api-key", "mine", "api-key", "mine"))
		k.send(requestBody(chatBody, true))
		_, common := k.picked()
		want, removed := "", ""
		if key != "" {
			want, removed = "Bearer secret", "x-api-key api-key"
		}
		if m := common.GetHeaderMutation(); mutated(m, "authorization") != want || strings.Join(m.GetRemoveHeaders(), " ") != removed {
			t.Errorf("key %q: %v", key, m)
		}
		k.end()
	}
}

// TestRenamedQuery: a model that the query names is renamed there.
func TestRenamedQuery(t *testing.T) {
	r := newRig(t, endpoints(1))
	k := r.call()
	k.send(requestHeaders("GET", "/v1/realtime?a=1&model=fast&b=2", false))
	if _, common := k.picked(); mutated(common.GetHeaderMutation(), ":path") != "/v1/realtime?a=1&model=m&b=2" {
		t.Errorf("headers %v", common.GetHeaderMutation())
	}
	for _, end := range []bool{false, true} { // frames, which pass as they come
		k.send(requestBody("frame", end))
		if s := k.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse(); string(s.GetBody()) != "frame" || s.GetEndOfStream() != end {
			t.Errorf("a frame came back as %v", s)
		}
	}
	k.end()
}

// TestPackedBody: a compressed body is read, and goes on as it came.
func TestPackedBody(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write([]byte(chatBody))
	_ = w.Close()
	r := newRig(t, endpoints(1))
	k := r.call()
	k.send(requestHeaders("POST", chat, false, "content-encoding", "gzip"))
	k.send(requestBody(packed.String(), true))
	k.picked()
	if k.body() != packed.String() {
		t.Error("it came back changed")
	}
	k.end()
}

// TestOnlyModel: in STREAMED, in which the body comes too late, the only model that there is need not be named.
func TestOnlyModel(t *testing.T) {
	r := newRig(t, endpoints(1))
	r.dir.Set([]*pool.Pool{r.pool}, nil)
	k := r.call()
	k.send(modes(requestHeaders("POST", chat, false), modeStream, modeDuplex))
	k.picked()
	k.send(requestBody(chatBody, true))
	k.recv()
	k.answerHeaders("200", "application/json", true)
	k.close()
	if rec := r.record(); rec["model"] != "m" || rec["bytes_in"] != "66" {
		t.Errorf("record %v", rec)
	}
}

// TestWholeMessage: in BUFFERED a body of any size that is allowed is one message.
func TestWholeMessage(t *testing.T) {
	r := newRig(t, endpoints(1), func(c *Config) { c.BodyMemory, c.TempDir = 1<<20, t.TempDir() })
	k := r.call()
	k.send(modes(requestHeaders("POST", chat, false), modeBuffer, modeBuffer))
	k.recv()
	k.send(requestBody(`{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("word ", 1_600_000)+`"}]}`, true))
	if m := k.recv().GetRequestBody().GetResponse().GetHeaderMutation(); mutated(m, headerDestination) == "" {
		t.Errorf("no pick: %v", m)
	}
	k.end()
}

// TestObserved: messages that Envoy only shows are not answered, and nothing is booked.
func TestObserved(t *testing.T) {
	r := newRig(t, endpoints(1))
	k := r.call()
	for _, m := range []*extprocv3.ProcessingRequest{requestHeaders("POST", chat, false), requestBody(chatBody, true), responseHeaders("200", "application/json", true)} {
		m.ObservabilityMode = true
		k.send(m)
	}
	k.close() // fails when there is an answer
	if len(r.records) > 0 {
		t.Errorf("record %v", r.record())
	}
}

// TestClientsRetry: a client's own retry is recorded with how far the attempt before it had got.
func TestClientsRetry(t *testing.T) {
	r := newRig(t, endpoints(1))
	for _, count := range []string{"0", "1"} {
		k := r.call()
		k.send(requestHeaders("POST", chat, false, "x-stainless-retry-count", count))
		k.send(requestBody(chatBody, true))
		k.picked()
		k.body()
		k.answerHeaders("500", "application/json", true)
		k.close()
		if rec := r.record(); (rec["retry_reached"] != "") != (count == "1") {
			t.Errorf("retry %s: record %v", count, rec)
		}
	}
}

// TestSettingsKeepMemory: what is remembered of requests outlives a change of the configuration.
func TestSettingsKeepMemory(t *testing.T) {
	r := newRig(t, endpoints(1))
	before := r.server.now.Load().Memory
	r.server.Configure(Config{Directory: r.dir})
	if r.server.now.Load().Memory != before {
		t.Error("it is lost")
	}
}

// TestAnswerHeaders: what an answer must not say is taken away, and what is wished for is said.
func TestAnswerHeaders(t *testing.T) {
	for _, debug := range []bool{false, true} {
		r := newRig(t, endpoints(1), func(c *Config) { c.DebugHeaders = debug })
		k, picks := r.sent(modeDuplex)
		m := k.answerHeaders("200", "text/event-stream", false, "content-length", "1000", "alt-svc", "h3=\":443\"")
		if got := strings.Join(m.GetRemoveHeaders(), " "); got != "alt-svc content-length" { // an error event may have to follow
			t.Errorf("removed %q", got)
		}
		if (mutated(m, headerEndpoint) == picks[0]) != debug || (mutated(m, headerPick) != "") != debug {
			t.Errorf("debug headers %v: %v", debug, m)
		}
		k.send(responseHeaders("500", "text/plain", false)) // there is one head only
		if m := k.recv().GetResponseHeaders(); m == nil || m.GetResponse().GetHeaderMutation() != nil {
			t.Errorf("a second head is answered with %v", m)
		}
		k.end()
		if rec := r.record(); rec["status"] != "200" {
			t.Errorf("record %v", rec)
		}
	}
}

// TestAnswerEnds: how an answer ended, by what of it was seen.
func TestAnswerEnds(t *testing.T) {
	const delta = `data: {"choices":[{"index":0,"delta":{"content":"a"}}]}` + "\n\n"
	const last = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	const done = "data: [DONE]\n\n"
	for _, c := range []struct {
		name, kind string
		mode       filterv3.ProcessingMode_BodySendMode
		pieces     []string
		end        bool // behind them; else Envoy's stream just ends
		outcome    string
		has        string // of what goes out for the last piece
		drains     bool
	}{
		{"left behind the last event", "text/event-stream", modeDuplex, []string{delta, last, done}, false, "ok", done, false},
		{"left before it", "text/event-stream", modeDuplex, []string{delta, last}, false, "client_cancelled", last, false},
		{"half a JSON value", "application/json", modeDuplex, []string{`{"id":`, ``}, true, "cut", "", false},
		{"an empty answer", "application/json", modeDuplex, []string{``}, true, "ok", "", false},
		{"a stream of a server that drains", "text/event-stream", modeDuplex, []string{done, ``}, true, "cut", "", true},
		{"cut, and more comes", "text/event-stream", modeDuplex, []string{delta, done, delta}, false, "cut", "", false},
		{"BUFFERED, trailers follow", "text/event-stream", modeBuffer, []string{delta}, false, "cut", `"code":"upstream_eof"`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, endpoints(1))
			k := r.call()
			k.send(modes(requestHeaders("POST", chat, false), modeDuplex, c.mode))
			k.send(requestBody(`{"model":"m","stream":true}`, true))
			k.picked()
			k.body()
			k.answerHeaders("200", c.kind, false)
			out := ""
			for i, p := range c.pieces {
				k.send(responseBody(p, c.end && i == len(c.pieces)-1))
				m := k.recv().GetResponseBody().GetResponse().GetBodyMutation()
				out = string(m.GetStreamedResponse().GetBody()) + string(m.GetBody())
			}
			if !strings.Contains(out, c.has) || c.name == "cut, and more comes" && out != "" {
				t.Errorf("the last piece goes out as %q", out)
			}
			k.close()
			if rec := r.record(); rec["outcome"] != c.outcome {
				t.Errorf("record %v", rec)
			}
			if state := r.pool.Status().Endpoints[0].State; (state == "draining") != c.drains {
				t.Errorf("the endpoint is %s", state)
			}
		})
	}
}

// TestOddHeads: heads that no gateway should send are refused in good order.
func TestOddHeads(t *testing.T) {
	huge := strings.Repeat("x", 500_000)
	for name, m := range map[string]*extprocv3.ProcessingRequest{
		"nothing":      {Request: &extprocv3.ProcessingRequest_RequestHeaders{}},
		"no headers":   {Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{EndOfStream: true}}},
		"no path":      {Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(":method", "POST")}}},
		"no method":    {Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(":path", chat)}}},
		"huge path":    requestHeaders("POST", "/"+huge, true),
		"huge method":  requestHeaders(huge, chat, true),
		"bytes":        requestHeaders("PO\xffST", "/\x00\xff", true, "x-request-id", "\xff\x00"),
		"huge control": requestHeaders("POST", "/reset_prefix_cache?"+huge, false),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, endpoints(1))
			k := r.call()
			k.send(m)
			if i := k.refused(); i.Status.Code < 400 || i.Status.Code >= 500 || len(i.Body) > 2000 {
				t.Errorf("%d, %d bytes", i.Status.Code, len(i.Body))
			}
			k.close()
		})
	}
	t.Run("many headers", func(t *testing.T) {
		r := newRig(t, endpoints(1))
		k := r.call()
		var pairs []string
		for range 5000 {
			pairs = append(pairs, "x-some-header", strings.Repeat("y", 100))
		}
		k.send(requestHeaders("POST", chat, false, pairs...))
		k.send(requestBody(chatBody, true))
		k.picked()
		k.body()
		k.end()
	})
}
