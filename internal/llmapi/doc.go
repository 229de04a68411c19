// Package llmapi knows the wire formats of the language-model APIs that pass
// through: which paths exist, what a request asks for, what a response says, and
// how an error looks in the dialect of a path.
//
//   - Lookup maps a method and a path to an API, by one table. What is not in the
//     table does not exist, so no control or debug path of an engine is reachable.
//   - Scanner reads a request body while it is received: model, stream, limits,
//     and the prompt's block chain. It builds no maps and never holds the body.
//   - Stream reads a response while it is copied: first token, usage, terminal
//     marker, errors. It never fails, never delays and never changes a byte.
//   - Error is a refusal with its status, its stable reason and its body or
//     closing event in each dialect.
//
// The package does no I/O, has no clock and starts no goroutine. Scanner and
// Stream belong to one request at a time and are made to be pooled by their user.
package llmapi
