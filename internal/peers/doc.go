// Package peers lets the replicas of a gateway know of each other's picks, so that all of them route as one would.
//
// Each replica tells every other one what it books, over one gRPC stream per peer (wire/peers.proto): picks with the block hashes
// of their prompts, first tokens, progress and ends, gathered for 50 ms. A peer that was not there, or could not keep up, gets
// a full state first: what is in flight and what the endpoints hold. Nobody leads, nothing is stored, and no request waits: a pick uses
// what is known. What a peer says is booked by pool.Peer; what it had in flight is forgotten when it says that it ends, or
// some seconds after it fell silent.
//
// Endpoints are named by URL, since two replicas number them differently. A process is named by 16 random bytes: addresses from DNS
// lead back to the replica itself as well. Everything that a peer sends is bounded: message, chain, endpoints, bookings, streams,
// connections.
//
// The messages are generated from a .proto file rather than written by hand: it is what another release has to agree with, and
// fields that it does not know are passed over without code.
//
// Goroutines: Run owns them all, one per peer that is told, one more for its answers, and those of the gRPC server.
package peers
