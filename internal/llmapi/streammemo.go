package llmapi

import "bytes"

// A memo knows the last content event by heart. The events of one answer differ in
// their piece of text only, mostly; and what an event says does not depend on that
// piece, as long as it is not empty. So an event with the same bytes before the
// piece and after it says what the last one said, and need not be read.
type memo struct {
	buf    [768]byte // what comes before the piece, and after it
	head   int
	tail   int // 0: nothing is known
	frames int // what such an event adds
}

func (m *memo) forget() { m.tail = 0 }

// learn takes an event whose piece of text is event[from:to].
func (m *memo) learn(event []byte, from, to, frames int) {
	m.forget()
	if from < 0 || to < from || from+len(event)-to > len(m.buf) {
		return
	}
	m.frames = frames
	m.head = copy(m.buf[:], event[:from])
	m.tail = copy(m.buf[m.head:], event[to:])
}

// match returns the length of the event that p begins with if it is known, else 0.
func (m *memo) match(p []byte) int {
	if len(p) < m.head || !bytes.Equal(p[:m.head], m.buf[:m.head]) {
		return 0
	}
	piece := p[m.head:]
	n := plain(piece)
	if n <= 0 || len(piece)-n < m.tail || !bytes.Equal(piece[n:n+m.tail], m.buf[m.head:m.head+m.tail]) {
		return 0
	}
	return m.head + n + m.tail
}

// plain returns the length of the text up to the quote that ends it, -1 if there
// is none or if the text needs a closer look.
func plain(p []byte) int {
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '"':
			return i
		case '\\':
			if i++; i == len(p) || unescape(p[i]) == 0 {
				return -1
			}
		case '\n', '\r':
			return -1
		}
	}
	return -1
}
