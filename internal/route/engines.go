package route

import (
	"math"
	"time"
)

// LimitLearner finds out how many sequences an engine runs at once, which no engine says: while requests wait for
// room although memory is plentiful, what runs is the limit. The zero value knows nothing.
type LimitLearner struct {
	best, candidate int32
	times           int
	at              time.Duration
}

const (
	// limitTimes is how many reports in a row must agree. One can be taken between two steps.
	limitTimes = 3
	// LimitHolds is how long an observation counts. An endpoint is kept under its limit afterwards, so that a limit
	// which was seen too low would never be seen again otherwise.
	LimitHolds = 5 * time.Minute
	// limitKV is the KV use above which waiting has another cause.
	limitKV = 0.5
)

// Observe takes one report: running and waiting requests, the share of KV blocks in use. Negative values and NaN mean unknown.
func (l *LimitLearner) Observe(running, waiting, kv float64, now time.Duration) {
	n := int32(0)
	if running > 0 {
		n = int32(min(running, math.MaxInt32))
	}
	if n > l.best && l.best > 0 {
		l.best = n // more run than was thought possible
	}
	if !(waiting > 0) || n == 0 || !(kv >= 0 && kv < limitKV) {
		l.candidate, l.times = 0, 0
		return
	}
	if n > l.candidate || n < l.candidate-l.candidate/16 {
		l.candidate, l.times = n, 0
	}
	if l.times++; l.times >= limitTimes {
		l.best, l.at = max(l.candidate, l.best), now
	}
}

// Limit returns the limit, 0 when unknown.
func (l *LimitLearner) Limit(now time.Duration) int32 {
	if l.best > 0 && now-l.at > LimitHolds {
		*l = LimitLearner{}
	}
	return l.best
}

// CapacityLearner corrects how much of an endpoint's KV memory really keeps prefixes. Live requests, and those that
// came past this gateway, take their part, so that an index as large as the memory promises hits that are gone.
// Each broken promise takes a tenth, each kept one gives a hundredth back. The zero value trusts the whole.
type CapacityLearner struct {
	lost float64 // share of the capacity that keeps nothing, in [0, 1-minShare]
}

const minShare = 0.1

// Share returns the share of the capacity that keeps prefixes, in [0.1, 1].
func (c *CapacityLearner) Share() float64 { return 1 - c.lost }

// Observe takes the predicted and the actual hit of one request, in tokens, and the tokens of a KV block. It returns
// whether the promise was broken.
func (c *CapacityLearner) Observe(predicted, actual, block int) bool {
	if predicted <= 0 {
		return false
	}
	// Engines round down to blocks and keep the last token, and our tokens are an estimate.
	if actual+2*max(block, 16)+predicted/8 >= predicted {
		c.lost = max(0, c.lost-0.01)
		return false
	}
	c.lost = min(1-minShare, 1-(1-c.lost)*0.9)
	return true
}
