package extproc

import (
	"strings"
	"testing"
)

func first(pick string) string { a, _, _ := strings.Cut(pick, ","); return a }

// TestSplitBody: a body that is cut inside the model's name is picked for once and comes back as it went.
func TestSplitBody(t *testing.T) {
	r := newRig(t, endpoints(3))
	c := r.call()
	c.send(requestHeaders("POST", chat, false))
	at := strings.Index(chatBody, `m"`) // inside the name's quotes
	c.send(requestBody(chatBody[:at], false))
	c.send(requestBody(chatBody[at:], true))
	pick, common := c.picked()
	if got := strings.Split(pick, ","); len(got) != 3 {
		t.Errorf("the pick names %v, want all three in order", got)
	}
	if common.ClearRouteCache {
		t.Error("the route is looked for again, though no header of the client steers it")
	}
	if got := c.body(); got != chatBody {
		t.Errorf("came back as %q", got)
	}
	c.answerHeaders("200", "application/json", false)
	for _, p := range []string{`{"usage":{"prompt_tokens":7,`, `"completion_tokens":10}}`} {
		c.send(responseBody(p, false))
		if got, end := c.piece(); got != p || end {
			t.Errorf("%q came back as %q, end %v", p, got, end)
		}
	}
	c.send(responseBody("", true))
	if got, end := c.piece(); got != "" || !end {
		t.Errorf("the end came back as %q, end %v", got, end)
	}
	c.close()
	rec := r.record()
	if rec["outcome"] != "ok" || rec["prompt_tokens"] != "7" || rec["output_tokens"] != "10" || rec["endpoint"] != first(pick) || rec["status"] != "200" || rec["pool"] != "p" {
		t.Errorf("record %v", rec)
	}
}

// TestRefusals: what cannot be picked for is answered in the client's dialect, with the reason as a header.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name, path, body string
		none             bool
		status           int
		reason, text     string
	}{
		{"no JSON", chat, "no healthy upstream", false, 400, "bad_json", `"invalid_request_error"`},
		{"no model", "/v1/completions", `{"prompt":"hello world"}`, false, 400, "missing_model", `"code":"missing_model"`},
		{"unknown model", chat, `{"model":"n"}`, false, 404, "unknown_model", `"model_not_found"`},
		{"Anthropic's dialect", "/v1/messages", `{"model":"n"}`, false, 404, "unknown_model", `"not_found_error"`},
		{"no endpoint", chat, chatBody, true, 503, "no_endpoint", `"server_error"`},
		{"no endpoint, Anthropic's dialect", "/v1/messages", chatBody, true, 503, "no_endpoint", `"overloaded_error"`},
		{"control path", "/reset_prefix_cache", `{}`, false, 404, "not_found", `there is no such path`},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := 2
			if c.none {
				n = 0
			}
			r := newRig(t, endpoints(n))
			k := r.call()
			k.send(requestHeaders("POST", c.path, false))
			_ = k.out.Send(requestBody(c.body, true))
			i := k.refused()
			if int(i.Status.Code) != c.status || mutated(i.Headers, headerReason) != c.reason || mutated(i.Headers, headerDropped) != c.reason ||
				mutated(i.Headers, "content-type") != "application/json" || !strings.Contains(string(i.Body), c.text) {
				t.Errorf("%d %v %s", i.Status.Code, i.Headers, i.Body)
			}
			if c.status == 503 && mutated(i.Headers, "retry-after") == "" {
				t.Error("no Retry-After")
			}
			_ = k.out.CloseSend()
			if rec := r.record(); rec["error_reason"] != c.reason {
				t.Errorf("record %v", rec)
			}
		})
	}
}

