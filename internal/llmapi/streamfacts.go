package llmapi

import (
	"math/bits"
	"net/http"
	"strconv"
	"strings"
)

// text begins a string value and reports whether its text is wanted.
func (w *walk) text(depth int) bool {
	in, member := w.spot(depth), w.member
	w.scalar(depth)
	w.member, w.use, w.into = memberNone, useNone, nil
	switch member {
	case memberContent:
		w.use = useContent
	case memberDelta:
		if in == atTop {
			w.use = useContent
		}
	case memberFinish:
		w.use = useFinish
		w.choice.finish, w.choice.abort, w.finish.n = false, false, 0
	case memberMessage:
		switch in {
		case atTop:
			w.use, w.top.n = useTopMessage, 0
		case atError:
			w.use, w.err.n = useMessage, 0
		}
	case memberError:
		w.use, w.err.n = useError, 0
	case memberType:
		w.into = &w.report(in).typ
	case memberCode:
		w.into = &w.report(in).codeText
	case memberObject:
		w.into = &w.top.object
	case memberID:
		w.into = &w.id
	}
	if w.into != nil {
		w.use, w.into.n = useWord, 0
	}
	return w.use != useNone
}

func (w *walk) report(in spot) *report {
	if in == atError {
		return &w.err
	}
	return &w.top
}

// piece takes a piece, not empty, of a wanted string.
func (w *walk) piece(l *lexer) {
	w.empty = false
	switch w.use {
	case useContent:
		l.want = false
	case useWord:
		w.into.add(l.piece)
	case useFinish:
		w.finish.add(l.piece)
	case useTopMessage:
		w.top.n += copy(w.top.message[w.top.n:], l.piece)
	case useMessage, useError:
		w.err.n += copy(w.err.message[w.err.n:], l.piece)
	}
}

// mark notes where a piece of content begins.
func (w *walk) mark(at, pos int) {
	if w.use == useContent && w.to < 0 {
		w.from = -1
		if at >= 0 {
			w.from = at + pos
		}
	}
}

// textEnd ends a wanted string at the quote at pos.
func (w *walk) textEnd(at, pos int) {
	switch use := w.use; {
	case use == useContent && w.empty:
		w.choice.blank = true
	case use == useNone || w.empty:
	case use == useContent:
		w.content()
		if w.to < 0 && w.from >= 0 && at >= 0 {
			w.to = at + pos
		}
	case use == useFinish:
		w.choice.finish, w.choice.abort = true, w.finish.is("abort")
	case use == useError:
		w.failed = true
	}
	w.use = useNone
}

// number takes a number. Only whole ones that are not negative mean something.
func (w *walk) number(l *lexer) {
	in, member := w.spot(l.depth), w.member
	w.scalar(l.depth)
	w.member = memberNone
	n := int(min(l.integer, 1<<40))
	if n < 0 || l.numAt != numZero && l.numAt != numInt {
		return
	}
	switch member {
	case memberIndex:
		w.choice.index = n
	case memberPrompt:
		w.usage.prompt = n
	case memberOutput:
		w.usage.output = n
	case memberCacheRead:
		w.usage.cacheRead = n
	case memberCacheMade:
		w.usage.cacheMade = n
	case memberCached:
		w.usage.cached = n
	case memberSequence:
		w.sequence = n
	case memberCode:
		w.report(in).code = n
	}
}

// commit makes what the event said count, whose JSON is complete.
func (s *Stream) commit() {
	w := &s.walk
	s.tell()
	typ := w.top.typ.bytes()
	if w.top.typ.n == 0 {
		typ = s.name.bytes()
	}
	if w.delta && s.family != familyChoices && deltaEvent(typ) {
		w.frames++
	}
	s.frames += w.frames
	s.sequence = max(s.sequence, w.sequence+1)
	if w.id.n > 0 && s.response.n == 0 {
		s.response = w.id
	}
	used := s.takeUsage(string(typ) == "message_start")
	ended := s.takeEnd(typ)
	s.produced = s.produced || w.frames > 0 || !s.stream && s.usage.Output > 0
	w.told = w.frames
	w.alike = w.frames > 0 && w.to >= 0 && !used && !ended
}

// takeEnd takes what an event of type typ says of the end of the answer, or of one of
// its choices, and reports whether it did.
func (s *Stream) takeEnd(typ []byte) bool {
	c := &s.walk.choices
	s.choices.join(c)
	if c.aborted {
		s.aborted = true
		s.breaks()
	}
	failed := s.walk.fails(typ)
	if failed {
		s.fail()
	}
	terminal := s.stream && s.terminal(typ)
	s.done = s.done || terminal
	s.finished = s.finished || terminal || !s.stream && s.family != familyChoices && !failed
	s.produced = s.produced || c.ends() > 0 || terminal && !failed
	return failed || terminal || c.ends() > 0
}

// fails reports whether an event of type typ says that something went wrong.
func (w *walk) fails(typ []byte) bool {
	return w.failed || w.top.object.is("error") || string(typ) == "error" || string(typ) == "response.failed"
}

// deltaEvent reports whether an event of type typ carries a piece of the answer.
func deltaEvent(typ []byte) bool {
	const end = ".delta" // response.output_text.delta and its many kin
	return string(typ) == "content_block_delta" || len(typ) > len(end) && string(typ[len(typ)-len(end):]) == end
}

