package health

import (
	"math"
	"time"
)

// Refusals is how often an endpoint refused what it was asked as the client's fault (4xx but 408 and 429). Such an answer
// comes at once, so that an endpoint that gives it to everything looks idle. Clients' mistakes are seen by all endpoints
// alike; what an endpoint has beyond its siblings is its own, and makes it less preferred for a while. It never ejects.
// The zero value is that of an endpoint that answered nothing.
type Refusals struct {
	share float64 // of the last answers, in [0,1]
	last  time.Duration
}

const (
	refusalWeight = 0.2             // of one answer in the share: five or so count
	refusalExcess = 0.5             // of the share over the siblings' mean from which it is the endpoint's own
	refusalMost   = 5.0             // seconds of penalty
	refusalHalf   = 5 * time.Second // without a refusal until the penalty has halved
	refusalLeast  = 0.001           // seconds below which it is none
)

// Answered records an answer: refused as the client's fault, or good.
func (r *Refusals) Answered(now time.Duration, refused bool) {
	r.share -= refusalWeight * r.share
	if refused {
		r.share += refusalWeight
		r.last = now
	}
}

// Share returns the share of refusals in the last answers, in [0,1].
func (r *Refusals) Share() float64 { return r.share }

// Penalty returns the seconds to add to the endpoint's cost; siblings is the mean of the others' shares.
func (r *Refusals) Penalty(now time.Duration, siblings float64) float64 {
	excess := r.share - siblings - refusalExcess
	if excess <= 0 {
		return 0
	}
	p := refusalMost * excess / (1 - refusalExcess) * math.Exp2(-float64(now-r.last)/float64(refusalHalf))
	if p < refusalLeast {
		return 0
	}
	return p
}
