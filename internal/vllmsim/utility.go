package vllmsim

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// routeTable lists every path that the server answers. Routes that a flag or the age of the API switches off are absent:
// the answer is then the framework's own 404.
func (s *Server) routeTable() map[string]route {
	get := func(h func(*exchange)) map[string]func(*exchange) { return map[string]func(*exchange){"GET": h} }
	post := func(h func(*exchange)) map[string]func(*exchange) { return map[string]func(*exchange){"POST": h} }
	t := map[string]route{}
	add := func(path string, counted bool, m map[string]func(*exchange)) {
		name := ""
		if counted {
			name = strings.Replace(path, "{id}", "{response_id}", 1)
		}
		t[path] = methods(name, m)
	}
	add("/health", false, get((*exchange).health))
	add("/ping", false, map[string]func(*exchange){"GET": (*exchange).health, "POST": (*exchange).health})
	add("/metrics", false, get((*exchange).metrics))
	add("/load", false, get((*exchange).load))
	add("/version", false, get((*exchange).version))
	add("/server_info", false, get((*exchange).serverInfo))
	add("/v1/models", true, get((*exchange).models))
	add("/tokenize", true, post(s.plain(s.tokenize)))
	add("/detokenize", true, post(s.plain(s.detokenize)))
	add("/v1/chat/completions", true, post(s.posted(false, s.chat)))
	add("/v1/completions", true, post(s.posted(false, s.completions)))
	add("/v1/responses", true, post(s.posted(false, s.responses)))
	add("/v1/responses/{id}", true, get(s.getResponse))
	if !s.old() {
		add("/v1/messages", true, post(s.posted(true, s.messages)))
		add("/v1/messages/count_tokens", true, post(s.plain(s.countTokens)))
		add("/v1/chat/completions/render", true, post(s.plain(s.scaledOut(s.chatRender))))
		add("/v1/completions/render", true, post(s.plain(s.scaledOut(s.completionRender))))
		add("/inference/v1/generate", true, post(s.posted(false, s.scaledOut(s.generateTokens))))
		add("/kv_event_sources", true, get(func(x *exchange) { x.json(http.StatusOK, []byte("{}")) }))
		add("/weight_info", true, get(func(x *exchange) { x.json(http.StatusOK, []byte(`{"weight_version":"default"}`)) }))
	}
	if s.cfg.Pooling {
		s.poolingRoutes(add, post)
	}
	if s.cfg.DevMode {
		add("/sleep", true, post((*exchange).sleep))
		add("/wake_up", true, post((*exchange).wakeUp))
		add("/is_sleeping", true, get((*exchange).isSleeping))
		add("/pause", true, post((*exchange).pause))
		add("/resume", true, post((*exchange).resume))
		add("/is_paused", true, get((*exchange).isPaused))
		add("/reset_prefix_cache", true, post((*exchange).resetPrefixCache))
		add("/abort_requests", true, post((*exchange).abortRequests))
	}
	return t
}

// plain wraps a JSON route that does not reach the engine.
func (s *Server) plain(handle func(*exchange, []byte) *apiError) func(*exchange) {
	return func(x *exchange) {
		e := checkContentType(x.r)
		if e == nil {
			body, ok := x.readBody()
			if !ok {
				panic(http.ErrAbortHandler)
			}
			e = handle(x, body)
		}
		if e != nil {
			x.fail(e, false)
		}
	}
}

func (s *Server) scaledOut(handle func(*exchange, []byte) *apiError) func(*exchange, []byte) *apiError {
	if s.cfg.ScaleOut {
		return handle
	}
	return func(*exchange, []byte) *apiError { return errScaleOut() }
}

func (x *exchange) health() {
	x.s.mu.Lock()
	unhealthy := x.s.unhealthy
	x.s.mu.Unlock()
	if unhealthy {
		x.empty(http.StatusServiceUnavailable)
		return
	}
	x.empty(http.StatusOK)
}

func (x *exchange) load() {
	n := int64(0)
	if x.s.cfg.LoadTracking {
		x.s.count(func(st *Stats) { n = st.InFlight })
	}
	x.json(http.StatusOK, append(strconv.AppendInt([]byte(`{"server_load":`), n, 10), '}'))
}

func (x *exchange) version() {
	x.json(http.StatusOK, []byte(`{"version":"`+x.s.version()+`"}`))
}