// TestSubset: a request goes to the endpoints that the gateway allows, and to none when it allows none.
func TestSubset(t *testing.T) {
	list := []endpoint{{"10.0.0.1:8000", 0, 0.1}, {"10.0.0.2:8000", 3, 0.5}, {"10.0.0.3:8000", 9, 0.9}, {"[fd00::1]:8000", 9, 0.9}}
	for _, c := range []struct {
		name string
		hint any
		want string // "" for a refusal
	}{
		{"three", []any{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"}, "10.0.0.1:8000"},
		{"one, loaded", []any{"10.0.0.3:8000"}, "10.0.0.3:8000"},
		{"one, as text", "10.0.0.3:8000", "10.0.0.3:8000"},
		{"two, as text with space", " 10.0.0.3:8000 ,\t10.0.0.2:8000", "10.0.0.2:8000"},
		{"without port", []any{"10.0.0.3"}, "10.0.0.3:8000"},
		{"IPv6", []any{"[fd00::1]:8000"}, "[fd00::1]:8000"},
		{"IPv6 without port", "fd00::1", "[fd00::1]:8000"},
		{"another port", []any{"10.0.0.3:8001"}, ""},
		{"unknown", []any{"10.9.9.9:8000"}, ""},
		{"empty list", []any{}, ""},
		{"empty text", "", ""},
		{"of another type", 7, ""},
	} {
		for _, phase := range []string{"headers", "body"} {
			t.Run(c.name+"/"+phase, func(t *testing.T) {
				r := newRig(t, list)
				k := r.call()
				h, b := requestHeaders("POST", chat, false), requestBody(chatBody, true)
				hinted := h
				if phase == "body" {
					hinted = b
				}
				withMeta(hinted, "envoy.lb.subset_hint", keySubset, c.hint)
				k.send(h)
				k.send(b)
				if c.want == "" {
					if i := k.refused(); i.Status.Code != 503 {
						t.Errorf("status %d", i.Status.Code)
					}
					return
				}
				pick, _ := k.picked()
				if first(pick) != c.want {
					t.Errorf("picked %s, want %s", pick, c.want)
				}
				k.body()
				k.end()
			})
		}
	}
}

// TestHeaderOnly: a request without a body is picked for at once, within the subset.
func TestHeaderOnly(t *testing.T) {
	r := newRig(t, endpoints(3), func(c *Config) { c.OtherPaths = true })
	k := r.call()
	k.send(withMeta(requestHeaders("GET", "/docs", true), "envoy.lb.subset_hint", keySubset, []any{"10.0.0.2"}))
	if pick, _ := k.picked(); pick != "10.0.0.2:8000,10.0.0.2:8000,10.0.0.2:8000" { // three attempts, and none at Envoy's own choice
		t.Errorf("picked %s", pick)
	}
	k.answerHeaders("200", "text/html", true)
	k.close()
	if rec := r.record(); rec["outcome"] != "ok" || rec["unknown_path"] != "/docs" {
		t.Errorf("record %v", rec)
	}
}

// TestModels: the list of models is the gateway's own.
func TestModels(t *testing.T) {
	r := newRig(t, endpoints(1))
	k := r.call()
	k.send(requestHeaders("GET", "/v1/models", true))
	if i := k.refused(); i.Status.Code != 200 || !strings.Contains(string(i.Body), `"id":"fast"`) {
		t.Errorf("%d %s", i.Status.Code, i.Body)
	}
}

// TestStream: events come back as they are, one by one; the usage is counted once.
func TestStream(t *testing.T) {
	r := newRig(t, endpoints(2))
	c := r.call()
	c.send(requestHeaders("POST", chat, false))
	c.send(requestBody(`{"model":"m","stream":true,"messages":[]}`, true))
	c.picked()
	c.body()
	m := c.answerHeaders("200", "text/event-stream; charset=utf-8", false, "server", "uvicorn", "x-data-parallel-rank", "3", "x-where", "10.0.0.1:8000 10.0.0.2:8000")
	if mutated(m, headerID) == "" || strings.Join(m.RemoveHeaders, " ") != "server x-data-parallel-rank x-where" {
		t.Errorf("the answer's headers become %v", m)
	}
	for _, e := range []string{
		"data: {}\n\n", ": ping\n\n",
		`data: {"choices":[{"index":0,"delta":{"content":"a"}}]}` + "\n\n",
		`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n",
		`data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n",
		"data: [DONE]\n\n",
	} {
		c.send(responseBody(e, false))
		if got, end := c.piece(); got != e || end {
			t.Errorf("%q came back as %q, end %v", e, got, end)
		}
	}
	c.send(responseBody("", true))
	if got, end := c.piece(); got != "" || !end {
		t.Errorf("the end came back as %q, %v", got, end)
	}
	c.close()
	rec := r.record()
	if rec["outcome"] != "ok" || rec["prompt_tokens"] != "7" || rec["output_tokens"] != "10" || rec["actual_hit_tokens"] != "4" || rec["ttft_seconds"] == "" {
		t.Errorf("record %v", rec)
	}
}

// TestClientsOwnHeaders: what a client sets to steer is overwritten or taken away, and the route is looked for again.
func TestClientsOwnHeaders(t *testing.T) {
	for _, end := range []bool{false, true} {
		r := newRig(t, endpoints(1), func(c *Config) { c.OtherPaths = true })
		k := r.call()
		steer := []string{headerDestination, "6.6.6.6:80", "x-data-parallel-rank", "3", "x-prefiller-host-port", "6.6.6.6:80", "x-gateway-destination-endpoint-subset", "6.6.6.6",
			"accept-encoding", "gzip", "x-request-id", "bad id"}
		if end {
			k.send(requestHeaders("GET", "/x", true, steer...))
		} else {
			k.send(requestHeaders("POST", chat, false, steer...))
			k.send(requestBody(chatBody, true))
		}
		pick, common := k.picked()
		if pick != "10.0.0.1:8000" {
			t.Errorf("picked %s", pick)
		}
		if got := strings.Join(common.HeaderMutation.RemoveHeaders, " "); got != "x-data-parallel-rank x-prefiller-host-port x-gateway-destination-endpoint-subset" || !common.ClearRouteCache {
			t.Errorf("removed %q, route cleared %v", got, common.ClearRouteCache)
		}
		if mutated(common.HeaderMutation, "accept-encoding") != "identity" || len(mutated(common.HeaderMutation, "x-request-id")) != 24 {
			t.Errorf("headers %v", common.HeaderMutation)
		}
		k.end()
	}
}

// TestRename: an alias changes the bytes of one value, and a gateway's header renames like an alias.
func TestRename(t *testing.T) {
	for _, c := range []struct{ name, body, header, value, want string }{
		{"alias", `{"model":"fast","n":1}`, "", "", `{"model":"m","n":1}`},
		{"header", `{"model":"whatever","n":1}`, "x-llm-d-model-name-rewrite", "m", `{"model":"m","n":1}`},
		{"older header", `{"model":"whatever","n":1}`, "x-gateway-model-name-rewrite", "fast", `{"model":"m","n":1}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, endpoints(1))
			k := r.call()
			k.send(requestHeaders("POST", chat, false, c.header, c.value))
			k.send(requestBody(c.body, true))
			k.picked()
			if got := k.body(); got != c.want {
				t.Errorf("came back as %s", got)
			}
			k.end()
		})
	}
}

// TestLargeBody: a body of any size comes back byte for byte, in pieces that Envoy takes.
func TestLargeBody(t *testing.T) {
	r := newRig(t, endpoints(1), func(c *Config) { c.BodyMemory, c.TempDir = 1<<20, t.TempDir() })
	for _, n := range []int{1_000, chunkSize - 60, chunkSize, 5_000_000} {
		body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", n/5) + `"}]}`
		k := r.call()
		k.send(requestHeaders("POST", chat, false))
		for rest := body; rest != ""; {
			p := rest[:min(len(rest), 60_000)]
			rest = rest[len(p):]
			k.send(requestBody(p, rest == ""))
		}
		k.picked()
		if got := k.body(); got != body {
			t.Errorf("%d bytes came back as %d others", len(body), len(got))
		}
		k.end()
	}
}

// TestTooLarge: a body beyond max_body is refused at its announcement, or as soon as it is known.
func TestTooLarge(t *testing.T) {
	r := newRig(t, endpoints(1), func(c *Config) { c.MaxBody = 1000 })
	k := r.call()
	k.send(requestHeaders("POST", chat, false, "content-length", "1001"))
	if i := k.refused(); i.Status.Code != 413 || mutated(i.Headers, headerReason) != "too_large" {
		t.Errorf("%v", i)
	}
	k = r.call()
	k.send(requestHeaders("POST", chat, false))
	k.send(requestBody(strings.Repeat(" ", 1001), false))
	if i := k.refused(); i.Status.Code != 413 {
		t.Errorf("%v", i)
	}
}

// TestEarlyEnd: a stream that its model server ends before it is complete gets an error event in front of its end.
func TestEarlyEnd(t *testing.T) {
	const delta = `data: {"choices":[{"index":0,"delta":{"content":"a"}}]}` + "\n\n"
	for _, c := range []struct {
		name     string
		events   []string
		trailers bool
		code     string
	}{
		{"end", []string{delta}, false, "upstream_eof"},
		{"trailers", []string{delta}, true, "upstream_eof"},
		{"end marker too early", []string{delta, "data: [DONE]\n\n"}, false, "engine_abort"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, endpoints(1))
			k := r.call()
			k.send(requestHeaders("POST", chat, false))
			k.send(requestBody(`{"model":"m","stream":true}`, true))
			k.picked()
			k.body()
			k.answerHeaders("200", "text/event-stream", false)
			var got strings.Builder
			for _, e := range c.events {
				k.send(responseBody(e, false))
				p, _ := k.piece()
				got.WriteString(p)
			}
			if c.trailers {
				k.send(responseTrailers())
				p, end := k.piece()
				got.WriteString(p)
				if m := k.recv(); end || m.GetResponseTrailers() == nil {
					t.Errorf("end %v, then %v", end, m)
				}
			} else {
				k.send(responseBody("", true))
				p, end := k.piece()
				got.WriteString(p)
				if !end {
					t.Error("no end")
				}
			}
			k.close()
			if text := got.String(); !strings.HasPrefix(text, delta+`data: {"error":`) || !strings.Contains(text, c.code) || strings.Contains(text, "[DONE]") {
				t.Errorf("the client gets %q", text)
			}
			if rec := r.record(); rec["outcome"] != "cut" {
				t.Errorf("record %v", rec)
			}
		})
	}
}

// TestStreamEndsEarly: wherever the gRPC stream ends, the booking is released and the record written once.
func TestStreamEndsEarly(t *testing.T) {
	r := newRig(t, endpoints(2))
	steps := []func(k *call){
		func(k *call) { k.send(requestHeaders("POST", chat, false)) },
		func(k *call) { k.send(requestBody(chatBody[:10], false)) },
		func(k *call) { k.send(requestBody(chatBody[10:], true)); k.picked(); k.body() },
		func(k *call) { k.answerHeaders("200", "text/event-stream", false) },
		func(k *call) { k.send(responseBody("data: {}\n\n", false)); k.piece() },
	}
	for n := len(steps); n >= 1; n-- { // those that may leave no record come last
		for _, abort := range []bool{false, true} {
			k := r.call()
			for _, s := range steps[:n] {
				s(k)
			}
			if abort && n < 3 {
				k.end() // what was sent may never be read, and then there was no request
				continue
			}
			if abort {
				k.end()
			} else {
				k.close()
			}
			if rec := r.record(); rec["outcome"] != "client_cancelled" {
				t.Errorf("after %d steps: record %v", n, rec)
			}
		}
	}
	for len(r.records) > 0 {
		if rec := <-r.records; rec["pool"] != "" {
			t.Errorf("a record too many: %v", rec)
		}
	}
}

// TestErrors: what an engine says with an error status counts as it does behind the gateway's own proxy.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		status, body, outcome string
		noRetry               bool
	}{
		{"400", `{"error":{"message":"bad"}}`, "client_error", false},
		{"400", `{"error":{"message":"This model's maximum context length is 10 tokens."}}`, "too_long", false},
		{"429", `{}`, "shed", false},
		{"500", `{}`, "upstream_error", true},
		{"503", `upstream connect error or disconnect/reset before headers. reset reason: remote connection failure`, "upstream_error", false},
	} {
		r := newRig(t, endpoints(1))
		k := r.call()
		k.send(requestHeaders("POST", chat, false))
		k.send(requestBody(chatBody, true))
		k.picked()
		k.body()
		m := k.answerHeaders(c.status, "application/json", false)
		if got := mutated(m, headerNoRetry) == "false"; got != c.noRetry {
			t.Errorf("%s: x-should-retry is false: %v", c.status, got)
		}
		k.send(responseBody(c.body, true))
		if got, _ := k.piece(); got != c.body {
			t.Errorf("the error came back as %q", got)
		}
		k.close()
		if rec := r.record(); rec["outcome"] != c.outcome || rec["status"] != c.status {
			t.Errorf("%s %s: record %v", c.status, c.body, rec)
		}
	}
}
