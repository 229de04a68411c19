// Package proxy is the HTTP data plane: it reads a request, picks an endpoint for it, sends it there once, and passes
// the answer on byte for byte.
//
// It stands on httputil.ReverseProxy, which does copying, flushing, trailers, hop-by-hop headers and upgrades. What is
// added sits in the places that ReverseProxy offers: a body that was read and scanned beforehand, a RoundTripper that
// picks and re-picks, and an answer body that reads usage and completeness beside the copy.
//
// # What it promises
//
//   - Work is never executed twice. Another endpoint is tried only when nothing can have run: no connection came about,
//     or the engine refused in so many words. A reused connection that the engine had closed is replaced once.
//   - Every request that was booked is released exactly once, on every way out, panics included.
//   - A body reaches the engine byte for byte; with an alias only the value of the top-level "model" changes.
//   - A stream that broke says so in the client's dialect and never ends as if it were complete.
//   - Clients never learn addresses of endpoints, unless debug headers are on.
//
// It does not decide which endpoint (package pool), read configuration, listen, or keep state between requests
// beyond idle connections and free buffers.
//
// # Goroutines and ownership
//
// One exchange belongs to one request and to the goroutine of its handler. Three others touch it: the timer (watch.go)
// through atomics and the cancel function; the transport's writer, which only reads the stored body; and the pool, which
// closes a booking's Gone channel. The stored body counts its readers: memory goes back when the last one has closed.
package proxy
