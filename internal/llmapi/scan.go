package llmapi

import "pointsman.dev/pointsman/internal/prefix"

// A Request is what routing needs to know of a request body.
type Request struct {
	Model string
	// HasModel is false when the model is missing, null or empty.
	HasModel bool
	// ModelStart and ModelEnd are the byte offsets of the model's literal in the
	// body as received: of a JSON string with its quotes, or of a form field's
	// value. See ModelLiteral for what to put in its place.
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
	Prompts     int  // number of prompts
	Images      int  // number of images
	TokenIDs    bool // the prompt came as token ids
}

// ModelLiteral returns the bytes that replace [ModelStart, ModelEnd) to name
// another model.
func (r *Request) ModelLiteral(name string) []byte { return []byte(name) }

// A Scanner reads one request body as it arrives. The zero value needs a Reset.
type Scanner struct{ req Request }

// Reset makes the scanner ready for the body of a request to api.
func (s *Scanner) Reset(api API) { _ = api; s.req = Request{N: 1} }

// Write reads the next bytes of the body. Any split gives the same result. The
// error is an *Error; after one, every Write and Close returns it again.
func (s *Scanner) Write(p []byte) error { _ = p; return nil }

// Close ends the body and returns what it asks for. The Request belongs to the
// Scanner and is valid until its next Reset. The error is an *Error.
func (s *Scanner) Close() (*Request, error) { return &s.req, nil }
