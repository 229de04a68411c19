package llmapi

import "bytes"

// Usage is what an engine says it used for one request, in tokens.
type Usage struct {
	Prompt, Output int
	Cached         int  // prompt tokens found in the prefix cache
	HasCached      bool // the engine said how many were cached
}

const (
	maxErrorText  = 512
	maxEventType  = 64
	maxResponseID = 128
	maxChoices    = 256 // answers of one request that are told apart
)

// A Stream reads one response, streamed or not, beside the copy to the client. It
// never fails and allocates nothing per event, and its memory is bounded whatever
// the lengths of lines and events. Facts of an event count once it is complete:
// a client drops an event that was cut. The zero value needs a Reset.
type Stream struct {
	kind    Kind
	dialect Dialect
	sse     bool

	// Framing of server-sent events.
	line   lineState
	name   [8]byte // first bytes of the line: its field name
	nameN  int
	cr     bool // the last byte was a CR: an LF behind it is no line
	open   bool // the event has a line, or a line is open
	data   bool // the event has a data line
	first  [16]byte
	firstN int // bytes of the event's data in first

	lx    lexer
	dead  bool // the event's data is no JSON
	facts facts
	ev    event
}

// facts are what complete events said.
type facts struct {
	events, tokens    int
	content, finished bool
	done, aborted     bool
	choice            bool
	seen, ended       choices
	usage             Usage
	hasUsage          bool
	failed            bool
	errCode           int
	errText           [maxErrorText]byte
	errN              int
	sequence          int
	id                [maxResponseID]byte
	idN               int
}

// choices is a set of answers by index.
type choices [maxChoices / 64]uint64

func (c *choices) add(i int) {
	i = max(0, min(i, maxChoices-1))
	c[i/64] |= 1 << (i % 64)
}

func (c *choices) union(d *choices) {
	for i := range c {
		c[i] |= d[i]
	}
}

// Reset makes the Stream ready for a response of an API. stream says that the
// body is an event stream, else it is one JSON value.
func (s *Stream) Reset(kind Kind, d Dialect, stream bool) {
	s.kind, s.dialect, s.sse = kind, d, stream
	s.line, s.nameN, s.cr = lineName, 0, false
	s.facts = facts{}
	s.beginEvent()
}

// Write reads the next bytes of the response. Any split gives the same facts.
func (s *Stream) Write(p []byte) {
	if s.sse {
		s.frames(p)
	} else {
		s.json(p)
	}
}

// FirstToken reports whether the engine has produced anything: a text, a part of
// a tool call, a token id or the end of an answer. Headers, a role and empty texts
// are not it.
func (s *Stream) FirstToken() bool { return s.facts.content }

// Events is the number of complete events so far, 1 for a complete JSON value.
func (s *Stream) Events() int { return s.facts.events }

// Tokens is a lower bound of the output tokens so far: the usage when there was
// one, else the token ids or, as engines merge tokens under load, the frames with
// content.
func (s *Stream) Tokens() int {
	if s.facts.hasUsage {
		return max(s.facts.usage.Output, s.facts.tokens)
	}
	return s.facts.tokens
}

// Finished reports whether the answer is complete by the rules of its API: a
// finish reason for every choice (chat, completions), response.completed, .failed
// or .incomplete (Responses), message_stop (Messages). Of a response that is not
// streamed, and of the other APIs, that the JSON value is complete. A body that is
// not JSON is never finished: only its framing can tell.
func (s *Stream) Finished() bool { return s.facts.finished }

// Done reports whether the stream's last event was seen: [DONE] in any spelling,
// or the terminal event of the Responses and Messages APIs.
func (s *Stream) Done() bool { return s.facts.done || s.isDone() }

// Usage returns the usage, if the engine sent one. The last one counts.
func (s *Stream) Usage() (Usage, bool) { return s.facts.usage, s.facts.hasUsage }

// ErrorEvent returns the error that the engine put into its answer. code is the
// numeric code, 0 when there is none. message is cut at 512 bytes.
func (s *Stream) ErrorEvent() (message string, code int, ok bool) {
	if !s.facts.failed {
		return "", 0, false
	}
	return string(s.facts.errText[:s.facts.errN]), s.facts.errCode, true
}

// Aborted reports whether the engine ended an answer with finish reason "abort".
func (s *Stream) Aborted() bool { return s.facts.aborted }

// NoChoices reports whether a stream of choices ended by its marker without any,
// and without an error: a draining vLLM does so.
func (s *Stream) NoChoices() bool {
	switch s.kind {
	case Chat, Completions, Generate, Audio:
		return s.sse && s.Done() && !s.facts.choice && !s.facts.failed
	}
	return false
}

// Choice reports whether an event showed a choice, be it only its role or its end.
// For an API without choices any event counts. Until then an answer may still turn
// out to be a draining engine's, which is empty.
func (s *Stream) Choice() bool {
	switch s.kind {
	case Chat, Completions, Generate:
		return s.facts.choice
	}
	return s.facts.events > 0
}

// ResponseID returns the id of the response or message, "" until an event told it.
// It is cut at 128 bytes. Only the endpoint that made a response knows its id.
func (s *Stream) ResponseID() string { return string(s.facts.id[:s.facts.idN]) }

