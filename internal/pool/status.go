package pool

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/route"
)

// Status is one pool at a moment, for metrics, the dashboard and explain. Numbers that are unknown are nil.
type Status struct {
	Name       string           `json:"name"`
	Policy     string           `json:"policy"`            // the policy in force: prefix or least_request
	Configured string           `json:"configured_policy"` // auto, prefix or least_request
	Warnings   []string         `json:"warnings"`
	AllStale   bool             `json:"all_reports_stale"` // no endpoint has a fresh report: the ledger alone decides
	Ready      bool             `json:"ready"`             // at least one endpoint is known to be usable
	Source     string           `json:"source_broken"`     // why the set of endpoints may be out of date, "" if it is not; a Pool leaves it empty
	Models     []Model          `json:"models"`
	Endpoints  []EndpointStatus `json:"endpoints"` // by name; each name once
	Picks      map[string]int64 `json:"picks"`     // by reason
	Full       map[string]int   `json:"full"`      // endpoints that a gate makes full now for a short prompt, by gate
	NoEndpoint int64            `json:"no_endpoint"`
	Queue      QueueStatus      `json:"queue"`
	InFlight   int              `json:"in_flight"` // of this gateway
	Peers      int              `json:"peers"`     // in flight by what other gateways say
	Foreign    int              `json:"foreign"`

	BytesPerToken    float64 `json:"bytes_per_token"`    // learned
	MeanOutputTokens float64 `json:"mean_output_tokens"` // learned
	Regret           float64 `json:"regret"`             // share of evicted prefixes that were asked for again, [0,1]

	// Totals of the requests whose engine said what it found cached.
	PredictedHitTokens int64 `json:"predicted_hit_tokens"`
	ActualHitTokens    int64 `json:"actual_hit_tokens"`
	PromptTokens       int64 `json:"prompt_tokens"`
}

// EndpointStatus is one endpoint of a Status.
type EndpointStatus struct {
	Name    string `json:"name"` // host:port
	URL     string `json:"url"`
	State   string `json:"state"`
	Leaving bool   `json:"leaving"` // removed, finishing what it has
	Engine  string `json:"engine"`
	Version string `json:"version"`

	InFlight   int  `json:"in_flight"` // of this gateway
	Decoding   int  `json:"decoding"`  // of these, first token seen
	Peers      int  `json:"peers"`     // in flight by what other gateways say
	Foreign    int  `json:"foreign"`   // reported and neither of this gateway nor of those
	Running    *int `json:"running"`
	Waiting    *int `json:"waiting"`
	MaxNumSeqs int  `json:"max_num_seqs"` // configured, said or observed; 0 unknown

	KVUsage        *float64 `json:"kv_usage"`
	ProjectedKV    *float64 `json:"projected_kv"` // what is booked and will grow included; may pass 1
	CapacityTokens int64    `json:"capacity_tokens"`
	BlockSize      int      `json:"block_size"`
	MaxModelLen    int      `json:"max_model_len"`
	PrefixCaching  *bool    `json:"prefix_caching"`

	HeldBlocks int   `json:"held_blocks"` // prefix blocks that the index credits to it
	HeldBytes  int64 `json:"held_bytes"`

	ReportAge   *float64 `json:"report_age_seconds"` // nil before the first report
	ReportStale bool     `json:"report_stale"`
	ReportError string   `json:"report_error"`

	Heard         bool   `json:"heard"`           // something answered at the address at least once
	Cause         string `json:"cause"`           // what spoke against it last, while it is not in use; "" unknown
	NoModelServer bool   `json:"no_model_server"` // what answers there has none of a model server's pages
	ModelsError   string `json:"models_error"`    // why the model list could not be read the last time
	WantsKey      bool   `json:"wants_key"`       // /v1/models answered 401 or 403

	EngineHitRatio     *float64 `json:"engine_hit_ratio"`   // hits / queries since the engine's start
	ComputedHitRatio   *float64 `json:"computed_hit_ratio"` // 1 - computed / prompt tokens
	Preemptions        *float64 `json:"preemptions"`
	PredictedHitTokens int64    `json:"predicted_hit_tokens"`
	ActualHitTokens    int64    `json:"actual_hit_tokens"`
	Slowness           float64  `json:"slowness"` // observed over predicted time to first token, smoothed
	Picks              int64    `json:"picks"`
	Restarts           int64    `json:"restarts"`
	Models             []string `json:"models"`
}

