package llmapi

import "strings"

// Usage is what an engine says it used for one request, in tokens.
type Usage struct {
	Prompt, Output int  // Prompt counts cached tokens too
	Cached         int  // prompt tokens found in the prefix cache
	HasCached      bool // the engine said how many were cached
}

// A Stream reads one response, streamed or not, beside the copy to the client. It
// never fails, never allocates per event and holds no more than a bounded part of
// an event. Reset makes it ready; it is not safe for concurrent use.
//
// An event of a stream counts as soon as its JSON is complete, also when the blank
// line after it never comes: there are servers that leave it out, and clients that
// read line by line. For the same reason a data line behind a complete JSON value is
// an event of its own. What is not JSON says nothing. A body that is not a stream
// counts as one event.
type Stream struct {
	family    family
	anthropic bool
	stream    bool
	kind      Kind
	dialect   Dialect

	// The lines of an event stream.
	line   lineState
	space  bool // the next byte, if it is a space, is not part of the value
	field  word // the name of the line's field
	name   word // the event's name
	cr     bool // the last byte was a CR: a LF now belongs to it
	first  bool // in the stream's first line, which may begin with a byte order mark
	open   bool // lines since the last blank one
	lines  int  // data lines of this event
	mark   int  // bytes of doneMark that the data began with; -1: it is something else
	deaf   bool // nothing more to learn from this event's data
	told   bool // the event is in events
	was    int  // bytes of the response before those being written
	total  int  // bytes of the response
	start  int  // where the event begins, among all bytes
	lineAt int  // where the line begins

	lex  lexer
	walk walk
	memo memo

	events   int
	frames   int // content frames since the last usage
	produced bool
	done     bool
	finished bool
	choices  choiceSet
	aborted  bool
	usage    Usage
	hasUsage bool
	failed   bool
	failure  struct {
		text [maxMessage]byte
		n    int
		code int
	}
	sequence int  // the next sequence number
	response word // the id of the answer
	broken   bool // see Broken
	brokenAt int  // where the event that said so begins
	torn     bool // it was open before the bytes that said so
}

// A family is a set of APIs whose answers are read by the same rules.
type family uint8

const (
	familyOther family = iota
	familyChoices
	familyResponses
	familyMessages
)

func familyOf(k Kind) family {
	switch k {
	case Chat, Completions, Generate:
		return familyChoices
	case Responses, Response:
		return familyResponses
	case Messages:
		return familyMessages
	}
	return familyOther
}

// Reset makes the Stream ready for a response of an API. stream says that the
// body is an event stream, else it is one JSON value.
func (s *Stream) Reset(kind Kind, d Dialect, stream bool) {
	s.kind, s.dialect, s.stream = kind, d, stream
	s.family, s.anthropic = familyOf(kind), d == Anthropic
	s.line, s.space, s.cr, s.first = lineStart, false, false, true
	s.was, s.total, s.start = 0, 0, 0
	s.events, s.frames, s.sequence = 0, 0, 0
	s.produced, s.done, s.finished, s.aborted, s.failed, s.hasUsage, s.broken = false, false, false, false, false, false, false
	s.usage, s.response.n = Usage{}, 0
	s.choices.clear()
	s.memo.forget()
	s.clear()
}

// clear makes s ready for the next event.
func (s *Stream) clear() {
	s.open, s.lines, s.name.n = false, 0, 0
	s.clearData()
}

func (s *Stream) clearData() {
	s.mark, s.deaf, s.told = 0, false, false
	s.lex.reset()
	s.walk.reset()
}

// Write reads the next bytes of the response. Any split gives the same facts.
func (s *Stream) Write(p []byte) {
	s.was, s.total = s.total, s.total+len(p)
	s.walk.from, s.walk.to = -1, -1
	if s.stream {
		s.readLines(p)
	} else if !s.deaf {
		s.read(p, 0)
	}
}

// FirstToken reports whether the engine has produced anything: content, reasoning,
// a part of a tool call, a token id or the end of an answer, not the empty event with
// the role.
func (s *Stream) FirstToken() bool { return s.produced }

