package sim_test

import (
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/route"
	"pointsman.dev/pointsman/internal/sim"
)

// What goes wrong with load balancers of model servers in the field, each as a scenario. Those that one pick shows are routing cases:
// internal/route/testdata/pathologies.txtar; bursts, hot prefixes and returning conversations are behaviours of package route.

func tenants(rate float64) sim.Workload {
	return func(s *sim.Sim) {
		draw := s.Zipf(60, 0.8)
		s.Poisson(rate, func() {
			s.Send(&sim.Request{Parts: []sim.Part{{ID: 1<<40 + uint64(draw()), Tokens: 6000}, {ID: s.NewID(), Tokens: s.Uniform(200, 600)}},
				Output: s.Uniform(150, 350), Patience: time.Duration(s.Uniform(3, 40)) * time.Second})
		})
	}
}

// A fresh endpoint is empty and looks best to everybody: it gets more than its share, not everything.
func TestNoHerdOntoAFreshEndpoint(t *testing.T) {
	cfg := sim.Config{Endpoints: sim.Fleet(5, sim.DefaultEngine()), Workload: tenants(12), Seed: 3, Length: 60 * time.Second}
	cfg.Endpoints[4].Join = 30 * time.Second
	var all, fresh [6]int // per 5 s since it joined
	cfg.Sink = func(r *sim.Record) {
		if i := int((r.At - 30*time.Second) / (5 * time.Second)); r.At >= 30*time.Second && i < len(all) {
			all[i]++
			if r.Endpoint == 4 {
				fresh[i]++
			}
		}
	}
	if _, err := sim.Run(cfg); err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if 2*fresh[i] > all[i] {
			t.Errorf("%d of %d requests went to the fresh one of five from %d s on", fresh[i], all[i], 30+5*i)
		}
	}
	if last := len(all) - 1; 12*fresh[last] < all[last] {
		t.Errorf("after 25 s it gets %d of %d", fresh[last], all[last])
	}
}

// Aborts, endpoints that leave, other gateways: when everything has ended, the books are empty, and nowhere below.
func TestBooksReturnToZero(t *testing.T) {
	cfg := sim.Config{Endpoints: sim.Fleet(4, sim.DefaultEngine()), Workload: tenants(14), Seed: 4, Length: 40 * time.Second, Gateways: 2,
		Exchange: 300 * time.Millisecond}
	cfg.Endpoints[1].Leave = 20 * time.Second
	cancelled := 0
	cfg.Sink = func(r *sim.Record) {
		if r.Outcome == sim.Cancelled {
			cancelled++
		}
	}
	s, err := sim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for s.Now() < 2*time.Minute {
		s.RunUntil(s.Now() + 200*time.Millisecond)
		for i, e := range s.Snapshot().Endpoints {
			if l := e.Load; min(l.Requests, l.Decoding) < 0 || min(l.PromptTokens, l.NewTokens, l.UncachedTokens, l.ContextTokens, l.OutputTokens, l.GrowthTokens) < 0 {
				t.Fatalf("endpoint %d at %v: %+v", i, s.Now(), l)
			}
		}
	}
	for i, e := range s.Snapshot().Endpoints {
		if e.Load != (route.Load{}) {
			t.Errorf("endpoint %d: %+v", i, e.Load)
		}
	}
	if cancelled == 0 {
		t.Error("nobody was impatient")
	}
}

// What the index promises is there: it does not outlive what the caches can hold, although they evict all the time.
func TestIndexDoesNotOutliveTheCache(t *testing.T) {
	res, _ := short(t, "W3", func(c *sim.Config) { c.Length = 2 * time.Minute })
	evicted := uint64(0)
	for _, e := range res.Endpoints {
		evicted += e.Stats.Evicted
	}
	if evicted == 0 || res.Expected*100 > res.Cached*105 {
		t.Errorf("%d tokens expected, %d there, %d blocks evicted", res.Expected, res.Cached, evicted)
	}
}

