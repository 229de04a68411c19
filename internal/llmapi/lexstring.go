package llmapi

import (
	"bytes"
	"unicode/utf8"
)

// inKeyText collects a key; tokMore means that it goes on, or that there is
// more to do at this position.
func (l *lexer) inKeyText() token {
	switch piece, end := l.text(); {
	case end:
		l.state = lexColon
		return tokKey
	case l.state == lexDead:
		return tokBad
	case len(l.key)+len(piece) > maxKey:
		l.keyLong = true
	default:
		l.key = append(l.key, piece...)
	}
	return tokMore
}

// inText returns the next piece of a string value, or its end. Of a string that
// nobody wants it returns only the end.
func (l *lexer) inText() token {
	for l.pos < len(l.buf) {
		piece, end := l.text()
		switch {
		case end:
			l.endValue()
			return tokStringEnd
		case l.state == lexDead:
			return tokBad
		case l.want && len(piece) > 0:
			l.piece = piece
			return tokPiece
		}
	}
	return tokMore
}

// text returns the next unescaped piece of a string, possibly empty, or that the
// string ended.
func (l *lexer) text() (piece []byte, end bool) {
	if l.esc != 0 {
		return l.escape(), false
	}
	if l.quote < l.pos || l.quote == 0 {
		l.quote = len(l.buf)
		if i := bytes.IndexByte(l.buf[l.pos:], '"'); i >= 0 {
			l.quote = l.pos + i
		}
	}
	run := l.buf[l.pos:l.quote]
	if i := bytes.IndexByte(run, '\\'); i >= 0 {
		run = run[:i]
	}
	if len(run) > 0 {
		l.pos += len(run)
		if l.high == 0 {
			return run, false
		}
		l.pos -= len(run) // a lone high surrogate comes first
		return l.lone(), false
	}
	if l.pos == l.quote && l.pos < len(l.buf) {
		if l.high != 0 {
			return l.lone(), false
		}
		l.pos++
		return nil, true
	}
	return l.beginEscape(), false
}

// beginEscape takes a backslash, and the escape with it where all of it
// was received.
func (l *lexer) beginEscape() []byte {
	if rest := l.buf[l.pos+1:]; len(rest) > 4 && l.high == 0 {
		if r := unescape(rest[0]); r != 0 {
			l.pos += 2
			l.tmp[0] = r
			return l.tmp[:1]
		}
		if r, ok := hex4(rest[1:5]); ok && rest[0] == 'u' {
			l.pos += 6
			return l.rune16(r)
		}
	}
	l.pos++
	l.esc = 1
	return nil
}

// lone gives out a high surrogate that found no other half.
func (l *lexer) lone() []byte {
	p := appendSurrogate(l.tmp[:0], l.high)
	l.high = 0
	return p
}

// escape takes one byte of an escape and returns its text once it is complete.
func (l *lexer) escape() []byte {
	c := l.buf[l.pos]
	l.pos++
	if l.esc == 1 {
		if c == 'u' {
			l.esc, l.hex = 5, 0
			return nil
		}
		l.esc = 0
		r := unescape(c)
		if r == 0 {
			l.bad("unknown escape in a string")
			return nil
		}
		p := l.tmp[:0]
		if l.high != 0 {
			p = appendSurrogate(p, l.high)
			l.high = 0
		}
		return append(p, r)
	}
	d, ok := hexDigit(c)
	if !ok {
		l.bad("malformed \\u escape")
		return nil
	}
	l.hex = l.hex<<4 | d
	if l.esc--; l.esc > 1 {
		return nil
	}
	l.esc = 0
	return l.rune16(l.hex)
}

// rune16 gives out the text of a \u escape, joining the halves of a pair.
func (l *lexer) rune16(r rune) []byte {
	p := l.tmp[:0]
	high := l.high
	l.high = 0
	if r >= 0x80 {
		l.escaped += 3 // all but a few: a pair of halves makes 4, Cyrillic letters are 2
	}
	if high != 0 {
		if r >= 0xdc00 && r < 0xe000 {
			return utf8.AppendRune(p, (high-0xd800)<<10+(r-0xdc00)+0x10000)
		}
		p = appendSurrogate(p, high)
	}
	switch {
	case r >= 0xd800 && r < 0xdc00:
		l.high = r
		return p
	case r >= 0xdc00 && r < 0xe000:
		return appendSurrogate(p, r)
	}
	return utf8.AppendRune(p, r)
}

// appendSurrogate encodes a lone surrogate as three bytes that no rune has, so
// that different ones stay different.
func appendSurrogate(p []byte, r rune) []byte {
	return append(p, 0xe0|byte(r>>12), 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
}

// unescape is the byte that an escape of one letter stands for, 0 for none.
func unescape(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case '"', '\\', '/':
		return c
	case 't':
		return '\t'
	case 'r':
		return '\r'
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	}
	return 0
}

func hex4(p []byte) (r rune, ok bool) {
	for _, c := range p {
		d, hex := hexDigit(c)
		if !hex {
			return 0, false
		}
		r = r<<4 | d
	}
	return r, true
}

func hexDigit(c byte) (rune, bool) {
	switch {
	case c >= '0' && c <= '9':
		return rune(c - '0'), true
	case c >= 'a' && c <= 'f':
		return rune(c-'a') + 10, true
	case c >= 'A' && c <= 'F':
		return rune(c-'A') + 10, true
	}
	return 0, false
}
