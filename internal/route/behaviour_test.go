package route_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/engine"
	"pointsman.dev/pointsman/internal/route"
	"pointsman.dev/pointsman/internal/sim"
)

const ms = time.Millisecond

// fixedFleet has endpoints that answer after a fixed time, whatever they are asked; their reports show nothing.
func fixedFleet(t *testing.T, n int, ttft, hold time.Duration, seed uint64) *fleet {
	cfg := sim.Config{Endpoints: sim.Fleet(n, fleetConfig()), Reports: sim.Reports{Every: 200 * ms}, Seed: seed}
	for i := range cfg.Endpoints {
		cfg.Endpoints[i].Fixed, cfg.Endpoints[i].Hold = ttft, hold
	}
	f := start(t, cfg)
	for _, x := range f.Nodes() {
		x.Silent = true
	}
	return f
}

// seeds runs a behaviour with different chance; every one must hold.
func seeds(t *testing.T, n uint64, do func(t *testing.T, seed uint64)) {
	for seed := range n {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { do(t, seed) })
	}
}

// 80 requests in 50 ms, while every report is the same and frozen: 15 to 25 each of four, whatever the prompts.
func TestBurstInsideOneReport(t *testing.T) {
	prompts := map[string]func(i uint64) []part{
		"same short":  func(uint64) []part { return []part{{1, 10}} },
		"same long":   func(uint64) []part { return []part{{1, 3000}} },
		"own":         func(i uint64) []part { return []part{{i + 10, 200}} },
		"long common": func(i uint64) []part { return []part{{1, 2500}, {i + 10, 50}} },
	}
	for name, parts := range prompts {
		for _, ttft := range []time.Duration{ms, 20 * ms, 2 * time.Second} {
			t.Run(fmt.Sprint(name, " ", ttft), func(t *testing.T) {
				seeds(t, 5, func(t *testing.T, seed uint64) {
					f := fixedFleet(t, 4, ttft, 500*ms, seed)
					f.run(time.Second)
					for i := range uint64(80) {
						f.At(f.Now()+time.Duration(i)*50*ms/80, func() { f.send(50, parts(i)...) })
					}
					f.run(10 * time.Second)
					within(t, "burst", f.picks(), 15, 25)
				})
			})
		}
	}
}

// 200 requests of a millisecond, one after the other: nobody starves.
func TestSequentialRequests(t *testing.T) {
	for name, parts := range map[string]func(i uint64) []part{
		"short": func(uint64) []part { return []part{{1, 8}} },
		"own":   func(i uint64) []part { return []part{{i + 10, 100}} },
	} {
		t.Run(name, func(t *testing.T) {
			seeds(t, 20, func(t *testing.T, seed uint64) {
				f := fixedFleet(t, 4, ms, 0, seed)
				for i := range uint64(200) {
					// The time to first token is noisy, as on a busy machine.
					for _, n := range f.Nodes() {
						n.Slow = 0.5 + 3*f.Rand.Float64()*f.Rand.Float64()
					}
					f.send(4, parts(i)...)
					f.run(20 * ms)
				}
				within(t, "sequence", f.picks(), 20, 110)
			})
		})
	}
}

// traffic is a steady stream over n fixed endpoints with so many in flight.
func traffic(f *fleet, requests, inFlight int, parts func(i uint64) []part) {
	sent := uint64(0)
	var next func(*call)
	next = func(*call) {
		if sent >= uint64(requests) {
			return
		}
		sent++
		f.send(10, parts(sent)...).then = next
	}
	for range inFlight {
		next(nil)
	}
	f.run(10 * time.Minute)
}

// An endpoint 10 times slower than its siblings, with nothing in its reports, gets at most 4 %.
func TestSlowEndpoint(t *testing.T) {
	for _, ttft := range []time.Duration{2 * ms, 20 * ms, 200 * ms} {
		for _, inFlight := range []int{1, 4, 8} {
			t.Run(fmt.Sprint(ttft, " ", inFlight), func(t *testing.T) {
				seeds(t, 10, func(t *testing.T, seed uint64) {
					f := fixedFleet(t, 4, ttft, ttft, seed)
					f.Nodes()[0].Slow = 10
					traffic(f, 600, inFlight, func(i uint64) []part { return []part{{i + 10, 100}} })
					if p := f.picks(); p[0]*100 > 4*600 {
						t.Errorf("the slow endpoint got %d of 600 (%v)", p[0], p)
					} else if p[0] == 0 {
						t.Errorf("the slow endpoint was never tried: nothing is learned of it")
					}
				})
			})
		}
	}
}

