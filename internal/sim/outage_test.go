package sim_test

import (
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// down runs four endpoints of which one goes down after 20 s, for 20 s.
func down(t *testing.T, policy sim.Policy, gateways int) (res *sim.Result, failed, late, sent, again, promised int) {
	t.Helper()
	cfg := sim.Config{Endpoints: sim.Fleet(4, sim.DefaultEngine()), Policy: policy, Seed: 5, Length: 70 * time.Second, Gateways: gateways, Exchange: 250 * time.Millisecond}
	cfg.Endpoints[1].Down = []sim.Outage{{From: 20 * time.Second, To: 40 * time.Second}}
	cfg.Workload = func(s *sim.Sim) {
		draw := s.Zipf(40, 0.8)
		s.Poisson(10, func() {
			s.Send(&sim.Request{Parts: []sim.Part{{ID: 1<<40 + uint64(draw()), Tokens: 3000}, {ID: s.NewID(), Tokens: s.Uniform(100, 400)}}, Output: s.Uniform(100, 200)})
		})
	}
	cfg.Sink = func(r *sim.Record) {
		sent++
		switch {
		case r.Outcome == sim.Failed:
			if failed++; r.Endpoint != 1 || r.End != 20*time.Second {
				t.Errorf("failed: %+v", *r)
			}
		case r.Outcome != sim.Done:
			t.Errorf("%v: %+v", r.Outcome, *r)
		case r.Endpoint == 1 && r.At >= 20*time.Second && r.At < 40*time.Second:
			late++
		case r.Endpoint == 1 && r.At >= 40*time.Second:
			again++
			promised += r.Expected - r.Cached
		}
	}
	res, err := sim.Run(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return res, failed, late, sent, again, promised
}

// A dead endpoint that fails fast has nothing in flight. It gets next to nothing, what it refuses goes elsewhere, and what it had is all that
// fails. When it is back it is used again, and nobody expects its old cache.
func TestDeadEndpointThatFailsFast(t *testing.T) {
	lr, _ := sim.PolicyByName("least_request")
	for name, c := range map[string]struct {
		policy   sim.Policy
		gateways int
	}{"pointsman": {sim.Ours(), 1}, "least_request": {lr, 1}, "three gateways": {sim.Ours(), 3}} {
		t.Run(name, func(t *testing.T) {
			res, failed, late, sent, again, promised := down(t, c.policy, c.gateways)
			if sent != res.Total || failed == 0 || failed > 60 || res.Overall.Failed != failed {
				t.Errorf("%d of %d requests have ended, %d failed, %d are counted", sent, res.Total, failed, res.Overall.Failed)
			}
			if late > 0 || res.Endpoints[1].Refused > 5*c.gateways {
				t.Errorf("while it was down %d requests were served there and %d refused", late, res.Endpoints[1].Refused)
			}
			if 20*again < sent {
				t.Errorf("back again, it got %d of %d", again, sent)
			}
			if promised > 1000 {
				t.Errorf("%d tokens were expected in its cache that are not there", promised)
			}
			if e := res.Endpoints[1].Stats; e.Running+e.Waiting+e.UsedBlocks != 0 {
				t.Errorf("left: %+v", e)
			}
		})
	}
}

// An idle endpoint dies unseen between two reports: nothing that it has breaks off, its report says that it is idle, and every connection
// fails at once. A handful of requests find that out, all of them are served elsewhere, and it gets no more.
func TestIdleEndpointDiesUnseen(t *testing.T) {
	cfg := sim.Config{Endpoints: sim.Fleet(4, sim.DefaultEngine()), Seed: 6, Length: 20 * time.Second, Reports: sim.Reports{Every: 5 * time.Second}}
	cfg.Endpoints[2].Down = []sim.Outage{{From: 0}}
	cfg.Workload = func(s *sim.Sim) {
		s.Poisson(40, func() {
			s.Send(&sim.Request{Parts: []sim.Part{{ID: s.NewID(), Tokens: 500}}, Output: 50})
		})
	}
	res, err := sim.Run(cfg)
	if err != nil {
		t.Fatal(err)
	}
	o, dead := res.Overall, res.Endpoints[2]
	if o.Requests < 700 || o.Failed+o.Refused+o.Unfinished > 0 || dead.Picks > 0 {
		t.Errorf("%d requests, %d failed, %d refused, %d unfinished, %d at the dead endpoint", o.Requests, o.Failed, o.Refused, o.Unfinished, dead.Picks)
	}
	if dead.Refused == 0 || dead.Refused > 5 {
		t.Errorf("it was asked %d times, want one to five", dead.Refused)
	}
}

// hung runs four endpoints of which one stands still from 20 s on.
func hung(t *testing.T, to, patience time.Duration, gateways int) (res *sim.Result, there []sim.Record) {
	t.Helper()
	cfg := sim.Config{Endpoints: sim.Fleet(4, sim.DefaultEngine()), Seed: 5, Length: 120 * time.Second, Patience: patience, Gateways: gateways, Exchange: 250 * time.Millisecond}
	cfg.Endpoints[1].Hang = []sim.Outage{{From: 20 * time.Second, To: to}}
	cfg.Workload = func(s *sim.Sim) {
		s.Poisson(10, func() {
			s.Send(&sim.Request{Parts: []sim.Part{{ID: s.NewID(), Tokens: s.Uniform(1000, 3000)}}, Output: s.Uniform(100, 200), SLO: 2 * time.Second})
		})
	}
	cfg.Sink = func(r *sim.Record) {
		if r.Endpoint == 1 {
			there = append(there, *r)
		}
	}
	res, err := sim.Run(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return res, there
}

// A process that stands still takes connections and answers nothing. What it has is cut when that is certain, half a minute later; it gets a
// few requests until it is found out, and next to none afterwards.
func TestHungEndpoint(t *testing.T) {
	for _, gateways := range []int{1, 3} {
		res, there := hung(t, 0, 0, gateways)
		failed, late := 0, 0
		for _, r := range there {
			switch {
			case r.Outcome == sim.Done && r.End > 20*time.Second, r.Outcome == sim.Failed && r.End < 50*time.Second:
				t.Errorf("%d gateways: %+v", gateways, r)
			case r.Outcome == sim.Failed:
				failed++
			}
			if r.At > 40*time.Second {
				late++
			}
		}
		if failed == 0 || res.Overall.Failed != failed || failed > 60*gateways || late > 8*gateways || res.Overall.Unfinished > 0 {
			t.Errorf("%d gateways: %d failed, %d counted, %d unfinished, %d sent there 20 s later or more", gateways, failed, res.Overall.Failed, res.Overall.Unfinished, late)
		}
	}
}

// A pause shorter than that costs time and no answer: what it has goes on where it was, and it is used again.
func TestHungEndpointGoesOn(t *testing.T) {
	res, there := hung(t, 30*time.Second, 0, 1)
	again, across := 0, 0
	for _, r := range there {
		if r.Outcome != sim.Done {
			t.Errorf("%+v", r)
		}
		if r.At < 20*time.Second && r.End > 30*time.Second {
			across++
		}
		if r.At < 30*time.Second && r.End > 20*time.Second && r.End < 30*time.Second {
			t.Errorf("it stood still and answered: %+v", r)
		}
		if r.At > 45*time.Second {
			again++
		}
	}
	if across == 0 || 8*again < res.Total*75/120 || res.Overall.Failed+res.Overall.Unfinished > 0 {
		t.Errorf("%d answers went on, %d of %d requests went there later: %+v", across, again, res.Total, res.Overall)
	}
}

// Clients that give up on a silent endpoint were not served: that they went away does not make the fleet look better.
func TestImpatienceIsNoExcuse(t *testing.T) {
	res, there := hung(t, 0, 5*time.Second, 1)
	gone := 0
	for _, r := range there {
		if r.Outcome == sim.Cancelled && r.First == 0 {
			if gone++; !r.Counts(0) || r.Good(0) {
				t.Errorf("waited 5 s for nothing and is not held against it: %+v", r)
			}
		}
	}
	o := &res.Overall
	if judged := o.Requests - o.Excused; gone == 0 || o.Excused+gone > o.Cancelled || o.Goodput() > 100*float64(o.Good)/float64(judged)+1e-9 || o.Goodput() > 100-100*float64(gone)/float64(o.Requests) {
		t.Errorf("%d gave up without a token, %d cancelled, %d excused, goodput %.1f %%", gone, o.Cancelled, o.Excused, o.Goodput())
	}
}

// An endpoint that joins with a warm cache finds in it what others computed, though no gateway expected that; a cold one does not. Endpoints
// join in any order.
func TestJoinWarm(t *testing.T) {
	found := map[bool]int{} // tokens that were cached where no gateway expected any
	for _, warm := range []bool{true, false} {
		cfg := sim.Config{Endpoints: sim.Fleet(3, sim.DefaultEngine()), Workload: tenants(14), Seed: 3, Length: 60 * time.Second}
		cfg.Endpoints[0].Join, cfg.Endpoints[0].Warm = 40*time.Second, warm
		cfg.Sink = func(r *sim.Record) {
			if r.Endpoint == 0 && r.At < 40*time.Second {
				t.Errorf("sent there before it joined: %+v", *r)
			}
			if r.Endpoint == 0 && r.Expected == 0 {
				found[warm] += r.Cached
			}
		}
		res, err := sim.Run(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if n := res.Endpoints[0].Picks; n < res.Total/20 || res.Overall.Refused > 0 {
			t.Errorf("warm %v: %d of %d went to the one that joined, %d refused", warm, n, res.Total, res.Overall.Refused)
		}
	}
	if found[true] < 5*6000 || found[false] > 0 {
		t.Errorf("unexpected hits: %d tokens in a warm cache, want some of the tenants; %d in a cold one", found[true], found[false])
	}
}

func TestImpossibleEndpoints(t *testing.T) {
	for name, change := range map[string]func(*sim.Endpoint){
		"leaves before it joins":    func(e *sim.Endpoint) { e.Join, e.Leave = 2, 1 },
		"warm from the start":       func(e *sim.Endpoint) { e.Warm = true },
		"down before it joins":      func(e *sim.Endpoint) { e.Join, e.Down = 2, []sim.Outage{{From: 1, To: 3}} },
		"hangs backwards":           func(e *sim.Endpoint) { e.Hang = []sim.Outage{{From: 2, To: 1}} },
		"a stand-in that hangs":     func(e *sim.Endpoint) { e.Fixed, e.Hang = 1, []sim.Outage{{From: 1}} },
		"a negative speed":          func(e *sim.Endpoint) { e.Slow = -1 },
		"an engine without a block": func(e *sim.Endpoint) { e.Engine.Blocks = 1 },
	} {
		cfg := sim.Config{Endpoints: sim.Fleet(2, sim.DefaultEngine())}
		change(&cfg.Endpoints[1])
		if _, err := sim.New(cfg); err == nil || !strings.Contains(err.Error(), "endpoint 1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Who went away is judged by what was late until then, and only by that.
func TestCounts(t *testing.T) {
	const ms, sec = time.Millisecond, time.Second
	for _, c := range []struct {
		name string
		r    sim.Record
		want bool
	}{
		{"left before the first token was due", sim.Record{Outcome: sim.Cancelled, At: sec, End: 2 * sec, SLO: 2 * sec}, false},
		{"left when it was due", sim.Record{Outcome: sim.Cancelled, At: sec, End: 3 * sec, SLO: 2 * sec}, true},
		{"left after a late one", sim.Record{Outcome: sim.Cancelled, At: sec, First: 4 * sec, End: 5 * sec, SLO: 2 * sec, Output: 2}, true},
		{"left while tokens came in time", sim.Record{Outcome: sim.Cancelled, At: sec, First: 2 * sec, End: 3 * sec, SLO: 2 * sec, Output: 21}, false},
		{"left while tokens came slowly", sim.Record{Outcome: sim.Cancelled, At: sec, First: 2 * sec, End: 12 * sec, SLO: 2 * sec, Output: 21}, true},
		{"left, and nothing was promised", sim.Record{Outcome: sim.Cancelled, At: sec, End: time.Hour}, false},
		{"failed at once", sim.Record{Outcome: sim.Failed, At: sec, End: sec}, true},
		{"done", sim.Record{Outcome: sim.Done, At: sec, First: 2 * sec, End: 3 * sec}, true},
	} {
		if got := c.r.Counts(100 * ms); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
