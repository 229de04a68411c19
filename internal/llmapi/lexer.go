package llmapi

import (
	"bytes"
	"unicode/utf8"
)

// A token is one step of a JSON text.
type token uint8

const (
	tokMore      token = iota // the fed bytes are used up
	tokBad                    // not JSON; lexer.what says why
	tokObject                 // {
	tokObjectEnd              // }
	tokArray                  // [
	tokArrayEnd               // ]
	tokKey                    // a whole key, in lexer.key
	tokString                 // a string value begins; set lexer.want to get its pieces
	tokPiece                  // unescaped text of a wanted string, in lexer.piece
	tokStringEnd              // the string value ended, wanted or not
	tokNumber                 // a whole number, in lexer.num and lexer.integer
	tokTrue
	tokFalse
	tokNull
)

const (
	maxDepth = 512
	maxKey   = 1024
	maxNum   = 64
)

type lexState uint8

const (
	lexValue      lexState = iota // a value
	lexValueOrEnd                 // after [
	lexKeyOrEnd                   // after {
	lexKey                        // after , in an object
	lexColon
	lexAfter // after a value: , or the end of the container
	lexInKey
	lexInString
	lexInNumber
	lexInLiteral
	lexEnd // the text is complete; only space may follow
	lexDead
)

// A lexer cuts a JSON text into tokens while it is received, in any chunking. It
// holds one key and one number, never a value. It accepts what encoding/json
// accepts, and control characters and bytes that are not UTF-8 inside of strings
// too: those change no structure and are the engine's to judge.
type lexer struct {
	buf   []byte // what was fed
	pos   int    // in buf
	quote int    // a position in buf before which there is no quote from pos on
	state lexState
	depth int
	array [maxDepth/64 + 1]uint64 // bit d: the container at depth d is an array

	want    bool   // the consumer wants the pieces of the string that began
	piece   []byte // valid until the next call
	what    string // why the text is bad
	key     []byte // valid until the next key; at most maxKey bytes
	keyLong bool   // the key was longer than that

	integer int64  // the number's integer part, saturated
	num     []byte // the number's text, at most maxNum bytes; valid until the next one
	numAt   numState
	neg     bool

	literal string // what is left to see of true, false or null
	litTok  token

	esc  uint8 // 0: no escape open; 1: after the backslash; 2 to 5: hex digits to come, less one
	hex  rune
	high rune // a high surrogate that waits for its other half
	tmp  [12]byte
	keyB [maxKey]byte
	numB [maxNum]byte
}

type numState uint8

const (
	numMinus numState = iota // after -
	numZero
	numInt
	numDot
	numFrac
	numE
	numSign
	numExp
)

func (l *lexer) reset() {
	l.buf, l.pos, l.quote, l.state, l.depth = nil, 0, 0, lexValue, 0
	l.want, l.esc, l.high, l.what = false, 0, 0, ""
}

// feed gives the lexer its next bytes; the former ones must be used up.
func (l *lexer) feed(p []byte) { l.buf, l.pos, l.quote = p, 0, 0 }

// complete reports whether one whole value was read.
func (l *lexer) complete() bool { return l.state == lexEnd }

// inString reports whether the last fed byte was inside of a string or a key.
func (l *lexer) inString() bool { return l.state == lexInString || l.state == lexInKey }

// next returns the next token.
func (l *lexer) next() token {
	for l.pos < len(l.buf) {
		switch l.state {
		case lexInString:
			return l.inText()
		case lexInKey:
			if t := l.inKeyText(); t != tokMore {
				return t
			}
			continue
		case lexInNumber:
			if t := l.inNumber(); t != tokMore {
				return t
			}
			continue
		case lexInLiteral:
			if t := l.inLiteral(); t != tokMore {
				return t
			}
			continue
		case lexDead:
			return tokBad
		}
		c := l.buf[l.pos]
		l.pos++
		if c <= ' ' && (c == ' ' || c == '\n' || c == '\r' || c == '\t') {
			continue
		}
		if t := l.structure(c); t != tokMore {
			return t
		}
	}
	return tokMore
}

// structure takes one byte that is not space, outside of strings and scalars.
func (l *lexer) structure(c byte) token {
	switch l.state {
	case lexColon:
		if c != ':' {
			return l.bad("expected a colon")
		}
		l.state = lexValue
		return tokMore
	case lexAfter:
		return l.after(c)
	case lexKey, lexKeyOrEnd:
		if c == '"' {
			l.state, l.key, l.keyLong = lexInKey, l.keyB[:0], false
			return tokMore
		}
		if c == '}' && l.state == lexKeyOrEnd {
			return l.pop(tokObjectEnd)
		}
		return l.bad("expected a key")
	case lexValueOrEnd:
		if c == ']' {
			return l.pop(tokArrayEnd)
		}
		return l.value(c)
	case lexValue:
		return l.value(c)
	}
	return l.bad("text after the end")
}

