// Package health is the state machine of one endpoint: what may be sent to it, judged by what its requests, its
// connections and its /health did.
//
// The rules, in short:
//   - No connection: out at once, since nothing was lost. Back for one trial request when something answered at the
//     address again (a probe, a metrics page), because a user's request is a bad probe of an address that may swallow
//     packets.
//   - A failure after dispatch (5xx, reset, cut) costs its user an error: out at once, for a time that doubles with
//     every failed trial. One trial at a time. First tokens of other requests shorten the first such pause: then the
//     fault was the request's.
//   - Clients' errors say nothing. 429 and 503 put the endpoint behind the others for as long as it asked.
//   - A draining engine's answers, a terminating pod, an engine that sleeps: no new picks.
//   - Wedged: requests in flight, more were added, nothing came back for longer than the prefill booked before
//     explains. No new picks until something moves.
//   - Gone: /health says 503 or the port is closed, repeatedly, and the open answers are silent. They will stay
//     silent, for a vLLM that got SIGTERM neither finishes nor closes them.
//   - An endpoint that streams is alive, however slow its metrics page.
//   - Nothing here refuses: LastResort endpoints are used when there are no others.
//
// A Machine is driven by events and has no clock (now is the monotonic time since an arbitrary start), no goroutine and
// no lock: the owner of the pool guards it. It knows nothing of other endpoints; see Pardon for the one rule that needs
// them.
package health
