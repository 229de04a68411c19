package vllmsim

import (
	"net/http"
	"strconv"
)

func completionSchema() schema {
	return schema{types: map[string]fieldType{
		"model": stringType, "stream": boolType, "n": intType, "max_tokens": intType, "temperature": numberType, "top_p": numberType,
		"stream_options": objectType, "logprobs": intType, "cache_salt": stringType, "user": stringType, "seed": intType,
		"priority": intType, "ignore_eos": boolType, "echo": boolType, "suffix": stringType,
	}}
}

func (s *Server) completionCall(x *exchange, body []byte) (*call, *apiError) {
	f, e := s.decode(body, completionSchema())
	if e != nil {
		return nil, e
	}
	p, e := s.params(f, "max_tokens")
	if e != nil {
		return nil, e
	}
	p.maxDefault = 16
	p.logprobs = f.integer("logprobs", -1)
	if f.has("suffix") {
		return nil, &apiError{status: http.StatusBadRequest, kind: "BadRequestError", param: "suffix",
			message: "suffix is only supported for models with FIM completion rendering"}
	}
	prompts, e := s.tokenPrompts(f["prompt"])
	if e != nil {
		return nil, e
	}
	return s.newCall("cmpl-"+s.requestID(x.r), p, prompts, false, false)
}

func (s *Server) completions(x *exchange, body []byte) *apiError {
	c, e := s.completionCall(x, body)
	if e != nil {
		return e
	}
	if c.params.stream {
		x.generate(c, body, &completionStream{tally: newTally(s, c)}, false)
	} else {
		x.generate(c, body, &completionWhole{tally: newTally(s, c), choices: make([]chatChoice, len(c.jobs))}, false)
	}
	return nil
}

// completionStream writes text_completion frames.
type completionStream struct {
	tally
	seen   []bool // per job: its prompt token ids were sent
	buf    []byte
	prefix string
}

func (a *completionStream) start(x *exchange) {
	a.seen = make([]bool, len(a.c.jobs))
	b := append([]byte(`data: {"id":`), appendJSONString(nil, a.c.id)...)
	b = append(b, `,"object":"text_completion","created":`...)
	b = strconv.AppendInt(b, a.created, 10)
	b = append(b, `,"model":`...)
	b = appendJSONString(b, a.c.params.model)
	a.prefix = string(append(b, `,"choices":[`...))
	x.openStream()
}

func (a *completionStream) event(x *exchange, ev event) {
	a.add(ev)
	text, stopped := ev.job.release(ev)
	finish, index := ev.finish, ev.job.index
	if stopped != "" {
		finish = "stop"
	}
	b := append(a.buf[:0], a.prefix...)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(index), 10)
	b = append(b, `,"text":`...)
	b = appendJSONString(b, text)
	b = append(b, `,"logprobs":`...)
	b = appendTextLogprobs(b, ev.tokens, a.c.params.logprobs)
	b = append(b, `,"finish_reason":`...)
	b = appendNullable(b, finish)
	b = append(b, `,"stop_reason":`...)
	b = appendNullable(b, stopped)
	if !a.s.old() {
		b = append(b, `,"prompt_token_ids":`...)
		if a.c.params.tokenIDs && !a.seen[index] {
			b = appendIDs(b, a.c.prompts[index/a.c.n].ids)
		} else {
			b = append(b, "null"...)
		}
		a.seen[index] = true
		b = appendTokenIDs(b, a.c.params.tokenIDs, ev.tokens)
	}
	b = append(b, "}]"...)
	switch {
	case a.c.params.continuous:
		b = a.appendContinuous(b, index)
	case a.s.old():
		b = append(b, `,"usage":null`...)
	}
	if finish != "" && !a.c.params.includeUsage {
		b = a.appendFingerprint(b)
	}
	a.buf = append(b, "}\n\n"...)
	x.frame(a.buf)
}

func (a *completionStream) end(x *exchange) {
	if a.c.params.includeUsage {
		b := append(a.buf[:0], a.prefix...)
		b = append(b, `],"usage":`...)
		b = a.usage().appendStream(b, a.s.old(), false)
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

func (a *completionStream) broken(x *exchange, e *apiError) { brokenStream(x, e) }

// completionWhole writes a text_completion object.
type completionWhole struct {
	tally
	choices []chatChoice
}

func (a *completionWhole) start(*exchange) {}

func (a *completionWhole) event(_ *exchange, ev event) {
	a.add(ev)
	a.choices[ev.job.index].add(ev)
}

func (a *completionWhole) end(x *exchange) {
	old := a.s.old()
	b := append([]byte(`{"id":`), appendJSONString(nil, a.c.id)...)
	b = append(b, `,"object":"text_completion","created":`...)
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
	b = a.usage().appendFull(b, old, false)
	b = append(b, `,"kv_transfer_params":null`...)
	if !old {
		b = append(b, `,"ec_transfer_params":null,"metrics":`...)
		b = a.appendMetrics(b, false)
	}
	x.orca()
	x.json(http.StatusOK, append(b, '}'))
}

func (a *completionWhole) appendChoice(b []byte, i int) []byte {
	c := &a.choices[i]
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(i), 10)
	b = append(b, `,"text":`...)
	b = appendJSONString(b, c.text)
	b = append(b, `,"logprobs":`...)
	b = appendTextLogprobs(b, c.tokens, a.c.params.logprobs)
	b = append(b, `,"finish_reason":`...)
	b = appendNullable(b, c.finish)
	b = append(b, `,"stop_reason":`...)
	b = appendNullable(b, c.stopped)
	if a.s.old() {
		return append(b, `,"prompt_logprobs":null}`...)
	}
	b = appendTokenIDs(b, a.c.params.tokenIDs, c.tokens)
	b = append(b, `,"prompt_logprobs":null,"prompt_token_ids":`...)
	if a.c.params.tokenIDs {
		b = appendIDs(b, a.c.prompts[i/a.c.n].ids)
	} else {
		b = append(b, "null"...)
	}
	return append(b, `,"routed_experts":null}`...)
}

func (a *completionWhole) broken(x *exchange, e *apiError) { x.fail(e, false) }

// appendTextLogprobs appends the logprobs value of a completions choice.
func appendTextLogprobs(b []byte, tokens []token, top int) []byte {
	if top < 0 || len(tokens) == 0 {
		return append(b, "null"...)
	}
	offset := 0
	var offsets, logprobs, texts, alternatives []byte
	for i, t := range tokens {
		if i > 0 {
			offsets, logprobs, texts, alternatives = append(offsets, ','), append(logprobs, ','), append(texts, ','), append(alternatives, ',')
		}
		offsets = strconv.AppendInt(offsets, int64(offset), 10)
		logprobs = append(logprobs, tokenLogprob...)
		texts = appendJSONString(texts, t.text)
		alternatives = append(alternatives, '{')
		alternatives = append(appendJSONString(alternatives, t.text), ":"+tokenLogprob+"}"...)
		offset += len(t.text)
	}
	b = append(append(b, `{"text_offset":[`...), offsets...)
	b = append(append(b, `],"token_logprobs":[`...), logprobs...)
	b = append(append(b, `],"tokens":[`...), texts...)
	b = append(append(b, `],"top_logprobs":[`...), alternatives...)
	return append(b, "]}"...)
}
