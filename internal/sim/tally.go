package sim

import (
	"cmp"
	"math"
	"slices"
	"time"

	"pointsman.dev/pointsman/internal/engine"
	"pointsman.dev/pointsman/internal/route"
)

// Result is what came of a run. Requests that arrived during the warm-up are in none of the figures but Endpoints and Total.
type Result struct {
	Policy  string
	Seed    uint64
	Total   int           // requests sent, warm-up included
	Lasted  time.Duration // virtual time of the last event
	Overall Class
	Classes []Class // by name

	Reasons     map[string]int // picks by what decided; none of a policy that does not say
	TooLong     int            // requests that were refused because their prompt does not fit the endpoint, warm-up included
	AllFull     time.Duration  // how long every endpoint was full, warm-up included
	Expected    int64          // prompt tokens that the gateway expected in the caches,
	Cached      int64          // that were there,
	Prompt      int64          // of all
	Preemptions uint64         // of the whole run,
	Recomputed  uint64         // tokens computed again after one
	Endpoints   []EndpointResult
}

// Class is the outcome of the requests of one class. Good, Excused, Late, Slow, Refused, Unfinished and Failed add up to Requests.
type Class struct {
	Name                           string
	Requests, Good                 int
	Cancelled, Refused, Unfinished int
	Failed                         int  // broke off
	Late, Slow                     int  // were answered or cancelled: the first token came too late, or the tokens after it too slowly
	Excused                        int  // of those that were cancelled: nothing was late until then, so they are not judged
	TTFT, TPOT, E2E                Dist // of those that got so far
}

// Goodput returns the share of requests within their SLO in percent; clients that went away before anything was late do not count.
func (c *Class) Goodput() float64 {
	if n := c.Requests - c.Excused; n > 0 {
		return 100 * float64(c.Good) / float64(n)
	}
	return 0
}

// EndpointResult is what one endpoint did in the whole run.
type EndpointResult struct {
	Picks      int
	Refused    int // connections, while it was down
	Stats      engine.Stats
	HitRate    float64 // of the engine: hits / queries, [0,1]
	Busy       float64 // share of the run in which a step ran, [0,1]
	MostQueued int     // most waiting requests that a refresh saw
}

// Dist is a distribution of durations, kept in buckets 1 % wide: its size does not depend on what it holds.
type Dist struct {
	N       int
	Sum     time.Duration
	Max     time.Duration
	buckets []int32
}

const (
	distLeast = 10 * time.Microsecond
	distStep  = 0.01 // of the logarithm
)

// Add adds one value.
func (d *Dist) Add(v time.Duration) {
	d.N++
	d.Sum += v
	d.Max = max(d.Max, v)
	i := 0
	if v > distLeast {
		i = int(math.Log(float64(v)/float64(distLeast)) / distStep)
	}
	if i >= len(d.buckets) {
		d.buckets = append(d.buckets, make([]int32, i+1-len(d.buckets))...)
	}
	d.buckets[i]++
}

// Merge adds the values of o.
func (d *Dist) Merge(o *Dist) {
	d.N, d.Sum, d.Max = d.N+o.N, d.Sum+o.Sum, max(d.Max, o.Max)
	if more := len(o.buckets) - len(d.buckets); more > 0 {
		d.buckets = append(d.buckets, make([]int32, more)...)
	}
	for i, n := range o.buckets {
		d.buckets[i] += n
	}
}

// Quantile returns the duration below which share q of the values lie, within a percent; 0 when there are none.
func (d *Dist) Quantile(q float64) time.Duration {
	rank, seen := q*float64(d.N), 0.0
	for i, n := range d.buckets {
		if seen += float64(n); n > 0 && seen >= rank {
			return min(d.Max, time.Duration(float64(distLeast)*math.Exp((float64(i)+1)*distStep)))
		}
	}
	return d.Max
}

// Mean returns the mean; 0 when there are no values.
func (d *Dist) Mean() time.Duration { return d.Sum / time.Duration(max(1, d.N)) }

// Points returns the cumulative distribution as pairs of duration and share, at most one per bucket.
func (d *Dist) Points(yield func(v time.Duration, share float64)) {
	seen := 0
	for i, n := range d.buckets {
		if n > 0 {
			seen += int(n)
			yield(time.Duration(float64(distLeast)*math.Exp((float64(i)+1)*distStep)), float64(seen)/float64(d.N))
		}
	}
}

// Tally adds up records as they come.
type Tally struct {
	cfg     *Config
	overall Class
	classes map[string]*Class
	reasons [route.ReasonOnlyOne + 1]int
	allFull time.Duration
	queued  []int
	tooLong int

	expected, cached, prompt int64
}

func newTally(cfg *Config) *Tally {
	return &Tally{cfg: cfg, classes: map[string]*Class{}, overall: Class{Name: "all"}}
}

