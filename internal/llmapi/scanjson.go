package llmapi

import (
	"encoding/binary"
	"fmt"
)

// A sink is where the pieces of the open string go.
type sink uint8

const (
	sinkNone  sink = iota
	sinkModel      // model, bounded
	sinkSmall      // small, bounded; what it decides is in want
	sinkText       // canonical text
	sinkMark       // canonical text, ended by a mark
	sinkMedia      // digest of a medium
)

// A target is where canonical text goes.
type target uint8

const (
	toPrompt target = iota
	toHead
	toSeed
)

// Marks of structure in canonical text: bytes that text hardly has.
const (
	markMessage = 1 // before a message
	markContent = 2 // before a content
	markField   = 3 // before another field's name
	markPart    = 4 // between parts
	markNull    = 5
	markEnd     = 0 // after a field's string
)

// maxSmall bounds the strings that decide something: ids and types.
const maxSmall = 256

func (s *Scanner) scanJSON(p []byte) {
	s.lx.feed(p)
	s.census.count(p)
	for s.err == nil {
		t := s.lx.next()
		switch t {
		case tokMore:
			return
		case tokBad:
			s.err = s.bad(fmt.Sprintf("the request body is not valid JSON: %s at byte %d", s.lx.what, s.off+int64(s.lx.pos)))
		case tokPiece:
			if s.sink == sinkText && s.to == toPrompt {
				s.plain()
			} else {
				s.piece(s.lx.piece)
			}
		case tokStringEnd:
			s.endString()
		case tokKey:
			s.key()
		case tokObjectEnd, tokArrayEnd:
			s.endContainer()
		default:
			s.value(t)
		}
	}
}

// plain moves the text of a prompt into its hasher: all but a little of a body's
// bytes take this way.
func (s *Scanner) plain() {
	h, lx := &s.prompts[s.cur], &s.lx
	h.Write(lx.piece)
	for lx.pos < len(lx.buf) && lx.buf[lx.pos] != '"' && lx.state == lexInString {
		piece, end := lx.text()
		if end {
			return
		}
		h.Write(piece)
	}
}

// key decides what the value of the key that was read means.
func (s *Scanner) key() {
	if s.skip != 0 {
		return
	}
	if s.lx.keyLong {
		s.err = s.bad(fmt.Sprintf("the request body has a key of more than %d bytes", maxKey))
		return
	}
	s.want = s.meaning(string(s.lx.key))
	if s.want == wantMedia {
		s.media = mediaKind(string(s.lx.key))
	}
}

// meaning is what the value of a key means where the key stands.
func (s *Scanner) meaning(key string) want {
	switch s.place[s.depth] {
	case inTop:
		return s.topKey(key)
	case inStreamOpts:
		if key == "include_usage" {
			return wantIncludeUsage
		}
		return wantSkip
	case inSampling:
		return samplingKey(key)
	case inMessage:
		return s.messageKey(key)
	case inPart:
		return partKey(key)
	case inMedia:
		return mediaKey(key)
	case inText:
		return s.textKey(key)
	}
	return wantText
}

func samplingKey(key string) want {
	switch key {
	case "max_tokens":
		return wantMax
	case "n":
		return wantN
	}
	return wantSkip
}

// value takes the first token of a value.
func (s *Scanner) value(t token) {
	if s.skip != 0 {
		if t == tokObject || t == tokArray {
			s.skip++
		}
		return
	}
	w := s.want
	switch s.place[s.depth] {
	case inMessages:
		w = wantMessage
	case inContent:
		s.byte(markPart)
		w = wantPart
	case inFirst:
		s.place[s.depth] = inContent
		w = wantPart
	case inPrompts, inIDs:
		w = wantID
	case inTexts:
		w = wantTexts
	case inTextArray:
		w = wantText
	}
	if s.depth == 0 {
		w = wantTop
	}
	s.take(w, t)
}

