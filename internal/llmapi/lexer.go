package llmapi

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

	escaped int // bytes above 0x7f that escapes stood for, about

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
	l.want, l.esc, l.high, l.what, l.escaped = false, 0, 0, "", 0
}

// feed gives the lexer its next bytes; the former ones must be used up.
func (l *lexer) feed(p []byte) { l.buf, l.pos, l.quote = p, 0, 0 }

// complete reports whether one whole value was read.
func (l *lexer) complete() bool { return l.state == lexEnd }

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
		if isSpace(c) {
			continue
		}
		if t := l.structure(c); t != tokMore {
			return t
		}
	}
	if l.state == lexDead { // the last byte of buf, taken by text, was the bad one
		return tokBad
	}
	return tokMore
}

func isSpace(c byte) bool { return c <= ' ' && (c == ' ' || c == '\n' || c == '\r' || c == '\t') }

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
		l.state, l.literal, l.litTok = lexInLiteral, "true"[1:], tokTrue
		return tokMore
	case 'f':
		l.state, l.literal, l.litTok = lexInLiteral, "false"[1:], tokFalse
		return tokMore
	case 'n':
		l.state, l.literal, l.litTok = lexInLiteral, "null"[1:], tokNull
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
