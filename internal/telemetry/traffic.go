package telemetry

import (
	"math"
	"sync/atomic"
	"time"
)

// ttftSteps is the number of buckets of a Traffic's TTFT distribution: quarter octaves from 1 ms, so that a
// quantile is right within 9 % up to 2^(ttftSteps/4) ms (18 minutes).
const ttftSteps = 80

// Traffic counts what one pool served, for the dashboard: cheap, cumulative, and read by taking differences
// of two [Traffic.Snapshot]s.
type Traffic struct {
	requests, failed                atomic.Int64
	prompt, output                  atomic.Int64
	predicted, actual, actualPrompt atomic.Int64
	picks, pickNanos                atomic.Int64
	reasons                         [5]atomic.Int64
	ttft                            [ttftSteps]atomic.Int64
}

// Totals is a copy of a Traffic at one moment; all counts since the start.
type Totals struct {
	Requests     int64            `json:"requests"`
	Failed       int64            `json:"failed"` // upstream_error, cut, timeout, shed, no_endpoint
	PromptTokens int64            `json:"prompt_tokens"`
	OutputTokens int64            `json:"output_tokens"`
	PredictedHit int64            `json:"predicted_hit_tokens"`
	ActualHit    int64            `json:"actual_hit_tokens"`
	ActualPrompt int64            `json:"actual_prompt_tokens"` // prompt tokens of requests with a reported hit
	Picks        int64            `json:"picks"`
	PickSeconds  float64          `json:"pick_seconds"`
	Reasons      map[string]int64 `json:"reasons"`
	TTFT         TTFT             `json:"-"`
}

// TTFT is a distribution of times to first token; differences of two are one too.
type TTFT [ttftSteps]int64

func reasonIndex(reason string) int {
	switch reason {
	case "prefix":
		return 0
	case "load":
		return 1
	case "all_full":
		return 2
	case "only_one":
		return 3
	}
	return 4
}

func (t *Traffic) done(r *Record) {
	t.requests.Add(1)
	switch r.Outcome {
	case OutcomeUpstreamError, OutcomeCut, OutcomeTimeout, OutcomeShed, OutcomeNoEndpoint:
		t.failed.Add(1)
	}
	t.prompt.Add(int64(max(0, r.PromptTokens)))
	t.output.Add(int64(max(0, r.OutputTokens)))
	t.predicted.Add(int64(max(0, r.PredictedHit)))
	if r.CachedTokens >= 0 {
		t.actual.Add(int64(r.CachedTokens))
		t.actualPrompt.Add(int64(max(0, r.PromptTokens)))
	}
	if r.TTFT > 0 {
		t.ttft[ttftBucket(r.TTFT)].Add(1)
	}
}

func (t *Traffic) pick(reason string, d time.Duration) {
	t.picks.Add(1)
	t.pickNanos.Add(int64(d))
	t.reasons[reasonIndex(reason)].Add(1)
}

// ttftBucket is the index of the quarter octave that d lies in, from 1 ms.
func ttftBucket(d time.Duration) int {
	ms := d.Seconds() * 1e3
	if ms <= 1 {
		return 0
	}
	return min(ttftSteps-1, int(4*math.Log2(ms)))
}

// Snapshot copies the counts.
func (t *Traffic) Snapshot() Totals {
	s := Totals{
		Requests: t.requests.Load(), Failed: t.failed.Load(),
		PromptTokens: t.prompt.Load(), OutputTokens: t.output.Load(),
		PredictedHit: t.predicted.Load(), ActualHit: t.actual.Load(), ActualPrompt: t.actualPrompt.Load(),
		Picks: t.picks.Load(), PickSeconds: time.Duration(t.pickNanos.Load()).Seconds(),
		Reasons: make(map[string]int64),
	}
	for i, name := range [...]string{"prefix", "load", "all_full", "only_one", Other} {
		if n := t.reasons[i].Load(); n > 0 {
			s.Reasons[name] = n
		}
	}
	for i := range s.TTFT {
		s.TTFT[i] = t.ttft[i].Load()
	}
	return s
}

// Sub returns the distribution of what came after earlier.
func (d TTFT) Sub(earlier TTFT) TTFT {
	for i := range d {
		d[i] -= earlier[i]
	}
	return d
}

// Quantile estimates the q-quantile in seconds, q in [0,1]; ok is false when there is nothing to estimate from.
func (d TTFT) Quantile(q float64) (seconds float64, ok bool) {
	var total int64
	for _, n := range d {
		total += n
	}
	if total == 0 {
		return 0, false
	}
	rank := q * float64(total)
	var below int64
	for i, n := range d {
		if n > 0 && float64(below+n) >= rank {
			within := (rank - float64(below)) / float64(n)
			return math.Exp2((float64(i)+within)/4) / 1e3, true
		}
		below += n
	}
	return 0, false
}

// Traffic returns the totals of every pool that had a request or a pick, by pool name.
func (m *Metrics) Traffic() map[string]Totals {
	out := make(map[string]Totals)
	for pool, t := range m.traffic.all() {
		out[pool] = t.Snapshot()
	}
	return out
}

func (m *Metrics) trafficOf(pool string) *Traffic {
	return m.traffic.put(pool, Other, func(string) *Traffic { return &Traffic{} })
}