// serverInfo shows the scheduler's settings, which no metric does. Real servers answer only in development mode (vLLM) or
// always (SGLang), with far more fields.
func (x *exchange) serverInfo() {
	s := x.s
	var v any
	switch {
	case s.cfg.MetricsStyle == "sglang":
		v = map[string]any{"model_path": s.cfg.Root, "served_model_name": s.cfg.Model[0], "max_running_requests": s.cfg.MaxNumSeqs,
			"max_total_num_tokens": (s.cfg.NumBlocks - 1) * s.cfg.BlockSize, "page_size": s.cfg.BlockSize, "context_length": s.cfg.MaxModelLen}
	case s.cfg.DevMode:
		v = map[string]any{"vllm_config": map[string]any{"scheduler_config": map[string]any{"max_num_seqs": s.cfg.MaxNumSeqs,
			"max_num_batched_tokens": s.cfg.MaxBatchedTokens, "max_model_len": s.cfg.MaxModelLen}}}
	default:
		x.json(http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
		return
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of strings and numbers always marshal
	}
	x.json(http.StatusOK, b)
}

func (x *exchange) models() {
	s, created := x.s, time.Now().Unix()
	idBytes := 8
	if s.old() {
		idBytes = 16
	}
	b := []byte(`{"object":"list","data":[`)
	card := func(id, root, parent, maxLen string) {
		if b[len(b)-1] != '[' {
			b = append(b, ',')
		}
		b = append(b, `{"id":`...)
		b = appendJSONString(b, id)
		b = append(b, `,"object":"model","created":`...)
		b = strconv.AppendInt(b, created, 10)
		b = append(b, `,"owned_by":"vllm","root":`...)
		b = appendJSONString(b, root)
		b = append(b, `,"parent":`...)
		b = appendNullable(b, parent)
		b = append(b, `,"max_model_len":`+maxLen+`,"permission":[{"id":"modelperm-`+randomHex(idBytes)+
			`","object":"model_permission","created":`...)
		b = strconv.AppendInt(b, created, 10)
		b = append(b, `,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,`+
			`"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}`...)
	}
	for _, name := range s.cfg.Model {
		card(name, s.cfg.Root, "", strconv.Itoa(s.cfg.MaxModelLen))
	}
	for _, name := range s.cfg.Adapters {
		card(name, "/adapters/"+name, s.cfg.Model[0], "null")
	}
	x.json(http.StatusOK, append(b, "]}"...))
}

// promptIDs tokenizes the prompt or messages of a tokenize body.
func (s *Server) promptIDs(body []byte) (fields, []uint32, *apiError) {
	f, e := s.decode(body, schema{types: map[string]fieldType{"messages": listType, "prompt": stringType, "model": stringType}})
	if e != nil {
		return nil, nil, e
	}
	if _, e := s.resolveModel(f); e != nil {
		return nil, nil, e
	}
	if !f.has("messages") {
		return f, s.lex.encode([]string{f.str("prompt")}), nil
	}
	messages, _ := chatMessages(f["messages"])
	return f, s.lex.encode(renderSegments(prefixOf(f, "tools"), messages, true)), nil
}

func (s *Server) tokenize(x *exchange, body []byte) *apiError {
	f, ids, e := s.promptIDs(body)
	if e != nil {
		return e
	}
	b := strconv.AppendInt([]byte(`{"count":`), int64(len(ids)), 10)
	b = append(b, `,"max_model_len":`...)
	b = strconv.AppendInt(b, int64(s.cfg.MaxModelLen), 10)
	b = append(b, `,"tokens":`...)
	b = appendIDs(b, ids)
	b = append(b, `,"token_strs":`...)
	if !f.truth("return_token_strs") {
		x.json(http.StatusOK, append(b, "null}"...))
		return nil
	}
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendJSONString(b, strings.NewReplacer(" ", "Ġ", "\n", "Ċ").Replace(s.lex.text(id)))
	}
	x.json(http.StatusOK, append(b, "]}"...))
	return nil
}

func (s *Server) detokenize(x *exchange, body []byte) *apiError {
	f, e := s.decode(body, schema{required: []string{"tokens"}, types: map[string]fieldType{"tokens": listType, "model": stringType}})
	if e != nil {
		return e
	}
	var ids []int64
	if json.Unmarshal(f["tokens"], &ids) != nil {
		return badRequest("", "tokens must be a list of integers")
	}
	var text strings.Builder
	for _, id := range ids {
		text.WriteString(s.lex.text(uint32(id)))
	}
	x.json(http.StatusOK, append(appendJSONString([]byte(`{"prompt":`), text.String()), '}'))
	return nil
}