// Reports every 5 s: what was picked since the last one counts, so a burst spreads.
func TestBurstBetweenReports(t *testing.T) {
	res, _ := short(t, "W2", func(c *sim.Config) {
		c.Reports.Every, c.Warmup = 5*time.Second, 0
		c.Workload = func(s *sim.Sim) {
			for i := range 160 {
				s.At(7*time.Second+time.Duration(i)*time.Millisecond, func() {
					s.Send(&sim.Request{Parts: []sim.Part{{ID: s.NewID(), Tokens: 700}}, Output: 100})
				})
			}
		}
	})
	for i, e := range res.Endpoints {
		if e.Picks < 12 || e.Picks > 28 {
			t.Errorf("endpoint %d got %d of 160, want about 20", i, e.Picks)
		}
	}
}

// Nobody tells a gateway of work that comes past it: it sees it in the reports and keeps away.
func TestWorkPastTheGatewayIsSeen(t *testing.T) {
	res, _ := short(t, "W8a", nil)
	if p := res.Endpoints[0].Picks; 16*p > res.Total {
		t.Errorf("the endpoint with work of others got %d of %d", p, res.Total)
	}
}

// Where nothing is shared between requests, an endpoint of double the speed gets about double the work.
func TestSpeedsAreLearned(t *testing.T) {
	res, _ := short(t, "W7", func(c *sim.Config) {
		c.Length, c.Warmup = 2*time.Minute, 0
		for i := range c.Endpoints {
			c.Endpoints[i].Slow = []float64{0.7, 1.4}[i%2]
		}
	})
	fast, slow := 0, 0
	for i, e := range res.Endpoints {
		if i%2 == 0 {
			fast += e.Picks
		} else {
			slow += e.Picks
		}
	}
	if fast*10 < slow*13 {
		t.Errorf("the fast half got %d, the slow half %d", fast, slow)
	}
}

// A process that is new compiles kernels at the first shapes that it meets, for seconds each: that costs a handful of requests
// their limit, not all that arrive meanwhile.
func TestFreshEndpointThatCompiles(t *testing.T) {
	cfg := sim.Config{Endpoints: sim.Fleet(5, sim.DefaultEngine()), Seed: 6, Length: 120 * time.Second, Workload: func(s *sim.Sim) {
		s.Poisson(40, func() {
			s.Send(&sim.Request{Parts: []sim.Part{{ID: s.NewID(), Tokens: s.Uniform(100, 300)}}, Output: s.Uniform(50, 150)})
		})
	}}
	cfg.Endpoints[4].Join = 60 * time.Second
	cfg.Endpoints[4].Buckets = sim.Buckets{Prefill: 2048, Compile: 8 * time.Second}
	late, there := 0, 0
	cfg.Sink = func(r *sim.Record) {
		if r.Endpoint == 4 {
			there++
		}
		if r.TTFT() > time.Second {
			late++
		}
	}
	if _, err := sim.Run(cfg); err != nil {
		t.Fatal(err)
	}
	if late > 6 { // 22 when nothing holds them back
		t.Errorf("%d requests waited for longer than 1 s", late)
	}
	if there < 200 {
		t.Errorf("%d requests went there in a minute: it was not trusted again", there)
	}
}

// With nothing but prefixes in the cost, and no gate that closes, one hot prompt stays where it is; the whole cost spreads it.
func TestPrefixOnly(t *testing.T) {
	busiest := map[string]float64{}
	for _, name := range []string{"pointsman", "pointsman/prefix_only"} {
		p, ok := sim.PolicyByName(name)
		if !ok {
			t.Fatalf("there is no policy %s", name)
		}
		res, _ := short(t, "W7", func(c *sim.Config) {
			c.Policy = p
			c.Params = func(p *route.Params) { p.Gates = route.GatesOff }
		})
		for _, e := range res.Endpoints {
			busiest[name] = max(busiest[name], float64(e.Picks)/float64(res.Total))
		}
	}
	if busiest["pointsman/prefix_only"] < 0.8 || busiest["pointsman"] > 0.5 {
		t.Errorf("share of the busiest of 8 endpoints: %v", busiest)
	}
}