// Events is the number of events with data so far, the end marker included.
func (s *Stream) Events() int { return s.events }

// Tokens is a lower bound of the output tokens so far: the last usage, and one for
// each content frame since, or as many as it lists token ids.
func (s *Stream) Tokens() int { return s.usage.Output + s.frames }

// Finished reports whether the answer is complete by the rules of its API: every
// choice that appeared has its finish reason (chat, completions), the terminal event
// came (Responses, Messages). Of a response that is not streamed, and of the other
// APIs, that the JSON value is complete and no error. A body that is not JSON is
// never finished: only its framing can tell.
func (s *Stream) Finished() bool { return s.finished || s.choices.finished() }

// Done reports whether the stream's last event was seen: [DONE] in any spelling or
// the terminal event of Responses and Messages.
func (s *Stream) Done() bool { return s.done }

// Usage returns the usage, if the engine sent one. Output is Tokens: of a stream
// that broke off after an early usage it counts what came since.
func (s *Stream) Usage() (Usage, bool) {
	if !s.hasUsage {
		return Usage{}, false
	}
	u := s.usage
	u.Output = s.Tokens()
	return u, true
}

// ErrorEvent returns the first error that the engine put into its answer. The
// message has at most 1024 bytes. The code is an HTTP status, 0 if the engine gave
// none and its error type is none of the known.
func (s *Stream) ErrorEvent() (message string, code int, ok bool) {
	if !s.failed {
		return "", 0, false
	}
	return strings.ToValidUTF8(string(s.failure.text[:s.failure.n]), ""), s.failure.code, true
}

// Aborted reports whether the engine ended an answer with finish reason "abort".
func (s *Stream) Aborted() bool { return s.aborted }

// NoChoices reports whether the stream ended by its marker without any choice or
// error: a draining vLLM does so.
func (s *Stream) NoChoices() bool {
	return s.stream && s.family == familyChoices && s.done && !s.failed && !s.choices.any()
}

// Choice reports whether an event showed a choice, be it only its role or its end.
// For an API without choices any event counts. Until then an answer may still turn
// out to be a draining engine's, which is empty.
func (s *Stream) Choice() bool {
	if s.family == familyChoices {
		return s.choices.any()
	}
	return s.events > 0
}

// ResponseID returns the id of the response or message, "" until an event told it
// and when it is longer than 128 bytes. Only the endpoint that made a response knows
// its id.
func (s *Stream) ResponseID() string { return s.response.String() }

// Broken reports whether the engine itself said that its answer (chat, completions,
// Responses, Messages) is not complete: by a choice that it aborted, or by an end
// marker before every choice has its finish reason. tail is how many of the bytes so far belong to the event that said so or
// follow it. What of them has not been passed on must not be: a client would take the
// answer for whole. Ask after each Write.
func (s *Stream) Broken() (tail int, ok bool) { return s.total - s.brokenAt, s.broken }

// breaks notes that the current event says that the answer is not complete.
func (s *Stream) breaks() {
	if !s.broken && s.family != familyOther {
		s.broken, s.brokenAt, s.torn = true, s.start, s.start < s.was || s.lines > 1
	}
}

// EventEnd returns the line breaks that end an event that is open, as far as the
// client can have got it. It cannot be taken back, but what follows must not become a
// part of it.
func (s *Stream) EventEnd() []byte {
	if s.broken { // its client has less than was read
		if s.torn {
			return []byte("\n\n")
		}
		return nil
	}
	var end []byte
	if s.line != lineStart || s.cr { // behind a CR a line feed is no blank line
		end = append(end, '\n')
	}
	if s.open {
		end = append(end, '\n')
	}
	return end
}

// Between reports whether the stream stands between two events, where something may be put in.
func (s *Stream) Between() bool { return s.stream && !s.open && s.line == lineStart }

// CutEvent returns the bytes that end this stream with an error: EventEnd, and e's
// event in the stream's dialect, with the answer's id and the next sequence number
// where the dialect has them.
func (s *Stream) CutEvent(e *Error) []byte {
	return append(s.EventEnd(), e.event(s.kind, s.dialect, s.ResponseID(), s.sequence)...)
}