// One that shows a queue which is not ours gets at most 5 %.
func TestShownQueue(t *testing.T) {
	for _, inFlight := range []int{1, 6, 40} {
		seeds(t, 5, func(t *testing.T, seed uint64) {
			f := fixedFleet(t, 4, 20*ms, 20*ms, seed)
			f.Nodes()[0].Shown = 3
			f.run(ms)
			traffic(f, 600, inFlight, func(i uint64) []part { return []part{{i + 10, 100}} })
			if p := f.picks(); p[0]*100 > 5*600 {
				t.Errorf("%d in flight: the endpoint with a queue got %d of 600 (%v)", inFlight, p[0], p)
			}
		})
	}
}

// An endpoint that was slow and recovered is found out.
func TestRecoveredEndpointIsRediscovered(t *testing.T) {
	f := fixedFleet(t, 4, 20*ms, 20*ms, 1)
	f.Nodes()[0].Slow = 10
	traffic(f, 300, 4, func(i uint64) []part { return []part{{i + 10, 100}} })
	f.Nodes()[0].Slow, f.Nodes()[0].Picks = 1, 0
	start := f.Now()
	for f.Nodes()[0].Picks < 20 {
		traffic(f, 40, 4, func(i uint64) []part { return []part{{i + 1e6, 100}} })
		if f.Now()-start > 10*time.Minute*200 {
			t.Fatal("never used again")
		}
	}
}

// conversations runs rounds of n chats that all ask at once and returns, per round, the slot of each.
func conversations(f *fleet, n, rounds, system, turn, answer int) [][]int {
	out := make([][]int, rounds)
	history := make([][]part, n)
	for i := range history {
		history[i] = []part{{1e9, system}}
	}
	for r := range rounds {
		order := f.Rand.Perm(n)
		out[r] = make([]int, n)
		start := f.Now()
		for k, i := range order {
			f.At(start+time.Duration(k)*ms, func() {
				history[i] = append(history[i], part{f.NewID(), turn})
				c := f.send(answer, slices.Clone(history[i])...)
				out[r][i] = c.slot
				history[i] = append(history[i], part{c.answer, answer})
			})
		}
		f.run(2 * time.Minute)
	}
	return out
}

// 30 conversations behind one 10 KB system prompt, all in flight: each returns in every round, 6 to 9 per endpoint.
func TestConversationsBehindOnePrompt(t *testing.T) {
	fleets := map[string]func(t *testing.T, seed uint64) *fleet{
		"engines":      func(t *testing.T, seed uint64) *fleet { return newFleet(t, 4, fleetConfig(), 200*ms, seed) },
		"1 ms":         func(t *testing.T, seed uint64) *fleet { return fixedFleet(t, 4, ms, 3*time.Second, seed) },
		"50 ms":        func(t *testing.T, seed uint64) *fleet { return fixedFleet(t, 4, 50*ms, 3*time.Second, seed) },
		"all at once":  func(t *testing.T, seed uint64) *fleet { return fixedFleet(t, 4, 3*time.Second, ms, seed) },
		"small engine": func(t *testing.T, seed uint64) *fleet { return newFleet(t, 4, tinyConfig(), 200*ms, seed) },
	}
	for name, make := range fleets {
		for _, turn := range []int{8, 40, 300} {
			t.Run(fmt.Sprint(name, " ", turn), func(t *testing.T) {
				seeds(t, 6, func(t *testing.T, seed uint64) {
					at := conversations(make(t, seed), 30, 5, 2560, turn, 60)
					for r := range at {
						per := []int{0, 0, 0, 0}
						for i, slot := range at[r] {
							per[slot]++
							if r > 0 && slot != at[r-1][i] {
								t.Errorf("round %d: conversation %d moved from %d to %d", r, i, at[r-1][i], slot)
							}
						}
						within(t, fmt.Sprint("round ", r), per, 6, 9)
					}
				})
			})
		}
	}
}

func tinyConfig() engine.Config {
	p, _ := engine.ProfileByName("tiny-cpu")
	return engine.Config{Blocks: 4000, BlockSize: 32, MaxNumSeqs: 64, MaxBatchedTokens: 2048, PrefixCaching: true, Profile: p}
}

