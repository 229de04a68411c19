package pool

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestExplainRepeatsThePick(t *testing.T) {
	p, c := testPool(t, 5, Config{Name: "chat"})
	rnd := rand.New(rand.NewPCG(3, 4))
	type seen struct {
		endpoint, reason string
		cost             float64
		hit              int
	}
	picks := map[string]seen{}
	var open []*Booking
	for i := range 400 {
		id := fmt.Sprint(i)
		b := mustPick(t, p, prompt(id, chain(uint64(rnd.IntN(4)), uint64(rnd.IntN(20)), 10, 10+rnd.IntN(30))))
		picks[id] = seen{b.Endpoint().Name, b.Reason().String(), b.pick.Cost, b.PredictedHit()}
		open = append(open, b)
		c.advance(time.Duration(rnd.IntN(30)) * time.Millisecond)
		if rnd.IntN(3) > 0 {
			k := rnd.IntN(len(open))
			open[k].FirstToken()
			open[k].Progress(rnd.IntN(200))
			open[k].Done(ok(800, 30))
			open = append(open[:k], open[k+1:]...)
		}
		if rnd.IntN(10) == 0 {
			r := idle()
			r.Running = float64(rnd.IntN(30))
			p.Report(addr(rnd.IntN(5)), r)
		}
		if i == 200 {
			p.SetTargets(targets(4))
		}
		if i == 300 {
			p.SetTargets(targets(6))
		}
	}
	for id, want := range picks {
		e, found := p.Explain(id)
		if !found {
			t.Fatalf("pick %s is forgotten after 400", id)
		}
		if e.Endpoint != want.endpoint || e.Reason != want.reason || math.Abs(e.Cost-want.cost) > 1e-9 || e.Hit != want.hit {
			t.Fatalf("pick %s: explained as %s %s %v %d, was %+v", id, e.Endpoint, e.Reason, e.Cost, e.Hit, want)
		}
		checkTerms(t, &e)
	}
	if e, found := p.Explain(""); !found || e.ID != "399" {
		t.Errorf("the latest pick is %q, want 399", e.ID)
	}
	if _, found := p.Explain("nothing"); found {
		t.Error("a request that never was is explained")
	}
}

// checkTerms: one candidate is chosen, it is the endpoint, its gates have names and its terms add up.
func checkTerms(t *testing.T, e *Explanation) {
	t.Helper()
	chosen := 0
	for _, c := range e.Candidates {
		sum := 0.0
		for _, term := range c.Terms {
			sum += term.Seconds
		}
		if math.Abs(sum-c.Cost) > 1e-9*max(1, math.Abs(c.Cost)) {
			t.Errorf("terms of %s add up to %v, cost %v", c.Endpoint, sum, c.Cost)
		}
		if c.Chosen {
			chosen++
			if c.Endpoint != e.Endpoint || len(c.Gates) != 3 || len(c.Terms) == 0 {
				t.Errorf("the chosen candidate is %s with %d gates and %d terms", c.Endpoint, len(c.Gates), len(c.Terms))
			}
		}
	}
	if chosen != 1 {
		t.Errorf("%d candidates are chosen", chosen)
	}
}

func TestTraceForgetsButStaysBounded(t *testing.T) {
	p, c := testPool(t, 3, Config{Name: "chat"})
	for i := range 20000 {
		b := mustPick(t, p, prompt(fmt.Sprint(i), nil))
		c.advance(time.Millisecond)
		b.Done(ok(1, 1))
	}
	if _, found := p.Explain("0"); found {
		t.Error("a pick from 20,000 ago is still there")
	}
	if _, found := p.Explain("19000"); !found {
		t.Error("a pick from 1,000 ago is forgotten")
	}
	if len(p.trace.picks) > maxPicks || len(p.trace.words) > maxWords {
		t.Errorf("%d picks and %d words are kept", len(p.trace.picks), len(p.trace.words))
	}
}

// What was learnt is shown with the pick that used it: the pool's pace, and the pace of one endpoint against the pool's.
func TestExplainShowsWhatIsLearnt(t *testing.T) {
	p, c := testPool(t, 3, Config{Name: "chat"})
	given, _ := p.snap.Params.Steps()
	for i := range 120 {
		b := mustPick(t, p, prompt(fmt.Sprint(i), chain(uint64(i), 0, 0, 30)))
		pace := 3.0
		if b.Endpoint().URL.String() == addr(0) {
			pace = 9
		}
		c.advance(time.Duration(pace * b.pick.Predicted * float64(time.Second)))
		b.FirstToken()
		b.Done(ok(1900, 50))
		for k := range 3 {
			p.Report(addr(k), idle())
		}
	}
	e, found := p.Explain("")
	if !found || e.Steps.Scale < 2.5 || math.Abs(e.Steps.Step-e.Steps.Scale*given.A) > 1e-9 || math.Abs(e.Steps.Prefill-e.Steps.Scale*given.P) > 1e-12 {
		t.Errorf("steps %+v, given %+v", e.Steps, given)
	}
	if e.Steps.MeanOutput < 40 || e.Steps.MeanOutput > 150 {
		t.Errorf("answers of %g tokens, want near 50", e.Steps.MeanOutput)
	}
	for _, x := range e.Candidates {
		if slow := "http://"+x.Endpoint == addr(0); slow != (x.Slowness > 1.1) {
			t.Errorf("%s is %.2f times as slow as the pool", x.Endpoint, x.Slowness)
		}
	}
}
