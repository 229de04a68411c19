package simcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/command"
	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/sim"
	"pointsman.dev/pointsman/internal/sim/report"
	"pointsman.dev/pointsman/internal/sim/trace"
)

// source is where requests come from: a trace or one of the workloads.
type source struct {
	name     string
	trace    *trace.Trace // nil: scenario
	scenario sim.Scenario
	length   time.Duration        // of the scenario; 0: 7 minutes
	sets     []config.SimEndpoint // what the workload's file and then the flags say of single endpoints
}

// source finds what the workload names.
func (w *what) source() (*source, error) {
	s, err := w.named()
	if err != nil {
		return nil, err
	}
	return w.placed(s)
}

// placed adds what is said of single endpoints.
func (w *what) placed(s *source) (*source, error) {
	fleets, err := w.fleets()
	if err != nil {
		return nil, err
	}
	if err := known(s.sets, slices.Min(fleets)); err != nil {
		return nil, err
	}
	s.sets = append(s.sets, w.sets...)
	return s, nil
}

func (w *what) named() (*source, error) {
	for _, s := range sim.Scenarios() {
		if strings.EqualFold(s.ID, w.workload) {
			return &source{name: s.ID + " " + s.Name, scenario: s}, nil
		}
	}
	if ext := filepath.Ext(w.workload); ext == ".yaml" || ext == ".yml" {
		return w.madeUp(w.workload)
	}
	t, err := trace.Open(w.workload, w.pool)
	if err != nil {
		return nil, err
	}
	return &source{name: filepath.Base(w.workload), trace: t}, nil
}

// facts says what is simulated.
func (w *what) facts(s *source) []report.Fact {
	facts := []report.Fact{{Name: "workload", Value: s.name}}
	add := func(name, format string, args ...any) {
		facts = append(facts, report.Fact{Name: name, Value: fmt.Sprintf(format, args...)})
	}
	if t := s.trace; t != nil {
		length := t.Length(w.replay)
		add("trace", "%s in %v, mean prompt %d and answer %d tokens%s", command.Plural(t.Requests, "request"), short(length),
			t.Prompt/int64(t.Requests), t.MeanOutput(), w.speed())
		if w.length > 0 && w.length < length {
			add("of these", "those that arrive in the first %v", w.length)
		}
		if w.warmup > 0 {
			add("warm-up", "requests of the first %v do not count", w.warmup)
		}
		if hint := doubtful(t); hint != "" {
			add("doubtful", "%s", hint)
		}
		switch {
		case t.Prefixes == 0 && t.Format == trace.Access:
			add("prefixes", "none in these records, so nobody shares a prompt's beginning: write them with log: {format: json, prefix_hashes: true}")
		case t.Prefixes == 0:
			add("prefixes", "this format has none, so nobody shares a prompt's beginning")
		}
		for _, reason := range sortedKeys(t.Skipped) {
			add("left out", "%d %s", t.Skipped[reason], reason)
		}
	}
	caching := "prefix caching"
	if !w.engine.PrefixCaching {
		caching = "no prefix caching"
	}
	add("fleet", "%s endpoints of %s, %d tokens of KV each, %d requests and %d tokens a step, %s", w.endpoints, w.profile, w.tokens, w.engine.MaxNumSeqs,
		w.engine.MaxBatchedTokens, caching)
	for _, e := range s.sets {
		name := fmt.Sprintf("endpoint %d", e.First)
		if e.Last > e.First {
			name = fmt.Sprintf("endpoints %d-%d", e.First, e.Last)
		}
		add(name, "%s", e.Text)
	}
	if text := w.conditions(); text != "" {
		add("besides", "%s", text)
	}
	if s.trace != nil {
		add("good is", "%s", w.good())
	}
	add("seeds", "%d from %d%s", w.seeds, w.first, interval(w.seeds))
	return facts
}

// good says what a good answer is.
func (w *what) good() string {
	within := func(limit time.Duration) string {
		if limit == 0 {
			return "whenever"
		}
		return "within " + limit.String()
	}
	s := "first token " + within(w.replay.SLO)
	if r := &w.replay; r.LongFrom > 0 && r.LongSLO > 0 && r.LongSLO != r.SLO {
		s += fmt.Sprintf(" (%v from %d prompt tokens)", r.LongSLO, r.LongFrom)
	}
	if w.tpot > 0 {
		s += fmt.Sprintf(", %v per further token", w.tpot)
	}
	return s
}

