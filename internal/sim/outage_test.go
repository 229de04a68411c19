package sim_test

import (
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