// Status returns the pool as it is now.
func (p *Pool) Status() Status {
	p.mu.Lock()
	defer p.unlock()
	now := p.now()
	p.refresh(now)
	st := Status{
		Name: p.cfg.Name, Policy: p.snap.Params.Policy.String(), Configured: p.cfg.Policy.String(),
		Warnings: append([]string{}, p.warnings...), AllStale: p.allStale, Ready: p.ready(),
		Models: append([]Model{}, p.models...), Endpoints: []EndpointStatus{}, NoEndpoint: p.count.noEndpoint,
		Picks: map[string]int64{}, Full: map[string]int{},
		BytesPerToken: p.snap.Params.BytesPerToken, MeanOutputTokens: p.snap.Params.MeanOutput, Regret: p.snap.Regret,
		PredictedHitTokens: p.count.predicted, ActualHitTokens: p.count.actual, PromptTokens: p.count.prompt,
	}
	st.Queue = p.queueStatus(now)
	for r := route.ReasonPrefix; int(r) < len(p.count.picks); r++ {
		st.Picks[r.String()] = p.count.picks[r]
	}
	for g := range route.NumGates {
		st.Full[route.GateName(g)] = 0
	}
	for i, s := range p.slots {
		if s == nil {
			continue
		}
		e := p.endpointStatus(i, s, now)
		if !s.leaving {
			p.countGates(&st, i)
		}
		st.InFlight += e.InFlight
		st.Peers += e.Peers
		st.Foreign += e.Foreign
		st.Endpoints = append(st.Endpoints, e)
	}
	st.Endpoints = mergeLives(st.Endpoints)
	return st
}

// QueueStatus is the requests of a pool that wait in the gateway.
type QueueStatus struct {
	Waiting int              `json:"waiting"`        // held ones included
	Held    int              `json:"held"`           // of these, for the first usable endpoint
	Max     int              `json:"max"`            // how many may wait; 0: none
	Holds   bool             `json:"holds"`          // requests are held while no endpoint is usable
	Oldest  float64          `json:"oldest_seconds"` // how long the longest has been waiting
	Shed    map[string]int64 `json:"shed"`           // refused for want of room, by reason
}

// queueStatus describes the queue. The mutex is held.
func (p *Pool) queueStatus(now time.Duration) QueueStatus {
	q := &p.queue
	st := QueueStatus{Waiting: q.n, Max: p.room(), Holds: p.cfg.Hold > 0, Shed: map[string]int64{QueueFull: q.shed[QueueFull], QueueTimeout: q.shed[QueueTimeout]}}
	if at, any := q.oldest(); any {
		st.Oldest = (now - at).Seconds()
	}
	if st.Holds && !p.anyUsable(p.unused) {
		st.Held = q.n
	}
	return st
}

// countGates counts the gates that make a slot full for a short prompt. The mutex is held.
func (p *Pool) countGates(st *Status, i int) {
	set := route.FullGates(&p.snap, &route.Request{PromptTokens: 1, MaxTokens: 1}, i, 0)
	for g := range route.NumGates {
		if set.Has(g) {
			st.Full[route.GateName(g)]++
		}
	}
}

// mergeLives folds the earlier lives of an address, which still have requests, into its present one, so that every
// name stands once.
func mergeLives(list []EndpointStatus) []EndpointStatus {
	slices.SortStableFunc(list, func(a, b EndpointStatus) int {
		if c := cmp.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		if a.Leaving != b.Leaving {
			if a.Leaving {
				return 1
			}
			return -1
		}
		return 0
	})
	out := list[:0]
	for _, e := range list {
		if n := len(out); n > 0 && out[n-1].Name == e.Name {
			out[n-1].InFlight += e.InFlight
			out[n-1].Decoding += e.Decoding
			out[n-1].Picks += e.Picks
			continue
		}
		out = append(out, e)
	}
	return out
}

// endpointStatus describes one slot. The mutex is held.
func (p *Pool) endpointStatus(i int, s *slot, now time.Duration) EndpointStatus {
	e, r := &p.snap.Endpoints[i], &s.rep
	books := p.books.Load(i)
	blocks, bytes := p.index.Held(i)
	out := EndpointStatus{
		Name: s.ep.Name, URL: s.ep.URL.Redacted(), State: s.stateAt(now).String(), Leaving: s.leaving,
		Engine: r.Engine, Version: s.version,
		InFlight: s.live, Decoding: books.Decoding - s.theirDec, Peers: s.theirs, MaxNumSeqs: int(e.MaxNumSeqs),
		CapacityTokens: e.CapacityTokens, BlockSize: int(e.BlockSize), MaxModelLen: int(e.MaxModelLen),
		PrefixCaching: s.caching(), HeldBlocks: blocks, HeldBytes: bytes,
		ReportStale: !s.known, ReportError: s.repErr,
		Heard: s.heard, Cause: s.cause(now), NoModelServer: s.proof.refuted(), ModelsError: s.modelsErr, WantsKey: s.wantsKey,
		Preemptions: known(r.Preemptions), EngineHitRatio: ratio(r.Hits, r.Queries),
		PredictedHitTokens: s.predicted, ActualHitTokens: s.actualHit,
		Slowness: s.learn.Kappa(now), Picks: s.picks, Restarts: s.restarts, Models: []string{},
	}
	if v := route.ProjectedKV(&p.snap, nil, i, 0); v >= 0 {
		out.ProjectedKV = &v
	}
	for _, m := range s.models {
		out.Models = append(out.Models, m.ID)
	}
	if s.hasRep {
		age := (now - s.repAt).Seconds()
		out.ReportAge = &age
	}
	if s.known {
		out.Running, out.Waiting, out.KVUsage = whole(r.Running), whole(r.Waiting), known(r.KVUsage)
		out.Foreign = int(s.foreign.Load)
	}
	if c := ratio(r.ComputedPromptTokens, r.PromptTokens); c != nil {
		v := max(0, 1-*c)
		out.ComputedHitRatio = &v
	}
	return out
}

