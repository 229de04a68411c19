package sim_test

import (
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/route"
	"pointsman.dev/pointsman/internal/sim"
)

// Two gateways in front of one endpoint whose only place is taken for the first 100 s: what waits there meanwhile and is given up was never
// computed, and neither gateway expects it in the cache, whichever of them sent it. What was computed is expected by both.
func TestGivenUpBeforeItsFirstTokenIsNowherePromised(t *testing.T) {
	e := sim.DefaultEngine()
	e.MaxNumSeqs = 1
	for name, exchange := range map[string]time.Duration{"at once": 0, "late": 50 * time.Millisecond, "after it was given up": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			cfg := sim.Config{Endpoints: sim.Fleet(1, e), Seed: 7, Length: 5 * time.Minute, Gateways: 2, Exchange: exchange}
			const texts = 16
			cfg.Workload = func(s *sim.Sim) {
				send := func(at time.Duration, patience time.Duration, i int) {
					s.At(at+time.Duration(i)*time.Second, func() {
						s.Send(&sim.Request{Parts: []sim.Part{{ID: 1<<40 + uint64(i), Tokens: 2000}}, Output: 2, Patience: patience})
					})
				}
				s.At(0, func() { s.Bypass(0, 100, 20_000) })
				for i := range texts {
					send(10*time.Second, 500*time.Millisecond, i)
					send(40*time.Second, 500*time.Millisecond, i)
					send(240*time.Second, 0, i)
					send(270*time.Second, 0, i)
				}
			}
			var sent, expected, cached [2][2]int // while the place is taken or not, the first or the second time
			var by [2]int
			cfg.Sink = func(r *sim.Record) {
				half, again := int(r.At/(200*time.Second)), int(r.At/time.Second)%200
				if half == 1 != (r.Outcome == sim.Done) {
					t.Fatalf("%v: %+v", r.Outcome, *r)
				}
				turn := 0
				if half == 0 && again >= 40 || half == 1 && again >= 70 {
					turn = 1
				}
				sent[half][turn]++
				expected[half][turn] += r.Expected
				cached[half][turn] += r.Cached
				by[r.Gateway]++
			}
			if _, err := sim.Run(cfg); err != nil {
				t.Fatal(err)
			}
			if min(by[0], by[1]) < texts || sent != [2][2]int{{texts, texts}, {texts, texts}} {
				t.Fatalf("%v sent by %v", sent, by)
			}
			if expected[0] != [2]int{} || expected[1][0] != 0 {
				t.Errorf("of prompts that were never computed %v and %d tokens are expected in the cache", expected[0], expected[1][0])
			}
			if cached[1][1] == 0 || expected[1][1]*20 < cached[1][1]*19 || expected[1][1] > cached[1][1]*21/20 {
				t.Errorf("of prompts that were computed %d tokens are expected, %d there", expected[1][1], cached[1][1])
			}
		})
	}
}

// What the endpoint refuses leaves the books of every gateway.
func TestRefusedLeavesEveryGateway(t *testing.T) {
	e := sim.DefaultEngine()
	e.MaxNumSeqs, e.MaxQueuedReqs = 1, 2
	cfg := sim.Config{Endpoints: sim.Fleet(1, e), Seed: 7, Length: time.Minute, Gateways: 2, Exchange: 50 * time.Millisecond}
	cfg.Workload = func(s *sim.Sim) {
		s.Poisson(20, func() {
			s.Send(&sim.Request{Parts: []sim.Part{{ID: s.NewID(), Tokens: 500}}, Output: 20})
		})
	}
	refused := 0
	cfg.Sink = func(r *sim.Record) {
		if r.Outcome == sim.Refused {
			refused++
		}
	}
	s, err := sim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.RunUntil(3 * time.Minute)
	if l := s.Snapshot().Endpoints[0].Load; refused == 0 || l != (route.Load{}) {
		t.Errorf("after %d refusals the books have %+v", refused, l)
	}
}
