// Package route decides which endpoint of a pool serves one request. Read it first: it is the domain of Pointsman.
//
// A pick has three stages. Health narrows the pool to the endpoints that may be asked at all. Gates (gates.go) set the
// full ones aside. Among what is left the lowest expected cost in seconds (cost.go) wins; near-ties go to the endpoint
// that has less of our own work in flight, then to chance (choose.go). Explain (explain.go) repeats the same decision
// and shows every gate and every term.
//
// What it does not do: it keeps no state, reads no clock, locks nothing and knows no names, addresses or wire formats.
// The owner of a pool keeps one Snapshot, updates the touched Endpoint in place and calls Choose under its own lock. A
// simulator does the same, so both decide alike.
//
// Units: tokens, seconds (float64) and shares in [0,1] unless a name says otherwise. Slots are indices into
// Snapshot.Endpoints.
package route
