// Package books is what the gateway's pool and the simulator's gateway do alike around a pick: the ledger's figures as the router reads them,
// the time that a picked prompt should take, and the room that the prefix index gives an endpoint. Pure, as the packages that it joins.
package books

import (
	"time"

	"pointsman.dev/pointsman/internal/ledger"
	"pointsman.dev/pointsman/internal/prefix"
	"pointsman.dev/pointsman/internal/route"
)

// Load turns the ledger's figures into those of a snapshot.
func Load(l ledger.Load) route.Load {
	return route.Load{
		Requests: int32(l.Requests), Decoding: int32(l.Decoding), PromptTokens: l.PromptTokens,
		NewTokens: l.NewTokens, UncachedTokens: l.UncachedTokens, ContextTokens: l.ContextTokens,
		OutputTokens: l.OutputTokens, GrowthTokens: l.GrowthTokens, UnseenTokens: l.UnseenTokens,
	}
}

// OrOne is a learned factor, or 1 while nothing was learned.
func OrOne(v float64) float64 {
	if v > 0 {
		return v
	}
	return 1
}

// Seconds turns a model's figure into a duration: 0 for what is no positive number, bounded where it could overflow.
func Seconds(v float64) time.Duration {
	if !(v > 0) {
		return 0
	}
	return time.Duration(min(v, 1e6) * float64(time.Second))
}

// Expected is how long the first token of a pick should take, times slack, with what was learned of the endpoint and of the pool.
func Expected(p *route.Pick, e *route.Endpoint, pool *route.Params, slack float64) time.Duration {
	return Seconds(slack * p.Predicted * OrOne(e.Kappa) * OrOne(pool.Scale))
}

// Resize tells the index that slot can hold size bytes where that differs by more than 2 % from was, and returns what it has been told
// last. Smaller steps would cost evictions and change nothing.
func Resize(index *prefix.Index, slot int, was, size int64) int64 {
	if diff := size - was; diff*50 <= was && -diff*50 <= was {
		return was
	}
	index.SetCapacity(slot, size)
	return size
}
