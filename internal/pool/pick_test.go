package pool

import (
	"fmt"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/health"
)

func TestBurstBetweenReportsSpreads(t *testing.T) {
	p, c := testPool(t, 4, Config{Name: "chat"})
	counts := map[string]int{}
	for i := range 80 {
		b := mustPick(t, p, prompt(fmt.Sprint(i), chain(uint64(i), 1, 0, 8)))
		counts[b.Endpoint().Name]++
		c.advance(600 * time.Microsecond)
	}
	for name, n := range counts {
		if n < 15 || n > 25 {
			t.Errorf("%s got %d of 80 in 50 ms with equal reports, want 15 to 25 each: %v", name, n, counts)
		}
	}
}

func TestSequentialRequestsUseEveryEndpoint(t *testing.T) {
	p, c := testPool(t, 4, Config{Name: "chat"})
	counts := map[string]int{}
	for i := range 200 {
		b := mustPick(t, p, prompt(fmt.Sprint(i), chain(uint64(i), 1, 0, 1)))
		counts[b.Endpoint().Name]++
		c.advance(time.Millisecond + time.Duration(i%7)*100*time.Microsecond)
		b.FirstToken()
		b.Done(ok(60, 1))
	}
	for name, n := range counts {
		if n < 20 {
			t.Errorf("%s got %d of 200: %v", name, n, counts)
		}
	}
}

func TestConversationsBehindOnePromptSpreadAndReturn(t *testing.T) {
	p, c := testPool(t, 4, Config{Name: "chat"})
	home := map[int]string{}
	for round := range 4 {
		bookings := make([]*Booking, 30)
		counts := map[string]int{}
		for i := range bookings {
			bookings[i] = mustPick(t, p, prompt(fmt.Sprint(i), chain(7, uint64(i+1), 40, 44+4*round)))
			name := bookings[i].Endpoint().Name
			counts[name]++
			if round > 0 && home[i] != name {
				t.Errorf("round %d: conversation %d went to %s, its prefix is on %s", round, i, name, home[i])
			}
			home[i] = name
			c.advance(time.Millisecond)
		}
		for name, n := range counts {
			if n < 6 || n > 9 {
				t.Errorf("round %d: %s got %d of 30: %v", round, name, n, counts)
			}
		}
		for _, b := range bookings {
			c.advance(10 * time.Millisecond)
			b.FirstToken()
		}
		for _, b := range bookings {
			b.Done(ok(2800, 50))
		}
		c.advance(500 * time.Millisecond)
		for i := range 4 {
			p.Report(addr(i), idle())
		}
	}
}

func TestDeadEndpointIsLeftAlone(t *testing.T) {
	p, c := testPool(t, 4, Config{Name: "chat"})
	dead := "10.0.0.2:8000"
	dialled := 0
	for i := range 180 {
		b := mustPick(t, p, prompt(fmt.Sprint(i), nil))
		for b.Endpoint().Name == dead {
			dialled++
			if !b.Repick(health.KindConnect) {
				t.Fatal("no other endpoint")
			}
		}
		c.advance(20 * time.Millisecond)
		b.FirstToken()
		b.Done(ok(60, 5))
		for p.NeedsHealth(addr(2)) {
			p.HealthProbe(addr(2), 0, fmt.Errorf("connection refused"))
		}
	}
	if dialled > 5 {
		t.Errorf("the dead address was dialled %d times by 180 requests, want at most 5", dialled)
	}
	for wait := time.Duration(0); !p.NeedsHealth(addr(2)); wait += 100 * time.Millisecond {
		if wait > 3*time.Second {
			t.Fatal("nobody asks whether it is back")
		}
		c.advance(100 * time.Millisecond)
	}
	p.HealthProbe(addr(2), 200, nil)
	p.Report(addr(2), idle())
	for range 40 {
		b := mustPick(t, p, prompt("back", nil))
		name := b.Endpoint().Name
		b.FirstToken()
		b.Done(ok(60, 5))
		if name == dead {
			return
		}
		c.advance(20 * time.Millisecond)
	}
	t.Error("it answers again and gets nothing")
}

func TestSlowEndpointWithNothingInItsReportsKeepsLittle(t *testing.T) {
	for _, stream := range []bool{true, false} {
		if share := shareOfSlow(t, stream); share > 0.04 {
			t.Errorf("stream %v: the slow endpoint keeps %.1f %% of the traffic, want at most 4 %%", stream, 100*share)
		}
	}
}

