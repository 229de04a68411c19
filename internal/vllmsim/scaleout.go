package vllmsim

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// appendRendered is the body of a render route: what a tokenizing gateway would send on to generate.
func appendRendered(b []byte, c *call, prompt int, maxTokens bool) []byte {
	b = append(b, `{"request_id":`...)
	b = appendJSONString(b, c.id)
	b = append(b, `,"token_ids":`...)
	b = appendIDs(b, c.prompts[prompt].ids)
	b = append(b, `,"token_offsets":null,"features":null,"content_parts":null,"sampling_params":{"presence_penalty":0.0,"frequency_penalty":0.0,`+
		`"repetition_penalty":1.0,"temperature":`...)
	b = appendFloat(b, c.params.temperature)
	b = append(b, `,"top_p":`...)
	b = appendFloat(b, c.params.topP)
	b = append(b, `,"min_p":0.0,"stop":[],"stop_token_ids":[],`...)
	if maxTokens {
		b = append(b, `"max_tokens":`...)
		b = append(strconv.AppendInt(b, int64(c.maxTok), 10), ',')
	}
	b = append(b, `"output_kind":2,"skip_clone":true,"bad_words":[],"skip_reading_prefix_cache":false},"model":`...)
	b = appendJSONString(b, c.params.model)
	return append(b, `,"reasoning_ended":null,"reasoning_parser_kwargs":null,"return_token_ids":null,"output_mode":"tokens","stream":false,`+
		`"stream_options":null,"cache_salt":null,"priority":0,"kv_transfer_params":null,"ec_transfer_params":null}`...)
}

func (s *Server) chatRender(x *exchange, body []byte) *apiError {
	c, _, e := s.chatCall(x, body)
	if e != nil {
		return e
	}
	x.json(http.StatusOK, appendRendered(nil, c, 0, true))
	return nil
}

func (s *Server) completionRender(x *exchange, body []byte) *apiError {
	c, e := s.completionCall(x, body)
	if e != nil {
		return e
	}
	b := []byte{'['}
	for i := range c.prompts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendRendered(b, c, i, c.params.maxGiven)
	}
	x.json(http.StatusOK, append(b, ']'))
	return nil
}

// generateTokens is /inference/v1/generate: token ids in, token ids out.
func (s *Server) generateTokens(x *exchange, body []byte) *apiError {
	f, e := s.decode(body, schema{required: []string{"sampling_params", "token_ids"}, types: map[string]fieldType{
		"token_ids": listType, "sampling_params": objectType, "stream": boolType, "cache_salt": stringType, "model": stringType}})
	if e != nil {
		return e
	}
	var ids []int64
	if json.Unmarshal(f["token_ids"], &ids) != nil {
		return badRequest("token_ids", "token_ids must be a list of integers.")
	}
	prompts, e := s.idPrompts(ids)
	if e != nil {
		return e
	}
	sampling := f.sub("sampling_params")
	for _, name := range []string{"model", "stream", "stream_options", "cache_salt"} {
		if f.has(name) {
			sampling[name] = f[name]
		}
	}
	p, e := s.params(sampling, "max_tokens")
	if e != nil {
		return e
	}
	p.maxDefault = 16
	c, e := s.newCall("generate-tokens-"+s.requestID(x.r), p, prompts, false, false)
	if e != nil {
		return e
	}
	if p.stream {
		x.generate(c, body, &tokenStream{tally: newTally(s, c)}, false)
	} else {
		x.generate(c, body, &tokenWhole{tally: newTally(s, c), choices: make([]chatChoice, len(c.jobs))}, false)
	}
	return nil
}

func appendTokenChoice(b []byte, index int, finish string, tokens []token, total int) []byte {
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(index), 10)
	b = append(b, `,"finish_reason":`...)
	b = appendNullable(b, finish)
	b = append(b, `,"stop_reason":null`...)
	b = appendTokenIDs(b, true, tokens)
	b = append(b, `,"routed_experts":null,"sampling_mask":null,"weight_versions":`...)
	if finish == "" {
		b = append(b, "null"...)
	} else {
		b = append(b, `[{"version":"default","start":0,"end":`...)
		b = append(strconv.AppendInt(b, int64(total), 10), "}]"...)
	}
	return append(b, `,"logprobs":null}`...)
}

// tokenStream writes the frames of generate.
type tokenStream struct{ tally }

func (a *tokenStream) start(x *exchange) { x.openStream() }

func (a *tokenStream) frame(x *exchange, usage string, choices []byte) {
	b := append([]byte(`data: {"request_id":`), appendJSONString(nil, a.c.id)...)
	b = append(b, `,"usage":`+usage+`,"output_mode":"tokens","choices":[`...)
	x.frame(append(append(b, choices...), "]}\n\n"...))
}

func (a *tokenStream) event(x *exchange, ev event) {
	a.add(ev)
	a.frame(x, "null", appendTokenChoice(nil, ev.job.index, ev.finish, ev.tokens, a.perJob[ev.job.index]))
}

func (a *tokenStream) end(x *exchange) {
	if a.c.params.includeUsage {
		a.frame(x, string(a.usage().appendFull(nil, false, false)), nil)
	}
	x.frame([]byte("data: [DONE]\n\n"))
}

func (a *tokenStream) broken(x *exchange, e *apiError) { brokenStream(x, e) }

// tokenWhole writes the object of generate.
type tokenWhole struct {
	tally
	choices []chatChoice
}

func (a *tokenWhole) start(*exchange) {}

func (a *tokenWhole) event(_ *exchange, ev event) {
	a.add(ev)
	a.choices[ev.job.index].add(ev)
}

func (a *tokenWhole) end(x *exchange) {
	b := append([]byte(`{"request_id":`), appendJSONString(nil, a.c.id)...)
	b = append(b, `,"model":`...)
	b = appendJSONString(b, a.c.params.model)
	b = append(b, `,"created":`...)
	b = strconv.AppendInt(b, a.created, 10)
	b = append(b, `,"usage":`...)
	b = a.usage().appendFull(b, false, false)
	b = append(b, `,"prompt_logprobs":null,"prompt_token_id_logprobs":null,"prompt_token_ids":null,"mm_placeholders":null,"metrics":null`+
		`,"kv_transfer_params":null,"ec_transfer_params":null,"output_mode":"tokens","choices":[`...)
	for i, c := range a.choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendTokenChoice(b, i, c.finish, c.tokens, len(c.tokens))
	}
	x.json(http.StatusOK, append(b, "]}"...))
}

func (a *tokenWhole) broken(x *exchange, e *apiError) { x.fail(e, false) }
