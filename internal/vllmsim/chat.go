package vllmsim

import (
	"net/http"
	"strconv"
)

func chatSchema() schema {
	return schema{required: []string{"messages"}, types: map[string]fieldType{
		"messages": listType, "model": stringType, "stream": boolType, "n": intType, "max_tokens": intType, "max_completion_tokens": intType,
		"temperature": numberType, "top_p": numberType, "stream_options": objectType, "logprobs": boolType, "top_logprobs": intType,
		"cache_salt": stringType, "tools": listType, "user": stringType, "seed": intType, "priority": intType, "ignore_eos": boolType,
	}}
}

// chatCall validates a chat body and builds its call; tool is what the model will call, if anything.
func (s *Server) chatCall(x *exchange, body []byte) (*call, toolChoice, *apiError) {
	f, e := s.decode(body, chatSchema())
	if e != nil {
		return nil, toolChoice{}, e
	}
	p, e := s.params(f, "max_completion_tokens", "max_tokens")
	if e != nil {
		return nil, toolChoice{}, e
	}
	if f.truth("logprobs") {
		p.logprobs = f.integer("top_logprobs", 0)
	}
	messages, images := chatMessages(f["messages"])
	choice, e := s.finishChat(f, &p, messages, images)
	if e != nil {
		return nil, toolChoice{}, e
	}
	segments := renderSegments(prefixOf(f, "tools", "documents", "chat_template", "chat_template_kwargs", "reasoning_effort"), messages, true)
	c, e := s.newCall("chatcmpl-"+s.requestID(x.r), p, []prompt{s.textPrompt(segments)}, true, false)
	return c, choice, e
}

// finishChat makes the checks that all conversations share and scripts the answer of a tool call or structured output.
func (s *Server) finishChat(f fields, p *params, messages []message, images int) (toolChoice, *apiError) {
	if len(messages) == 0 {
		return toolChoice{}, badRequest("", "Cannot apply chat template to an empty conversation. Provide at least one message.")
	}
	if images > 0 && !s.cfg.Multimodal {
		return toolChoice{}, badRequest("", "%s is not a multimodal model", s.cfg.Model[0])
	}
	choice, e := s.chooseTool(f, messages[len(messages)-1])
	if e != nil {
		return choice, e
	}
	script := ""
	format := f.sub("response_format")
	if format == nil {
		format = f.sub("text").sub("format")
	}
	switch kind := format.str("type"); {
	case choice.call:
		script = choice.arguments
	case kind == "json_schema" && format.has("schema"):
		script = sampleJSON(format["schema"])
	case kind == "json_schema":
		script = sampleJSON(format.sub("json_schema")["schema"])
	case kind == "json_object":
		script = "{}"
	}
	if script != "" {
		lex := scripted{lexicon: s.lex, answer: script}
		p.lex, p.naturalTokens = lex, lex.tokens()
	}
	return choice, nil
}

// requestID is the client's X-Request-Id or a fresh id of the length that the server's age uses.
func (s *Server) requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	if s.old() {
		return randomHex(16)
	}
	return randomHex(8)
}

func (s *Server) chat(x *exchange, body []byte) *apiError {
	c, choice, e := s.chatCall(x, body)
	if e != nil {
		return e
	}
	if c.params.stream {
		x.generate(c, body, &chatStream{tally: newTally(s, c), choice: choice}, false)
	} else {
		x.generate(c, body, &chatWhole{tally: newTally(s, c), choice: choice, choices: make([]chatChoice, len(c.jobs))}, false)
	}
	return nil
}

// chatStream writes chat.completion.chunk frames.
type chatStream struct {
	tally
	choice  toolChoice
	started bool
	called  []bool // per job: the frame with the tool's name has been sent
	toolIDs []string
	buf     []byte
	prefix  string
}

func (a *chatStream) start(x *exchange) {
	a.called, a.toolIDs = make([]bool, len(a.c.jobs)), make([]string, len(a.c.jobs))
	b := append([]byte(`data: {"id":`), appendJSONString(nil, a.c.id)...)
	b = append(b, `,"object":"chat.completion.chunk","created":`...)
	b = strconv.AppendInt(b, a.created, 10)
	b = append(b, `,"model":`...)
	b = appendJSONString(b, a.c.params.model)
	a.prefix = string(append(b, `,"choices":[`...))
	x.openStream()
}

