package route_test

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// Nine workloads, each hard for some policy: 8 endpoints of Qwen3-32B on two H100, 420 s, the first 30 s dropped. W4 asks for more
// than the fleet can do from its fourth minute on; least request and LMetric end at 40 to 50 % there too.

type workload struct {
	name  string
	nodes int
	floor float64 // goodput in percent that this test demands
	start func(f *fleet, w *world)
}

type world struct {
	end time.Duration
	ids uint64
	all []*call
}

func (w *world) id() uint64 { w.ids++; return w.ids }

func (w *world) call(f *fleet, slo float64, output int, parts ...part) *call {
	c := &call{parts: parts, output: output, answer: w.id(), deadline: slo}
	w.all = append(w.all, c)
	f.send(c)
	return c
}

func w1(f *fleet, w *world) {
	f.poisson(6, w.end, func() { w.call(f, 2, uniform(f.rnd, 100, 500), part{w.id(), uniform(f.rnd, 400, 1200)}) })
	f.poisson(0.34, w.end, func() { w.call(f, 30, uniform(f.rnd, 500, 3000), part{w.id(), uniform(f.rnd, 40000, 100000)}) })
}

func w2(f *fleet, w *world) {
	hot := w.id()
	f.poisson(45, w.end, func() {
		w.call(f, 1, uniform(f.rnd, 100, 200), part{hot, 8192}, part{w.id(), uniform(f.rnd, 150, 450)})
	})
}

// tenants is Zipf-distributed shared prefixes with questions of their own.
func tenants(n int, s float64, prefix int, rate, slo float64, qlo, qhi, olo, ohi int) func(f *fleet, w *world) {
	return func(f *fleet, w *world) {
		draw := zipf(f.rnd, n, s)
		f.poisson(rate, w.end, func() {
			w.call(f, slo, uniform(f.rnd, olo, ohi), part{uint64(1e9) + uint64(draw()), prefix}, part{w.id(), uniform(f.rnd, qlo, qhi)})
		})
	}
}

func w4(f *fleet, w *world) {
	f.poisson(8.8, w.end, func() {
		doc := max(1, int(lognormal(f.rnd, 3000, 2500)))
		turns := max(1, int(lognormal(f.rnd, 4, 2.5)+0.5))
		parts := []part{{1e9, 1000}, {w.id(), doc}}
		var turn func(left int, parts []part)
		turn = func(left int, parts []part) {
			parts = append(parts[:len(parts):len(parts)], part{w.id(), max(1, int(lognormal(f.rnd, 120, 150)))})
			c := w.call(f, 1.5, max(2, int(lognormal(f.rnd, 300, 150))), parts...)
			if left <= 1 {
				return
			}
			c.then = func(c *call) {
				next := append(parts[:len(parts):len(parts)], part{c.answer, c.output})
				if at := f.now + secs(lognormal(f.rnd, 45, 40)); at < w.end {
					f.at(at, func() { turn(left-1, next) })
				}
			}
		}
		turn(turns, parts)
	})
}

func w5(f *fleet, w *world) {
	draw := zipf(f.rnd, 4, 1)
	var agent func(parts []part, turns int, fan bool)
	agent = func(parts []part, turns int, fan bool) {
		c := w.call(f, 3, max(2, int(lognormal(f.rnd, 150, 200))), parts...)
		if fan && f.rnd.Float64() < 0.02 {
			for range 6 {
				agent(append(parts[:len(parts):len(parts)], part{w.id(), uniform(f.rnd, 200, 800)}), 6, false)
			}
		}
		if turns <= 1 {
			return
		}
		c.then = func(c *call) {
			growth := min(20000, max(1, int(630*lognormal(f.rnd, 2.59, 6.2))))
			next := append(parts[:len(parts):len(parts)], part{c.answer, c.output}, part{w.id(), growth})
			if at := f.now + secs(lognormal(f.rnd, 4, 8)); at < w.end && (&call{parts: next}).prompt() < 120000 {
				f.at(at, func() { agent(next, turns-1, fan) })
			}
		}
	}
	f.poisson(0.55, w.end, func() {
		agent([]part{{1e9 + uint64(draw()), 12000}, {w.id(), uniform(f.rnd, 1000, 3000)}}, 1+int(15*f.rnd.ExpFloat64()), true)
	})
}

func w6(f *fleet, w *world) {
	base := tenants(60, 0.8, 6000, 9.6, 2, 400, 1200, 150, 350)
	base(f, w)
	f.at(120*time.Second, func() { tenants(60, 0.8, 6000, 19.2, 2, 400, 1200, 150, 350)(f, w) })
	f.at(180*time.Second, func() {
		for range 4 {
			f.add(fleetConfig())
		}
	})
}

func w7(f *fleet, w *world) {
	f.poisson(30, w.end, func() {
		w.call(f, 1, uniform(f.rnd, 50, 150), part{1e9, 512}, part{w.id(), uniform(f.rnd, 100, 300)})
	})
	f.poisson(0.1, w.end, func() {
		for i := range 3 {
			f.at(f.now+time.Duration(i)*20*time.Millisecond, func() { w.call(f, 40, 100, part{w.id(), uniform(f.rnd, 80000, 120000)}) })
		}
	})
}

func w8a(f *fleet, w *world) {
	tenants(150, 0.6, 6000, 20, 2, 200, 600, 150, 350)(f, w)
	f.poisson(7, w.end, func() { f.foreign(0, uniform(f.rnd, 1500, 2500), uniform(f.rnd, 300, 500)) })
}

func w8b(f *fleet, w *world) {
	tenants(150, 0.8, 6000, 16.2, 2, 200, 600, 150, 350)(f, w)
	f.poisson(0.135, w.end, func() { w.call(f, 30, uniform(f.rnd, 500, 2000), part{w.id(), uniform(f.rnd, 40000, 100000)}) })
}

func workloads() []workload {
	return []workload{
		{"W1 KV exhaustion", 8, 94, w1},
		{"W2 hot prefix", 8, 99, w2},
		{"W3 tenants", 8, 98, tenants(400, 0.8, 6000, 18.7, 2, 800, 1600, 200, 600)},
		{"W4 chat", 8, 40, w4},
		{"W5 agents", 8, 85, w5},
		{"W6 burst", 4, 80, w6},
		{"W7 head of line", 8, 97, w7},
		{"W8a invisible load", 8, 99, w8a},
		{"W8b stale reports", 8, 97, w8b},
	}
}

// TestWorkloads replays them when POINTSMAN_WORKLOADS is set: it takes minutes.
func TestWorkloads(t *testing.T) {
	if os.Getenv("POINTSMAN_WORKLOADS") == "" {
		t.Skip("set POINTSMAN_WORKLOADS=1 to replay nine workloads of seven minutes")
	}
	for _, wl := range workloads() {
		t.Run(wl.name, func(t *testing.T) {
			t.Parallel()
			line := ""
			for seed := range uint64(2) {
				report := 100 * time.Millisecond
				if wl.name == "W8b stale reports" {
					report = 5 * time.Second
				}
				f := newFleet(wl.nodes, fleetConfig(), report, 100+seed)
				w := &world{end: 420 * time.Second}
				wl.start(f, w)
				f.run(w.end + 60*time.Second)
				g := f.goodput(w.all, 30*time.Second)
				line += fmt.Sprintf(" %.1f%% (%d requests, %d preempted, picks %v)", g, len(w.all), f.preemptions(), f.picks())
				if g < wl.floor {
					t.Errorf("seed %d: goodput %.1f %%, want %.0f", seed, g, wl.floor)
				}
			}
			t.Log(line)
		})
	}
}