func (l *lexer) after(c byte) token {
	inArray := l.array[l.depth>>6]>>(l.depth&63)&1 == 1
	switch {
	case c == ',' && inArray:
		l.state = lexValue
		return tokMore
	case c == ',':
		l.state = lexKey
		return tokMore
	case c == ']' && inArray:
		return l.pop(tokArrayEnd)
	case c == '}' && !inArray:
		return l.pop(tokObjectEnd)
	}
	return l.bad("expected a comma or the end of the object or array")
}

func (l *lexer) value(c byte) token {
	switch c {
	case '"':
		l.state, l.want = lexInString, false
		return tokString
	case '{':
		return l.push(tokObject, lexKeyOrEnd, 0)
	case '[':
		return l.push(tokArray, lexValueOrEnd, 1)
	case 't':
		l.state, l.literal, l.litTok = lexInLiteral, "rue", tokTrue
		return tokMore
	case 'f':
		l.state, l.literal, l.litTok = lexInLiteral, "alse", tokFalse
		return tokMore
	case 'n':
		l.state, l.literal, l.litTok = lexInLiteral, "ull", tokNull
		return tokMore
	}
	if c != '-' && (c < '0' || c > '9') {
		return l.bad("expected a value")
	}
	l.state, l.integer, l.num, l.neg = lexInNumber, int64(c-'0'), append(l.numB[:0], c), false
	switch c {
	case '-':
		l.numAt, l.integer, l.neg = numMinus, 0, true
	case '0':
		l.numAt = numZero
	default:
		l.numAt = numInt
	}
	return tokMore
}

func (l *lexer) push(t token, next lexState, isArray uint64) token {
	if l.depth == maxDepth {
		return l.bad("nested deeper than 512")
	}
	l.depth++
	bit := uint64(1) << (l.depth & 63)
	l.array[l.depth>>6] = l.array[l.depth>>6]&^bit | isArray*bit
	l.state = next
	return t
}

func (l *lexer) pop(t token) token {
	l.depth--
	l.endValue()
	return t
}

func (l *lexer) endValue() {
	l.state = lexAfter
	if l.depth == 0 {
		l.state = lexEnd
	}
}

func (l *lexer) bad(what string) token {
	l.state, l.what = lexDead, what
	return tokBad
}

func (l *lexer) inLiteral() token {
	if l.buf[l.pos] != l.literal[0] {
		return l.bad("expected a value")
	}
	l.pos++
	if l.literal = l.literal[1:]; l.literal != "" {
		return tokMore
	}
	l.endValue()
	return l.litTok
}

// inNumber takes bytes until one is not of the number; that one is left.
func (l *lexer) inNumber() token {
	for l.pos < len(l.buf) {
		c := l.buf[l.pos]
		if c >= '0' && c <= '9' && l.numAt == numInt && len(l.num) < 18 {
			l.integer = l.integer*10 + int64(c-'0')
			l.num = append(l.num, c)
			l.pos++
			continue
		}
		next, ok := numStep(l.numAt, c)
		if !ok {
			return l.endNumber()
		}
		if next == numInt {
			if l.integer > (1<<62)/10 {
				l.integer = 1 << 62
			} else {
				l.integer = l.integer*10 + int64(c-'0')
			}
		}
		if len(l.num) < maxNum {
			l.num = append(l.num, c)
		}
		l.numAt = next
		l.pos++
	}
	return tokMore
}

func (l *lexer) endNumber() token {
	switch l.numAt {
	case numZero, numInt, numFrac, numExp:
	default:
		return l.bad("malformed number")
	}
	if l.neg {
		l.integer = -l.integer
	}
	l.endValue()
	return tokNumber
}

// numStep is the grammar of a number.
func numStep(at numState, c byte) (numState, bool) {
	digit := c >= '0' && c <= '9'
	switch at {
	case numMinus:
		if c == '0' {
			return numZero, true
		}
		return numInt, digit
	case numZero, numInt:
		switch {
		case digit:
			return numInt, at == numInt
		case c == '.':
			return numDot, true
		}
		return numE, c == 'e' || c == 'E'
	case numDot, numFrac:
		if at == numFrac && (c == 'e' || c == 'E') {
			return numE, true
		}
		return numFrac, digit
	case numE:
		if c == '+' || c == '-' {
			return numSign, true
		}
	}
	return numExp, digit
}

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

// beginEscape takes a backslash, and the escape with it where that is one letter
// and was received.
func (l *lexer) beginEscape() []byte {
	if l.pos+1 < len(l.buf) && l.high == 0 {
		if r := unescape(l.buf[l.pos+1]); r != 0 {
			l.pos += 2
			l.tmp[0] = r
			return l.tmp[:1]
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
