package route_test

import (
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/engine"
	"pointsman.dev/pointsman/internal/route"
	"pointsman.dev/pointsman/internal/sim"
)

// The tests of this package judge picks by what they do to engines, in package sim.

// part is a piece of a prompt; equal ids are equal text.
type part struct {
	id     uint64
	tokens int
}

type call struct {
	output int
	answer uint64 // id of the answer's text
	slot   int
	then   func(*call) // when it ends
}

type fleet struct {
	*sim.Sim
	sent int
}

// fleetConfig is the engine of the simulator's workloads.
func fleetConfig() engine.Config { return sim.DefaultEngine() }

func start(t *testing.T, cfg sim.Config) *fleet {
	t.Helper()
	cfg.Coefficients = route.DefaultParams().Coeff // what a gateway assumes of engines that nobody described
	s, err := sim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &fleet{Sim: s}
}

func newFleet(t *testing.T, n int, cfg engine.Config, report time.Duration, seed uint64) *fleet {
	return start(t, sim.Config{Endpoints: sim.Fleet(n, cfg), Reports: sim.Reports{Every: report}, Seed: seed})
}

// send sends a prompt now.
func (f *fleet) send(output int, parts ...part) *call {
	c := &call{output: output, answer: f.NewID()}
	f.sent++
	r := &sim.Request{Output: output, Answer: c.answer, Then: func(*sim.Record) {
		if c.then != nil {
			c.then(c)
		}
	}}
	for _, p := range parts {
		r.Parts = append(r.Parts, sim.Part{ID: p.id, Tokens: p.tokens})
	}
	c.slot = f.Send(r)
	return c
}

// run lets everything happen within the next d.
func (f *fleet) run(d time.Duration) { f.RunUntil(f.Now() + d) }

func (f *fleet) picks() []int {
	var out []int
	for _, n := range f.Nodes() {
		out = append(out, n.Picks)
	}
	return out
}

// poisson calls do at rate per second until the end.
func (f *fleet) poisson(rate float64, end time.Duration, do func()) {
	var next func()
	next = func() {
		if f.Now() < end {
			do()
			f.After(f.Exponential(rate), next)
		}
	}
	f.After(f.Exponential(rate), next)
}

func within(t *testing.T, what string, got []int, lo, hi int) {
	t.Helper()
	for i, n := range got {
		if n < lo || n > hi {
			t.Errorf("%s: endpoint %d has %d, want %d to %d (%v)", what, i, n, lo, hi, got)
		}
	}
}
