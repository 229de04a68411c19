package llmapi

// maxSpot is how deep the deepest spot lies.
const maxSpot = 8

// maxMessage bounds an error's message.
const maxMessage = 1024

// A walk is where a Stream is in the JSON of an event, and what that said so far.
// All of it counts at the end of the JSON only: of an event that was cut in the
// middle its client has nothing.
type walk struct {
	at     [maxSpot + 1]spot // by depth
	member member            // the member whose value is next
	use    use               // what becomes of the string that is being read
	into   *word             // of useWord
	empty  bool              // nothing of the string so far

	choice  choice
	choices choiceSet
	frames  int
	delta   bool // the event's own delta has content
	usage   counts
	failed  bool
	top     report // of the event itself
	err     report // of its error object
	finish  word   // the finish reason that is being read
	id      word

	sequence int // -1: none

	// For the memo.
	from, to int  // the piece of text that made this a content event; -1: none
	alike    bool // told content frames and nothing else
	told     int  // content frames
}

// report is what an event or an error object says of an error.
type report struct {
	message  [maxMessage]byte
	n        int // bytes of message
	code     int
	codeText word
	typ      word
	object   word
}

func (r *report) reset() { r.n, r.code, r.codeText.n, r.typ.n, r.object.n = 0, 0, 0, 0, 0 }

// choice is what one choice of an event says.
type choice struct {
	open    bool
	index   int
	finish  bool
	abort   bool
	content bool
	blank   bool // content that is an empty text
	role    bool // the delta says whose it is: the frame before the first output
	ids     int
}

// counts are the numbers of a usage object; -1: not there.
type counts struct {
	prompt, output, cacheRead, cacheMade, cached int
}

var noCounts = counts{-1, -1, -1, -1, -1}

// use says what a string is for.
type use uint8

const (
	useNone    use = iota
	useContent     // only whether it is empty matters
	useWord
	useFinish
	useTopMessage
	useMessage
	useError // an error that is a string
)

func (w *walk) reset() {
	w.at[0], w.member, w.use = atNothing, memberNone, useNone
	w.choice.open = false
	w.choices.clear()
	w.frames, w.delta, w.usage, w.failed, w.sequence = 0, false, noCounts, false, -1
	w.top.reset()
	w.err.reset()
	w.id.n = 0
	w.from, w.to, w.alike, w.told = -1, -1, false, 0
}

// read walks over the next bytes of the JSON of an event, which stand at at in the
// bytes being written; -1: they do not.
func (s *Stream) read(p []byte, at int) {
	w := &s.walk
	s.lex.feed(p)
	for {
		switch t := s.lex.next(); t {
		case tokMore:
			return
		case tokBad:
			s.deaf = true
			return
		case tokKey:
			w.key(w.spot(s.lex.depth), &s.lex)
		case tokObject, tokArray:
			w.enter(t, s.lex.depth)
		case tokObjectEnd, tokArrayEnd:
			w.leave(s.lex.depth + 1)
			if s.lex.depth == 0 {
				s.deaf = true
				s.commit()
				return
			}
		case tokString:
			if w.text(s.lex.depth) {
				s.lex.want, w.empty = true, true
				w.mark(at, s.lex.pos)
			}
		case tokPiece:
			w.piece(&s.lex)
		case tokStringEnd:
			w.textEnd(at, s.lex.pos-1)
		case tokNumber:
			w.number(&s.lex)
		case tokTrue, tokFalse:
			w.scalar(s.lex.depth)
		}
	}
}

func (w *walk) spot(depth int) spot {
	if depth > maxSpot {
		return atNothing
	}
	return w.at[depth]
}

// key notes which member comes next. An object that has members is not empty.
func (w *walk) key(in spot, l *lexer) {
	w.member = memberNone
	if l.keyLong {
		w.scalar(l.depth)
		return
	}
	switch in {
	case atTop:
		w.member = topMember(l.key)
	case atChoice:
		w.member = choiceMember(l.key)
	case atDelta:
		w.member = deltaMember(l.key)
		w.choice.noteRole(l.key)
	case atUsage:
		w.member = usageMember(l.key)
	case atDetails:
		if string(l.key) == "cached_tokens" {
			w.member = memberCached
		}
	case atResponse, atMessage:
		switch string(l.key) {
		case "usage":
			w.member = memberUsage
		case "error":
			if in == atResponse {
				w.member = memberError
			}
		case "id":
			w.member = memberID
		}
	case atError, atContent:
		w.scalar(l.depth)
		if in == atError {
			w.member = errorMember(l.key)
		}
	}
}

func (c *choice) noteRole(key []byte) { c.role = c.role || string(key) == "role" }

// enter notes the spot that begins.
func (w *walk) enter(t token, depth int) {
	in := w.spot(depth - 1)
	w.scalar(depth - 1)
	next := atTop
	switch {
	case t == tokArray:
		next = w.arrayIn(in)
	case depth > 1:
		next = w.objectIn(in)
	}
	if next == atChoice {
		w.choice = choice{open: true}
	}
	w.member = memberNone
	if depth <= maxSpot {
		w.at[depth] = next
	}
}

func (w *walk) arrayIn(in spot) spot {
	switch {
	case in == atTop && w.member == memberChoices:
		return atChoices
	case in == atChoice && w.member == memberTokenIDs:
		return atTokenIDs
	case in == atDelta && w.member == memberContent:
		return atContent
	}
	return atNothing
}

func (w *walk) objectIn(in spot) spot {
	if in == atChoices {
		return atChoice
	}
	switch w.member {
	case memberUsage:
		return atUsage
	case memberError:
		return atError
	case memberDelta:
		return atDelta
	case memberResponse:
		return atResponse
	case memberDetails:
		return atDetails
	case memberMessage:
		if in == atTop {
			return atMessage
		}
	case memberContent:
		if in == atDelta {
			return atContent
		}
	}
	return atNothing
}

// leave ends the spot at depth.
func (w *walk) leave(depth int) {
	if w.spot(depth) != atChoice {
		return
	}
	c := &w.choice
	w.choices.add(c.index, c.finish, c.abort)
	// Engines send a frame per output, and its text is empty while they hold back a stop string or part of a character.
	if (c.content || c.blank && !c.role && !c.finish) && c.ids == 0 {
		c.ids = 1
	}
	w.frames += c.ids
	c.open = false
}

// scalar notes that a container has something in it, be it what it may.
func (w *walk) scalar(depth int) {
	switch w.spot(depth) {
	case atContent:
		w.content()
	case atTokenIDs:
		w.choice.ids++
	case atError:
		w.failed = true
	}
}

func (w *walk) content() {
	if w.choice.open {
		w.choice.content = true
	} else {
		w.delta = true
	}
}
