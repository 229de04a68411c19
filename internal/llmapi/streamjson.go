package llmapi

import (
	"bytes"
	"math"
)

// An event is what one event's data, or one response, said so far.
type event struct {
	skip  int // depth of the value that is skipped; 0: none
	depth int
	place [8]tapPlace
	field tapField // what the next value is
	sink  tapField // what the open string is

	kind    [maxEventType]byte // the member "type"
	kindN   int
	flat    bool // object is "error"
	text    bool // the open string, or the delta, has text
	tokens  int
	content bool
	aborted bool
	choice  bool

	index    int // of the current choice
	ids      int
	said     bool // the current choice has content
	over     bool // the current choice has a finish reason
	reason   [8]byte
	reasonN  int
	seen     choices
	ended    choices
	terminal bool
	failed   bool
	errCode  int
	errText  [maxErrorText]byte
	errN     int
	usage    eventUsage
	sequence int
	id       [maxResponseID]byte
	idN      int

	hasSequence bool
}

type eventUsage struct {
	prompt, output, cached, created int
	hasPrompt, hasOutput, hasCached bool
}

// reset leaves the buffers as they are: their lengths say what counts.
func (e *event) reset() {
	e.skip, e.depth, e.field, e.sink = 0, 0, tapNone, tapNone
	e.kindN, e.errN, e.idN, e.reasonN = 0, 0, 0, 0
	e.flat, e.text, e.content, e.aborted, e.choice = false, false, false, false, false
	e.terminal, e.failed, e.hasSequence = false, false, false
	e.tokens, e.errCode, e.sequence = 0, 0, 0
	e.seen, e.ended = choices{}, choices{}
	e.usage = eventUsage{}
}

// A tapPlace is what a container of a response is.
type tapPlace uint8

const (
	tapTop tapPlace = iota
	tapChoices
	tapChoice
	tapDelta
	tapIDs
	tapUsage
	tapDetails
	tapError
	tapInner // the response or message object in an event
)

// A tapField is what a value of a response means.
type tapField uint8

const (
	tapNone tapField = iota
	tapObject
	tapArray // array of choices
	tapIndex
	tapFinish
	tapText // a string that is content when it is not empty
	tapSome // anything but null is content
	tapDeltaValue
	tapTokenIDs
	tapID
	tapUsageObject
	tapDetailsObject
	tapPromptN
	tapOutputN
	tapCachedN
	tapCreatedN
	tapErrorValue
	tapMessage // a message's text, or an Anthropic message object
	tapCode
	tapType
	tapObjectName
	tapSequence
	tapResponse
	tapResponseID
)

func (s *Stream) parse(p []byte) {
	e, lx := &s.ev, &s.lx
	lx.feed(p)
	for {
		switch t := lx.next(); t {
		case tokMore:
			return
		case tokBad:
			s.dead = true
			return
		case tokKey:
			if e.skip == 0 {
				e.field = tapNone
				if !lx.keyLong {
					e.field = tapKey(e.place[e.depth], string(lx.key))
				}
			}
		case tokPiece:
			e.piece(lx.piece)
		case tokStringEnd:
			e.endString()
		case tokObjectEnd, tokArrayEnd:
			e.endContainer()
		default:
			e.value(t, lx)
		}
		if !s.sse && lx.complete() {
			return // what follows a whole value changes nothing, however it is split
		}
	}
}

// tapKey is what a member means, by what holds it.
func tapKey(p tapPlace, key string) tapField {
	switch p {
	case tapTop:
		return topField(key)
	case tapChoice:
		return choiceField(key)
	case tapDelta:
		return deltaField(key)
	case tapUsage, tapDetails:
		return usageField(key)
	case tapError:
		switch key {
		case "message":
			return tapMessage
		case "code":
			return tapCode
		}
	case tapInner:
		switch key {
		case "usage":
			return tapUsageObject
		case "error":
			return tapErrorValue
		case "id":
			return tapResponseID
		}
	}
	return tapNone
}

func topField(key string) tapField {
	switch key {
	case "choices":
		return tapArray
	case "usage":
		return tapUsageObject
	case "error":
		return tapErrorValue
	case "type":
		return tapType
	case "object":
		return tapObjectName
	case "message":
		return tapMessage
	case "id": // of a whole answer
		return tapResponseID
	case "code":
		return tapCode
	case "delta":
		return tapDeltaValue
	case "response":
		return tapResponse
	case "sequence_number":
		return tapSequence
	case "content", "output": // of a whole answer
		return tapSome
	}
	return tapNone
}

func choiceField(key string) tapField {
	switch key {
	case "index":
		return tapIndex
	case "finish_reason":
		return tapFinish
	case "delta", "message":
		return tapDeltaValue
	case "text":
		return tapText
	case "token_ids":
		return tapTokenIDs
	}
	return tapNone
}

func deltaField(key string) tapField {
	switch key {
	case "content", "reasoning_content", "reasoning", "refusal", "text", "partial_json", "thinking":
		return tapText
	case "tool_calls", "function_call", "audio":
		return tapSome
	}
	return tapNone
}

func usageField(key string) tapField {
	switch key {
	case "prompt_tokens", "input_tokens":
		return tapPromptN
	case "completion_tokens", "output_tokens":
		return tapOutputN
	case "prompt_tokens_details", "input_tokens_details":
		return tapDetailsObject
	case "cached_tokens", "cache_read_input_tokens":
		return tapCachedN
	case "cache_creation_input_tokens":
		return tapCreatedN
	}
	return tapNone
}

