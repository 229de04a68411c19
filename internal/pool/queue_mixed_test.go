package pool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func promptOf(tokens int) func(*Request) { return func(r *Request) { r.PromptBytes = tokens * 4 } }

// One document that fits nowhere yet keeps one endpoint to itself, so that it is served in the end; it does not stop those behind it at the
// others.
func TestAHugePromptDoesNotStopThePool(t *testing.T) {
	p, _ := testPool(t, 4, Config{Name: "q", Queue: Queue{Max: 500}})
	var running []*caller
	for i := range 4 {
		running = append(running, call(p, fmt.Sprint("r", i), promptOf(20_000)))
	}
	expect(t, "at first", "r0 r1 r2 r3 ", running...)
	huge := call(p, "huge", promptOf(1_000_000))
	served, most := 0, 0
	var small []*caller
	for i := range 200 {
		c := call(p, fmt.Sprint("s", i), promptOf(500))
		if c.placed() {
			served++
		}
		small = append(small, c)
		if huge.placed() {
			t.Fatal("the huge one is served while every endpoint works")
		}
	}
	for i := range p.slots {
		most = max(most, p.slots[i].live)
	}
	if served != 200 || most < 50 {
		t.Errorf("%d of 200 small ones were served beside the one that waits", served)
	}
	kept := 0
	for i := range p.slots {
		if p.slots[i].live == 1 {
			kept++
		}
	}
	if kept != 1 {
		t.Errorf("%d endpoints are kept for it, want 1", kept)
	}
	for _, c := range running {
		c.Done(ok(1, 1))
	}
	if !huge.placed() {
		t.Errorf("the endpoint that was kept for it is idle: %s", huge.state())
	}
	for _, c := range append(small, huge) {
		c.Done(ok(1, 1))
	}
	if st := p.Status(); st.InFlight != 0 || st.Queue.Waiting != 0 {
		t.Errorf("left over: %+v", st.Queue)
	}
}

// However many wait for one model, those who ask for another are served.
func TestACrowdForOneModelDoesNotStopAnother(t *testing.T) {
	p, _ := queuePool(t, 2, Config{Queue: Queue{Max: 1000}})
	p.Learned(addr(0), Facts{Models: []Model{{ID: "red"}}})
	p.Learned(addr(1), Facts{Models: []Model{{ID: "blue"}}})
	model := func(m string) func(*Request) { return func(r *Request) { r.Model = m } }
	var all []*caller
	for i := range 600 {
		all = append(all, call(p, fmt.Sprint(i), model("red")))
	}
	first, second := call(p, "first", model("blue")), call(p, "second", model("blue"))
	expect(t, "blue is idle", "first ", first, second)
	first.Done(ok(1, 1))
	expect(t, "blue is idle again", "second ", second)
	for _, c := range append(all, second) {
		c.Done(ok(1, 1))
	}
}

// When a hold is over the request waits as it would without a hold: in the queue.
func TestAHoldEndsInTheQueue(t *testing.T) {
	p, c := queuePool(t, 1, Config{Queue: Queue{Max: 5, Wait: 20 * time.Second}, Hold: 5 * time.Second})
	own := call(p, "own")
	if !own.placed() {
		t.Fatal(own.state())
	}
	p.HealthProbe(addr(0), 503, nil) // it says that it is ill, and works on
	p.HealthProbe(addr(0), 503, nil)
	a, b := call(p, "a"), call(p, "b")
	expect(t, "held", "", a, b)
	if st := p.Status().Queue; st.Held != 2 {
		t.Fatalf("status %+v", st)
	}
	c.advance(6 * time.Second)
	expect(t, "after the hold, while it is full", "", a, b)
	own.Done(ok(1, 1))
	expect(t, "when it has room", "a ", a)
	c.advance(15 * time.Second)
	var shed *ShedError
	if b.state(); !errors.As(b.err, &shed) || shed.Reason != QueueTimeout || shed.Wait != 20*time.Second {
		t.Errorf("after queue.wait: %v", b.err)
	}
	a.Done(ok(1, 1))
	if st := p.Status().Queue; st.Waiting != 0 {
		t.Errorf("status %+v", st)
	}
}

