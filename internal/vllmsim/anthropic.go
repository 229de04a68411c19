package vllmsim

import (
	"net/http"
	"strconv"
)

func messagesSchema() schema {
	return schema{required: []string{"max_tokens", "messages"}, types: map[string]fieldType{
		"messages": listType, "model": stringType, "stream": boolType, "max_tokens": intType, "temperature": numberType, "top_p": numberType,
		"tools": listType, "cache_salt": stringType,
	}}
}

// anthropicMessages is the conversation of a /v1/messages body, the system prompt first.
func anthropicMessages(f fields) (messages []message, images int) {
	if f.has("system") {
		messages = append(messages, message{role: "system", content: readContent(f["system"]).text})
	}
	rest, images := chatMessages(f["messages"])
	return append(messages, rest...), images
}

func (s *Server) messages(x *exchange, body []byte) *apiError {
	f, e := s.decode(body, messagesSchema())
	if e != nil {
		return e
	}
	f["stop"] = f["stop_sequences"]
	if !f.has("stop") {
		delete(f, "stop")
	}
	p, e := s.params(f, "max_tokens")
	if e != nil {
		return e
	}
	p.maxField = "max_completion_tokens" // the route hands its limit on under this name
	messages, images := anthropicMessages(f)
	choice, e := s.finishChat(f, &p, messages, images)
	if e != nil {
		return e
	}
	segments := renderSegments(prefixOf(f, "tools", "chat_template_kwargs"), messages, true)
	c, e := s.newCall("chatcmpl-"+s.requestID(x.r), p, []prompt{s.textPrompt(segments)}, true, true)
	if e != nil {
		return e
	}
	if p.stream {
		x.generate(c, body, &messageStream{tally: newTally(s, c), choice: choice}, true)
	} else {
		x.generate(c, body, &messageWhole{tally: newTally(s, c), choice: choice}, true)
	}
	return nil
}

func (s *Server) countTokens(x *exchange, body []byte) *apiError {
	f, e := s.decode(body, schema{required: []string{"messages"}, types: map[string]fieldType{"messages": listType, "model": stringType}})
	if e != nil {
		return e
	}
	if _, e := s.resolveModel(f); e != nil {
		return e
	}
	messages, _ := anthropicMessages(f)
	n := len(s.lex.encode(renderSegments(prefixOf(f, "tools"), messages, true)))
	b := append([]byte(`{"input_tokens":`), strconv.Itoa(n)...)
	b = append(b, `,"context_management":{"original_input_tokens":`...)
	b = strconv.AppendInt(b, int64(n), 10)
	x.json(http.StatusOK, append(b, "}}"...))
	return nil
}

// stopReason translates a finish reason; a stop string counts as the end of the turn, as in the server.
func stopReason(finish string, called bool) string {
	switch {
	case finish == "length":
		return "max_tokens"
	case finish == "stop" && called:
		return "tool_use"
	case finish == "abort":
		return "abort"
	}
	return "end_turn"
}

// appendAnthropic is the usage at the end of an answer: what was read from the cache and what was added to it are counted
// apart from the input tokens.
func (u usage) appendAnthropic(b []byte) []byte {
	b = append(b, `{"input_tokens":`...)
	b = strconv.AppendInt(b, int64(u.prompt-u.cached-u.created), 10)
	b = append(b, `,"output_tokens":`...)
	b = strconv.AppendInt(b, int64(u.completion), 10)
	b = append(b, `,"cache_creation_input_tokens":`...)
	b = strconv.AppendInt(b, int64(u.created), 10)
	b = append(b, `,"cache_read_input_tokens":`...)
	b = strconv.AppendInt(b, int64(u.cached), 10)
	return append(b, '}')
}

// messageStream writes Anthropic events.
type messageStream struct {
	tally
	choice  toolChoice
	started bool
	opened  bool // the content block
	finish  string
}

func (a *messageStream) start(x *exchange) { x.openStream() }

func named(event string, data []byte) []byte {
	b := make([]byte, 0, len(event)+len(data)+18)
	b = append(append(b, "event: "...), event...)
	b = append(append(b, "\ndata: "...), data...)
	return append(b, "\n\n"...)
}

