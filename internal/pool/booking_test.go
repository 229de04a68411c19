package pool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/health"
)

func TestBookingIsCountedFromThePickAndReleasedOnce(t *testing.T) {
	p, c := testPool(t, 1, Config{Name: "chat"})
	b := mustPick(t, p, prompt("a", chain(1, 1, 0, 8)))
	if got := endpoint(t, p, 0); got.InFlight != 1 || got.Decoding != 0 {
		t.Errorf("after the pick: in flight %d decoding %d, want 1 and 0", got.InFlight, got.Decoding)
	}
	b.Dispatched()
	b.Headers(200, 0)
	c.advance(time.Second)
	b.FirstToken()
	b.FirstToken()
	if got := endpoint(t, p, 0); got.InFlight != 1 || got.Decoding != 1 {
		t.Errorf("after the first token: in flight %d decoding %d, want 1 and 1", got.InFlight, got.Decoding)
	}
	b.Progress(500)
	b.Done(ok(500, 501))
	b.Done(Result{Outcome: UpstreamError})
	b.FirstToken()
	b.Progress(100)
	if b.Repick(health.KindConnect) {
		t.Error("a booking that is done was moved")
	}
	if got := endpoint(t, p, 0); got.InFlight != 0 || got.Decoding != 0 {
		t.Errorf("after the end: in flight %d decoding %d, want 0 and 0", got.InFlight, got.Decoding)
	}
	if n := p.books.Load(0); n.ContextTokens != 0 || n.OutputTokens != 0 || n.PromptTokens != 0 || n.UncachedTokens != 0 {
		t.Errorf("books keep %+v", n)
	}
}

func TestZeroBookingDoesNothing(t *testing.T) {
	var b Booking
	b.Dispatched()
	b.Headers(503, 0)
	b.FirstToken()
	b.Progress(1)
	b.Done(Result{})
	if b.Repick(health.KindReset) {
		t.Error("moved")
	}
}

func TestEmptyPoolHasNoEndpoint(t *testing.T) {
	p := New(Config{Name: "chat"}, nil, nil)
	if _, err := p.Pick(prompt("a", nil)); !errors.Is(err, ErrNoEndpoint) {
		t.Fatalf("got %v, want ErrNoEndpoint", err)
	}
	p.SetTargets(targets(1))
	mustPick(t, p, prompt("b", nil)).Done(ok(1, 1))
	p.SetTargets(nil)
	if _, err := p.Pick(prompt("c", nil)); !errors.Is(err, ErrNoEndpoint) {
		t.Errorf("after removal: got %v, want ErrNoEndpoint", err)
	}
	if n := p.Status().NoEndpoint; n != 2 {
		t.Errorf("%d requests found no endpoint, want 2", n)
	}
}

func TestRepickVisitsEveryEndpointOnce(t *testing.T) {
	p, _ := testPool(t, 4, Config{Name: "chat"})
	b := mustPick(t, p, prompt("a", chain(1, 1, 0, 8)))
	seen := map[string]bool{b.Endpoint().Name: true}
	for b.Repick(health.KindConnect) {
		if name := b.Endpoint().Name; seen[name] {
			t.Fatalf("%s was tried twice", name)
		}
		seen[b.Endpoint().Name] = true
		if n := p.Status().InFlight; n != 1 {
			t.Fatalf("%d in flight after a move, want 1", n)
		}
	}
	if len(seen) != 4 || b.Tries() != 4 {
		t.Errorf("visited %d endpoints in %d tries, want 4 and 4", len(seen), b.Tries())
	}
	b.Done(Result{Outcome: UpstreamError})
	for i := range 4 {
		if e := endpoint(t, p, i); e.InFlight != 0 || e.HeldBlocks != 0 {
			t.Errorf("endpoint %d: in flight %d, holds %d blocks, want nothing", i, e.InFlight, e.HeldBlocks)
		}
	}
}

func TestRemovedEndpointFinishesAndComesBackClean(t *testing.T) {
	p, _ := testPool(t, 2, Config{Name: "chat"})
	blocks := chain(1, 1, 0, 40)
	b := mustPick(t, p, prompt("a", blocks))
	b.FirstToken()
	p.SetTargets(nil)
	if st := p.Status(); st.InFlight != 1 || len(st.Endpoints) != 1 || !st.Endpoints[0].Leaving {
		t.Fatalf("after removal: %d in flight at %d endpoints, want 1 at one that leaves", st.InFlight, len(st.Endpoints))
	}
	p.SetTargets(targets(2))
	for i := range 2 {
		if e := endpoint(t, p, i); e.HeldBlocks != 0 || e.ReportAge != nil {
			t.Errorf("endpoint %d came back with %d blocks and a report", i, e.HeldBlocks)
		}
	}
	others := make([]*Booking, 10)
	for i := range others {
		others[i] = mustPick(t, p, prompt(fmt.Sprint(i), nil))
	}
	b.Done(ok(2000, 10)) // of the earlier life: must not touch the new ones
	if n := p.Status().InFlight; n != len(others) {
		t.Errorf("%d in flight, want %d", n, len(others))
	}
	for _, o := range others {
		o.Done(ok(1, 1))
	}
	st := p.Status()
	if st.InFlight != 0 || len(st.Endpoints) != 2 {
		t.Errorf("at the end: %d in flight at %d endpoints, want 0 at 2", st.InFlight, len(st.Endpoints))
	}
	if len(p.leavers) != 0 || len(p.slots)-len(p.free) != 2 {
		t.Errorf("%d slots leave and %d are used, want 0 and 2", len(p.leavers), len(p.slots)-len(p.free))
	}
}