// 60 at once with a short common beginning: 12 to 18 each.
func TestShortCommonPrefix(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, seed uint64) *fleet{
		"engines": func(t *testing.T, seed uint64) *fleet { return newFleet(t, 4, fleetConfig(), 200*ms, seed) },
		"fixed":   func(t *testing.T, seed uint64) *fleet { return fixedFleet(t, 4, 30*ms, time.Second, seed) },
		"tiny":    func(t *testing.T, seed uint64) *fleet { return newFleet(t, 4, tinyConfig(), 200*ms, seed) },
	} {
		for _, common := range []int{20, 100, 400} {
			t.Run(fmt.Sprint(name, " ", common), func(t *testing.T) {
				seeds(t, 6, func(t *testing.T, seed uint64) {
					f := make(t, seed)
					for i := range uint64(60) {
						f.At(f.Now()+time.Duration(i)*ms/2, func() { f.send(50, part{1, common}, part{i + 10, 60}) })
					}
					f.run(time.Minute)
					within(t, "at once", f.picks(), 12, 18)
				})
			})
		}
	}
}

// One hot 8k system prompt at high load: nobody gets more than 1.3 times its share.
func TestHotPromptSpreads(t *testing.T) {
	for _, rate := range []float64{10, 22, 30} {
		seeds(t, 3, func(t *testing.T, seed uint64) {
			f := newFleet(t, 4, fleetConfig(), 200*ms, seed)
			end := 60 * time.Second
			f.poisson(rate, end, func() {
				f.send(f.Uniform(100, 200), part{1e9, 8192}, part{f.NewID(), f.Uniform(150, 450)})
			})
			f.run(end)
			within(t, fmt.Sprint("hot at ", rate), f.picks(), 0, f.sent*13/40)
		})
	}
}

// Chats with think times on four endpoints below saturation: at least 95 % of the later turns go where the conversation is held.
func TestChatsReturn(t *testing.T) {
	for _, doc := range []int{50, 1000, 4000} {
		t.Run(fmt.Sprint(doc), func(t *testing.T) {
			seeds(t, 3, func(t *testing.T, seed uint64) {
				f := newFleet(t, 4, fleetConfig(), 200*ms, seed)
				later, back := chats(f, doc)
				if later < 200 || back*100 < 95*later {
					t.Errorf("%d of %d later turns returned", back, later)
				}
			})
		})
	}
}

func chats(f *fleet, doc int) (later, back int) {
	end := 120 * time.Second
	f.poisson(1, end, func() {
		var turn func(left, home int, parts []part)
		turn = func(left, home int, parts []part) {
			parts = append(parts[:len(parts):len(parts)], part{f.NewID(), f.Uniform(20, 150)})
			c := f.send(f.Uniform(50, 200), parts...)
			if home >= 0 {
				later++
				if c.slot == home {
					back++
				}
			}
			c.then = func(c *call) {
				if left > 0 {
					next := append(parts[:len(parts):len(parts)], part{c.answer, c.output})
					f.At(f.Now()+f.Exponential(0.3), func() { turn(left-1, c.slot, next) })
				}
			}
		}
		turn(f.Uniform(2, 7), -1, []part{{1e9, 300}, {f.NewID(), doc}})
	})
	f.run(end + time.Minute)
	return later, back
}

// Long prompts that fit the slots but not the memory: two endpoints at a quarter of W1's load. Where the pool has room
// for the work at all, the gates see to it that nothing is preempted; counting requests does not.
func TestLongPromptsAreNotPreempted(t *testing.T) {
	run := func(seed uint64, policy sim.Policy) (preempted uint64, full int) {
		res, err := sim.Run(sim.Config{Endpoints: sim.Fleet(2, fleetConfig()), Policy: policy, Seed: 500 + seed, Length: 150 * time.Second,
			Workload: func(s *sim.Sim) {
				s.Poisson(1.5, func() {
					s.Send(&sim.Request{Parts: []sim.Part{{ID: s.NewID(), Tokens: s.Uniform(400, 1200)}}, Output: s.Uniform(100, 500)})
				})
				s.Poisson(0.085, func() {
					s.Send(&sim.Request{Parts: []sim.Part{{ID: s.NewID(), Tokens: s.Uniform(40000, 100000)}}, Output: s.Uniform(500, 3000)})
				})
			}})
		if err != nil {
			t.Fatal(err)
		}
		return res.Preemptions, res.Reasons[route.ReasonAllFull.String()]
	}
	least, _ := sim.PolicyByName("least_request")
	theirs, judged := uint64(0), 0
	for seed := range uint64(36) {
		ours, full := run(seed, sim.Ours())
		if full > 0 {
			continue // more than the pool can hold: whoever picks, it spills
		}
		judged++
		others, _ := run(seed, least)
		theirs += others
		if ours > 0 {
			t.Errorf("seed %d: %d preemptions", seed, ours)
		}
	}
	t.Logf("%d runs had room, least request caused %d preemptions in them", judged, theirs)
	if judged < 8 {
		t.Errorf("only %d runs had room: the load says nothing", judged)
	}
}