// terminal reports whether an event of type typ says that the answer is complete.
// The choices family says it in its choices.
func (s *Stream) terminal(typ []byte) bool {
	switch s.family {
	case familyResponses:
		switch string(typ) {
		case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
			return true
		}
		return false
	case familyMessages:
		return string(typ) == "message_stop"
	case familyChoices:
		return false
	}
	return string(typ) == "transcript.text.done"
}

// takeUsage takes the event's usage, if it has one. Each replaces the one before,
// except that in Messages the usage at the end may tell the output only.
func (s *Stream) takeUsage(start bool) bool {
	c := s.walk.usage
	if max(c.prompt, c.output, c.cacheRead, c.cacheMade) < 0 {
		return false
	}
	u := Usage{Prompt: max(c.prompt, 0), Output: max(c.output, 0), Cached: max(c.cached, 0), HasCached: c.cached >= 0}
	if c.output < 0 {
		u.Output = s.usage.Output
	}
	if s.anthropic {
		// Here what was found in the cache, or put there, is no part of the input.
		u.Prompt += max(c.cacheRead, 0) + max(c.cacheMade, 0)
		u.Cached, u.HasCached = max(c.cacheRead, 0), c.cacheRead >= 0
		if u.Prompt == 0 {
			u.Prompt, u.Cached, u.HasCached = s.usage.Prompt, s.usage.Cached, s.usage.HasCached
		}
		if start {
			u.Output = 0 // what it says is a guess
		}
	}
	if c.output >= 0 && !start {
		s.frames = 0
	}
	s.usage, s.hasUsage = u, true
	return true
}

// fail takes the event's error, unless there was one already.
func (s *Stream) fail() {
	if s.failed {
		return
	}
	s.failed = true
	r := &s.walk.err
	if r.n == 0 {
		r = &s.walk.top
	}
	s.failure.n = copy(s.failure.text[:], r.message[:r.n])
	if s.failure.code = s.walk.err.status(); s.failure.code == 0 {
		s.failure.code = s.walk.top.status()
	}
}

// status is the HTTP status that r means, 0 if it means none.
func (r *report) status() int {
	if r.code > 0 {
		return r.code
	}
	if n, err := strconv.ParseUint(r.codeText.String(), 10, 16); err == nil {
		return int(n)
	}
	if n := statusOf(r.typ.String()); n != 0 {
		return n
	}
	return statusOf(r.codeText.String())
}

// statusOf is the status of an error type as OpenAI, Anthropic and vLLM name them.
func statusOf(typ string) int {
	switch strings.ToLower(typ) {
	case "invalid_request_error", "badrequesterror", "invalid_prompt", "context_length_exceeded":
		return http.StatusBadRequest
	case "authentication_error":
		return http.StatusUnauthorized
	case "permission_error":
		return http.StatusForbidden
	case "not_found_error", "notfounderror":
		return http.StatusNotFound
	case "request_too_large":
		return http.StatusRequestEntityTooLarge
	case "rate_limit_error", "rate_limit_exceeded":
		return http.StatusTooManyRequests
	case "api_error", "server_error", "internalservererror":
		return http.StatusInternalServerError
	case "overloaded_error":
		return http.StatusServiceUnavailable
	case "timeout_error":
		return http.StatusGatewayTimeout
	}
	return 0
}

// maxChoices is how many choices are told apart. Of those beyond only their number
// is known, as the index of the last one tells it.
const maxChoices = 1024

// A choiceSet holds which choices appeared and which of them finished.
type choiceSet struct {
	marks   [maxChoices / 64]struct{ seen, done uint64 }
	top     int // marks in use
	seen    int
	done    int
	far     int // choices beyond maxChoices
	farDone int // ends of such
	aborted bool
}

func (c *choiceSet) clear() {
	clear(c.marks[:c.top])
	c.top, c.seen, c.done, c.far, c.farDone, c.aborted = 0, 0, 0, 0, 0, false
}

func (c *choiceSet) any() bool      { return c.seen+c.far > 0 }
func (c *choiceSet) ends() int      { return c.done + c.farDone }
func (c *choiceSet) finished() bool { return c.any() && c.done == c.seen && c.farDone >= c.far }

func (c *choiceSet) add(index int, done, aborted bool) {
	c.aborted = c.aborted || aborted
	if index >= maxChoices {
		c.far = max(c.far, index-maxChoices+1)
		if done {
			c.farDone++
		}
		return
	}
	var mark uint64
	if done {
		mark = 1 << (index & 63)
	}
	c.set(index>>6, 1<<(index&63), mark)
}

func (c *choiceSet) set(at int, seen, done uint64) {
	c.top = max(c.top, at+1)
	m := &c.marks[at]
	c.seen += bits.OnesCount64(seen &^ m.seen)
	c.done += bits.OnesCount64(done &^ m.done)
	m.seen |= seen
	m.done |= done
}

// join adds what o holds.
func (c *choiceSet) join(o *choiceSet) {
	for i, m := range o.marks[:o.top] {
		c.set(i, m.seen, m.done)
	}
	c.far = max(c.far, o.far)
	c.farDone += o.farDone
}
