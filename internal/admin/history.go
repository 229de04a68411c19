package admin

import (
	"context"
	"math"
	"time"

	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

const (
	step      = time.Second // between two samples
	points    = 180         // samples that a sparkline shows: three minutes
	window    = 60          // samples that figures like TTFT are taken over: one minute
	rateSpan  = 5           // samples that a rate is taken over, so that it does not flicker
	maxSeries = 4096        // endpoints with a sparkline of their own
)

// history keeps the last minutes of each pool and endpoint. The server's mutex guards it.
type history struct {
	pools     map[string]*poolHistory
	endpoints map[[2]string]*ring
	unplaced  poolHistory // requests that got to no pool; totals only
}

func (h *history) init() {
	h.pools, h.endpoints = map[string]*poolHistory{}, map[[2]string]*ring{}
}

// poolHistory is one pool's: totals to take differences from, and what was derived from them each second.
type poolHistory struct {
	totals                                           []telemetry.Totals // oldest first, at most window+1
	rps, ttft50, ttft95, inFlight, actual, predicted ring
}

// ring is a short series; nil-like gaps are NaN.
type ring struct {
	v    []float32
	seen bool // in the last sample
}

func (r *ring) add(x float64) {
	if len(r.v) == points {
		copy(r.v, r.v[1:])
		r.v = r.v[:points-1]
	}
	r.v = append(r.v, float32(x))
}

// Run samples the traffic once a second until ctx ends, then ends the open event streams.
func (s *Server) Run(ctx context.Context) {
	defer s.once.Do(func() { close(s.closing) })
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		s.sample()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *Server) sample() {
	status, traffic := s.facts()
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sampled, s.sampledAt = status, now
	h := &s.history
	for i := range status {
		p := &status[i]
		ph := h.pools[p.Name]
		if ph == nil {
			ph = &poolHistory{}
			h.pools[p.Name] = ph
		}
		ph.add(p, traffic[p.Name])
		h.sampleEndpoints(p)
	}
	for id, r := range h.endpoints {
		if !r.seen {
			delete(h.endpoints, id)
		}
		r.seen = false
	}
	h.unplaced.totals = push(h.unplaced.totals, traffic[""])
	if len(h.pools) > len(status) {
		h.forgetPools(status)
	}
}

func (h *history) sampleEndpoints(p *pool.Status) {
	for j := range p.Endpoints {
		ep := &p.Endpoints[j]
		id := [2]string{p.Name, ep.Name}
		r := h.endpoints[id]
		if r == nil {
			if len(h.endpoints) >= maxSeries {
				continue
			}
			r = &ring{}
			h.endpoints[id] = r
		}
		if !r.seen { // an endpoint that leaves and came back is listed twice
			r.add(load(ep))
			r.seen = true
		}
	}
}

// load is the number of requests at an endpoint as far as anybody knows: what it reports, or our own books.
func load(ep *pool.EndpointStatus) float64 {
	n := 0
	if ep.Running != nil {
		n = *ep.Running
	}
	if ep.Waiting != nil {
		n += *ep.Waiting
	}
	return float64(max(n, ep.InFlight))
}

func (h *history) forgetPools(status []pool.Status) {
	keep := make(map[string]bool, len(status))
	for _, p := range status {
		keep[p.Name] = true
	}
	for name := range h.pools {
		if !keep[name] {
			delete(h.pools, name)
		}
	}
}

func (ph *poolHistory) add(p *pool.Status, t telemetry.Totals) {
	ph.totals = push(ph.totals, t)
	f := ph.figures()
	ph.rps.add(orNaN(f.RPS))
	// A sparkline shows what happened lately, not a minute's mean: quantiles of the last seconds only.
	lately := t.TTFT.Sub(ph.before(rateSpan).TTFT)
	ph.ttft50.add(quantile(lately, 0.5))
	ph.ttft95.add(quantile(lately, 0.95))
	ph.inFlight.add(float64(p.InFlight))
	ph.actual.add(orNaN(f.ActualHit))
	ph.predicted.add(orNaN(f.PredictedHit))
}

// push appends t and forgets what is older than the window.
func push(list []telemetry.Totals, t telemetry.Totals) []telemetry.Totals {
	list = append(list, t)
	if len(list) > window+1 {
		copy(list, list[1:])
		list = list[:window+1]
	}
	return list
}

// before returns the totals of n samples ago, or the oldest there are.
func (ph *poolHistory) before(n int) telemetry.Totals {
	if len(ph.totals) == 0 {
		return telemetry.Totals{}
	}
	return ph.totals[max(0, len(ph.totals)-1-n)]
}

// Figures sum up a pool's traffic of the last minute. A nil has nothing to be computed from.
type Figures struct {
	RPS          *float64         `json:"requests_per_second"` // last 5 s
	TokenRate    *float64         `json:"output_tokens_per_second"`
	Requests     int64            `json:"requests"`
	Failed       int64            `json:"failed"`
	TTFT50       *float64         `json:"ttft_p50_seconds"`
	TTFT95       *float64         `json:"ttft_p95_seconds"`
	PredictedHit *float64         `json:"predicted_hit_ratio"` // predicted by prompt tokens
	ActualHit    *float64         `json:"actual_hit_ratio"`    // of the requests whose endpoint reported it
	Pick         *float64         `json:"pick_mean_seconds"`
	Reasons      map[string]int64 `json:"picks"`
}

func (ph *poolHistory) figures() Figures {
	var f Figures
	f.Reasons = map[string]int64{}
	if len(ph.totals) == 0 {
		return f
	}
	now, then, recent := ph.before(0), ph.before(window), ph.before(rateSpan)
	if n := min(rateSpan, len(ph.totals)-1); n > 0 {
		span := float64(n) * step.Seconds()
		f.RPS = some(float64(now.Requests-recent.Requests) / span)
		f.TokenRate = some(float64(now.OutputTokens-recent.OutputTokens) / span)
	}
	f.Requests, f.Failed = now.Requests-then.Requests, now.Failed-then.Failed
	d := now.TTFT.Sub(then.TTFT)
	if v, ok := d.Quantile(0.5); ok {
		f.TTFT50 = some(v)
	}
	if v, ok := d.Quantile(0.95); ok {
		f.TTFT95 = some(v)
	}
	f.PredictedHit = ratio(now.PredictedHit-then.PredictedHit, now.PromptTokens-then.PromptTokens)
	f.ActualHit = ratio(now.ActualHit-then.ActualHit, now.ActualPrompt-then.ActualPrompt)
	if n := now.Picks - then.Picks; n > 0 {
		f.Pick = some((now.PickSeconds - then.PickSeconds) / float64(n))
	}
	for reason, n := range now.Reasons {
		if n -= then.Reasons[reason]; n > 0 {
			f.Reasons[reason] = n
		}
	}
	return f
}

// Series are sparklines, oldest first; null where there was nothing to show.
type Series struct {
	RPS      []*float32 `json:"requests_per_second"`
	TTFT50   []*float32 `json:"ttft_p50_seconds"`
	TTFT95   []*float32 `json:"ttft_p95_seconds"`
	InFlight []*float32 `json:"in_flight"`
	Actual   []*float32 `json:"actual_hit_ratio"`
	Predict  []*float32 `json:"predicted_hit_ratio"`
}

func (ph *poolHistory) series() *Series {
	return ph.each((*ring).list)
}

// each applies f to every series.
func (ph *poolHistory) each(f func(*ring) []*float32) *Series {
	return &Series{RPS: f(&ph.rps), TTFT50: f(&ph.ttft50), TTFT95: f(&ph.ttft95), InFlight: f(&ph.inFlight), Actual: f(&ph.actual), Predict: f(&ph.predicted)}
}

func (r *ring) list() []*float32 {
	out := make([]*float32, len(r.v))
	for i, x := range r.v {
		if !math.IsNaN(float64(x)) {
			out[i] = &x
		}
	}
	return out
}

// last is the newest point, nil when it is a gap.
func (r *ring) last() *float32 {
	if len(r.v) == 0 || math.IsNaN(float64(r.v[len(r.v)-1])) {
		return nil
	}
	x := r.v[len(r.v)-1]
	return &x
}

func quantile(d telemetry.TTFT, q float64) float64 {
	if v, ok := d.Quantile(q); ok {
		return v
	}
	return math.NaN()
}

func some(v float64) *float64 { return &v }

func ratio(part, whole int64) *float64 {
	if whole <= 0 {
		return nil
	}
	return some(min(1, max(0, float64(part)/float64(whole))))
}

// orNaN returns the first value that is there.
func orNaN(values ...*float64) float64 {
	for _, v := range values {
		if v != nil {
			return *v
		}
	}
	return math.NaN()
}
