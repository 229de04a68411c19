package vllmsim

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	"pointsman.dev/pointsman/internal/engine"
)

// params are the settings that all generating routes share.
type params struct {
	model         string // as it will appear in the response
	stream        bool
	includeUsage  bool
	continuous    bool // usage in every frame
	n             int
	maxTokens     int
	maxGiven      bool
	maxField      string // the field that maxTokens came from
	maxDefault    int    // limit when the client gives none; 0 = what the window leaves, and the model stops by itself
	stops         []string
	logprobs      int // alternatives per token; -1 = no logprobs
	tokenIDs      bool
	salt          string
	temperature   float64
	topP          float64
	naturalTokens int // length of an answer that the model ends by itself; 0 = a length that the prompt decides
	lex           lexicon
}

// params reads the common fields. maxFields are tried in order.
func (s *Server) params(f fields, maxFields ...string) (params, *apiError) {
	p := params{stream: f.truth("stream"), n: f.integer("n", 1), stops: f.strings("stop"), logprobs: -1, tokenIDs: f.truth("return_token_ids"),
		salt: f.str("cache_salt"), temperature: f.number("temperature", 1), topP: f.number("top_p", 1), lex: s.lex}
	for _, name := range maxFields {
		if p.maxField = name; f.has(name) {
			p.maxTokens, p.maxGiven = f.integer(name, 0), true
			break
		}
	}
	opts := f.sub("stream_options")
	p.includeUsage = p.stream && opts.truth("include_usage")
	p.continuous = p.includeUsage && opts.truth("continuous_usage_stats")
	if f.has("stream_options") && !p.stream {
		return p, badRequest("stream_options", "Stream options can only be defined when `stream=True`.")
	}
	if f.has("cache_salt") && p.salt == "" {
		return p, badRequest("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
	}
	var e *apiError
	p.model, e = s.resolveModel(f)
	if p.model != s.cfg.Model[0] {
		p.salt += "\x00" + p.model // an adapter shares no block with the base model
	}
	return p, e
}

// resolveModel returns the name that answers carry: the first served name for every alias, the adapter's own name, and the
// first served name when the request has none.
func (s *Server) resolveModel(f fields) (string, *apiError) {
	name := f.str("model")
	if name == "" || slices.Contains(s.cfg.Model, name) {
		return s.cfg.Model[0], nil
	}
	if slices.Contains(s.cfg.Adapters, name) {
		return name, nil
	}
	return "", s.errUnknownModel(name)
}

// maxAnswers bounds n (vLLM: VLLM_MAX_N_SEQUENCES).
const maxAnswers = 16384

// checkSampling is what the server finds wrong after the prompt's length.
func checkSampling(p params) *apiError {
	if p.n < 1 {
		return badRequest("", "n must be at least 1, got %d.", p.n)
	}
	if p.n > maxAnswers {
		return badRequest("", "n must be at most %d, got %d.", maxAnswers, p.n)
	}
	if p.temperature < 0 {
		e := badRequest("temperature", "temperature must be non-negative, got %s.", string(appendFloat(nil, p.temperature)))
		e.value = string(appendFloat(nil, p.temperature))
		return e
	}
	if p.logprobs > 20 {
		e := badRequest("logprobs", "Requested sample logprobs of %d, which is greater than max allowed: 20", p.logprobs)
		e.value = strconv.Itoa(p.logprobs)
		return e
	}
	return nil
}

// prompt is one prompt of a call.
type prompt struct {
	ids   []uint32
	chars int  // of the text; 0 for token ids
	text  bool // came as text
}

// checkLength refuses prompts and limits that do not fit and returns the number of tokens to generate.
func (s *Server) checkLength(p params, pr prompt, chat bool) (int, *apiError) {
	limit, got, room := s.cfg.MaxModelLen, len(pr.ids), s.cfg.MaxModelLen-len(pr.ids)
	maxTokens := p.maxTokens
	if !p.maxGiven {
		maxTokens = room
		if p.maxDefault > 0 {
			maxTokens = p.maxDefault
		}
	}
	if e := s.checkOldLength(p, got, maxTokens, chat); e != nil {
		return 0, e
	}
	switch {
	case pr.text && pr.chars > limit*charsPerToken && !s.old():
		return 0, s.errTooManyChars(pr.chars)
	case got > limit:
		return 0, s.errTooLong(got, maxTokens, pr.text, chat)
	case p.maxGiven && maxTokens > limit:
		return 0, s.errMaxTokens(p.maxField, maxTokens)
	}
	maxTokens = min(maxTokens, room)
	if maxTokens < 1 {
		return 0, errMinTokens(maxTokens)
	}
	return maxTokens, nil
}

// checkOldLength is how servers up to 0.10 look at prompt and limit: they refuse a sum that does not fit.
func (s *Server) checkOldLength(p params, got, maxTokens int, chat bool) *apiError {
	switch limit := s.cfg.MaxModelLen; {
	case !s.old():
		return nil
	case chat && got > limit:
		return s.errTooLong(got, maxTokens, false, chat)
	case p.maxGiven && maxTokens > 0 && got+maxTokens > limit:
		return s.errOldSum(got, maxTokens, chat)
	}
	return nil
}

// newCall checks p against every prompt and builds the jobs: n per prompt.
func (s *Server) newCall(id string, p params, prompts []prompt, chat, anthropic bool) (*call, *apiError) {
	c := &call{id: id, arrived: time.Now(), stops: p.stops, n: p.n, params: p, prompts: prompts}
	draining := s.isDraining()
	limits := make([]int, len(prompts))
	for i, pr := range prompts {
		if draining && pr.text {
			return nil, errShutdown(anthropic)
		}
		var e *apiError
		if limits[i], e = s.checkLength(p, pr, chat); e != nil {
			return nil, e
		}
		c.maxTok = max(c.maxTok, limits[i])
	}
	if e := checkSampling(p); e != nil {
		return nil, e
	}
	if draining {
		return c, nil // token ids need no tokenizer: the answer has no choices at all
	}
	for i, pr := range prompts {
		seed := s.answerSeed(pr.ids, p.salt)
		for k := range p.n {
			c.jobs = append(c.jobs, newJob(c, p, pr.ids, i*p.n+k, limits[i], mix(seed+uint64(k))))
		}
	}
	return c, nil
}

// Lengths of answers that the model ends by itself, when the client sets no limit.
const (
	shortestAnswer = 32
	longestAnswer  = 512
)

func newJob(c *call, p params, ids []uint32, index, maxTokens int, seed uint64) *job {
	j := &job{call: c, index: index, seed: seed}
	stopAfter := p.naturalTokens
	if stopAfter == 0 && !p.maxGiven && p.maxDefault == 0 {
		stopAfter = shortestAnswer + int(mix(seed)%(longestAnswer-shortestAnswer))
	}
	count := maxTokens
	if stopAfter > 0 {
		count = min(count, stopAfter)
	}
	j.seq = engine.Seq{Data: j, Tokens: ids, Answer: make([]uint32, 0, count), MaxTokens: maxTokens, StopAfter: stopAfter, Salt: saltOf(p.salt)}
	j.texts = make([]string, 0, count)
	text, window := "", longest(p.stops)
	for i := range count {
		id, piece := p.lex.generate(seed, i)
		j.seq.Answer = append(j.seq.Answer, id)
		j.texts = append(j.texts, piece)
		if window == 0 {
			continue
		}
		text += piece
		if at, _ := firstStop(text, p.stops); at >= 0 {
			j.seq.StopAfter = i + 1
			break
		}
		text = text[max(0, len(text)-window):]
	}
	return j
}

// answerSeed makes the same prompt give the same text, on every server with the same seed.
func (s *Server) answerSeed(ids []uint32, salt string) uint64 {
	h := mix(s.cfg.Seed + saltOf(salt))
	for _, id := range ids {
		h = (h ^ uint64(id)) * 0x100000001b3
	}
	return mix(h ^ uint64(len(ids)))
}

func saltOf(salt string) uint64 {
	if salt == "" {
		return 0
	}
	h := uint64(0xcbf29ce484222325)
	for i := range len(salt) {
		h = (h ^ uint64(salt[i])) * 0x100000001b3
	}
	return mix(h)
}

// tokenPrompts reads a prompt field: a text, a list of texts, token ids or a list of them.
func (s *Server) tokenPrompts(raw json.RawMessage) ([]prompt, *apiError) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return s.textPrompts(text)
	}
	var texts []string
	if json.Unmarshal(raw, &texts) == nil && len(texts) > 0 {
		return s.textPrompts(texts...)
	}
	var ids []int64
	if json.Unmarshal(raw, &ids) == nil && len(ids) > 0 {
		return s.idPrompts(ids)
	}
	var lists [][]int64
	if json.Unmarshal(raw, &lists) == nil && len(lists) > 0 {
		return s.idPrompts(lists...)
	}
	return nil, errNoPrompt()
}