// roles sends the role frames, one per choice, with the first output of the call.
func (a *chatStream) roles(x *exchange) {
	a.started = true
	for i := range a.c.jobs {
		b := append(a.buf[:0], a.prefix...)
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
		if a.c.params.continuous {
			b = a.appendContinuous(b, i)
		}
		if !a.s.old() {
			b = append(b, `,"prompt_token_ids":`...)
			if a.c.params.tokenIDs {
				b = appendIDs(b, a.c.prompts[0].ids)
			} else {
				b = append(b, "null"...)
			}
			b = append(b, `,"prompt_text":null`...)
		}
		a.buf = append(b, "}\n\n"...)
		x.frame(a.buf)
	}
}

func (a *chatStream) event(x *exchange, ev event) {
	if !a.started {
		a.roles(x)
	}
	a.add(ev)
	text, stopped := ev.job.release(ev)
	finish := ev.finish
	if stopped != "" {
		finish = "stop"
	}
	b := append(a.buf[:0], a.prefix...)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(ev.job.index), 10)
	b = append(b, `,"delta":`...)
	if a.choice.call {
		b = a.appendToolDelta(b, ev.job.index, text)
		if finish == "stop" {
			finish = "tool_calls"
		}
	} else {
		b = append(b, `{"content":`...)
		b = append(appendJSONString(b, text), '}')
	}
	b = append(b, `,"logprobs":`...)
	b = appendChatLogprobs(b, ev.tokens, a.c.params.logprobs)
	b = append(b, `,"finish_reason":`...)
	b = appendNullable(b, finish)
	if finish != "" {
		b = append(b, `,"stop_reason":`...)
		b = appendNullable(b, stopped)
	}
	if !a.s.old() {
		b = appendTokenIDs(b, a.c.params.tokenIDs, ev.tokens)
	}
	b = append(b, "}]"...)
	if a.c.params.continuous {
		b = a.appendContinuous(b, ev.job.index)
	}
	if finish != "" && !a.c.params.includeUsage {
		b = a.appendFingerprint(b)
	}
	a.buf = append(b, "}\n\n"...)
	x.frame(a.buf)
}

func (a *chatStream) appendToolDelta(b []byte, job int, text string) []byte {
	b = append(b, `{"tool_calls":[{`...)
	if !a.called[job] {
		a.called[job] = true
		a.toolIDs[job] = "chatcmpl-tool-" + randomHex(8)
		b = append(b, `"id":"`+a.toolIDs[job]+`","type":"function","index":0,"function":{"name":`...)
		b = appendJSONString(b, a.choice.name)
		b = append(b, `,"arguments":`...)
	} else {
		b = append(b, `"index":0,"function":{"arguments":`...)
	}
	b = appendJSONString(b, text)
	return append(b, "}}]}"...)
}

func (a *chatStream) end(x *exchange) {
	if a.c.params.includeUsage {
		b := append(a.buf[:0], a.prefix...)
		b = append(b, `],"usage":`...)
		b = a.usage().appendStream(b, a.s.old(), true)
		b = a.appendFingerprint(b)
		if a.s.cfg.RequestMetrics {
			b = append(b, `,"metrics":`...)
			b = a.appendMetrics(b, true)
		}
		a.buf = append(b, "}\n\n"...)
		x.frame(a.buf)
	}
	x.frame([]byte("data: [DONE]\n\n"))
}

func (a *chatStream) broken(x *exchange, e *apiError) { brokenStream(x, e) }

// brokenStream is how a stream ends when the engine dies. Unlike all other frames this one has spaces after : and ,.
func brokenStream(x *exchange, e *apiError) {
	b := append([]byte(`data: {"error": {"message": `), appendJSONString(nil, e.message)...)
	b = append(b, `, "type": `...)
	b = appendJSONString(b, e.kind)
	b = append(b, `, "param": null, "code": `...)
	b = strconv.AppendInt(b, int64(e.status), 10)
	x.frame(append(b, "}}\n\n"...))
	x.frame([]byte("data: [DONE]\n\n"))
}

// chatChoice collects one answer.
type chatChoice struct {
	text            string
	tokens          []token
	finish, stopped string
}

func (c *chatChoice) add(ev event) {
	text, stopped := ev.job.release(ev)
	c.text += text
	c.tokens = append(c.tokens, ev.tokens...)
	if ev.finish != "" {
		c.finish, c.stopped = ev.finish, stopped
	}
}

