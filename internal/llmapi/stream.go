package llmapi

// Usage is what an engine says it used for one request, in tokens.
type Usage struct {
	Prompt, Output int
	Cached         int  // prompt tokens found in the prefix cache
	HasCached      bool // the engine said how many were cached
}

// A Stream reads one response, streamed or not, beside the copy to the client. It
// never fails and never allocates per event.
type Stream struct{}

// Reset makes the Stream ready for a response of an API. stream says that the
// body is an event stream, else it is one JSON value.
func (s *Stream) Reset(kind Kind, d Dialect, stream bool) { _, _, _ = kind, d, stream }

// Write reads the next bytes of the response. Any split gives the same facts.
func (s *Stream) Write(p []byte) { _ = p }

// FirstToken reports whether the engine has produced anything.
func (s *Stream) FirstToken() bool { return false }

// Events is the number of events so far.
func (s *Stream) Events() int { return 0 }

// Tokens is a lower bound of the output tokens so far: the usage when there was
// one, else the frames with content.
func (s *Stream) Tokens() int { return 0 }

// Finished reports whether the answer is complete by the rules of its API.
func (s *Stream) Finished() bool { return false }

// Done reports whether the stream's last event was seen.
func (s *Stream) Done() bool { return false }

// Usage returns the usage, if the engine sent one.
func (s *Stream) Usage() (Usage, bool) { return Usage{}, false }

// ErrorEvent returns the error that the engine put into its answer.
func (s *Stream) ErrorEvent() (message string, code int, ok bool) { return "", 0, false }

// Aborted reports whether the engine ended an answer with finish reason "abort".
func (s *Stream) Aborted() bool { return false }

// NoChoices reports whether the stream ended by its marker without any choice: a
// draining vLLM does so.
func (s *Stream) NoChoices() bool { return false }

// CutEvent returns the bytes that end this stream with an error: what closes an
// event that is open, and e's event in the stream's dialect with the next sequence
// number where the dialect has them.
func (s *Stream) CutEvent(e *Error) []byte { return e.Event(KindNone, OpenAI) }
