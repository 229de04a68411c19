package llmapi

import (
	"net/http"
	"net/url"
	"strings"

	"pointsman.dev/pointsman/internal/spelling"
)

// A Kind is a family of API paths that share a body format.
type Kind uint8

// The kinds of API. The zero Kind is none of them.
const (
	KindNone    Kind = iota
	Chat             // /v1/chat/completions and its batch form
	Completions      // /v1/completions
	Responses        // /v1/responses
	Response         // /v1/responses/{id} and its cancel form: no JSON body, tied to the endpoint that made it
	Messages         // /v1/messages
	CountTokens      // /v1/messages/count_tokens
	Embeddings       // /v1/embeddings
	Pooling          // /pooling
	Classify         // /classify
	Score            // /score, /v1/score, /generative_scoring
	Rerank           // /rerank, /v1/rerank, /v2/rerank
	Tokenize         // /tokenize
	Detokenize       // /detokenize
	Audio            // /v1/audio/transcriptions, /v1/audio/translations
	Realtime         // /v1/realtime, a WebSocket
	Models           // /v1/models
	Model            // /v1/models/{id}
	Generate         // /inference/v1/generate: tokens in, tokens out
	Render           // /v1/chat/completions/render, /v1/completions/render
	Preflight        // a browser's OPTIONS about one of the others; never found by Lookup
)

// A Dialect is the shape of errors and of stream events.
type Dialect uint8

// The dialects.
const (
	OpenAI Dialect = iota
	Anthropic
)

// A BodyForm says how a request body is encoded.
type BodyForm uint8

// The body forms.
const (
	NoBody    BodyForm = iota
	JSON               // one JSON object
	Multipart          // multipart/form-data
)

// An API is one row of the route table.
type API struct {
	Kind    Kind
	Dialect Dialect
	// Path is the canonical path, one of a bounded set, with {id} in place of an
	// identifier: safe as a metric label. It is empty when the path is unknown.
	Path string
	// Forward is the path to send to an endpoint: Path with the identifier put
	// back. It is made from the table, never from bytes that were not checked.
	Forward string
	Body    BodyForm
	// Generates says that the engine produces tokens for this request.
	Generates bool
	// ModelID is the unescaped model name of /v1/models/{id}, which may hold slashes.
	ModelID string
	// ResponseID is the identifier of /v1/responses/{id}.
	ResponseID string
}

// route is a row without identifier.
type route struct {
	path      string
	methods   string // as in an Allow header
	kind      Kind
	body      BodyForm
	generates bool
}

const (
	post = http.MethodPost
	get  = http.MethodGet
	look = http.MethodGet + ", " + http.MethodHead
)

// routes is the table of all paths that exist, in the order of use. Paths of
// vLLM's servers as of 0.32; its control, debug, metrics, health and documentation
// paths are left out on purpose.
var routes = [...]route{
	{"/v1/chat/completions", post, Chat, JSON, true},
	{"/v1/completions", post, Completions, JSON, true},
	{"/v1/responses", post, Responses, JSON, true},
	{"/v1/messages", post, Messages, JSON, true},
	{"/v1/embeddings", post, Embeddings, JSON, false},
	{"/v1/messages/count_tokens", post, CountTokens, JSON, false},
	{"/inference/v1/generate", post, Generate, JSON, true},
	{"/v1/models", look, Models, NoBody, false},
	{"/v1/chat/completions/batch", post, Chat, JSON, true},
	{"/v1/audio/transcriptions", post, Audio, Multipart, true},
	{"/v1/audio/translations", post, Audio, Multipart, true},
	{"/v1/realtime", get, Realtime, NoBody, true},
	{"/pooling", post, Pooling, JSON, false},
	{"/classify", post, Classify, JSON, false},
	{"/score", post, Score, JSON, false},
	{"/v1/score", post, Score, JSON, false},
	{"/generative_scoring", post, Score, JSON, false},
	{"/rerank", post, Rerank, JSON, false},
	{"/v1/rerank", post, Rerank, JSON, false},
	{"/v2/rerank", post, Rerank, JSON, false},
	{"/tokenize", post, Tokenize, JSON, false},
	{"/detokenize", post, Detokenize, JSON, false},
	{"/v1/chat/completions/render", post, Render, JSON, false},
	{"/v1/completions/render", post, Render, JSON, false},
}

