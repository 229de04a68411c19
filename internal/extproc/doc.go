// Package extproc is the external processor of an Envoy, and so the endpoint picker of a Gateway API inference gateway: Envoy carries
// the requests and the answers, and asks this package where each request goes.
//
// One gRPC stream is one request. The request's body is kept until it is whole, for what it asks for may stand at its end; then the pick
// goes out as a header and as dynamic metadata, and the body goes back byte for byte. Of the answer nothing is held back: each piece
// is read for its first token, its usage and its end, and returned at once. Picks, bookings and records are those of package
// flight, which the HTTP data plane stands on too.
//
// # What it promises
//
//   - A request that was booked is released exactly once, in whatever order messages come and whenever the stream ends.
//   - The header and the metadata that say where a request goes are never a client's.
//   - What it refuses, it refuses as JSON in the client's dialect.
//
// What Envoy does not tell cannot be known here: a stream that breaks off looks like a client that left, and a request that an
// engine refused cannot be sent elsewhere. docs/envoy.md says which features need the HTTP data plane.
//
// # Goroutines and ownership
//
// gRPC runs one goroutine per stream, which owns the stream's state. Run starts one more, which looks at all streams now and then for
// what no message tells: the endpoint is gone, the drain is over. It touches a stream only while that stream waits for a message.
package extproc