// In-flight counts leak and go negative in the field when aborts, failures and changes of the set of endpoints meet.
func TestThousandAbortsWhileEndpointsComeAndGo(t *testing.T) {
	p, c := testPool(t, 6, Config{Name: "chat"})
	stop := make(chan struct{})
	var churn, work sync.WaitGroup
	churn.Go(func() {
		rnd := rand.New(rand.NewPCG(1, 2))
		for {
			select {
			case <-stop:
				return
			default:
			}
			var set = targets(6)[:1]
			for _, u := range targets(6)[1:] {
				if rnd.IntN(2) == 0 {
					set = append(set, u)
				}
			}
			p.SetTargets(set)
			i := rnd.IntN(6)
			r := idle()
			r.Running, r.ProcessStart = float64(rnd.IntN(20)), float64(1000+rnd.IntN(2))
			p.Report(addr(i), r)
			p.HealthProbe(addr(rnd.IntN(6)), []int{200, 503}[rnd.IntN(2)], nil)
			for _, e := range p.Status().Endpoints {
				if e.InFlight < 0 || e.Decoding < 0 || e.Decoding > e.InFlight {
					t.Errorf("%s: in flight %d, decoding %d", e.Name, e.InFlight, e.Decoding)
					return
				}
			}
			c.advance(time.Duration(rnd.IntN(int(50 * time.Millisecond))))
		}
	})
	for w := range 8 {
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 7))
			for i := range 125 {
				abortSomewhere(t, p, rnd, fmt.Sprintf("%d-%d", w, i))
			}
		})
	}
	work.Wait()
	close(stop)
	churn.Wait()
	p.SetTargets(nil)
	if st := p.Status(); st.InFlight != 0 || len(st.Endpoints) != 0 {
		t.Errorf("%d requests at %d endpoints are left", st.InFlight, len(st.Endpoints))
	}
	for i := range p.slots {
		if l := p.books.Load(i); l.Requests != 0 || l.PromptTokens != 0 || l.UncachedTokens != 0 || l.ContextTokens != 0 || l.OutputTokens != 0 {
			t.Errorf("slot %d keeps %+v", i, l)
		}
	}
}

// abortSomewhere takes one request along its path and leaves it at a random point, from two goroutines.
func abortSomewhere(t *testing.T, p *Pool, rnd *rand.Rand, id string) {
	b, err := p.Pick(&Request{ID: id, Blocks: chain(uint64(rnd.IntN(5)), rnd.Uint64(), 10, 20), PromptBytes: 5120, N: 1 + rnd.IntN(2)})
	if err != nil {
		t.Errorf("picking for %s: %v", id, err)
		return
	}
	end := rnd.IntN(8)
	outcome := Outcome(rnd.IntN(int(Shed) + 1))
	for step := range end {
		switch step {
		case 0:
			b.Dispatched()
		case 1, 2:
			if rnd.IntN(3) == 0 {
				b.Repick([]health.Kind{health.KindConnect, health.KindDrain, health.KindStatus}[rnd.IntN(3)])
			}
		case 3:
			b.Headers([]int{200, 429, 500, 503}[rnd.IntN(4)], time.Second)
		case 4:
			b.FirstToken()
		default:
			b.Progress(rnd.IntN(100))
		}
	}
	var both sync.WaitGroup
	both.Go(func() { b.Done(Result{Outcome: outcome, Status: 500}) })
	both.Go(func() { b.Progress(64); b.Done(ok(1000, 5)) })
	both.Wait()
}

// An update that names an endpoint again, as when a pod's readiness or labels change, is no new life of it.
func TestUpdateKeepsWhatIsInFlight(t *testing.T) {
	p, _ := testPool(t, 2, Config{Name: "chat"})
	open := make([]*Booking, 6)
	for i := range open {
		open[i] = mustPick(t, p, prompt(fmt.Sprint(i), chain(1, uint64(i+1), 4, 8)))
	}
	before := [2]EndpointStatus{endpoint(t, p, 0), endpoint(t, p, 1)}
	for range 5 {
		p.SetTargets(targets(2))
		p.SetTargets(targets(3))
	}
	for i, was := range before {
		if e := endpoint(t, p, i); e.InFlight != was.InFlight || e.HeldBlocks != was.HeldBlocks || was.InFlight == 0 {
			t.Errorf("endpoint %d: %d in flight and %d blocks, were %d and %d", i, e.InFlight, e.HeldBlocks, was.InFlight, was.HeldBlocks)
		}
	}
	for _, b := range open {
		b.Done(ok(500, 5))
	}
	if n := p.Status().InFlight; n != 0 {
		t.Errorf("%d in flight at the end", n)
	}
}
