package sim_test

import (
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/route"
	"pointsman.dev/pointsman/internal/sim"
)

// send runs four requests on one endpoint and returns what came of them.
func send(t *testing.T, change func(*sim.Config), requests ...sim.Request) *sim.Result {
	t.Helper()
	c := sim.Config{Endpoints: sim.Fleet(1, sim.DefaultEngine()), Length: 10 * time.Second, Workload: func(s *sim.Sim) {
		for i := range requests {
			r := requests[i]
			s.After(time.Duration(i)*time.Second, func() { s.Send(&r) })
		}
	}}
	if change != nil {
		change(&c)
	}
	res, err := sim.Run(c)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// Every request that was not good is counted under why it was not.
func TestWhyNotGood(t *testing.T) {
	prompt := func(tokens int) []sim.Part { return []sim.Part{{ID: uint64(tokens), Tokens: tokens}} }
	long := sim.DefaultEngine().Blocks * sim.DefaultEngine().BlockSize
	res := send(t, func(c *sim.Config) { c.TPOT = 10 * time.Millisecond },
		sim.Request{Parts: prompt(100), Output: 1, SLO: time.Second},                                  // good: no further token
		sim.Request{Parts: prompt(101), Output: 5, SLO: time.Second},                                  // slow
		sim.Request{Parts: prompt(102), Output: 5, SLO: time.Millisecond},                             // late, and slow
		sim.Request{Parts: prompt(long), Output: 5, SLO: time.Second},                                 // does not fit
		sim.Request{Parts: prompt(103), Output: 90, SLO: time.Second, Patience: 5 * time.Millisecond}, // left before anything was late
		sim.Request{Parts: prompt(104), Output: 90, SLO: time.Millisecond, Patience: 5 * time.Millisecond},
	)
	o := res.Overall
	if o.Requests != 6 || o.Good != 1 || o.Slow != 1 || o.Late != 2 || o.Refused != 1 || res.TooLong != 1 || o.Excused != 1 || o.Cancelled != 2 {
		t.Errorf("too long %d, %+v", res.TooLong, o)
	}
}

// A policy that does not say why it picks has no picks by reason, and one of ours has one per request.
func TestReasonsAreThePolicysOwn(t *testing.T) {
	one := sim.Request{Parts: []sim.Part{{ID: 1, Tokens: 1000}}, Output: 5}
	if ours := send(t, nil, one, one, one); len(ours.Reasons) == 0 {
		t.Error("the gateway's own policy gives no reasons")
	}
	for _, p := range sim.Baselines() {
		if res := send(t, func(c *sim.Config) { c.Policy = p }, one, one, one); len(res.Reasons) > 0 || res.Overall.Requests != 3 {
			t.Errorf("%s: %v", p.Name, res.Reasons)
		}
	}
}

// Where health advises against every endpoint, every policy still picks one, as the gateway's own does.
func TestEndpointsToAvoidAreTheLastChoice(t *testing.T) {
	snap := route.Snapshot{Params: route.DefaultParams(), Endpoints: make([]route.Endpoint, 3)}
	for _, c := range []struct {
		admission [3]uint8
		want      []int
	}{
		{[3]uint8{route.Normal, route.Avoid, route.Trial}, []int{0, 2}},
		{[3]uint8{route.Avoid, route.LastResort, route.Avoid}, []int{0, 2}},
		{[3]uint8{route.LastResort, route.LastResort, route.LastResort}, []int{0, 1, 2}},
	} {
		for i, a := range c.admission {
			snap.Endpoints[i].Admission = a
		}
		v := sim.NewView(&snap, []uint64{0})
		var got []int
		for i := range snap.Endpoints {
			if v.Usable(i) {
				got = append(got, i)
			}
		}
		if len(got) != len(c.want) || got[0] != c.want[0] || got[len(got)-1] != c.want[len(c.want)-1] {
			t.Errorf("admissions %v: usable are %v, want %v", c.admission, got, c.want)
		}
	}
	if v := sim.NewView(&snap, []uint64{7}); v.Usable(0) || v.Usable(1) || v.Usable(2) {
		t.Error("an endpoint that may not be picked is usable")
	}
}
