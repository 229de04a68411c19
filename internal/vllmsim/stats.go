package vllmsim

import (
	"crypto/sha256"
	"encoding/hex"
)

// Stats counts what a server has done since New. It is the body of GET /vllmsim/stats.
type Stats struct {
	Requests    int64            `json:"requests"`           // generating or pooling requests whose body arrived
	Executed    int64            `json:"executed"`           // of these, handed to the engine
	Finished    int64            `json:"finished"`           // of these, answered to the end
	Aborted     int64            `json:"aborted"`            // of these, left by their client
	Refused     int64            `json:"refused"`            // answered 4xx or 5xx
	Faulted     int64            `json:"faulted"`            // hit by a fault of the reset, early-end, hang or status kind
	InFlight    int64            `json:"in_flight"`          // handlers of generating requests that have not returned
	Running     int              `json:"running"`            // as of the last step
	Waiting     int              `json:"waiting"`            //
	Preemptions int64            `json:"preemptions"`        // as they happen, not as the metric books them
	Prompt      int64            `json:"prompt_tokens"`      // of executed requests
	Cached      int64            `json:"cached_tokens"`      // found in the prefix cache, booked at the first token
	Generated   int64            `json:"generated_tokens"`   //
	Connections int64            `json:"connections"`        // accepted by Serve
	MaxInFlight int64            `json:"max_in_flight"`      //
	ByBody      map[string]int64 `json:"executed_by_sha256"` // executed requests by the hex SHA-256 of their body; the last 65536 bodies
}

// bodyCounts remembers how often each body was executed, for the last maxBodies different ones.
type bodyCounts struct {
	counts map[[sha256.Size]byte]int64
	order  [][sha256.Size]byte
}

const maxBodies = 65536

func (b *bodyCounts) add(sum [sha256.Size]byte) {
	if b.counts == nil {
		b.counts = map[[sha256.Size]byte]int64{}
	}
	if b.counts[sum] == 0 {
		b.order = append(b.order, sum)
	}
	b.counts[sum]++
	if len(b.order) > maxBodies {
		delete(b.counts, b.order[0])
		b.order = b.order[1:]
	}
}

func (b *bodyCounts) snapshot() map[string]int64 {
	out := make(map[string]int64, len(b.counts))
	for sum, n := range b.counts {
		out[hex.EncodeToString(sum[:])] = n
	}
	return out
}
