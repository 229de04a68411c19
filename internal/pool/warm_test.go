package pool

import (
	"errors"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/discover"
)

// A report of a process that computed tokens of prompts before.
func served(tokens float64) Report {
	r := idle()
	r.PromptTokens = tokens
	return r
}

// warmPool has one endpoint that served others for long, and one that is new.
func warmPool(t *testing.T) (*Pool, *clock) {
	t.Helper()
	p, c := testPool(t, 1, Config{Warm: []WarmRequest{{Prompt: 100, Output: 1, AtOnce: 2}}})
	p.Report(addr(0), served(1e6))
	p.SetTargets(targets(2))
	for i := range 2 {
		p.Learned(addr(i), Facts{Models: []Model{{ID: "sql", Adapter: true}, {ID: "tiny"}}})
		p.HealthProbe(addr(i), 200, nil)
	}
	if _, _, start := p.WarmUp(addr(0)); start {
		t.Fatal("an endpoint that computed a million tokens is to be warmed up")
	}
	return p, c
}

// share sends n requests one after the other and counts those of each endpoint.
func share(t *testing.T, p *Pool, n int) (by [2]int) {
	t.Helper()
	for id := range n {
		b := mustPick(t, p, prompt("r", chain(uint64(id), 0, 0, 4)))
		for i := range by {
			if b.Endpoint().URL.String() == addr(i) {
				by[i]++
			}
		}
		b.FirstToken()
		b.Done(ok(250, 5))
	}
	return by
}

func TestFreshEndpointGetsSyntheticRequestsFirst(t *testing.T) {
	p, _ := warmPool(t)
	if _, _, start := p.WarmUp(addr(1)); start {
		t.Fatal("nothing is known yet of what it did so far")
	}
	if by := share(t, p, 20); by[1] != 0 {
		t.Errorf("%d users were sent to a cold endpoint", by[1])
	}
	p.Report(addr(1), served(0))
	shapes, model, start := p.WarmUp(addr(1))
	if !start || model != "tiny" || len(shapes) != 1 {
		t.Fatalf("start %v, model %q, shapes %v", start, model, shapes)
	}
	if _, _, again := p.WarmUp(addr(1)); again {
		t.Error("started twice")
	}
	if by := share(t, p, 20); by[1] != 0 || endpoint(t, p, 1).State != "warming" {
		t.Errorf("%d users were sent to an endpoint that is %s", by[1], endpoint(t, p, 1).State)
	}
	p.Warmed(addr(1), time.Second, nil)
	if by := share(t, p, 40); by[1] < 10 || endpoint(t, p, 1).State != "ready" {
		t.Errorf("%d of 40 users were sent to an endpoint that is %s", by[1], endpoint(t, p, 1).State)
	}
}

func TestColdEndpointsAreUsedWhenThereIsNoOther(t *testing.T) {
	p, _ := testPool(t, 2, Config{Warm: []WarmRequest{{Prompt: 100}}})
	if by := share(t, p, 40); by[0] < 10 || by[1] < 10 {
		t.Errorf("shares %v", by)
	}
}

func TestWarmUpThatFailsKeepsNobodyOut(t *testing.T) {
	p, c := warmPool(t)
	p.Report(addr(1), served(0))
	p.WarmUp(addr(1))
	p.Warmed(addr(1), time.Second, errors.New("status 400"))
	if by := share(t, p, 40); by[1] < 10 {
		t.Errorf("%d of 40 after it failed", by[1])
	}

	p.SetTargets(append(targets(2), discover.Target{URL: addr(2)}))
	p.Report(addr(2), served(0))
	p.WarmUp(addr(2))
	c.advance(warmWait + time.Second)
	p.Report(addr(2), served(0))
	if _, _, start := p.WarmUp(addr(2)); start || endpoint(t, p, 2).State != "ready" {
		t.Errorf("an endpoint that lists no models: start %v, %s", start, endpoint(t, p, 2).State)
	}
}

func TestRestartedEndpointIsWarmedAgain(t *testing.T) {
	p, _ := warmPool(t)
	p.Report(addr(1), served(0))
	p.WarmUp(addr(1))
	another := served(0)
	another.ProcessStart = 2000
	p.Report(addr(1), another)
	p.Warmed(addr(1), time.Second, nil) // of the process that was
	if _, _, start := p.WarmUp(addr(1)); !start {
		t.Error("the new process is not to be warmed up")
	}
	p.Report(addr(1), another)
	p.Warmed(addr(1), time.Second, nil)
	if _, _, start := p.WarmUp(addr(1)); start || endpoint(t, p, 1).State != "ready" {
		t.Errorf("start %v, %s", start, endpoint(t, p, 1).State)
	}
}

// TestWhatComesBackIsWarmedAgain: what answers where the port was closed, or whose /health is well again, is another process, whatever
// found that out.
func TestWhatComesBackIsWarmedAgain(t *testing.T) {
	for name, away := range map[string]func(p *Pool){
		"a request was refused": func(p *Pool) {
			for range 2 {
				b := mustPick(t, p, prompt("r", nil))
				b.s.machine.ConnectFailed(p.now())
				b.Done(Result{Outcome: ClientCancelled})
			}
		},
		"its port was closed": func(p *Pool) {
			for range 3 {
				p.HealthProbe(addr(0), 0, errors.New("connection refused"))
				p.HealthProbe(addr(1), 0, errors.New("connection refused"))
			}
		},
		"its health page said so": func(p *Pool) { p.HealthProbe(addr(0), 503, nil); p.HealthProbe(addr(1), 503, nil) },
	} {
		p, _ := warmPool(t)
		for i := range 2 {
			p.Report(addr(i), served(0))
			p.WarmUp(addr(i))
			p.Warmed(addr(i), time.Second, nil)
			p.Report(addr(i), served(0))
			if s := endpoint(t, p, i).State; s != "ready" {
				t.Fatalf("%s: endpoint %d is %s", name, i, s)
			}
		}
		away(p)
		for i := range 2 {
			if _, _, start := p.WarmUp(addr(i)); start {
				t.Errorf("%s: endpoint %d is to be warmed up while it is away", name, i)
			}
			p.HealthProbe(addr(i), 200, nil)
			p.Report(addr(i), served(0))
			if _, _, start := p.WarmUp(addr(i)); !start {
				t.Errorf("%s: endpoint %d is not warmed up again", name, i)
			}
		}
	}
}
