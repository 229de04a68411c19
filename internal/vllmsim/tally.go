package vllmsim

import (
	"strconv"
	"time"
)

// tally adds up what an answer's usage says and holds what its frames share.
type tally struct {
	s         *Server
	c         *call
	created   int64
	open      int
	completed int   // tokens
	perJob    []int // tokens of each job
	cached    []int // prompt tokens of each job found in the cache
	first     time.Time
	last      time.Time
}

func newTally(s *Server, c *call) tally {
	return tally{s: s, c: c, created: time.Now().Unix(), open: len(c.jobs), perJob: make([]int, len(c.jobs)), cached: make([]int, len(c.jobs))}
}

func (t *tally) add(ev event) {
	t.completed += len(ev.tokens)
	t.perJob[ev.job.index] += len(ev.tokens)
	t.cached[ev.job.index] = ev.cached
	if t.last = time.Now(); t.first.IsZero() {
		t.first = t.last
	}
	if ev.finish != "" {
		t.open--
	}
}

// usage is the token account of a request.
type usage struct {
	prompt, completion, cached, created int
}

// usage sums over the prompts; of the answers to one prompt the last one's cached tokens count, as in the server.
func (t *tally) usage() usage {
	u := usage{completion: t.completed}
	bs := t.s.cfg.BlockSize
	for i, pr := range t.c.prompts {
		u.prompt += len(pr.ids)
		cached := 0
		if last := (i+1)*t.c.n - 1; last < len(t.cached) {
			cached = t.cached[last]
		}
		u.cached += cached
		if t.s.cfg.PrefixCaching && len(t.c.jobs) > 0 {
			u.created += max(0, len(pr.ids)/bs*bs-cached)
		}
	}
	return u
}

func (u usage) appendCounts(b []byte) []byte {
	b = append(b, `"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(u.prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(u.prompt+u.completion), 10)
	b = append(b, `,"completion_tokens":`...)
	return strconv.AppendInt(b, int64(u.completion), 10)
}

// appendFull is the usage of a response that is not a stream. withCreated: the chat route knows the tokens that the request
// added to the cache, the completions route says null.
func (u usage) appendFull(b []byte, old, withCreated bool) []byte {
	b = append(b, `{`...)
	b = u.appendCounts(b)
	if old {
		b = append(b, `,"prompt_tokens_details":`...)
		if u.cached == 0 {
			return append(b, "null}"...)
		}
		b = append(b, `{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(u.cached), 10)
		return append(b, "}}"...)
	}
	b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(u.cached), 10)
	b = append(b, `,"created_cache_tokens":`...)
	if withCreated {
		b = strconv.AppendInt(b, int64(u.created), 10)
	} else {
		b = append(b, "null"...)
	}
	return append(b, `,"multimodal_tokens":null},"completion_tokens_details":null}`...)
}

// appendStream is the usage of a stream's last frame: without nulls.
func (u usage) appendStream(b []byte, old, withCreated bool) []byte {
	b = append(b, `{`...)
	b = u.appendCounts(b)
	if old && u.cached == 0 {
		return append(b, '}')
	}
	b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(u.cached), 10)
	if withCreated && !old {
		b = append(b, `,"created_cache_tokens":`...)
		b = strconv.AppendInt(b, int64(u.created), 10)
	}
	return append(b, "}}"...)
}

// appendContinuous is the usage of every other frame with continuous_usage_stats: prompt tokens and this answer's own.
func (t *tally) appendContinuous(b []byte, job int) []byte {
	u := t.usage()
	u.completion = t.perJob[job]
	b = append(b, `,"usage":{`...)
	b = u.appendCounts(b)
	if !t.s.old() {
		b = append(b, `,"completion_tokens_details":null`...)
	}
	return append(b, '}')
}

// appendMetrics is the metrics object of --enable-per-request-metrics.
func (t *tally) appendMetrics(b []byte, stream bool) []byte {
	if !t.s.cfg.RequestMetrics || len(t.c.jobs) != 1 {
		return append(b, "null"...)
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	ttft, whole := t.first.Sub(t.c.arrived), t.last.Sub(t.c.arrived)
	itl, rate := 0.0, 0.0
	if t.completed > 1 {
		itl = ms(t.last.Sub(t.first)) / float64(t.completed-1)
	}
	if whole > 0 {
		rate = float64(t.completed) / whole.Seconds()
	}
	b = append(b, `{"time_to_first_token_ms":`...)
	b = appendFloat(b, ms(ttft))
	b = append(b, `,"generation_time_ms":`...)
	b = appendFloat(b, ms(t.last.Sub(t.first)))
	b = append(b, `,"queue_time_ms":`...)
	b = appendFloat(b, ms(t.c.jobs[0].queued()))
	b = append(b, `,"mean_itl_ms":`...)
	b = appendFloat(b, itl)
	b = append(b, `,"tokens_per_second":`...)
	b = appendFloat(b, rate)
	if !stream {
		b = append(b, `,"speculative_decoding":null`...)
	}
	return append(b, '}')
}

// appendFingerprint appends ,"system_fingerprint":"...", or nothing where there is none.
func (t *tally) appendFingerprint(b []byte) []byte {
	if fp := t.s.fingerprint(); fp != "" {
		b = append(b, `,"system_fingerprint":"`...)
		b = append(b, fp...)
		b = append(b, '"')
	}
	return b
}

func appendIDs(b []byte, ids []uint32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return append(b, ']')
}

func appendTokenIDs(b []byte, want bool, tokens []token) []byte {
	b = append(b, `,"token_ids":`...)
	if !want {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i, t := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(t.id), 10)
	}
	return append(b, ']')
}

// tokenLogprob is the log probability of every token: the model is as sure of each of 512 words.
const tokenLogprob = "-6.238321781158447"

// appendChatLogprobs appends the logprobs value of a chat choice.
func appendChatLogprobs(b []byte, tokens []token, top int) []byte {
	if top < 0 || len(tokens) == 0 {
		return append(b, "null"...)
	}
	b = append(b, `{"content":[`...)
	for i, t := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		one := append([]byte(`{"token":`), appendJSONString(nil, t.text)...)
		one = append(one, `,"logprob":`+tokenLogprob+`,"bytes":[`...)
		for k := range len(t.text) {
			if k > 0 {
				one = append(one, ',')
			}
			one = strconv.AppendUint(one, uint64(t.text[k]), 10)
		}
		one = append(one, ']')
		b = append(b, one...)
		b = append(b, `,"top_logprobs":[`...)
		if top > 0 {
			b = append(append(b, one...), '}')
		}
		b = append(b, `]}`...)
	}
	return append(b, `]}`...)
}

func appendNullable(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendJSONString(b, s)
}