// doubtful says what is likely wrong with the stamps of a trace; "" when nothing is.
func doubtful(t *trace.Trace) string {
	const many, perSecond = 20, 1000
	if t.Requests < many || t.Span.Seconds()*perSecond > float64(t.Requests) {
		return ""
	}
	s := fmt.Sprintf("%d requests within %v are a great many", t.Requests, short(t.Span))
	if t.Format == trace.Mooncake && t.Span > 0 {
		s += ": timestamp counts milliseconds; if yours are seconds, use --rate 0.001"
	}
	return s
}

// short is a duration with no more digits than it needs to be told apart from others.
func short(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}

// conditions says what is unusual about gateways, reports and clients.
func (w *what) conditions() string {
	var parts []string
	add := func(when bool, format string, args ...any) {
		if when {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	s := setting{Report: w.reports.Every, Gateways: w.gateways, Exchange: w.exchange}
	add(s.Report > 0 || s.Gateways > 1, "%s", s)
	add(w.reports.Delay > 0, "reports %v late", w.reports.Delay)
	add(w.reports.Loss > 0, "%g %% of the reports lost", 100*w.reports.Loss)
	add(w.patience > 0, "clients go away after %v", w.patience)
	return strings.Join(parts, ", ")
}

func (w *what) speed() string {
	s := ""
	if w.replay.Rate != 1 {
		s += fmt.Sprintf(", %g times as fast", w.replay.Rate)
	}
	if w.replay.Jitter > 0 {
		s += fmt.Sprintf(", arrivals put off by up to %v", w.replay.Jitter)
	}
	return s
}

func sortedKeys(m map[string]int) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// oneRun is a simulation to be done, and what watches it.
type oneRun struct {
	cfg    sim.Config
	rec    *report.Recorder
	source *source
	opt    trace.Options
}

// runs lists the simulations: variant by variant, seed by seed.
func (w *what) runs(s *source, variants []variant) []*oneRun {
	var out []*oneRun
	for _, v := range variants {
		for k := range w.seeds {
			c := sim.Config{Length: w.length, Warmup: w.warmup, Workload: s.scenario.Workload}
			if s.trace == nil {
				d := s.scenario.Config()
				c.Reports, c.Warmup = d.Reports, max(d.Warmup, w.warmup)
				if c.Length == 0 {
					c.Length = s.length
				}
			}
			c.Endpoints, c.Policy, c.Seed = w.fleet(v.fleet, s.sets), v.policy, w.first+uint64(k)
			c.Gateways, c.Exchange, c.Patience = w.gateways, w.exchange, w.patience
			c.TPOT, c.Params = w.tpot, w.params
			if w.tpot == 0 {
				c.TPOT = -1
			}
			if w.reports.Every > 0 {
				c.Reports.Every = w.reports.Every
			}
			c.Reports.Delay, c.Reports.Loss = w.reports.Delay, w.reports.Loss
			if s.trace != nil && (w.length == 0 || w.length > s.trace.Length(w.replay)) {
				c.Length = s.trace.Length(w.replay) + 1 // the last request is one of them
			}
			r := &oneRun{cfg: c, source: s, opt: w.replay}
			length := c.Length
			if length == 0 {
				length = 420 * time.Second
			}
			r.rec = report.NewRecorder(length, w.tpot)
			if k == 0 {
				r.cfg.Sink, r.cfg.Sample, r.cfg.SampleEvery = r.rec.Record, r.rec.Sample, r.rec.Every()
			}
			out = append(out, r)
		}
	}
	return out
}

// all does the simulations on every core. Each reads the trace for itself, as it goes.
func (w *what) all(ctx context.Context, runs []*oneRun, stderr io.Writer) ([]*sim.Result, error) {
	cfgs := make([]sim.Config, len(runs))
	replays := make([]*trace.Replay, len(runs))
	defer func() {
		for _, r := range replays {
			if r != nil {
				_ = r.Close()
			}
		}
	}()
	for i, r := range runs {
		cfgs[i] = r.cfg
		cfgs[i].Workload = bypassed(r.cfg.Workload, r.source.sets)
		if r.source.trace == nil {
			continue
		}
		replay, err := r.source.trace.Replay(r.opt)
		if err != nil {
			return nil, err
		}
		replays[i] = replay
		cfgs[i].Workload = bypassed(replay.Workload, r.source.sets)
		cfgs[i].Progress = func(time.Duration) error { return replay.Err() } // nothing more comes then
	}
	results, err := sweep(ctx, cfgs, stderr)
	errs := []error{err}
	for _, r := range replays {
		if r != nil {
			errs = append(errs, r.Err())
		}
	}
	return results, errors.Join(errs...)
}