// take acts on a value by its meaning. Each meaning says which tokens it allows.
func (s *Scanner) take(w want, t token) {
	switch w {
	case wantTop:
		if t != tokObject {
			s.err = s.bad("the request body must be a JSON object")
			return
		}
		s.enter(inTop)
	case wantStream, wantIncludeUsage:
		s.takeBool(w, t)
	case wantMax, wantMaxChat, wantN, wantPriority:
		s.takeNumber(w, t)
	case wantModel, wantPrevious, wantStreamOpts, wantSampling, wantTruncation:
		s.takeOption(w, t)
	case wantSeed:
		s.takeSeed(t)
	case wantMessages, wantInput, wantHead:
		s.takeConversation(w, t)
	case wantMessage:
		s.takeMessage(t)
	case wantRole, wantType:
		s.takeRole(w, t)
	case wantContent, wantPart, wantPartText:
		s.takeContent(w, t)
	case wantMedia, wantMediaData:
		s.takeMedia(w, t)
	case wantPrompt, wantID, wantTexts:
		s.takePrompt(w, t)
	case wantText:
		s.takeText(t)
	default:
		s.ignore(t)
	}
}

// enter opens a container that matters.
func (s *Scanner) enter(p place) {
	s.depth++
	s.place[s.depth] = p
}

// ignore skips a value.
func (s *Scanner) ignore(t token) {
	if t == tokObject || t == tokArray {
		s.skip = 1
	}
}

// open sends the string that began to k.
func (s *Scanner) open(k sink, w want) {
	s.lx.want, s.sink, s.want = true, k, w
	if k == sinkSmall {
		s.small = s.small[:0]
	}
}

// takeBool takes a bool, and what vLLM's lax decoder takes for one.
func (s *Scanner) takeBool(w want, t token) {
	name := "stream"
	if w == wantIncludeUsage {
		name = "stream_options.include_usage"
	}
	switch t {
	case tokTrue, tokFalse:
		s.setBool(w, t == tokTrue)
	case tokNumber:
		if s.lx.integer != 0 && s.lx.integer != 1 {
			s.err = mistyped(name, "true or false")
		}
		s.setBool(w, s.lx.integer == 1)
	case tokString:
		s.open(sinkSmall, w)
	case tokNull:
	default:
		s.err = mistyped(name, "true or false")
	}
}

func (s *Scanner) setBool(w want, v bool) {
	if w == wantStream {
		s.req.Stream = v
	} else {
		s.req.IncludeUsage = v
	}
}

func (s *Scanner) takeNumber(w want, t token) {
	switch t {
	case tokNumber:
		n := int(s.lx.integer)
		if s.lx.numAt != numInt && s.lx.numAt != numZero {
			n, _ = number(s.lx.num)
		}
		s.setNumber(w, n)
	case tokString:
		s.open(sinkSmall, w)
	case tokNull:
	default:
		s.err = mistyped(numberName(w), "a number")
	}
}

func numberName(w want) string {
	switch w {
	case wantMaxChat:
		return "max_completion_tokens"
	case wantN:
		return "n"
	case wantPriority:
		return "priority"
	}
	return "max_tokens"
}

func (s *Scanner) setNumber(w want, n int) {
	switch w {
	case wantN:
		s.req.N = min(max(n, 1), 1<<16)
	case wantPriority:
		s.req.Priority = n
	case wantMaxChat:
		s.maxOut = max(n, 0)
		s.req.BadMaxTokens = s.req.BadMaxTokens || n < 1
	case wantMax:
		s.req.MaxTokens = max(n, 0)
		s.req.BadMaxTokens = s.req.BadMaxTokens || n < 1
	}
}

func (s *Scanner) takeOption(w want, t token) {
	switch {
	case w == wantTruncation:
		s.takeTruncation(t)
	case t == tokNull:
	case w == wantModel && t == tokString:
		s.req.ModelStart = s.off + int64(s.lx.pos) - 1
		s.open(sinkModel, w)
	case w == wantModel:
		s.err = mistyped("model", "a string")
	case w == wantPrevious && t == tokString:
		s.open(sinkSmall, w)
	case w == wantPrevious:
		s.err = mistyped("previous_response_id", "a string")
	case t != tokObject && w == wantStreamOpts:
		s.err = mistyped("stream_options", "an object")
	case t != tokObject:
		s.err = mistyped("sampling_params", "an object")
	case w == wantStreamOpts:
		s.enter(inStreamOpts)
	default:
		s.enter(inSampling)
	}
}

// takeTruncation notes whether the engine may cut the prompt.
func (s *Scanner) takeTruncation(t token) {
	if t == tokString {
		s.open(sinkSmall, wantTruncation)
	} else {
		s.ignore(t)
	}
}

