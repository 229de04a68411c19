package llmapi

// field writes the name of the field that was read.
func (s *Scanner) field() {
	s.byte(markField)
	s.text(s.lx.key)
	s.byte(markEnd)
}

// takeText takes any value and writes it with its structure.
func (s *Scanner) takeText(t token) {
	switch s.place[s.depth] {
	case inMessage, inPart:
		if t == tokNull {
			return // as if it were missing: clients echo answers with and without
		}
		s.field()
	case inText, inMedia:
		s.field()
	}
	switch t {
	case tokString:
		s.open(sinkMark, wantText)
	case tokObject:
		s.byte('{')
		s.enter(inText)
	case tokArray:
		s.byte('[')
		s.enter(inTextArray)
	case tokNumber:
		s.text(s.lx.num)
		s.byte(markEnd)
	case tokTrue:
		s.text([]byte("true"))
	case tokFalse:
		s.text([]byte("false"))
	default:
		s.byte(markNull)
	}
}

// endContainer takes the end of an object or array.
func (s *Scanner) endContainer() {
	if s.skip != 0 {
		s.skip--
		return
	}
	p := s.place[s.depth]
	s.depth--
	switch p {
	case inMessage:
		s.endMessage()
	case inMessages:
		s.endPrompt()
	case inFirst:
		s.byte(markPart) // an empty list is no empty string
	case inPrompts, inIDs:
		s.endPrompt()
	case inText:
		s.byte('}')
	case inTextArray:
		s.byte(']')
	}
	s.leave()
}

// leave ends what a container or string at the end of a top-level value was.
func (s *Scanner) leave() {
	switch s.place[s.depth] {
	case inTop:
		switch s.to {
		case toSeed:
			s.endSeed()
		case toHead:
			s.head.Cut()
			s.to = toPrompt
		}
		s.endPrompt()
	case inTexts, inPrompts:
		s.endPrompt()
	}
}

// piece takes text of the open string.
func (s *Scanner) piece(p []byte) {
	switch s.sink {
	case sinkText, sinkMark:
		s.text(p)
	case sinkMedia:
		_, _ = s.mediaSum.Write(p)
	case sinkModel:
		if len(s.model)+len(p) > MaxModel {
			s.err = refuse(ReasonBadType, "model", "the model's name is too long")
			return
		}
		s.model = append(s.model, p...)
	case sinkSmall:
		if len(s.small)+len(p) > maxSmall {
			p = p[:maxSmall-len(s.small)]
		}
		s.small = append(s.small, p...)
	}
}

// endString acts on a string that ended.
func (s *Scanner) endString() {
	k := s.sink
	s.sink = sinkNone
	switch k {
	case sinkModel:
		s.req.ModelEnd = s.off + int64(s.lx.pos)
	case sinkSmall:
		s.endSmall()
	case sinkMark:
		s.byte(markEnd)
		s.leave()
	case sinkMedia:
		s.endMedia()
	case sinkText:
		s.endText()
	}
}

func (s *Scanner) endText() {
	switch s.want {
	case wantInput:
		s.endMessage()
		s.endPrompt()
	case wantMessage:
		s.endMessage()
	case wantPrompt, wantTexts, wantID:
		s.endPrompt()
	default:
		s.leave() // the system prompt as a string
	}
}

func (s *Scanner) endMedia() {
	sum := s.mediaSum.Sum64()
	if s.media == mediaImage {
		s.req.Images++
	}
	switch s.to {
	case toPrompt:
		s.req.MediaBytes += nominal(s.media)
		s.prompts[s.cur].Opaque(s.media, sum, nominal(s.media))
	case toHead:
		s.req.MediaBytes += nominal(s.media)
		s.head.Opaque(s.media, sum, nominal(s.media))
	}
}

func (s *Scanner) endSmall() {
	text := string(s.small)
	switch s.want {
	case wantPrevious:
		s.req.PreviousResponse = text
	case wantTruncation:
		s.req.Truncates = text != "disabled"
	case wantStream, wantIncludeUsage:
		s.endBool(text)
	case wantMax, wantMaxChat, wantN, wantPriority:
		n, ok := number(s.small)
		if !ok {
			s.err = mistyped(numberName(s.want), "a number")
			return
		}
		s.setNumber(s.want, n)
	case wantType:
		switch text {
		case "text", "input_text", "output_text", "message":
		default:
			s.byte(markField)
			s.text(s.small)
			s.byte(markEnd)
		}
	}
}

func (s *Scanner) endBool(text string) {
	switch text {
	case "true", "True", "TRUE", "1", "t", "yes", "on", "y":
		s.setBool(s.want, true)
	case "false", "False", "FALSE", "0", "f", "no", "off", "n":
		s.setBool(s.want, false)
	default:
		s.err = mistyped("stream", "true or false")
	}
}

// text writes canonical text.
func (s *Scanner) text(p []byte) {
	switch s.to {
	case toPrompt:
		s.prompts[s.cur].Write(p)
	case toHead:
		s.head.Write(p)
	default:
		s.digestN += len(p)
		_, _ = s.digest.Write(p)
	}
}

// byte writes one byte of structure.
func (s *Scanner) byte(c byte) {
	switch s.to {
	case toPrompt:
		_ = s.prompts[s.cur].WriteByte(c)
	case toHead:
		_ = s.head.WriteByte(c)
	default:
		s.digestN++
		_, _ = s.digest.Write([]byte{c})
	}
}