// However many small ones come, a huge one is served as soon as what ran at one endpoint when it came has ended.
func TestSmallOnesDoNotStarveAHugeOne(t *testing.T) {
	p, c := testPool(t, 3, Config{Name: "q", Queue: Queue{Max: 500}})
	type ending struct {
		*caller
		at int
	}
	var running []ending
	var waiting []*caller
	huge := (*caller)(nil)
	const lasts = 30
	for step := range 400 {
		c.advance(50 * time.Millisecond)
		for i := range 3 {
			p.Report(addr(i), idle())
		}
		waiting = append(waiting, call(p, fmt.Sprint(step), promptOf(3000)))
		if step == 100 {
			huge = call(p, "huge", promptOf(2_000_000))
		}
		for i := 0; i < len(waiting); i++ {
			if waiting[i].placed() {
				running = append(running, ending{waiting[i], step + lasts})
				waiting = append(waiting[:i], waiting[i+1:]...)
				i--
			}
		}
		for len(running) > 0 && running[0].at <= step {
			running[0].Done(ok(3000, 10))
			running = running[1:]
		}
		if huge != nil && huge.placed() {
			if step > 100+lasts+1 {
				t.Errorf("it waited for %d steps, what ran lasts %d", step-100, lasts)
			}
			break
		}
	}
	if huge == nil || !huge.placed() {
		t.Fatal("the huge one is never served")
	}
	if len(waiting) > 0 {
		t.Errorf("%d small ones wait, although two endpoints have room", len(waiting))
	}
}

// Requests of all sizes come, end, and leave at random. One goes before another that came earlier only if it asks for less; none waits while an
// endpoint has nothing to do; nothing is left over.
func TestMixedSizesAgainstAModel(t *testing.T) {
	overtaken := 0
	for seed := range uint64(40) {
		p, c := testPool(t, 70, Config{Name: "q", Queue: Queue{Max: 1000}})
		p.SetTargets(targets(3 + int(seed%4)))
		f := &fifo{t: t, rnd: rand.New(rand.NewPCG(seed, 3)), p: p, c: c}
		for range 600 {
			overtaken += f.mixedStep()
		}
		for len(f.waiting)+len(f.running) > 0 {
			for _, r := range f.running {
				r.Done(Result{Outcome: OK})
			}
			f.running = nil
			overtaken += f.mixedCheck()
		}
		if st := p.Status(); st.InFlight != 0 || st.Queue.Waiting != 0 {
			t.Errorf("seed %d: left over: %d in flight, %+v", seed, st.InFlight, st.Queue)
		}
	}
	if overtaken == 0 {
		t.Error("nobody ever went before a larger one")
	}
}

func (f *fifo) mixedStep() int {
	switch k := f.rnd.IntN(20); {
	case k < 9:
		f.made++
		size := []int{100, 1000, 20_000, 150_000, 600_000}[f.rnd.IntN(5)]
		f.waiting = append(f.waiting, call(f.p, fmt.Sprint(f.made), promptOf(size)))
	case k < 15 && len(f.running) > 0:
		i := f.rnd.IntN(len(f.running))
		f.running[i].Done(Result{Outcome: OK})
		f.running = append(f.running[:i], f.running[i+1:]...)
	case k < 17 && len(f.waiting) > 0:
		i := f.rnd.IntN(len(f.waiting))
		f.waiting[i].Done(Result{Outcome: ClientCancelled})
		f.waiting = append(f.waiting[:i], f.waiting[i+1:]...)
	default:
		f.c.advance(time.Duration(f.rnd.IntN(300)) * time.Millisecond)
		f.p.Status()
	}
	return f.mixedCheck()
}