const (
	modelsUnder    = "/v1/models/"
	responsesUnder = "/v1/responses/"
	cancelSuffix   = "/cancel"
	maxID          = 1024
)

// Lookup finds the API of a request. rawPath is the escaped path as received,
// without the query. An unknown path is an *Error with status 404, a known path
// with a wrong method one with status 405 and Allow set; the API then still tells
// the dialect.
//
// Only the exact bytes of the table match: an escape, a dot segment, a doubled
// slash, a parameter, a trailing slash or another case is an unknown path. The
// two kinds of identifier are checked, and only the harmless one is forwarded.
func Lookup(method, rawPath string) (API, *Error) {
	for i := range routes {
		if r := &routes[i]; r.path == rawPath {
			a := API{Kind: r.kind, Dialect: dialectOf(rawPath), Path: r.path, Forward: r.path, Body: r.body, Generates: r.generates}
			return a, allow(method, r.methods)
		}
	}
	if escaped, ok := strings.CutPrefix(rawPath, modelsUnder); ok {
		if name, valid := modelID(escaped); valid {
			a := API{Kind: Model, Path: modelsUnder + "{id}", Forward: "/v1/models", ModelID: name}
			return a, allow(method, look)
		}
	}
	if rest, ok := strings.CutPrefix(rawPath, responsesUnder); ok {
		id, cancel := strings.CutSuffix(rest, cancelSuffix)
		if plainID(id) {
			a := API{Kind: Response, Path: responsesUnder + "{id}", Forward: responsesUnder + id, ResponseID: id}
			methods := get + ", " + http.MethodDelete
			if cancel {
				a.Path, a.Forward, methods = a.Path+cancelSuffix, a.Forward+cancelSuffix, post
			}
			return a, allow(method, methods)
		}
	}
	return API{Dialect: dialectOf(rawPath)}, unknownPath(rawPath)
}

func dialectOf(path string) Dialect {
	if strings.HasPrefix(path, "/v1/messages") {
		return Anthropic
	}
	return OpenAI
}

func allow(method, methods string) *Error {
	for m := range strings.SplitSeq(methods, ", ") {
		if m == method {
			return nil
		}
	}
	return &Error{
		Status: http.StatusMethodNotAllowed, Reason: ReasonMethodNotAllowed, Allow: methods,
		Message: "this path takes " + methods + " only",
	}
}

func unknownPath(path string) *Error {
	e := &Error{Status: http.StatusNotFound, Reason: ReasonNotFound, Message: "there is no such path"}
	// A base URL that ends in a slash is the usual slip.
	plain := strings.ToLower(strings.TrimRight(strings.ReplaceAll(path, "//", "/"), "/"))
	paths := make([]string, len(routes))
	for i := range routes {
		p := routes[i].path
		if plain == p || "/v1"+plain == p || plain == "/v1"+p {
			e.Message += "; did you mean " + p + "?"
			return e
		}
		paths[i] = p
	}
	switch plain {
	case "/health", "/healthz", "/readyz", "/livez", "/metrics":
		e.Message += ": health and metrics are at the admin address"
		return e
	}
	if near := spelling.Name(plain, paths); near != "" {
		e.Message += "; did you mean " + near + "?"
	}
	return e
}

// modelID unescapes the name of a model, which may hold slashes, escaped or not.
// Segments that are empty or dots are no name.
func modelID(escaped string) (string, bool) {
	name, err := url.PathUnescape(escaped)
	if err != nil || name == "" || len(name) > maxID {
		return "", false
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return "", false
		}
	}
	for i := range len(name) {
		if name[i] < ' ' || name[i] == 0x7f || name[i] == '\\' {
			return "", false
		}
	}
	return name, true
}

// plainID reports whether id can be put into a path as it is.
func plainID(id string) bool {
	if id == "" || len(id) > maxID {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}