// ready says whether at least one endpoint is known to be usable: it answered as a model server does, and nothing
// speaks against it. The mutex is held.
//
// Endpoints that requests failed on count as long as they answer otherwise: a gateway that is not ready gets no requests, and
// nothing else would ever show that they recovered.
func (p *Pool) ready() bool {
	now := p.now()
	for _, s := range p.slots {
		if s == nil || s.leaving {
			continue
		}
		if s.machine.Usable(now) && s.proof.shown() {
			return true
		}
	}
	return false
}

// cause is what an operator should read about an endpoint that is not in use. The mutex is held.
func (s *slot) cause(now time.Duration) string {
	switch s.stateAt(now) {
	case health.Ejected, health.Gone, health.Unknown:
		return s.why
	case health.Warming:
		if s.proof.refuted() {
			return s.refutation()
		}
	}
	return ""
}

func known(v float64) *float64 {
	if v < 0 {
		return nil
	}
	return &v
}

func whole(v float64) *int {
	if v < 0 {
		return nil
	}
	n := int(count32(v))
	return &n
}

func ratio(part, of float64) *float64 {
	if part < 0 || of <= 0 {
		return nil
	}
	v := min(1, part/of)
	return &v
}

// staleEvery is how often a pool that is blind says so.
const staleEvery = time.Minute

// noteStale says in the log when no endpoint has a fresh report, once a minute at most, and when that ends. The mutex
// is held.
func (p *Pool) noteStale(stale bool, now time.Duration) {
	p.allStale = stale
	b := &p.blind
	if !stale {
		if b.said {
			p.event(slog.LevelInfo, "reports are fresh again")
		}
		b.since, b.said = -1, false
		return
	}
	if b.since < 0 {
		b.since = now
		b.hushed++
	}
	if now-b.since < p.cfg.StaleAfter || b.last >= 0 && now-b.last < staleEvery {
		return
	}
	attrs := []any{}
	if b.hushed > 1 {
		attrs = append(attrs, "suppressed", b.hushed-1)
	}
	for _, s := range p.slots {
		if s != nil && !s.leaving && s.repErr != "" {
			attrs = append(attrs, "endpoint", s.ep.Name, "error", s.repErr)
			break
		}
	}
	p.event(slog.LevelWarn, "every report is stale, the ledger decides", attrs...)
	b.said, b.last, b.hushed = true, now, 0
}

// blindness throttles the log line of noteStale.
type blindness struct {
	since, last time.Duration // -1: not now, never
	said        bool
	hushed      int
}

// stateChanged logs what an operator wants to see. The mutex is held.
func (p *Pool) stateChanged(s *slot, to health.State) {
	level, attrs := slog.LevelInfo, []any{"endpoint", s.ep.Name, "from", s.state.String(), "to", to.String()}
	if to == health.Ejected || to == health.Gone {
		if s.heard { // of one that never answered, that was said
			level = slog.LevelWarn
		}
		why := s.why
		if s.machine.Wedged(p.now()) {
			why = "requests are in flight and nothing moves"
		}
		attrs = append(attrs, "cause", why)
	}
	p.event(level, "endpoint state changed", attrs...)
	s.state = to
}

// event keeps a line for unlock. The mutex is held.
func (p *Pool) event(level slog.Level, msg string, attrs ...any) {
	p.events = append(p.events, event{level, msg, append([]any{"pool", p.cfg.Name}, attrs...)})
}

// unlock lets the mutex go, then logs and tells the directory.
func (p *Pool) unlock() {
	if p.queue.freed {
		p.serve()
		p.queue.freed = false
	}
	events := p.events
	p.events = nil
	var hooks []func()
	if p.modelsNew {
		p.modelsNew, hooks = false, p.onModels
	}
	p.mu.Unlock()
	for _, e := range events {
		p.log.Log(context.Background(), e.level, e.msg, e.attrs...) //nolint:sloglint // constants at the callers of event
	}
	for _, f := range hooks {
		f()
	}
}
