package vllmsim

import (
	"net/http"
	"strconv"
)

// storedResponses is the server's memory of finished responses: it is lost with the process, and no other server has it.
type storedResponses struct {
	byID  map[string]storedResponse
	order []string
}

type storedResponse struct {
	messages []message
	body     []byte
}

const maxStored = 1024

func (st *storedResponses) put(id string, r storedResponse) {
	if st.byID == nil {
		st.byID = map[string]storedResponse{}
	}
	st.byID[id] = r
	if st.order = append(st.order, id); len(st.order) > maxStored {
		delete(st.byID, st.order[0])
		st.order = st.order[1:]
	}
}

func (s *Server) response(id string) (storedResponse, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.stored.byID[id]
	return r, ok
}

func (s *Server) getResponse(x *exchange) {
	r, ok := s.response(x.param)
	if !ok {
		x.fail(errUnknownResponse(x.param), false)
		return
	}
	x.json(http.StatusOK, r.body)
}

func responsesSchema() schema {
	return schema{required: []string{"input"}, extra: 1, types: map[string]fieldType{
		"model": stringType, "stream": boolType, "max_output_tokens": intType, "temperature": numberType, "top_p": numberType,
		"instructions": stringType, "previous_response_id": stringType, "tools": listType, "cache_salt": stringType,
	}}
}

func (s *Server) responses(x *exchange, body []byte) *apiError {
	f, e := s.decode(body, responsesSchema())
	if e != nil {
		return e
	}
	p, e := s.params(f, "max_output_tokens")
	if e != nil {
		return e
	}
	messages, images := inputMessages(f["input"])
	if id := f.str("previous_response_id"); id != "" {
		earlier, ok := s.response(id)
		if !ok {
			return errUnknownResponse(id)
		}
		messages = append(append([]message{}, earlier.messages...), messages...)
	}
	if f.has("instructions") {
		messages = append([]message{{role: "system", content: f.str("instructions")}}, messages...)
	}
	choice, e := s.finishChat(f, &p, messages, images)
	if e != nil {
		return e
	}
	c, e := s.newCall("resp_"+s.responseID(x.r), p, []prompt{s.textPrompt(renderSegments(prefixOf(f, "tools"), messages, true))}, true, false)
	if e != nil {
		return e
	}
	a := responseAnswer{tally: newTally(s, c), choice: choice, fields: f, messages: messages, item: "msg_" + randomHex(8)}
	if p.stream {
		x.generate(c, body, &responseStream{responseAnswer: a}, false)
	} else {
		x.generate(c, body, &responseWhole{responseAnswer: a}, false)
	}
	return nil
}

// responseID differs from the other routes: the id of a response never comes from the client.
func (s *Server) responseID(*http.Request) string {
	if s.old() {
		return randomHex(16)
	}
	return randomHex(8)
}

// responseAnswer is what both forms of a response share.
type responseAnswer struct {
	tally
	choice   toolChoice
	fields   fields
	messages []message
	item     string // id of the output item
	whole    chatChoice
}

func (a *responseAnswer) event(ev event) (delta string) {
	a.add(ev)
	before := len(a.whole.text)
	a.whole.add(ev)
	return a.whole.text[before:]
}

func (a *responseAnswer) textPart(b []byte, text string, logprobs string) []byte {
	b = append(b, `{"annotations":[],"text":`...)
	b = appendJSONString(b, text)
	return append(b, `,"type":"output_text","logprobs":`+logprobs+`}`...)
}

// outputItem is the message or function call that the model produced; done says that it is complete.
func (a *responseAnswer) outputItem(b []byte, done bool) []byte {
	status := "in_progress"
	if done {
		status = "completed"
	}
	if a.choice.call {
		b = append(b, `{"arguments":`...)
		b = appendJSONString(b, a.whole.text)
		b = append(b, `,"call_id":"call_`+a.item[len("msg_"):]+`","name":`...)
		b = appendJSONString(b, a.choice.name)
		return append(b, `,"type":"function_call","id":"fc_`+a.item[len("msg_"):]+`","status":"`+status+`"}`...)
	}
	b = append(b, `{"id":"`+a.item+`","content":[`...)
	if done {
		b = a.textPart(b, a.whole.text, "null")
	}
	return append(b, `],"role":"assistant","status":"`+status+`","type":"message","phase":null}`...)
}

