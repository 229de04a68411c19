// Package pool owns the state of one pool: the endpoints that serve the same models with the same window.
//
// It merges what discovery, the endpoints' own reports, the health machine, the ledger and the prefix index
// know, and turns a request into a pick. It decides nothing itself: gates, cost terms and ties are package
// route, states are package health, counts are package ledger, who holds what is package prefix. It opens no
// connection: package scrape and the data plane tell it what they saw.
//
// # Ownership
//
// One mutex per pool guards the snapshot, the ledger, the prefix index and the health machines of its
// endpoints, so a pick and its booking are one critical section of a few microseconds and the next pick sees
// the one before it. Nothing blocks, logs or allocates in proportion to the pool while it is held, except
// changes of the set of endpoints. A Booking belongs to one request; its methods may be called from any
// goroutine and take the pool's mutex themselves.
//
// The only goroutine is the caller's in Run.
package pool