// value takes the first token of a value.
func (e *event) value(t token, lx *lexer) {
	if e.skip != 0 {
		if t == tokObject || t == tokArray {
			e.skip++
		}
		return
	}
	f := e.field
	switch {
	case e.depth == 0:
		f = tapObject
	case e.place[e.depth] == tapChoices:
		e.beginChoice(t)
		return
	case e.place[e.depth] == tapIDs:
		f = tapID
	}
	switch t {
	case tokObject, tokArray:
		e.container(f, t == tokObject)
	case tokString:
		e.beginString(f, lx)
	case tokNumber:
		e.number(f, int(min(max(lx.integer, 0), math.MaxInt32)))
	}
}

func (e *event) beginChoice(t token) {
	if t != tokObject {
		e.ignore(t == tokArray)
		return
	}
	e.index, e.ids, e.said, e.over, e.reasonN = 0, 0, false, false, 0
	e.enter(tapChoice)
}

func (e *event) enter(p tapPlace) {
	if e.depth+1 == len(e.place) {
		e.skip = 1
		return
	}
	e.depth++
	e.place[e.depth] = p
}

func (e *event) ignore(container bool) {
	if container {
		e.skip = 1
	}
}

func (e *event) container(f tapField, object bool) {
	switch f {
	case tapText, tapSome:
		e.said, e.content = true, true
	case tapErrorValue:
		e.failed = true
	}
	if p, isObject, ok := opens(f); ok && isObject == object {
		e.enter(p)
		return
	}
	e.skip = 1
}

// opens is the place that a value opens, and whether it is an object.
func opens(f tapField) (p tapPlace, object, ok bool) {
	switch f {
	case tapObject:
		return tapTop, true, true
	case tapArray:
		return tapChoices, false, true
	case tapDeltaValue:
		return tapDelta, true, true
	case tapTokenIDs:
		return tapIDs, false, true
	case tapUsageObject:
		return tapUsage, true, true
	case tapDetailsObject:
		return tapDetails, true, true
	case tapErrorValue:
		return tapError, true, true
	case tapResponse, tapMessage:
		return tapInner, true, true
	}
	return 0, false, false
}

func (e *event) beginString(f tapField, lx *lexer) {
	e.sink = f
	switch f {
	case tapText, tapDeltaValue:
		e.text = false
	case tapFinish:
		e.reasonN = 0
	case tapType:
		e.kindN = 0
	case tapObjectName:
		e.reasonN = 0
	case tapErrorValue:
		e.failed, e.errN = true, 0
	case tapMessage:
		e.errN = 0
	case tapCode:
		e.errCode = 0
	case tapResponseID:
		e.idN = 0
	default:
		e.sink = tapNone
		return
	}
	lx.want = true
}

// piece takes text of the open string.
func (e *event) piece(p []byte) {
	switch e.sink {
	case tapText, tapDeltaValue:
		e.text = true
	case tapFinish, tapObjectName:
		e.reasonN += copy(e.reason[e.reasonN:], p)
	case tapType:
		e.kindN += copy(e.kind[e.kindN:], p)
	case tapErrorValue, tapMessage:
		e.errN += copy(e.errText[e.errN:], p)
	case tapCode:
		for _, c := range p {
			if c < '0' || c > '9' || e.errCode > 1<<20 {
				e.errCode = 0
				return
			}
			e.errCode = e.errCode*10 + int(c-'0')
		}
	case tapResponseID:
		e.idN += copy(e.id[e.idN:], p)
	}
}

func (e *event) endString() {
	f := e.sink
	e.sink = tapNone
	switch f {
	case tapText, tapDeltaValue:
		if e.text {
			e.said, e.content = true, true
		}
	case tapFinish:
		e.over = true
		if string(e.reason[:e.reasonN]) == "abort" {
			e.aborted = true
		}
	case tapObjectName:
		if string(e.reason[:e.reasonN]) == "error" {
			e.flat = true
		}
	}
}

func (e *event) number(f tapField, n int) {
	u := &e.usage
	switch f {
	case tapIndex:
		e.index = n
	case tapID:
		e.ids++
	case tapPromptN:
		u.prompt, u.hasPrompt = n, true
	case tapOutputN:
		u.output, u.hasOutput = n, true
	case tapCachedN:
		u.cached, u.hasCached = n, true
	case tapCreatedN:
		u.created = n
	case tapCode:
		e.errCode = n
	case tapSequence:
		e.sequence, e.hasSequence = n, true
	}
}

func (e *event) endContainer() {
	if e.skip != 0 {
		e.skip--
		return
	}
	p := e.place[e.depth]
	e.depth--
	if p == tapChoice {
		e.endChoice()
	}
}

func (e *event) endChoice() {
	e.choice = true
	e.seen.add(e.index)
	if e.over {
		e.ended.add(e.index)
	}
	switch {
	case e.ids > 0:
		e.tokens += e.ids
	case e.said:
		e.tokens++
	}
	e.content = e.content || e.ids > 0 || e.over
}

// byType adds what an event's type says.
func (e *event) byType(k Kind, d Dialect) {
	name := e.kind[:e.kindN]
	if e.flat || string(name) == "error" {
		e.failed = true
	}
	if !e.choice && e.content {
		e.tokens++
	}
	if k == Responses || k == Response || k == Audio {
		switch string(name) {
		case "response.completed", "response.incomplete", "transcription.text.done":
			e.terminal = true
		case "response.failed":
			e.terminal, e.failed = true, true
		}
		if e.choice || bytes.HasSuffix(name, []byte(".delta")) {
			return
		}
		if len(name) > 0 {
			e.content, e.tokens = false, 0 // a whole item, told before by its deltas
		}
		return
	}
	if d == Anthropic && string(name) == "message_stop" {
		e.terminal = true
	}
}