// object is the response itself; before the end it has neither output nor usage.
func (a *responseAnswer) object(done bool) []byte {
	f, p := a.fields, a.c.params
	incomplete, status := "null", "in_progress"
	if done {
		status = "completed"
		if a.whole.finish == "length" {
			incomplete, status = `{"reason":"max_output_tokens"}`, "incomplete"
		}
	}
	b := append([]byte(`{"id":`), appendJSONString(nil, a.c.id)...)
	b = append(b, `,"created_at":`...)
	b = strconv.AppendInt(b, a.created, 10)
	b = append(b, `,"incomplete_details":`+incomplete+`,"instructions":`...)
	b = append(b, f.rawOr("instructions", "null")...)
	b = append(b, `,"metadata":`+f.rawOr("metadata", "null")+`,"model":`...)
	b = appendJSONString(b, p.model)
	b = append(b, `,"object":"response","output":[`...)
	if done {
		b = a.outputItem(b, true)
	}
	b = append(b, `],"parallel_tool_calls":true,"temperature":`...)
	b = appendFloat(b, p.temperature)
	tools := f.rawOr("tools", "[]")
	toolChoice := `"auto"`
	if tools == "[]" {
		toolChoice = `"none"`
	}
	b = append(b, `,"tool_choice":`+f.rawOr("tool_choice", toolChoice)+`,"tools":`+tools+`,"top_p":`...)
	b = appendFloat(b, p.topP)
	b = append(b, `,"background":false,"max_output_tokens":`...)
	b = strconv.AppendInt(b, int64(a.c.maxTok), 10)
	b = append(b, `,"max_tool_calls":null,"previous_response_id":`+f.rawOr("previous_response_id", "null")...)
	b = append(b, `,"prompt":null,"reasoning":`+f.rawOr("reasoning", "null")+`,"service_tier":"auto","status":"`+status+`","text":`...)
	b = append(b, f.rawOr("text", "null")+`,"top_logprobs":null,"truncation":"disabled","usage":`...)
	if done {
		b = a.usage().appendResponse(b)
	} else {
		b = append(b, "null"...)
	}
	return append(b, `,"user":`+f.rawOr("user", "null")+`,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,`+
		`"ec_transfer_params":null,"input_messages":null,"output_messages":null}`...)
}

func (f fields) rawOr(name, def string) string {
	if !f.has(name) {
		return def
	}
	return string(f[name])
}

