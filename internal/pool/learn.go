package pool

import "time"

// limitLearner finds out how many sequences an engine runs at once, which no engine says: while requests wait for
// room although memory is plentiful, what runs is the limit.
type limitLearner struct {
	best, candidate int32
	times           int
	at              time.Duration
}

const (
	// limitTimes is how many reports in a row must agree. One can be taken between two steps.
	limitTimes = 3
	// limitHolds is how long an observation counts. An endpoint is kept under its limit afterwards, so that a limit
	// which was seen too low would never be seen again otherwise.
	limitHolds = 5 * time.Minute
	// limitKV is the KV use above which waiting has another cause.
	limitKV = 0.5
)

// observe takes one report. running < 0 or waiting < 0 mean unknown.
func (l *limitLearner) observe(running, waiting, kv float64, now time.Duration) {
	n := count32(running)
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

// limit returns the limit, 0 when unknown.
func (l *limitLearner) limit(now time.Duration) int32 {
	if l.best > 0 && now-l.at > limitHolds {
		*l = limitLearner{}
	}
	return l.best
}

// capacityLearner corrects how much of an endpoint's KV memory really keeps prefixes. Live requests, and those that
// came past this gateway, take their part, so that an index as large as the memory promises hits that are gone.
// Each broken promise takes a tenth, each kept one gives a hundredth back.
type capacityLearner struct {
	share float64 // of the capacity, in [minShare, 1]
}

const minShare = 0.1

// observe takes the predicted and the actual hit of one request, in tokens, and the tokens of a KV block. It returns
// whether the promise was broken.
func (c *capacityLearner) observe(predicted, actual, block int) bool {
	if predicted <= 0 {
		return false
	}
	// Engines round down to blocks and keep the last token, and our tokens are an estimate.
	if actual+2*max(block, 16)+predicted/8 >= predicted {
		c.share = min(1, c.share+0.01)
		return false
	}
	c.share = max(minShare, c.share*0.9)
	return true
}
