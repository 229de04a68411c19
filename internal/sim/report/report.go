// Package report says what came of simulations of one workload: how good each policy was, how the endpoints shared the work, and how
// it went over time; as a table, as JSON (the exported fields), and as a page of one file (HTML).
//
// It has no clock and draws nothing: the same runs give the same bytes.
package report

import (
	"cmp"
	"slices"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// Report is what there is to say of a workload. Durations are seconds, shares are in [0,1] unless a name says percent.
type Report struct {
	Workload string   `json:"workload"`
	Facts    []Fact   `json:"facts"` // of the workload, the fleet and the limits
	Seeds    int      `json:"seeds"`
	First    uint64   `json:"first_seed"`
	SLO      SLO      `json:"slo"`
	Base     string   `json:"base,omitempty"` // name of the line that the others are changes of
	Answer   []string `json:"answer"`         // what the lines say, in sentences; Finish fills it in
	Lines    []Policy `json:"policies"`       // best goodput first
}

// Fact is a row of what was simulated.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// SLO is within which times an answer counts as good; 0: any time.
type SLO struct {
	TTFT     float64 `json:"ttft_seconds"`
	LongTTFT float64 `json:"long_ttft_seconds"`
	TPOT     float64 `json:"tpot_seconds"`
}

// Policy is what came of one policy: sums and distributions over all seeds.
type Policy struct {
	Name    string    `json:"name"`
	Source  string    `json:"source,omitempty"`
	Goodput []float64 `json:"goodput_percent"` // per seed
	Mean    float64   `json:"goodput_mean"`
	Half    float64   `json:"goodput_half_width_95"` // of the confidence interval; 0 with fewer than three seeds

	Overall Class   `json:"overall"`
	Classes []Class `json:"classes,omitempty"` // where there are several

	EngineHits    float64    `json:"engine_hit_rate"`    // prompt tokens that were found in a cache,
	PredictedHits float64    `json:"predicted_hit_rate"` // and that the gateway expected there
	Preemptions   uint64     `json:"preemptions"`
	Recomputed    uint64     `json:"recomputed_tokens"`
	AllFull       float64    `json:"all_full_seconds"`
	Reasons       []Count    `json:"picks_by_reason,omitempty"` // none: the policy gives none
	TooLong       int        `json:"refused_too_long"`          // prompts that do not fit the KV memory
	Endpoints     []Endpoint `json:"endpoints"`
	Imbalance     float64    `json:"imbalance"` // share of time in which the busiest endpoint computes, over the mean
	Series        *Series    `json:"series,omitempty"`

	ttft, tpot, e2e sim.Dist
}

// Class is the outcome of the requests of one class, over all seeds.
type Class struct {
	Name       string   `json:"name"`
	Requests   int      `json:"requests"`
	Goodput    float64  `json:"goodput_percent"`
	Cancelled  int      `json:"cancelled"`
	Refused    int      `json:"refused"`
	Unfinished int      `json:"unfinished"`
	Failed     int      `json:"failed"` // broke off
	Good       int      `json:"good"`
	Late       int      `json:"late_first_token"`
	Slow       int      `json:"slow_tokens"`
	Excused    int      `json:"left_in_time"` // went away before anything was late, and are not judged
	TTFT       Quantile `json:"ttft_seconds"`
	TPOT       Quantile `json:"tpot_seconds"`
	E2E        Quantile `json:"e2e_seconds"`
}

// Quantile is a distribution in a few numbers.
type Quantile struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// Count is how often something was the reason of a pick.
type Count struct {
	Name string `json:"name"`
	N    int    `json:"n"`
}

// Endpoint is one endpoint, over all seeds.
type Endpoint struct {
	Picks       int     `json:"picks"`
	Busy        float64 `json:"busy"` // share of time in which a step ran
	HitRate     float64 `json:"engine_hit_rate"`
	Prefilled   uint64  `json:"prefilled_tokens"`
	Preemptions uint64  `json:"preemptions"`
	MostWaiting int     `json:"most_waiting"`
}

// Add adds what came of one policy: a result per seed, and how the first of them went, nil for unknown.
func (r *Report) Add(name, source string, results []*sim.Result, series *Series) {
	p := Policy{Name: name, Source: source, Series: series}
	var overall sim.Class
	classes := map[string]*sim.Class{}
	reasons := map[string]int{}
	var expected, cached, prompt int64
	for _, res := range results {
		p.Goodput = append(p.Goodput, res.Overall.Goodput())
		merge(&overall, &res.Overall)
		for i := range res.Classes {
			c := classes[res.Classes[i].Name]
			if c == nil {
				c = &sim.Class{Name: res.Classes[i].Name}
				classes[c.Name] = c
			}
			merge(c, &res.Classes[i])
		}
		for reason, n := range res.Reasons {
			reasons[reason] += n
		}
		expected, cached, prompt = expected+res.Expected, cached+res.Cached, prompt+res.Prompt
		p.Preemptions += res.Preemptions
		p.Recomputed += res.Recomputed
		p.TooLong += res.TooLong
		p.AllFull += res.AllFull.Seconds()
		p.addEndpoints(res, len(results))
	}
	p.Mean, p.Half = sim.Interval(p.Goodput)
	overall.Name = "all"
	p.Overall = classOf(&overall)
	p.ttft, p.tpot, p.e2e = overall.TTFT, overall.TPOT, overall.E2E
	p.EngineHits, p.PredictedHits = share(cached, prompt), share(expected, prompt)
	for _, c := range classes {
		if len(classes) > 1 {
			p.Classes = append(p.Classes, classOf(c))
		}
	}
	slices.SortFunc(p.Classes, func(a, b Class) int { return cmp.Compare(a.Name, b.Name) })
	for reason, n := range reasons {
		p.Reasons = append(p.Reasons, Count{reason, n})
	}
	slices.SortFunc(p.Reasons, func(a, b Count) int { return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Name, b.Name)) })
	p.balance()
	r.Lines = append(r.Lines, p)
	slices.SortStableFunc(r.Lines, func(a, b Policy) int { return cmp.Compare(b.Mean, a.Mean) })
}