// shareOfSlow serves 40 requests a second by four endpoints, one of which takes ten times as long, and returns its
// share after the first 400.
func shareOfSlow(t *testing.T, stream bool) float64 {
	type run struct {
		b          *Booking
		first, end time.Duration
	}
	p, c := testPool(t, 4, Config{Name: "chat"})
	const slow, requests, ignored = "10.0.0.1:8000", 2000, 400
	var open []run
	toSlow := 0
	for i := range requests {
		now := c.now()
		rest := open[:0]
		for _, r := range open {
			if stream && now >= r.first {
				r.b.FirstToken()
			}
			if now >= r.end {
				r.b.Done(ok(500, 20))
				continue
			}
			rest = append(rest, r)
		}
		open = rest
		b := mustPick(t, p, prompt(fmt.Sprint(i), chain(uint64(i), 1, 0, 8)))
		factor := time.Duration(1)
		if b.Endpoint().Name == slow {
			factor = 10
			if i >= ignored {
				toSlow++
			}
		}
		open = append(open, run{b, now + factor*60*time.Millisecond, now + factor*360*time.Millisecond})
		c.advance(25 * time.Millisecond)
		if i%8 == 0 {
			r := idle()
			r.GenerationTokens = float64(i) // it moves, it shows no load
			for k := range 4 {
				p.Report(addr(k), r)
			}
		}
	}
	return float64(toSlow) / (requests - ignored)
}

func TestNothingIsCreditedForWhatWasNotPrefilled(t *testing.T) {
	for name, end := range map[string]Result{
		"cancelled": {Outcome: ClientCancelled}, "failed": {Outcome: UpstreamError, Status: 500}, "refused": {Outcome: ClientError, Status: 400},
		"shed": {Outcome: Shed, Status: 503}, "timeout": {Outcome: Timeout},
	} {
		p, _ := testPool(t, 1, Config{Name: "chat"})
		first := mustPick(t, p, prompt("a", chain(1, 1, 20, 30)))
		first.FirstToken()
		first.Done(ok(1900, 5))
		before := endpoint(t, p, 0).HeldBlocks
		mustPick(t, p, prompt("b", chain(1, 2, 20, 40))).Done(end)
		if got := endpoint(t, p, 0).HeldBlocks; got != before {
			t.Errorf("%s: %d blocks are credited, want the %d of before", name, got, before)
		}
	}
}

func TestAFailureTakesNothingFromOthers(t *testing.T) {
	p, _ := testPool(t, 1, Config{Name: "chat"})
	a := mustPick(t, p, prompt("a", chain(1, 1, 20, 30))) // brings the shared prefix
	b := mustPick(t, p, prompt("b", chain(1, 2, 20, 30)))
	c := mustPick(t, p, prompt("c", chain(1, 3, 20, 30)))
	a.Done(Result{Outcome: ClientCancelled})
	if got := endpoint(t, p, 0).HeldBlocks; got != 40 {
		t.Errorf("%d blocks after the first was cancelled, want 20 shared and 10 of each of two", got)
	}
	b.FirstToken()
	b.Done(ok(1900, 5))
	c.Done(Result{Outcome: ClientCancelled})
	if got := endpoint(t, p, 0).HeldBlocks; got != 30 {
		t.Errorf("%d blocks after the last was cancelled, want the 30 of the one that was served", got)
	}
	d := mustPick(t, p, prompt("d", chain(2, 1, 20, 30)))
	e := mustPick(t, p, prompt("e", chain(2, 2, 20, 30)))
	d.Done(Result{Outcome: UpstreamError})
	e.Done(Result{Outcome: UpstreamError})
	if got := endpoint(t, p, 0).HeldBlocks; got != 30 {
		t.Errorf("%d blocks, want 30: a prefix that only failed requests brought is still credited", got)
	}
}

// Two endpoints hold the same prompt. What fails at one of them, and that it restarts or goes away, takes nothing from the other.
func TestEntriesGoWithTheirEndpointOnly(t *testing.T) {
	for name, lose := range map[string]func(p *Pool, b *Booking, other int){
		"failure": func(p *Pool, b *Booking, other int) { b.Done(Result{Outcome: UpstreamError, Status: 500}) },
		"restart": func(p *Pool, b *Booking, other int) {
			r := idle()
			r.ProcessStart = 2000
			p.Report(addr(other), r)
		},
		"removal": func(p *Pool, b *Booking, other int) { p.SetTargets(targets(2)[1-other : 2-other]) },
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := testPool(t, 2, Config{Name: "chat"})
			blocks := chain(1, 1, 20, 30)
			a := mustPick(t, p, prompt("a", blocks))
			keeper := 0
			if a.Endpoint().Name != endpoint(t, p, 0).Name {
				keeper = 1
			}
			a.FirstToken()
			a.Done(ok(1900, 5))
			b := mustPick(t, p, prompt("b", blocks))
			if b.Endpoint() == a.Endpoint() && !b.Repick(health.KindDrain) {
				t.Fatal("no other endpoint")
			}
			if got := endpoint(t, p, 1-keeper).HeldBlocks; got != 30 {
				t.Fatalf("the other endpoint holds %d blocks, want 30", got)
			}
			lose(p, b, 1-keeper)
			if got := endpoint(t, p, keeper).HeldBlocks; got != 30 {
				t.Errorf("%d blocks are left where nothing happened, want 30", got)
			}
			for _, e := range p.Status().Endpoints {
				if e.URL == addr(1-keeper) && e.HeldBlocks != 0 && !e.Leaving {
					t.Errorf("%d blocks are left where all was lost", e.HeldBlocks)
				}
			}
		})
	}
}

