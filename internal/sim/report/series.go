package report

import (
	"math"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// points is into how many pieces of equal length a run is cut for its series. Where few requests come they are joined, so that a piece has
// enough of them to say something, but for fewPoints.
const (
	points    = 160
	fewPoints = 20
	enough    = 6 // requests per piece
)

// Series is one run over time, in pieces of equal length.
type Series struct {
	Step      float64          `json:"step_seconds"`
	Arrivals  []float64        `json:"arrivals_per_second"`
	Goodput   []float64        `json:"goodput_percent"`  // of those that arrived in the piece; -1: none did
	TTFT      []float64        `json:"ttft_p95_seconds"` // -1: none got so far
	Open      []float64        `json:"requests_open"`    // at the gateway, mean
	Endpoints []EndpointSeries `json:"endpoints"`
}

// EndpointSeries is one endpoint over time; before it joined and after it left everything is 0.
type EndpointSeries struct {
	Running []float64 `json:"running"`  // mean
	Waiting []float64 `json:"waiting"`  // most
	KV      []float64 `json:"kv_usage"` // mean, [0,1]
	Out     []float64 `json:"out"`      // share of the time in which it was not there or did not work, [0,1]
}

// Recorder gathers the Series of one run. Give its Record and Sample to the run as Sink and Sample.
type Recorder struct {
	step time.Duration
	tpot time.Duration
	s    Series
	n    []float64  // samples per piece
	good []float64  // requests
	all  []float64  // that count
	ttft []sim.Dist // per piece
}

// NewRecorder returns a recorder of a run whose arrivals end after length; tpot is the limit that makes a request good.
func NewRecorder(length, tpot time.Duration) *Recorder {
	r := &Recorder{step: max(length/points, time.Millisecond), tpot: tpot}
	r.s.Step = r.step.Seconds()
	return r
}

// Every returns how often the run is to be sampled.
func (r *Recorder) Every() time.Duration { return max(r.step/4, time.Millisecond) }

// at returns the piece in which t lies and sees to it that it is there; -1 after the last.
func (r *Recorder) at(t time.Duration) int {
	i := int(t / r.step)
	if i >= points {
		return -1
	}
	for len(r.n) <= i {
		r.n, r.good, r.all = append(r.n, 0), append(r.good, 0), append(r.all, 0)
		r.ttft = append(r.ttft, sim.Dist{})
		r.s.Arrivals, r.s.Open = append(r.s.Arrivals, 0), append(r.s.Open, 0)
	}
	return i
}

// Record counts a request that has ended.
func (r *Recorder) Record(rec *sim.Record) {
	i := r.at(rec.At)
	if i < 0 {
		return
	}
	r.s.Arrivals[i] += 1 / r.step.Seconds()
	if !rec.Counts(r.tpot) {
		return
	}
	r.all[i]++
	if rec.Good(r.tpot) {
		r.good[i]++
	}
	if rec.First > 0 {
		r.ttft[i].Add(rec.TTFT())
	}
}

// Sample notes the state of the endpoints.
func (r *Recorder) Sample(s *sim.Sample) {
	i := r.at(s.Now)
	if i < 0 {
		return
	}
	r.n[i]++
	mean := func(v *float64, x float64) { *v += (x - *v) / r.n[i] }
	mean(&r.s.Open[i], float64(s.Open))
	for k := range s.Endpoints {
		if k == len(r.s.Endpoints) {
			r.s.Endpoints = append(r.s.Endpoints, EndpointSeries{})
		}
		e := &r.s.Endpoints[k]
		for len(e.KV) <= i {
			e.Running, e.Waiting, e.KV, e.Out = append(e.Running, 0), append(e.Waiting, 0), append(e.KV, 0), append(e.Out, 0)
		}
		out := 1.0
		if s.Endpoints[k].Works {
			out = 0
		}
		mean(&e.Out[i], out)
		st := &s.Endpoints[k].Stats
		mean(&e.Running[i], float64(st.Running))
		mean(&e.KV[i], st.KVUsage)
		e.Waiting[i] = max(e.Waiting[i], float64(st.Waiting))
	}
}

// join makes one piece of every two.
func (r *Recorder) join() {
	half := func(v []float64, of func(a, b, na, nb float64) float64) []float64 {
		for i := 0; i < len(v); i += 2 {
			b, na, nb := 0.0, r.n[i], 0.0
			if i+1 < len(v) {
				b, nb = v[i+1], r.n[i+1]
			}
			v[i/2] = of(v[i], b, na, nb)
		}
		return v[:(len(v)+1)/2]
	}
	sum := func(a, b, _, _ float64) float64 { return a + b }
	most := func(a, b, _, _ float64) float64 { return max(a, b) }
	mean := func(a, b, na, nb float64) float64 { return (a*na + b*nb) / max(1, na+nb) }
	for k := range r.s.Endpoints {
		e := &r.s.Endpoints[k]
		e.Running, e.KV, e.Out, e.Waiting = half(e.Running, mean), half(e.KV, mean), half(e.Out, mean), half(e.Waiting, most)
	}
	r.s.Open = half(r.s.Open, mean)
	r.s.Arrivals = half(r.s.Arrivals, func(a, b, _, _ float64) float64 { return (a + b) / 2 })
	for i := range r.ttft {
		if i%2 == 1 {
			r.ttft[i-1].Merge(&r.ttft[i])
		}
		r.ttft[i/2] = r.ttft[i&^1]
	}
	r.ttft = r.ttft[:(len(r.ttft)+1)/2]
	r.good, r.all = half(r.good, sum), half(r.all, sum)
	r.n = half(r.n, sum) // the last, for it weighs the others
	r.step *= 2
	r.s.Step = r.step.Seconds()
}

// Series ends the recording and returns what was gathered.
func (r *Recorder) Series() *Series {
	requests := 0.0
	for _, n := range r.all {
		requests += n
	}
	for len(r.n) >= 2*fewPoints && requests < enough*float64(len(r.n)) {
		r.join()
	}
	s := r.s
	for i := range r.n {
		good, ttft := -1.0, -1.0
		if r.all[i] > 0 {
			good = 100 * r.good[i] / r.all[i]
		}
		if r.ttft[i].N > 0 {
			ttft = round(r.ttft[i].Quantile(0.95))
		}
		s.Goodput, s.TTFT = append(s.Goodput, tidy(good)), append(s.TTFT, ttft)
	}
	for _, v := range [][]float64{s.Arrivals, s.Open} {
		tidyAll(v)
	}
	for k := range s.Endpoints {
		e := &s.Endpoints[k]
		tidyAll(e.Running)
		tidyAll(e.KV)
		tidyAll(e.Out)
	}
	return &s
}

// tidy keeps three decimals.
func tidy(v float64) float64 { return math.Round(v*1e3) / 1e3 }

func tidyAll(v []float64) {
	for i := range v {
		v[i] = tidy(v[i])
	}
}