func (a *messageStream) begin(x *exchange) {
	a.started = true
	b := append([]byte(`{"type":"message_start","message":{"id":`), appendJSONString(nil, a.c.id)...)
	b = append(b, `,"type":"message","role":"assistant","content":[],"model":`...)
	b = appendJSONString(b, a.c.params.model)
	b = append(b, `,"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":`...)
	b = strconv.AppendInt(b, int64(len(a.c.prompts[0].ids)), 10)
	x.frame(named("message_start", append(b, `,"output_tokens":0}}}`...)))
}

func (a *messageStream) event(x *exchange, ev event) {
	if !a.started {
		a.begin(x)
	}
	a.add(ev)
	text, _ := ev.job.release(ev)
	if ev.finish != "" {
		a.finish = ev.finish
	}
	if text == "" {
		return
	}
	kind, field := "text_delta", "text"
	if a.choice.call {
		kind, field = "input_json_delta", "partial_json"
	}
	if !a.opened {
		a.opened = true
		x.frame(named("content_block_start", append(append([]byte(`{"type":"content_block_start","content_block":`), a.block()...), `,"index":0}`...)))
	}
	b := append([]byte(`{"type":"content_block_delta","delta":{"type":"`), kind+`","`+field+`":`...)
	b = appendJSONString(b, text)
	x.frame(named("content_block_delta", append(b, `},"index":0}`...)))
}

func (a *messageStream) block() []byte {
	if !a.choice.call {
		return []byte(`{"type":"text","text":""}`)
	}
	b := append([]byte(`{"type":"tool_use","id":"chatcmpl-tool-`), randomHex(8)+`","name":`...)
	return append(appendJSONString(b, a.choice.name), `,"input":{}}`...)
}

func (a *messageStream) end(x *exchange) {
	if !a.started {
		a.begin(x)
	}
	if a.opened {
		x.frame(named("content_block_stop", []byte(`{"type":"content_block_stop","index":0}`)))
	}
	b := append([]byte(`{"type":"message_delta","delta":{"stop_reason":"`), stopReason(a.finish, a.choice.call)...)
	b = append(b, `","stop_sequence":null},"usage":`...)
	x.frame(named("message_delta", append(a.usage().appendAnthropic(b), '}')))
	x.frame(named("message_stop", []byte(`{"type":"message_stop"}`)))
}

func (a *messageStream) broken(x *exchange, e *apiError) {
	b := append([]byte(`{"type":"error","error":{"type":"internal_error","message":`), appendJSONString(nil, e.message)...)
	x.frame(named("error", append(b, "}}"...)))
}

// messageWhole writes one Anthropic message.
type messageWhole struct {
	tally
	choice toolChoice
	whole  chatChoice
}

func (a *messageWhole) start(*exchange) {}

func (a *messageWhole) event(_ *exchange, ev event) {
	a.add(ev)
	a.whole.add(ev)
}

func (a *messageWhole) end(x *exchange) {
	b := append([]byte(`{"id":`), appendJSONString(nil, a.c.id)...)
	b = append(b, `,"type":"message","role":"assistant","content":[`...)
	if a.choice.call {
		b = append(b, `{"type":"tool_use","id":"chatcmpl-tool-`+randomHex(8)+`","name":`...)
		b = appendJSONString(b, a.choice.name)
		b = append(append(b, `,"input":`...), a.choice.arguments...)
		b = append(b, '}')
	} else {
		b = append(b, `{"type":"text","text":`...)
		b = append(appendJSONString(b, a.whole.text), '}')
	}
	b = append(b, `],"model":`...)
	b = appendJSONString(b, a.c.params.model)
	b = append(b, `,"stop_reason":"`+stopReason(a.whole.finish, a.choice.call)+`","usage":`...)
	x.json(http.StatusOK, append(a.usage().appendAnthropic(b), '}'))
}

func (a *messageWhole) broken(x *exchange, e *apiError) { x.fail(e, true) }