func TestBrokenPromisesAreNotRepeated(t *testing.T) {
	p, _ := testPool(t, 1, Config{Name: "chat"})
	serve := func(id uint64, cached bool) (promised int) {
		b := mustPick(t, p, prompt("a", chain(id, 1, 0, 400)))
		b.FirstToken()
		res := ok(25600, 5)
		res.Usage.HasCached = true
		if cached {
			res.Usage.Cached = b.PredictedHit()
		}
		b.Done(res)
		return b.PredictedHit()
	}
	for id := range uint64(12) {
		serve(id, true)
	}
	// The engine has room for half of it now: live requests took the rest, and twelve in turn push each other out.
	promised := 0
	for range 4 {
		promised = 0
		for id := range uint64(12) {
			promised += serve(id, false)
		}
	}
	if promised > 0 {
		t.Errorf("%d tokens are still promised in the fourth round in which the engine had none", promised)
	}
	if share := p.slots[0].fit.Share(); share > 0.95 {
		t.Errorf("the capacity counts as %.2f of the memory", share)
	}
	for range 400 {
		serve(1, true)
	}
	if share := p.slots[0].fit.Share(); share < 0.99 {
		t.Errorf("the capacity stays at %.2f after 400 kept promises", share)
	}
}

func TestModelsOfEndpointsLimitThePick(t *testing.T) {
	p, _ := testPool(t, 3, Config{Name: "chat"})
	p.Learned(addr(0), Facts{Models: []Model{{ID: "base"}}})
	p.Learned(addr(1), Facts{Models: []Model{{ID: "base"}, {ID: "sql", Parent: "base", Adapter: true}}})
	for range 30 {
		b := mustPick(t, p, &Request{Model: "sql"})
		if name := b.Endpoint().Name; name == "10.0.0.0:8000" {
			t.Fatal("an endpoint that does not list the adapter was picked for it")
		}
	}
	seen := map[string]bool{}
	for range 30 {
		seen[mustPick(t, p, &Request{Model: "base"}).Endpoint().Name] = true
	}
	if len(seen) != 3 {
		t.Errorf("base went to %v, want all, also the one that lists nothing yet", seen)
	}
}

func TestStickyRequestGoesBack(t *testing.T) {
	p, _ := testPool(t, 4, Config{Name: "chat"})
	for range 20 {
		if b := mustPick(t, p, &Request{Sticky: "10.0.0.3:8000"}); b.Endpoint().Name != "10.0.0.3:8000" {
			t.Fatalf("went to %s", b.Endpoint().Name)
		}
	}
	mustPick(t, p, &Request{Sticky: "10.9.9.9:1"}).Done(ok(1, 1))
}

func TestStreamsOfADepartedEndpointAreCut(t *testing.T) {
	for _, removed := range []bool{false, true} {
		p, c := testPool(t, 2, Config{Name: "chat"})
		b := mustPick(t, p, &Request{Sticky: "10.0.0.0:8000"})
		b.FirstToken()
		b.Progress(40)
		other := mustPick(t, p, &Request{Sticky: "10.0.0.1:8000"})
		if removed { // as Kubernetes does at once when a pod terminates
			p.SetTargets(targets(2)[1:])
		}
		start := c.now()
		cut := false
		for c.now()-start < 10*time.Second && !cut {
			c.advance(100 * time.Millisecond)
			urls, _ := p.Watched()
			for _, u := range urls {
				if p.NeedsHealth(u) {
					code := 200
					if u == addr(0) {
						code = 503
					}
					p.HealthProbe(u, code, nil)
				}
			}
			p.mu.Lock()
			p.refresh(c.now())
			p.unlock()
			select {
			case <-b.Gone():
				cut = true
			case <-other.Gone():
				t.Fatal("the stream of a healthy endpoint was cut")
			default:
			}
		}
		if !cut {
			t.Errorf("removed %v: the silent stream is still open after 10 s", removed)
		}
		b.Done(Result{Outcome: Cut})
		other.Done(ok(1, 1))
		if n := p.Status().InFlight; n != 0 {
			t.Errorf("removed %v: %d in flight", removed, n)
		}
	}
}

// TestPanicUnlocks: a pick that panics, in whatever it calls, costs its request and not the pool.
func TestPanicUnlocks(t *testing.T) {
	p, _ := testPool(t, 1, Config{})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_, _ = p.Pick(nil)
	}()
	if !p.mu.TryLock() {
		t.Fatal("the pool is locked for ever")
	}
	p.mu.Unlock()
	mustPick(t, p, prompt("x", nil)).Done(ok(1, 1))
}