// chatWhole writes a chat.completion object.
type chatWhole struct {
	tally
	choice  toolChoice
	choices []chatChoice
}

func (a *chatWhole) start(*exchange) {}

func (a *chatWhole) event(_ *exchange, ev event) {
	a.add(ev)
	a.choices[ev.job.index].add(ev)
}

func (a *chatWhole) end(x *exchange) {
	old := a.s.old()
	b := append([]byte(`{"id":`), appendJSONString(nil, a.c.id)...)
	b = append(b, `,"object":"chat.completion","created":`...)
	b = strconv.AppendInt(b, a.created, 10)
	b = append(b, `,"model":`...)
	b = appendJSONString(b, a.c.params.model)
	b = append(b, `,"choices":[`...)
	for i := range a.choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = a.appendChoice(b, i)
	}
	b = append(b, `],"service_tier":null,"system_fingerprint":`...)
	b = appendNullable(b, a.s.fingerprint())
	b = append(b, `,"usage":`...)
	b = a.usage().appendFull(b, old, true)
	b = append(b, `,"prompt_logprobs":null`...)
	if !old {
		b = append(b, `,"prompt_token_ids":`...)
		if a.c.params.tokenIDs {
			b = appendIDs(b, a.c.prompts[0].ids)
		} else {
			b = append(b, "null"...)
		}
		b = append(b, `,"prompt_text":null`...)
	}
	b = append(b, `,"kv_transfer_params":null`...)
	if !old {
		b = append(b, `,"ec_transfer_params":null,"metrics":`...)
		b = a.appendMetrics(b, false)
	}
	x.orca()
	x.json(http.StatusOK, append(b, '}'))
}

func (a *chatWhole) appendChoice(b []byte, i int) []byte {
	c, old := &a.choices[i], a.s.old()
	finish := c.finish
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(i), 10)
	b = append(b, `,"message":{"role":"assistant","content":`...)
	if a.choice.call {
		b = append(b, "null"...)
		if finish == "stop" {
			finish = "tool_calls"
		}
	} else {
		b = appendJSONString(b, c.text)
	}
	b = append(b, `,"refusal":null,"annotations":null,"audio":null,"function_call":null`...)
	if a.choice.call {
		b = append(b, `,"tool_calls":[{"id":"chatcmpl-tool-`+randomHex(8)+`","type":"function","function":{"name":`...)
		b = appendJSONString(b, a.choice.name)
		b = append(b, `,"arguments":`...)
		b = appendJSONString(b, c.text)
		b = append(b, "}}]"...)
	} else if old {
		b = append(b, `,"tool_calls":[]`...)
	}
	if old {
		b = append(b, `,"reasoning_content":null`...)
	} else {
		b = append(b, `,"reasoning":null`...)
	}
	b = append(b, `},"logprobs":`...)
	b = appendChatLogprobs(b, c.tokens, a.c.params.logprobs)
	b = append(b, `,"finish_reason":`...)
	b = appendNullable(b, finish)
	b = append(b, `,"stop_reason":`...)
	b = appendNullable(b, c.stopped)
	if !old {
		b = appendTokenIDs(b, a.c.params.tokenIDs, c.tokens)
		b = append(b, `,"routed_experts":null`...)
	}
	return append(b, '}')
}

func (a *chatWhole) broken(x *exchange, e *apiError) { x.fail(e, false) }

// orca adds the load header that a client asked for; the routes call it only on answers that are not streams.
func (x *exchange) orca() {
	format := x.r.Header.Get("Endpoint-Load-Metrics-Format")
	if format != "TEXT" && format != "JSON" {
		return
	}
	s := x.s
	s.mu.Lock()
	es := s.eng.Stats()
	s.mu.Unlock()
	waiting, kv := string(appendFloat(nil, float64(es.Waiting))), string(appendFloat(nil, es.KVUsage))
	value := "TEXT named_metrics.num_requests_waiting=" + waiting + ", named_metrics.kv_cache_usage_perc=" + kv
	if format == "JSON" {
		value = `JSON {"named_metrics": {"num_requests_waiting": ` + waiting + `, "kv_cache_usage_perc": ` + kv + `}}`
	}
	x.w.Header()["endpoint-load-metrics"] = []string{value}
}