func errNoPrompt() *apiError {
	return badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
}

func (s *Server) textPrompts(texts ...string) ([]prompt, *apiError) {
	prompts := make([]prompt, len(texts))
	for i, t := range texts {
		if t == "" {
			return nil, errNoPrompt()
		}
		prompts[i] = s.textPrompt([]string{t})
	}
	return prompts, nil
}

// textPrompt tokenizes segments, unless there are more characters than can fit: then only their number matters.
func (s *Server) textPrompt(segments []string) prompt {
	pr := prompt{chars: segmentChars(segments), text: true}
	if pr.chars <= s.cfg.MaxModelLen*charsPerToken || s.old() {
		pr.ids = s.lex.encode(segments)
	}
	return pr
}

func (s *Server) idPrompts(lists ...[]int64) ([]prompt, *apiError) {
	prompts := make([]prompt, len(lists))
	for i, list := range lists {
		ids := make([]uint32, len(list))
		for k, id := range list {
			if id < 0 || id >= s.lex.vocab() || id > math.MaxUint32 {
				return nil, badRequest("", "Token id %d is out of vocabulary", id)
			}
			ids[k] = uint32(id)
		}
		if len(ids) == 0 {
			return nil, errNoPrompt()
		}
		prompts[i] = prompt{ids: ids}
	}
	return prompts, nil
}