func (t *Tally) picked(f *flight) {
	if f.rec.At >= t.cfg.Warmup && t.cfg.Policy.Choose == nil {
		t.reasons[f.rec.Reason]++
	}
}

// count takes the end of a request.
func (t *Tally) count(r *Record) {
	if r.At < t.cfg.Warmup {
		return
	}
	c := t.classes[r.Class]
	if c == nil {
		c = &Class{Name: r.Class}
		t.classes[r.Class] = c
	}
	c.count(r, t.cfg.TPOT)
	t.overall.count(r, t.cfg.TPOT)
	if r.First > 0 {
		t.expected, t.cached, t.prompt = t.expected+int64(r.Expected), t.cached+int64(r.Cached), t.prompt+int64(r.Prompt)
	}
}

func (c *Class) count(r *Record, tpot time.Duration) {
	c.Requests++
	switch r.Outcome {
	case Cancelled:
		c.Cancelled++
	case Refused:
		c.Refused++
	case Unfinished:
		c.Unfinished++
	case Failed:
		c.Failed++
	}
	switch ended := r.Outcome == Done || r.Outcome == Cancelled; {
	case r.Good(tpot):
		c.Good++
	case !r.Counts(tpot):
		c.Excused++
	case ended && r.late():
		c.Late++
	case ended:
		c.Slow++
	}
	if r.First > 0 {
		c.TTFT.Add(r.TTFT())
	}
	if r.Outcome == Done {
		c.E2E.Add(r.End - r.At)
		if r.Output > 1 {
			c.TPOT.Add(r.TPOT())
		}
	}
}

// watch looks at a gateway once per refresh.
func (t *Tally) watch(g *gateway) {
	full, usable := 0, 0
	for i := range g.slots {
		if g.exclude[i>>6]&(1<<(i&63)) != 0 {
			continue
		}
		usable++
		if route.FullGates(&g.snap, &route.Request{PromptTokens: 256}, i, 0) != 0 {
			full++
		}
		for len(t.queued) <= i {
			t.queued = append(t.queued, 0)
		}
		t.queued[i] = max(t.queued[i], g.sim.nodes[i].Stats().Waiting)
	}
	if usable > 0 && full == usable {
		t.allFull += refresh
	}
}

func (t *Tally) result(s *Sim) *Result {
	r := &Result{Policy: s.cfg.Policy.Name, Seed: s.cfg.Seed, Total: int(s.sent), Lasted: s.now, Overall: t.overall, Reasons: map[string]int{},
		AllFull: t.allFull, TooLong: t.tooLong, Expected: t.expected, Cached: t.cached, Prompt: t.prompt}
	for _, c := range t.classes {
		r.Classes = append(r.Classes, *c)
	}
	slices.SortFunc(r.Classes, func(a, b Class) int { return cmp.Compare(a.Name, b.Name) })
	for i, n := range t.reasons {
		if n > 0 {
			r.Reasons[route.Reason(i).String()] = n
		}
	}
	for i, n := range s.nodes {
		st := n.Stats()
		e := EndpointResult{Picks: n.Picks, Refused: n.Refused, Stats: st, HitRate: float64(st.Hits) / float64(max(1, st.Queries))}
		if s.now > 0 {
			e.Busy = st.Busy.Seconds() * n.Slow / s.now.Seconds() / float64(len(n.ranks))
		}
		if i < len(t.queued) {
			e.MostQueued = t.queued[i]
		}
		r.Preemptions += st.Preempted
		r.Recomputed += st.Recomputed
		r.Endpoints = append(r.Endpoints, e)
	}
	return r
}

// Sample is the state of a run at one moment.
type Sample struct {
	Now       time.Duration
	Open      int // requests under way
	Endpoints []EndpointSample
}

// EndpointSample is one endpoint in a Sample.
type EndpointSample struct {
	Present bool // discovery shows it
	Works   bool // and its process is there and does not stand still
	Picks   int  // so far
	Stats   engine.Stats
	Full    bool    // for gateway 0
	Kappa   float64 // as gateway 0 learned it
}

func (s *Sim) takeSample() {
	s.sample.Now, s.sample.Open = s.now, len(s.open)
	s.sample.Endpoints = s.sample.Endpoints[:0]
	g := s.gates[0]
	for i, n := range s.nodes {
		there := n.present && !n.gone
		x := EndpointSample{Present: there, Works: there && !n.down && !n.hung, Picks: n.Picks, Stats: n.Stats(), Kappa: 1}
		if i < len(g.slots) {
			x.Full = route.FullGates(&g.snap, &route.Request{PromptTokens: 256}, i, 0) != 0
			x.Kappa = g.snap.Endpoints[i].Kappa
		}
		s.sample.Endpoints = append(s.sample.Endpoints, x)
	}
	s.cfg.Sample(&s.sample)
}