// mixedCheck returns how many were overtaken.
func (f *fifo) mixedCheck() (overtaken int) {
	f.t.Helper()
	var placed, left []*caller
	for _, c := range f.waiting {
		switch {
		case c.placed():
			placed = append(placed, c)
			for _, w := range left {
				if c.asks() >= w.asks() {
					f.t.Fatalf("%s, which asks for %d, overtook %s, which asks for %d", c.req.ID, c.asks(), w.req.ID, w.asks())
				}
				overtaken++
			}
		case c.err == nil:
			left = append(left, c)
		default:
			f.t.Fatalf("%s: %v", c.req.ID, c.err)
		}
	}
	f.waiting, f.running = left, append(f.running, placed...)
	for i, s := range f.p.slots {
		if s != nil && !s.leaving && s.live == 0 && len(left) > 0 {
			f.t.Fatalf("%d wait while endpoint %d has nothing to do", len(left), i)
		}
	}
	return overtaken
}

// A round with thousands who wait has to be short: it runs in the critical section of every report and every end.
func BenchmarkServe(b *testing.B) {
	for _, c := range []struct {
		name  string
		model func(i int) string
	}{{"one model", func(int) string { return "m" }}, {"another has room", func(int) string { return "red" }}} {
		b.Run(c.name, func(b *testing.B) {
			p, _ := queuePool(b, 8, Config{Queue: Queue{Max: 10_000}})
			for i := range 8 {
				list := []Model{{ID: "m"}}
				if i < 7 {
					list = append(list, Model{ID: "red"})
				}
				p.Learned(addr(i), Facts{Models: list})
			}
			for i := range 5000 {
				call(p, fmt.Sprint(i), func(r *Request) { r.Model = c.model(i); r.PromptBytes = 4000 + i%7*4000 })
			}
			b.ReportAllocs()
			for b.Loop() {
				p.serve()
			}
		})
	}
}

// Only one that asks for less than half of what those before it ask for goes before them, and it leaves them the emptiest endpoint.
func TestWhoGoesBeforeALargerOne(t *testing.T) {
	p, _ := testPool(t, 2, Config{Name: "q", Queue: Queue{Max: 50}}) // of 320,000 tokens each
	for i := range 2 {
		p.Learned(addr(i), Facts{Models: []Model{{ID: "m"}, {ID: "blue"}}})
	}
	x, y := call(p, "x", promptOf(200_000)), call(p, "y", promptOf(190_000))
	beside := call(p, "beside", promptOf(1000))
	expect(t, "at first", "x y beside ", x, y, beside)
	busier := beside.Endpoint()
	large, small := call(p, "large", promptOf(150_000)), call(p, "small", promptOf(60_000))
	half := call(p, "half", promptOf(80_000), func(r *Request) { r.Model = "blue" })
	expect(t, "behind the large one", "small ", large, half, small)
	if small.Endpoint() != busier {
		t.Error("the emptiest endpoint was not kept for the large one")
	}
	if again, err := half.Recheck(); again <= 0 || again > time.Second || err != nil {
		t.Errorf("half is to ask again after %v, %v", again, err)
	}
	large.Done(Result{Outcome: ClientCancelled})
	select {
	case <-half.Admitted():
	default:
		t.Error("half was not told that it has an endpoint when the one before it left")
	}
	expect(t, "when the large one has left", "half ", half)
	for _, c := range []*caller{x, y, beside, half, small} {
		c.Done(ok(1, 1))
	}
}

// A hold begins when the last usable endpoint is gone, not when the request began to wait for room.
func TestHoldBeginsWhenNoneIsUsable(t *testing.T) {
	p, c := queuePool(t, 1, Config{Queue: Queue{Max: 5}, Hold: 5 * time.Second})
	own, w := call(p, "own"), call(p, "w")
	c.advance(20 * time.Second)
	p.Report(addr(0), idle())
	p.Status()
	c.advance(time.Second)
	p.SetTargets(nil)
	c.advance(3 * time.Second)
	expect(t, "after 3 s", "", w)
	c.advance(3 * time.Second)
	if w.state(); !errors.Is(w.err, ErrNoEndpoint) {
		t.Errorf("after 6 s: %s", w.state())
	}
	own.Done(ok(1, 1))
}