func (u usage) appendResponse(b []byte) []byte {
	b = append(b, `{"input_tokens":`...)
	b = strconv.AppendInt(b, int64(u.prompt), 10)
	b = append(b, `,"input_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(u.cached), 10)
	b = append(b, `,"cache_write_tokens":`...)
	b = strconv.AppendInt(b, int64(u.created), 10)
	b = append(b, `,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":`...)
	b = strconv.AppendInt(b, int64(u.completion), 10)
	b = append(b, `,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],`+
		`"tool_output_tokens_per_turn":[]},"total_tokens":`...)
	b = strconv.AppendInt(b, int64(u.prompt+u.completion), 10)
	return append(b, '}')
}

// keep stores the finished response for previous_response_id.
func (a *responseAnswer) keep(body []byte) {
	answer := message{role: "assistant", content: a.whole.text}
	if a.choice.call {
		answer = message{role: "assistant", calls: []toolCall{{a.choice.name, a.whole.text}}}
	}
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	a.s.stored.put(a.c.id, storedResponse{messages: append(append([]message{}, a.messages...), answer), body: body})
}

// responseWhole writes one response object.
type responseWhole struct{ responseAnswer }

func (a *responseWhole) start(*exchange) {}

func (a *responseWhole) event(_ *exchange, ev event) { a.responseAnswer.event(ev) }

func (a *responseWhole) end(x *exchange) {
	body := a.object(true)
	a.keep(body)
	x.json(http.StatusOK, body)
}

func (a *responseWhole) broken(x *exchange, e *apiError) { x.fail(e, false) }

// responseStream writes typed events; there is no [DONE].
type responseStream struct {
	responseAnswer
	seq    int
	opened bool
}

// send closes data, which has no closing brace yet, with the sequence number and the type.
func (a *responseStream) send(x *exchange, kind string, data []byte, tail string) {
	data = append(data, `,"sequence_number":`...)
	data = strconv.AppendInt(data, int64(a.seq), 10)
	data = append(data, tail+`,"type":"`+kind+`"}`...)
	a.seq++
	x.frame(named(kind, data))
}

func (a *responseStream) start(x *exchange) {
	x.openStream()
	for _, kind := range []string{"response.created", "response.in_progress"} {
		a.send(x, kind, append([]byte(`{"response":`), a.object(false)...), "")
	}
}

func (a *responseStream) event(x *exchange, ev event) {
	delta := a.responseAnswer.event(ev)
	if !a.opened {
		a.opened = true
		a.open(x)
	}
	if delta == "" {
		return
	}
	if a.choice.call {
		b := append([]byte(`{"delta":`), appendJSONString(nil, delta)...)
		a.send(x, "response.function_call_arguments.delta", append(b, `,"item_id":"fc_`+a.item[len("msg_"):]+`","output_index":0`...), "")
		return
	}
	b := append([]byte(`{"content_index":0,"delta":`), appendJSONString(nil, delta)...)
	a.send(x, "response.output_text.delta", append(b, `,"item_id":"`+a.item+`","logprobs":[],"output_index":0`...), "")
}

func (a *responseStream) open(x *exchange) {
	text := a.whole.text
	a.whole.text = "" // the item begins empty
	b := append([]byte(`{"item":`), a.outputItem(nil, false)...)
	a.whole.text = text
	a.send(x, "response.output_item.added", append(b, `,"output_index":0`...), "")
	if a.choice.call {
		return
	}
	b = append([]byte(`{"content_index":0,"item_id":"`+a.item+`","output_index":0,"part":`), a.textPart(nil, "", "[]")...)
	a.send(x, "response.content_part.added", b, "")
}

func (a *responseStream) end(x *exchange) {
	if !a.opened {
		a.open(x)
	}
	if a.choice.call {
		b := append([]byte(`{"arguments":`), appendJSONString(nil, a.whole.text)...)
		b = append(b, `,"item_id":"fc_`+a.item[len("msg_"):]+`","name":`...)
		b = appendJSONString(b, a.choice.name)
		a.send(x, "response.function_call_arguments.done", append(b, `,"output_index":0`...), "")
	} else {
		text := append([]byte(`,"text":`), appendJSONString(nil, a.whole.text)...)
		a.send(x, "response.output_text.done", []byte(`{"content_index":0,"item_id":"`+a.item+`","logprobs":[],"output_index":0`), string(text))
		b := append([]byte(`{"content_index":0,"item_id":"`+a.item+`","output_index":0,"part":`), a.textPart(nil, a.whole.text, "null")...)
		a.send(x, "response.content_part.done", b, "")
	}
	b := append([]byte(`{"item":`), a.outputItem(nil, true)...)
	a.send(x, "response.output_item.done", append(b, `,"output_index":0`...), "")
	body := a.object(true)
	a.keep(body)
	a.send(x, "response.completed", append([]byte(`{"response":`), body...), "")
}

func (a *responseStream) broken(x *exchange, e *apiError) { brokenStream(x, e) }