// takeConversation takes the messages, the input items or the system prompt.
func (s *Scanner) takeConversation(w want, t token) {
	switch {
	case t == tokNull:
	case w == wantMessages && t != tokArray:
		s.err = mistyped("messages", "an array")
	case w == wantHead:
		s.to = toHead
		s.role("system")
		s.takeContent(wantContent, t)
		if s.sink == sinkNone {
			s.closeHead(t)
		}
	case t == tokString:
		s.role("user")
		s.byte(markContent)
		s.open(sinkText, wantInput)
	case t == tokArray:
		s.enter(inMessages)
	default:
		s.err = mistyped("input", "a string or an array")
	}
}

// closeHead ends a system prompt that was no string and no array of parts.
func (s *Scanner) closeHead(t token) {
	if t != tokArray && t != tokObject {
		s.to = toPrompt
	}
}

// takeMessage takes an element of a list of messages. A list in it is a
// conversation of its own, as the batch API has them.
func (s *Scanner) takeMessage(t token) {
	switch t {
	case tokObject:
		s.byte(markMessage)
		s.enter(inMessage)
	case tokArray:
		s.enter(inMessages)
	case tokString:
		s.byte(markMessage)
		s.open(sinkText, wantMessage)
	default:
		s.byte(markNull)
	}
}

// role writes a message's head for an API that has none.
func (s *Scanner) role(name string) {
	s.byte(markMessage)
	s.text([]byte(name))
	s.byte(markEnd)
}

func (s *Scanner) takeRole(w want, t token) {
	switch {
	case t == tokString && w == wantRole:
		s.open(sinkMark, w)
	case t == tokString:
		s.open(sinkSmall, w)
	default:
		s.takeText(t)
	}
}

// takeContent takes a message's content, a part of it, or a part's text.
func (s *Scanner) takeContent(w want, t token) {
	if w == wantContent {
		s.byte(markContent)
	}
	switch {
	case t == tokString:
		s.open(sinkText, w)
	case t == tokArray && w == wantContent:
		s.enter(inFirst)
	case t == tokObject && w != wantPartText:
		s.enter(inPart)
	case t == tokNull:
		s.byte(markNull)
	default:
		s.takeText(t)
	}
}

func (s *Scanner) takeMedia(w want, t token) {
	switch {
	case t == tokString:
		s.mediaSum.Reset()
		s.open(sinkMedia, w)
	case t == tokObject && w == wantMedia:
		s.enter(inMedia)
	case t == tokNull:
	default:
		s.takeText(t)
	}
}

// takePrompt takes a prompt or an element of a list of them.
func (s *Scanner) takePrompt(w want, t token) {
	switch t {
	case tokString:
		s.open(sinkText, w)
	case tokNumber:
		s.req.TokenIDs = true
		var id [4]byte
		binary.LittleEndian.PutUint32(id[:], uint32(s.lx.integer))
		s.text(id[:])
	case tokArray:
		p := inPrompts
		if s.place[s.depth] == inPrompts {
			p = inIDs
		}
		if w == wantTexts {
			p = inTexts
		}
		s.enter(p)
	case tokObject:
		s.enter(inText)
	}
}

// takeSeed takes a top-level value that all prompts of the request stand behind.
func (s *Scanner) takeSeed(t token) {
	if t == tokNull {
		return
	}
	s.digest.Reset()
	_, _ = s.digest.Write(s.lx.key)
	_, _ = s.digest.Write([]byte{markEnd})
	s.digestN, s.to, s.inPrompt = 0, toSeed, false
	switch string(s.lx.key) {
	case "tools", "functions", "documents":
		s.inPrompt = true
	case "truncate_prompt_tokens":
		s.req.Truncates = true
	}
	container := t == tokObject || t == tokArray
	if !container {
		s.byte(markField)
	}
	s.takeText(t)
	if !container && t != tokString {
		s.endSeed()
	}
}

// endSeed adds what was read to the seed. An empty list, object or string is none.
func (s *Scanner) endSeed() {
	s.to = toPrompt
	if s.digestN <= 2 {
		return
	}
	s.seed += s.digest.Sum64()
	if s.inPrompt {
		s.before += s.digestN
	}
}