// CutEvent returns the bytes that end this stream with an error: what closes an
// event that is open, and e's event in the stream's dialect, with the id and the
// next sequence number where the dialect has them.
func (s *Stream) CutEvent(e *Error) []byte {
	var out []byte
	switch {
	case s.line != lineName || s.nameN > 0:
		out = append(out, "\n\n"...)
	case s.open:
		out = append(out, '\n')
	}
	next := 0
	if s.facts.events > 0 {
		next = s.facts.sequence + 1
	}
	return append(out, e.event(s.kind, s.dialect, s.ResponseID(), next)...)
}

// json reads a response that is one JSON value.
func (s *Stream) json(p []byte) {
	if s.dead || s.lx.complete() {
		return
	}
	s.parse(p)
	if s.lx.complete() {
		s.facts.events = 1
		s.commit()
	}
}

type lineState uint8

const (
	lineName  lineState = iota // the field name is being read
	lineSpace                  // behind data:, one space is dropped
	lineData
	lineSkip
)

// frames reads server-sent events: lines that end in LF, CRLF or CR, events that
// end in an empty line.
func (s *Stream) frames(p []byte) {
	for len(p) > 0 {
		if s.cr && p[0] == '\n' {
			s.cr, p = false, p[1:]
			continue
		}
		s.cr = false
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			end = len(p)
		}
		if i := bytes.IndexByte(p[:end], '\r'); i >= 0 {
			end = i
		}
		s.chars(p[:end])
		if end == len(p) {
			return
		}
		s.cr = p[end] == '\r'
		p = p[end+1:]
		s.endLine()
	}
}

// chars takes a piece of one line.
func (s *Stream) chars(p []byte) {
	if s.line == lineName {
		p = s.fieldName(p)
	}
	if s.line == lineSpace && len(p) > 0 {
		if p[0] == ' ' {
			p = p[1:]
		}
		s.beginData()
	}
	if s.line != lineData || len(p) == 0 {
		return
	}
	if s.firstN < len(s.first) {
		s.firstN += copy(s.first[s.firstN:], p)
	}
	if !s.dead {
		s.parse(p)
	}
}

// beginData begins the content of a data line. Lines of one event are joined by a
// line break.
func (s *Stream) beginData() {
	s.line = lineData
	if s.data && !s.dead {
		s.parse([]byte{'\n'})
	}
	s.data = true
}

// fieldName takes the bytes of a line up to its colon and returns what follows.
func (s *Stream) fieldName(p []byte) []byte {
	for i, c := range p {
		if c == ':' {
			s.line = lineSkip
			switch string(s.name[:s.nameN]) {
			case "data", "\ufeffdata": // a stream may begin with a byte order mark
				s.line = lineSpace
			}
			return p[i+1:]
		}
		if s.nameN == len(s.name) {
			s.line = lineSkip
			return nil
		}
		s.name[s.nameN] = c
		s.nameN++
	}
	return nil
}

func (s *Stream) endLine() {
	if s.line == lineSpace {
		s.beginData() // an empty data line
	}
	if s.line == lineName && s.nameN == 0 {
		if s.data {
			s.facts.events++
			s.commit()
		}
		s.beginEvent()
		return
	}
	s.open = true
	s.line, s.nameN = lineName, 0
}

func (s *Stream) beginEvent() {
	s.open, s.data, s.firstN, s.dead = false, false, 0, false
	s.lx.reset()
	s.ev.reset()
}

// isDone reports whether the current event is the [DONE] marker.
func (s *Stream) isDone() bool {
	text := bytes.TrimSpace(s.first[:s.firstN])
	return s.sse && bytes.EqualFold(text, []byte("[DONE]"))
}

// commit makes a complete event's facts count.
func (s *Stream) commit() {
	f := &s.facts
	if s.sse && !s.lx.complete() {
		f.done = f.done || s.isDone()
		return
	}
	e := &s.ev
	e.byType(s.kind, s.dialect)
	f.tokens += e.tokens
	f.content = f.content || e.content
	f.aborted = f.aborted || e.aborted
	f.choice = f.choice || e.choice
	f.seen.union(&e.seen)
	f.ended.union(&e.ended)
	if e.hasSequence {
		f.sequence = e.sequence
	}
	if e.idN > 0 {
		f.idN = copy(f.id[:], e.id[:e.idN])
	}
	s.commitUsage()
	if e.failed {
		f.failed = true
		f.errCode = e.errCode
		f.errN = copy(f.errText[:], e.errText[:e.errN])
	}
	f.done = f.done || e.terminal
	f.finished = f.finished || e.terminal || s.answered()
	if e.choice {
		f.finished = f.seen == f.ended
	}
}

// answered reports whether a complete JSON value is a complete answer.
func (s *Stream) answered() bool {
	switch {
	case s.sse || s.ev.failed:
		return false
	case s.kind == Chat || s.kind == Completions || s.kind == Generate:
		return false // by its choices
	}
	return true
}

// commitUsage takes over a usage. Anthropic counts cached tokens apart from the
// others.
func (s *Stream) commitUsage() {
	u := &s.ev.usage
	if !u.hasPrompt && !u.hasOutput {
		return
	}
	f := &s.facts
	f.hasUsage = true
	if u.hasPrompt {
		f.usage.Prompt = u.prompt
		if s.dialect == Anthropic {
			f.usage.Prompt += u.cached + u.created
		}
	}
	if u.hasOutput {
		f.usage.Output = u.output
	}
	if u.hasCached {
		f.usage.Cached, f.usage.HasCached = u.cached, true
	}
}
