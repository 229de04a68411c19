package sim_test

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/route"
	"pointsman.dev/pointsman/internal/sim"
)

// bar is the size of a workload in this test, and the goodput in percent below which the gateway's own policy may not fall: the
// least of six seeds of this size, less a margin.
type bar struct {
	length time.Duration
	floor  float64
}

func bars() map[string]bar {
	return map[string]bar{
		"W1": {150 * time.Second, 90}, "W2": {90 * time.Second, 99}, "W3": {150 * time.Second, 96}, "W4": {420 * time.Second, 78},
		"W5": {240 * time.Second, 88}, "W6": {300 * time.Second, 70}, "W7": {120 * time.Second, 95}, "W8a": {120 * time.Second, 98},
		"W8b": {120 * time.Second, 96},
	}
}

// play runs jobs on two goroutines and returns the goodput of each.
func play(t *testing.T, jobs []sim.Config) []float64 {
	t.Helper()
	out := make([]float64, len(jobs))
	var wg sync.WaitGroup
	next := make(chan int, len(jobs))
	for i := range jobs {
		next <- i
	}
	close(next)
	for range 2 {
		wg.Go(func() {
			for i := range next {
				res, err := sim.Run(jobs[i])
				if err != nil {
					t.Error(err)
					continue
				}
				out[i] = res.Overall.Goodput()
			}
		})
	}
	wg.Wait()
	return out
}

// job is one scenario at the size of this test.
func job(sc sim.Scenario, p sim.Policy, seed uint64) sim.Config {
	c := sc.Config()
	c.Workload, c.Policy, c.Seed, c.Length = sc.Workload, p, seed, bars()[sc.ID].length
	return c
}

// The gateway's policy is not behind the best of the published ones on any workload (a short run allows two points), and nowhere low.
func TestBar(t *testing.T) {
	policies := []sim.Policy{sim.Ours()}
	for _, name := range []string{"lmetric", "llmd_blend", "dynamo"} { // on each workload the best of the others is one of these
		p, _ := sim.PolicyByName(name)
		policies = append(policies, p)
	}
	const seed = 501
	var jobs []sim.Config
	for _, sc := range sim.Scenarios() {
		for _, p := range policies {
			jobs = append(jobs, job(sc, p, seed))
		}
	}
	goodput, logs := play(t, jobs), 0.0
	for i, sc := range sim.Scenarios() {
		g := goodput[i*len(policies) : (i+1)*len(policies)]
		logs += math.Log(g[0])
		best, by := 0.0, ""
		for k := 1; k < len(g); k++ {
			if g[k] > best {
				best, by = g[k], policies[k].Name
			}
		}
		t.Logf("%-4s %5.1f, best other %5.1f (%s)", sc.ID, g[0], best, by)
		if g[0] < bars()[sc.ID].floor || g[0] < best-2 {
			t.Errorf("%s: goodput %.1f %%, want %.0f and no less than two points below the %.1f of %s", sc.ID, g[0], bars()[sc.ID].floor, best, by)
		}
	}
	if mean := math.Exp(logs / float64(len(sim.Scenarios()))); mean < 91 {
		t.Errorf("geometric mean %.1f, want 91", mean)
	} else {
		t.Logf("geometric mean %.1f", mean)
	}
}

// It does not depend on fresh reports, on equal endpoints, on good coefficients, or on being the only gateway.
func TestBarUnderOtherConditions(t *testing.T) {
	conditions := map[string]func(*sim.Config){
		"reports every 5 s": func(c *sim.Config) { c.Reports.Every = 5 * time.Second },
		"mixed speeds": func(c *sim.Config) {
			for i := range c.Endpoints {
				c.Endpoints[i].Slow = []float64{0.8, 4. / 3}[i%2]
			}
		},
		"coefficients too low":  func(c *sim.Config) { c.Coefficients = scaled(c, 0.67) },
		"coefficients too high": func(c *sim.Config) { c.Coefficients = scaled(c, 1.33) },
		"three gateways":        func(c *sim.Config) { c.Gateways, c.Exchange = 3, 250*time.Millisecond },
	}
	var jobs []sim.Config
	var names []string
	var floors []float64
	for name, change := range conditions {
		for _, sc := range sim.Scenarios() {
			if sc.ID == "W2" || sc.ID == "W6" || sc.ID == "W8a" || sc.ID == "W8b" {
				continue
			}
			c := job(sc, sim.Ours(), 502)
			change(&c)
			jobs, names, floors = append(jobs, c), append(names, fmt.Sprint(sc.ID, ", ", name)), append(floors, bars()[sc.ID].floor-5)
		}
	}
	for i, g := range play(t, jobs) {
		if g < floors[i] {
			t.Errorf("%s: goodput %.1f %%, want %.0f", names[i], g, floors[i])
		}
	}
}

func scaled(c *sim.Config, f float64) route.Coefficients {
	p := c.Endpoints[0].Engine.Profile
	return route.Coefficients{A: f * p.A, B: p.B, C: p.C, P: f * p.P, Q: p.Q}
}

// Documents fill the KV memory. At three quarters of W1's load there is room for all of them somewhere, and nobody is preempted; chance
// preempts.
func TestNobodyIsPreemptedAtThreeQuarters(t *testing.T) {
	random, _ := sim.PolicyByName("random")
	theirs := uint64(0)
	for seed := range uint64(4) {
		cfg := sim.Config{Endpoints: sim.Fleet(8, sim.DefaultEngine()), Seed: 510 + seed, Length: 240 * time.Second, Workload: func(s *sim.Sim) {
			s.Poisson(0.75*6, func() {
				s.Send(&sim.Request{Parts: []sim.Part{{ID: s.NewID(), Tokens: s.Uniform(400, 1200)}}, Output: s.Uniform(100, 500)})
			})
			s.Poisson(0.75*0.34, func() {
				s.Send(&sim.Request{Parts: []sim.Part{{ID: s.NewID(), Tokens: s.Uniform(40000, 100000)}}, Output: s.Uniform(500, 3000)})
			})
		}}
		for _, p := range []sim.Policy{sim.Ours(), random} {
			cfg.Policy = p
			res, err := sim.Run(cfg)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case p.Name == random.Name:
				theirs += res.Preemptions
			case res.Preemptions > 0:
				t.Errorf("seed %d: %d preemptions", cfg.Seed, res.Preemptions)
			}
		}
	}
	if theirs == 0 {
		t.Error("chance preempts nobody either: the load says nothing")
	}
}
