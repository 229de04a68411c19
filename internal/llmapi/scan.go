package llmapi

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"

	"github.com/cespare/xxhash/v2"
	"pointsman.dev/pointsman/internal/prefix"
)

// MaxModel bounds a model's name in bytes.
const MaxModel = 1024

// A Request is what routing needs to know of a request body.
type Request struct {
	Model string
	// HasModel is false when the model is missing, null or empty.
	HasModel bool
	// ModelStart and ModelEnd are the byte offsets of the model's literal in the
	// body as received: of a JSON string with its quotes, or of a form field's
	// value. See ModelLiteral for what to put in its place. Both are 0 when the body
	// names no model or null.
	ModelStart, ModelEnd int64
	Multipart            bool // the literal is a form value, not a JSON string

	Stream       bool
	IncludeUsage bool
	MaxTokens    int // output tokens; 0: absent
	// BadMaxTokens is set when the limit was given but is not positive; MaxTokens is
	// then 0 and the engine will refuse.
	BadMaxTokens bool
	N            int // answers per prompt, at least 1
	Priority     int
	// PreviousResponse is the id of a stored response that this one continues:
	// only the endpoint that made it knows it.
	PreviousResponse string

	// Blocks is the prompt's chain, valid until the Scanner's next Reset. Of a list
	// of prompts it is the longest one's.
	Blocks []prefix.Block
	// PromptBytes is the length of the canonical text of all prompts; a token id
	// counts 4 bytes, an image its nominal size.
	PromptBytes int
	MediaBytes  int  // of those, the nominal sizes of images and sounds
	WideBytes   int  // of the rest, bytes above 0x7f, about: text of scripts other than Latin
	SameBytes   int  // of the rest, bytes that equal the one before, about: indentation, rules
	Truncates   bool // the engine is asked to cut a prompt that is too long
	Prompts     int  // number of prompts
	Images      int  // number of images
	TokenIDs    bool // the prompt came as token ids
}

// ModelLiteral returns the bytes that replace [ModelStart, ModelEnd) to name
// another model.
func (r *Request) ModelLiteral(name string) []byte {
	if r.Multipart {
		return []byte(name)
	}
	return marshal(name)
}

// A Scanner reads one request body as it arrives: a JSON object, or a form of
// which it reads the fields. It holds no part of the body but the model's name and
// a few numbers; its memory is bounded but for the block chain, 16 bytes for every
// 256 of the prompt. The zero value needs a Reset.
//
// The canonical text of a prompt, which the chain is cut from, holds all that an
// engine's own prefix hash depends on: roles, contents, tool calls and their
// order, images and sounds by content, and null apart from empty and missing.
// Escapes, space, and a text as string or as a single part make no difference.
// What a chat template puts before the messages wherever it stands in the body
// (tools, documents, template arguments), and what keeps caches apart (the model's
// name, cache_salt) goes into the chain's seed.
type Scanner struct {
	api API
	lx  lexer
	off int64 // bytes before what is fed now
	err *Error
	req Request

	form form

	census census // of the whole body
	seen   uint64 // top-level keys so far, by row of topKeys
	model  []byte
	small  []byte // a short string that decides something
	maxOut int    // max_completion_tokens, which goes before max_tokens

	skip  int    // depth of the value that is skipped; 0: none
	want  want   // what the next value is
	sink  sink   // where the open string goes
	to    target // where canonical text goes
	depth int    // places in use
	place [maxDepth + 1]place
	media byte // kind of the media object

	prompts  [2]prefix.Hasher
	cur      int // the prompt that is being read; the other one is the longest so far
	firstCut int // end of the current prompt's first message
	bestCut  int
	head     prefix.Hasher // what an API keeps outside of its messages
	digest   xxhash.Digest // of the seed's key being read
	digestN  int
	inPrompt bool // the seed's key is text that a template renders
	mediaSum xxhash.Digest
	seed     uint64
	before   int // bytes of tools and documents, which a template puts into the first message
	blocks   []prefix.Block
}

// Reset makes the scanner ready for the body of a request to api.
func (s *Scanner) Reset(api API) {
	s.api, s.off, s.err = api, 0, nil
	s.lx.reset()
	s.form.reset()
	s.census = census{}
	s.req = Request{N: 1, Multipart: api.Body == Multipart}
	s.seen, s.model, s.small, s.maxOut = 0, s.model[:0], s.small[:0], 0
	s.skip, s.want, s.sink, s.to, s.depth = 0, wantTop, sinkNone, toPrompt, 0
	s.prompts[0].Reset()
	s.prompts[1].Reset()
	s.head.Reset()
	s.cur, s.firstCut, s.bestCut = 0, 0, 0
	s.seed, s.before = 0, 0
	if cap(s.blocks) > 4096 {
		s.blocks = nil // as prefix.Hasher does after an unusually long prompt
	}
	s.blocks = s.blocks[:0]
}

