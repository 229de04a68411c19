package llmapi

import "bytes"

// lineState says which part of a line the next byte belongs to.
type lineState uint8

const (
	lineStart lineState = iota
	lineField           // the field's name
	lineData            // the value of data:
	lineName            // the value of event:
	lineRest            // a value of no interest
)

// maxRun bounds how far a line's end is looked for at once: else lines that end
// with CR would have everything after them searched for a LF.
const maxRun = 4 << 10

// readLines cuts p into lines and events.
func (s *Stream) readLines(p []byte) {
	for i := 0; i < len(p); {
		if s.cr {
			s.cr = false
			if p[i] == '\n' {
				i++
				continue
			}
		}
		if s.line == lineStart {
			if n := s.startLine(p, i); n > 0 {
				i += n
				continue
			}
		}
		run := p[i:min(len(p), i+maxRun)]
		if n := bytes.IndexByte(run, '\n'); n >= 0 {
			run = run[:n]
		}
		if n := bytes.IndexByte(run, '\r'); n >= 0 {
			run = run[:n]
		}
		s.readRun(run, i)
		if i += len(run); i < len(p) && (p[i] == '\n' || p[i] == '\r') {
			s.endLine()
			s.cr = p[i] == '\r'
			i++
		}
	}
}

// startLine begins the line at p[i:]. If that is a blank line, which ends an
// event, or begins an event that is known by heart, it takes it and returns its
// length.
func (s *Stream) startLine(p []byte, i int) int {
	if !s.open && s.memo.tail > 0 {
		if n := s.memo.match(p[i:]); n > 0 {
			s.events++
			s.frames += s.memo.frames
			s.cr = p[i+n-1] == '\r'
			return n
		}
	}
	if p[i] == '\n' || p[i] == '\r' {
		s.cr, s.first = p[i] == '\r', false
		s.endEvent(p, i+1)
		return 1
	}
	if !s.open {
		s.start = s.was + i
	}
	s.line, s.lineAt, s.open, s.field.n = lineField, s.was+i, true, 0
	return 0
}

// readRun reads a part of a line that stands at p[at:] in the bytes being written.
func (s *Stream) readRun(run []byte, at int) {
	if s.line == lineField {
		colon := bytes.IndexByte(run, ':')
		if colon < 0 {
			s.field.add(run)
			return
		}
		s.field.add(run[:colon])
		run, at = run[colon+1:], at+colon+1
		s.startValue()
	}
	if s.space && len(run) > 0 {
		s.space = false
		if run[0] == ' ' {
			run, at = run[1:], at+1
		}
	}
	switch s.line {
	case lineData:
		s.readData(run, at)
	case lineName:
		s.name.add(run)
	}
}

var lineBreak = []byte("\n")

const byteOrderMark = "\xef\xbb\xbf"

// startValue begins the value of the line's field. The lines of data of one event
// are joined by line breaks.
func (s *Stream) startValue() {
	s.space, s.line = true, lineRest
	switch field := s.field.bytes(); {
	case string(field) == "data", s.first && string(field) == byteOrderMark+"data":
		s.line = lineData
		switch s.lines++; {
		case s.lines == 1:
		case s.told: // no blank line came between
			s.clearData()
			s.start = s.lineAt
		default:
			s.readData(lineBreak, -1)
		}
	case string(field) == "event", s.first && string(field) == byteOrderMark+"event":
		s.line = lineName
		s.name.n = 0
	}
}

func (s *Stream) endLine() {
	if s.line == lineField {
		s.startValue() // a field without colon has an empty value
	}
	s.line, s.space, s.first = lineStart, false, false
}

// doneMark ends the streams of the choices family. Clients differ in what they
// take for it: so any case, and anything after it.
const doneMark = "[done]"

// readData reads a part of an event's data that stands at at in the bytes being
// written; -1: it does not.
func (s *Stream) readData(p []byte, at int) {
	for i := 0; s.mark >= 0 && i < len(p); i++ {
		c := p[i]
		switch {
		case s.mark == 0 && (c == ' ' || c == '\t' || c == '\n'):
		case c != doneMark[s.mark] && (c < 'A' || c > 'Z' || c|0x20 != doneMark[s.mark]):
			s.mark = -1
		default:
			if s.mark++; s.mark == len(doneMark) {
				s.mark, s.deaf, s.done = -1, true, true
				s.tell()
				if !s.Finished() {
					s.breaks()
				}
			}
		}
	}
	if !s.deaf {
		s.read(p, at)
	}
}

// tell counts the event, once.
func (s *Stream) tell() {
	if !s.told {
		s.told = true
		s.events++
	}
}

// endEvent ends the event at the blank line that ends at p[:end].
func (s *Stream) endEvent(p []byte, end int) {
	if s.lines > 0 {
		s.tell()
		if s.name.is("error") && !s.failed {
			if !s.lex.complete() {
				s.walk.reset()
			}
			s.fail()
		}
		// No event may be taken for one with a byte order mark or without a blank line.
		if begin := s.start - s.was; begin >= 0 && s.walk.alike && s.lines == 1 && s.events > 1 {
			s.memo.learn(p[begin:end], s.walk.from-begin, s.walk.to-begin, s.walk.told)
		}
	}
	s.clear()
}

// A word is a short text that is collected piece by piece. A text of more than 128
// bytes is none of those that are looked for.
type word struct {
	b [128]byte
	n int // more than len(b): too long
}

func (w *word) add(p []byte) {
	if w.n+len(p) > len(w.b) {
		w.n = len(w.b) + 1
		return
	}
	w.n += copy(w.b[w.n:], p)
}

func (w *word) bytes() []byte {
	if w.n > len(w.b) {
		return nil
	}
	return w.b[:w.n]
}

func (w *word) is(s string) bool { return string(w.bytes()) == s }
func (w *word) String() string   { return string(w.bytes()) }