// Finish fills in the Answer when every line was added.
func (r *Report) Finish() { r.Answer = r.answer() }

func merge(into, c *sim.Class) {
	into.Requests += c.Requests
	into.Good += c.Good
	into.Cancelled += c.Cancelled
	into.Refused += c.Refused
	into.Unfinished += c.Unfinished
	into.Failed += c.Failed
	into.Excused += c.Excused
	into.Late += c.Late
	into.Slow += c.Slow
	into.TTFT.Merge(&c.TTFT)
	into.TPOT.Merge(&c.TPOT)
	into.E2E.Merge(&c.E2E)
}

func classOf(c *sim.Class) Class {
	return Class{Name: c.Name, Requests: c.Requests, Goodput: c.Goodput(), Cancelled: c.Cancelled, Refused: c.Refused,
		Unfinished: c.Unfinished, Failed: c.Failed, Good: c.Good, Late: c.Late, Slow: c.Slow, Excused: c.Excused, TTFT: quantiles(&c.TTFT), TPOT: quantiles(&c.TPOT), E2E: quantiles(&c.E2E)}
}

func quantiles(d *sim.Dist) Quantile {
	q := func(p float64) float64 { return round(d.Quantile(p)) }
	return Quantile{round(d.Mean()), q(0.5), q(0.9), q(0.95), q(0.99), round(d.Max)}
}

// round keeps a tenth of a millisecond.
func round(d time.Duration) float64 { return d.Round(100 * time.Microsecond).Seconds() }

func share(part, of int64) float64 {
	if of == 0 {
		return 0
	}
	return float64(part) / float64(of)
}

// addEndpoints adds the endpoints of one of n results.
func (p *Policy) addEndpoints(res *sim.Result, n int) {
	for i := range res.Endpoints {
		if i == len(p.Endpoints) {
			p.Endpoints = append(p.Endpoints, Endpoint{})
		}
		e, x := &p.Endpoints[i], &res.Endpoints[i]
		e.Picks += x.Picks
		e.Busy += x.Busy / float64(n)
		e.HitRate += x.HitRate / float64(n)
		e.Prefilled += x.Stats.Prefilled
		e.Preemptions += x.Stats.Preempted
		e.MostWaiting = max(e.MostWaiting, x.MostQueued)
	}
}

func (p *Policy) balance() {
	most, sum := 0.0, 0.0
	for i := range p.Endpoints {
		most, sum = max(most, p.Endpoints[i].Busy), sum+p.Endpoints[i].Busy
	}
	if sum > 0 {
		p.Imbalance = most * float64(len(p.Endpoints)) / sum
	}
}