// Write reads the next bytes of the body. Any split gives the same result. The
// error is an *Error; after one, every Write and Close returns it again.
func (s *Scanner) Write(p []byte) error {
	if s.err != nil {
		return s.err
	}
	switch s.api.Body {
	case JSON:
		s.scanJSON(p)
	case Multipart:
		s.err = s.form.write(p, s.off, s)
	}
	s.off += int64(len(p))
	if s.err != nil {
		return s.err
	}
	return nil
}

// Close ends the body and returns what it asks for. The Request belongs to the
// Scanner and is valid until its next Reset. The error is an *Error.
func (s *Scanner) Close() (*Request, error) {
	if s.err == nil {
		s.err = s.complete()
	}
	if s.err != nil {
		return nil, s.err
	}
	r := &s.req
	r.Model, r.HasModel = string(s.model), len(s.model) > 0
	if s.maxOut > 0 {
		r.MaxTokens = s.maxOut
	}
	s.endPrompt()
	r.PromptBytes += s.head.Len() + s.before
	text := r.PromptBytes - r.MediaBytes
	r.WideBytes = min(s.census.wide+s.lx.escaped, text)
	r.SameBytes = min(s.census.same, text-r.WideBytes)
	s.chain(s.model)
	return r, nil
}

// Rename makes the chain that of the same prompt for another model: the one that an alias stands for, by which the
// engine keeps its cache. It is for after Close, and before anybody holds the blocks.
func (s *Scanner) Rename(served string) {
	s.blocks = s.blocks[:0]
	s.chain([]byte(served))
}

func (s *Scanner) complete() *Error {
	switch {
	case s.api.Body == Multipart:
		return s.form.close()
	case s.api.Body == NoBody || s.lx.complete():
		return nil
	case s.off == 0:
		return s.bad("the request body is empty, expected a JSON object")
	}
	return s.bad(fmt.Sprintf("the request body is not valid JSON: it ends early, after %d bytes", s.off))
}

// chain puts the parts of the prompt together: seed, head, messages.
func (s *Scanner) chain(model []byte) {
	best := &s.prompts[1-s.cur]
	seed := s.seed + sum64("model", model)
	base := 0
	if n := s.head.Len(); n > 0 {
		s.blocks, seed = s.head.BlocksAfter(seed, 0, s.blocks)
		base = n + s.before
		s.lift(len(s.blocks) - 1)
	}
	from := len(s.blocks)
	s.blocks, _ = best.BlocksAfter(seed, base, s.blocks)
	if base == 0 {
		// Tools count once the whole first message matches: most templates put them
		// at its end.
		for from < len(s.blocks) && int(s.blocks[from].End) < s.bestCut {
			from++
		}
		s.lift(from)
	}
	s.req.Blocks = s.blocks
}

// lift puts what comes before the messages in front of the blocks from i on. A block that would end beyond what an end can say is left
// out, with all that follow it.
func (s *Scanner) lift(i int) {
	for ; i < len(s.blocks); i++ {
		end := s.before + int(s.blocks[i].End)
		if end > math.MaxInt32 {
			s.blocks = s.blocks[:i]
			return
		}
		s.blocks[i].End = int32(end)
	}
}

// endPrompt ends the prompt that is being read, if there is one, and keeps the
// longest.
func (s *Scanner) endPrompt() {
	h := &s.prompts[s.cur]
	if h.Len() == 0 {
		return
	}
	s.req.PromptBytes += h.Len()
	s.req.Prompts++
	if h.Len() > s.prompts[1-s.cur].Len() {
		s.bestCut = s.firstCut
		s.cur = 1 - s.cur
	}
	s.prompts[s.cur].Reset()
	s.firstCut = 0
}

// endMessage marks a message boundary.
func (s *Scanner) endMessage() {
	h := &s.prompts[s.cur]
	h.Cut()
	if s.firstCut == 0 {
		s.firstCut = h.Len()
	}
}

func (s *Scanner) bad(msg string) *Error { return refuse(ReasonBadJSON, "", msg) }

func refuse(reason, param, msg string) *Error {
	return &Error{Status: http.StatusBadRequest, Reason: reason, Param: param, Message: msg}
}

func mistyped(param, rule string) *Error {
	return refuse(ReasonBadType, param, fmt.Sprintf("%q must be %s", param, rule))
}

func duplicate(param string) *Error {
	return refuse(ReasonDuplicateKey, param, fmt.Sprintf("the request body has %q twice", param))
}

// sum64 hashes a named value.
func sum64(name string, value []byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(name)
	_, _ = d.Write([]byte{0})
	_, _ = d.Write(value)
	return d.Sum64()
}

// number reads the text of a number that may be in quotes.
func number(text []byte) (int, bool) {
	var n json.Number
	if json.Unmarshal(text, &n) != nil {
		return 0, false
	}
	f, err := n.Float64()
	if err != nil || f != f {
		return 0, false
	}
	return int(max(min(f, 1<<40), -1<<40)), true
}
