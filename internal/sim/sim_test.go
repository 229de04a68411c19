package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pointsman.dev/pointsman/internal/sim"
)

// short runs a scenario for a minute, of which the first ten seconds do not count.
func short(t *testing.T, id string, change func(*sim.Config)) (*sim.Result, string) {
	t.Helper()
	for _, sc := range sim.Scenarios() {
		if sc.ID != id {
			continue
		}
		c := sc.Config()
		c.Workload, c.Seed, c.Length, c.Warmup = sc.Workload, 1, time.Minute, 10*time.Second
		records := ""
		c.Sink = func(r *sim.Record) { records += fmt.Sprintf("%+v\n", *r) }
		if change != nil {
			change(&c)
		}
		res, err := sim.Run(c)
		if err != nil {
			t.Fatal(err)
		}
		return res, records
	}
	t.Fatalf("there is no scenario %s", id)
	return nil, ""
}

// The same seed gives the same records, byte for byte, whatever is switched on.
func TestSameSeedSameBytes(t *testing.T) {
	for name, change := range map[string]func(*sim.Config){
		"plain":    nil,
		"gateways": func(c *sim.Config) { c.Gateways, c.Exchange = 3, 250*time.Millisecond },
		"blind":    func(c *sim.Config) { c.Gateways, c.Exchange = 2, -1 },
		"reports": func(c *sim.Config) {
			c.Reports = sim.Reports{Every: time.Second, Delay: 300 * time.Millisecond, Loss: 0.3}
		},
		"ranks": func(c *sim.Config) {
			c.Endpoints = sim.Fleet(4, sim.DefaultEngine())
			for i := range c.Endpoints {
				c.Endpoints[i].Ranks = 2
			}
		},
		"everything": func(c *sim.Config) {
			c.Gateways, c.Exchange, c.Patience = 2, 100*time.Millisecond, 8*time.Second
			c.Reports = sim.Reports{Delay: 50 * time.Millisecond, Loss: 0.1}
			e := c.Endpoints
			e[0].Join, e[0].Warm = 20*time.Second, true
			e[1].Engine.BlockSize, e[1].Engine.Blocks, e[1].Slow = 32, 2000, 2
			e[2].Engine.PrefixCaching, e[3].Leave = false, 40*time.Second
			e[4].Down = []sim.Outage{{From: 15 * time.Second, To: 30 * time.Second}}
			e[5].Hang = []sim.Outage{{From: 10 * time.Second, To: 50 * time.Second}}
			e[6].Ranks = 2
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, records := short(t, "W5", change)
			second, again := short(t, "W5", change)
			if records == "" || records != again {
				t.Error("two runs gave different records")
			}
			if d := cmp.Diff(first, second, cmp.AllowUnexported(sim.Dist{})); d != "" {
				t.Error(d)
			}
			_, other := short(t, "W5", func(c *sim.Config) { c.Seed = 2 })
			if other == records {
				t.Error("another seed gave the same records")
			}
		})
	}
}

// Every request that was sent is in the sink exactly once, and the figures add up.
func TestNoRequestIsLost(t *testing.T) {
	for _, sc := range sim.Scenarios() {
		t.Run(sc.ID, func(t *testing.T) {
			t.Parallel()
			seen := map[uint64]int{}
			res, _ := short(t, sc.ID, func(c *sim.Config) {
				c.Warmup, c.Grace = 0, -1
				c.Sink = func(r *sim.Record) {
					seen[r.ID]++
					if r.Outcome == sim.Done && (r.First < r.At || r.End < r.First || r.Output == 0 || r.Cached > r.Prompt) {
						t.Errorf("impossible: %+v", *r)
					}
				}
			})
			if len(seen) != res.Total || res.Overall.Requests != res.Total {
				t.Errorf("%d sent, %d counted, %d in the sink", res.Total, res.Overall.Requests, len(seen))
			}
			for id, n := range seen {
				if n != 1 || id == 0 || id > uint64(res.Total) {
					t.Errorf("request %d ended %d times", id, n)
				}
			}
			classes := 0
			for _, c := range res.Classes {
				classes += c.Requests
				if n := c.Good + c.Late + c.Slow + c.Refused + c.Failed + c.Unfinished + c.Excused; n != c.Requests {
					t.Errorf("%d requests, of which %d are accounted for: %+v", c.Requests, n, c)
				}
			}
			picks := 0
			for _, e := range res.Endpoints {
				picks += e.Picks
			}
			if classes != res.Total || picks != res.Total {
				t.Errorf("%d sent, %d in classes, %d picked", res.Total, classes, picks)
			}
		})
	}
}

// Clients that go away free what they held, and nothing follows them.
func TestImpatientClients(t *testing.T) {
	res, _ := short(t, "W2", func(c *sim.Config) {
		c.Workload = func(s *sim.Sim) {
			s.Poisson(30, func() {
				s.Send(&sim.Request{Parts: []sim.Part{{ID: s.NewID(), Tokens: 4000}}, Output: 2000, Patience: 2 * time.Second})
			})
		}
		c.Grace = 5 * time.Second
	})
	if res.Overall.Cancelled != res.Overall.Requests || res.Overall.Requests < 1000 {
		t.Errorf("%d of %d were cancelled", res.Overall.Cancelled, res.Overall.Requests)
	}
	for i, e := range res.Endpoints {
		if e.Stats.UsedBlocks != 0 || e.Stats.Running+e.Stats.Waiting != 0 {
			t.Errorf("endpoint %d still holds %d blocks", i, e.Stats.UsedBlocks)
		}
	}
}

// An endpoint that joins late gets its share, one that leaves gets nothing more.
func TestEndpointsJoinAndLeave(t *testing.T) {
	var last [9]time.Duration
	res, _ := short(t, "W8a", func(c *sim.Config) {
		c.Endpoints[1].Leave = 20 * time.Second
		c.Endpoints = append(c.Endpoints, sim.Endpoint{Engine: sim.DefaultEngine(), Join: 30 * time.Second})
		c.Sink = func(r *sim.Record) { last[r.Endpoint] = max(last[r.Endpoint], r.At) }
	})
	if last[1] > 20*time.Second {
		t.Errorf("endpoint 1 left after 20 s and was picked at %v", last[1])
	}
	if n := res.Endpoints[8].Picks; n < res.Total/30 {
		t.Errorf("the endpoint that joined halfway got %d of %d", n, res.Total)
	}
	if res.Overall.Unfinished+res.Overall.Refused > 0 {
		t.Errorf("%d unfinished, %d refused", res.Overall.Unfinished, res.Overall.Refused)
	}
}
