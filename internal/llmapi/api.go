package llmapi

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
	// identifier: safe as a metric label.
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

// Lookup finds the API of a request. rawPath is the escaped path as received,
// without the query. An unknown path is an *Error with status 404, a known path
// with a wrong method one with status 405 and Allow set.
func Lookup(method string, rawPath string) (API, *Error) { return API{}, &Error{Status: 404} }
