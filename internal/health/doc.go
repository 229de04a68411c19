// Package health is the state machine of one endpoint: what may be sent to it, judged by what its requests, its
// connections and its /health did.
//
// A Machine is a pure value driven by events; it has no clock (now is the monotonic time since an arbitrary start), no
// goroutine and no lock: the owner of the pool guards it.
package health
