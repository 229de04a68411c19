package pool

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// queuePool has n endpoints, each of which runs one request at once.
func queuePool(t testing.TB, n int, cfg Config) (*Pool, *clock) {
	t.Helper()
	cfg.Name, cfg.Full.MaxNumSeqs = "q", 1
	return testPool(t, n, cfg)
}

// caller is a request as the data plane handles it: it picks, or waits, and is asked about it later.
type caller struct {
	Booking
	req Request
	err error
}

func call(p *Pool, id string, change ...func(*Request)) *caller {
	c := &caller{req: Request{ID: id, PromptBytes: 400, MaxTokens: 10}}
	for _, f := range change {
		f(&c.req)
	}
	if c.err = p.PickInto(&c.Booking, &c.req); errors.Is(c.err, ErrFull) {
		c.err = p.Wait(&c.Booking, &c.req)
	}
	return c
}

// state is "at NAME", "waits", or the error.
func (c *caller) state() string {
	if c.err != nil {
		return c.err.Error()
	}
	if c.turn.over == nil {
		return "at " + c.Endpoint().Name
	}
	again, err := c.Recheck()
	switch {
	case again > 0:
		return "waits"
	case err != nil:
		c.err = err
		return err.Error()
	}
	return "at " + c.Endpoint().Name
}

func (c *caller) placed() bool { return len(c.state()) > 3 && c.state()[:3] == "at " }

func expect(t *testing.T, what string, want string, list ...*caller) {
	t.Helper()
	got := ""
	for _, c := range list {
		switch s := c.state(); {
		case c.placed():
			got += c.req.ID + " "
		case s != "waits":
			got += c.req.ID + "! "
		}
	}
	if got = fmt.Sprint(got); got != want {
		t.Errorf("%s: placed %q, want %q (! stands for an error)", what, got, want)
	}
}

func priority(n int) func(*Request) { return func(r *Request) { r.Priority = n } }

// One finished request makes room for one that waits: the first of the most urgent.
func TestQueueServesInOrder(t *testing.T) {
	p, _ := queuePool(t, 1, Config{Queue: Queue{Max: 4}})
	first := call(p, "first")
	a, b, urgent, c := call(p, "a"), call(p, "b"), call(p, "urgent", priority(-1)), call(p, "c", priority(3))
	late := call(p, "late")
	var shed *ShedError
	if !errors.As(late.err, &shed) || shed.Reason != QueueFull || shed.Max != 4 {
		t.Errorf("the fifth got %v", late.err)
	}
	all := []*caller{a, b, urgent, c}
	expect(t, "while the endpoint is full", "", all...)
	if st := p.Status().Queue; st.Waiting != 4 || st.Max != 4 || st.Held != 0 || st.Shed[QueueFull] != 1 {
		t.Errorf("status %+v", st)
	}
	want, running := "", first
	for _, next := range []*caller{urgent, a, b, c} {
		running.Done(ok(100, 10))
		for _, x := range all {
			if x != next && x.placed() && x.booked {
				t.Errorf("%s overtook %s", x.req.ID, next.req.ID)
			}
		}
		if !next.placed() {
			t.Fatalf("%s was not picked for after %q: %s", next.req.ID, want, next.state())
		}
		if next.Tries() != 1 || next.begun < running.begun {
			t.Errorf("%s began at %v", next.req.ID, next.begun)
		}
		want += next.req.ID + " "
		running = next
	}
	running.Done(ok(100, 10))
	if p.queue.n != 0 || len(p.queue.lanes) != 0 || p.Status().InFlight != 0 {
		t.Errorf("left over: %+v", p.Status().Queue)
	}
}

// A newcomer takes no room that those before it wait for, even in the moment in which it shows.
func TestNewcomersDoNotOvertake(t *testing.T) {
	p, _ := queuePool(t, 2, Config{Queue: Queue{Max: 10}})
	one, two := call(p, "one"), call(p, "two")
	a := call(p, "a")
	one.Done(ok(1, 1))
	two.Done(ok(1, 1))
	b, c := call(p, "b"), call(p, "c")
	expect(t, "two places", "a b ", a, b, c)
	urgent, light := call(p, "urgent", priority(-5)), call(p, "light", func(r *Request) { r.Light = true })
	expect(t, "one that takes no room", "light ", c, urgent, light)
	light.Done(ok(1, 1))
	a.Done(ok(1, 1))
	expect(t, "the urgent first", "urgent ", c, urgent)
}

// Whoever waits for one model does not stop those who wait for another, and gets what it waits for.
func TestQueueIsPerEndpointThatWouldDo(t *testing.T) {
	p, _ := queuePool(t, 2, Config{Queue: Queue{Max: 10}})
	p.Learned(addr(0), Facts{Models: []Model{{ID: "m"}, {ID: "red"}}})
	p.Learned(addr(1), Facts{Models: []Model{{ID: "m"}, {ID: "blue"}}})
	model := func(m string) func(*Request) { return func(r *Request) { r.Model = m } }
	red, blue := call(p, "red", model("red")), call(p, "blue", model("blue"))
	red2, any, blue2 := call(p, "red2", model("red")), call(p, "any", model("m")), call(p, "blue2", model("blue"))
	blue.Done(ok(1, 1))
	expect(t, "the endpoint that red2 cannot use", "any ", red2, any, blue2)
	red.Done(ok(1, 1))
	expect(t, "red2's", "red2 ", red2, blue2)
	any.Done(ok(1, 1))
	expect(t, "blue2's", "blue2 ", blue2)
}

// What ends a wait besides a finished request: a report, another endpoint, another configuration, an end of all endpoints.
func TestWhatEndsAWait(t *testing.T) {
	full := idle()
	full.Running, full.Waiting, full.WaitingCapacity, full.KVUsage = 1, 2, 2, 0.9
	for what, then := range map[string]func(p *Pool){
		"a report":                    func(p *Pool) { p.Report(addr(0), idle()); p.Report(addr(0), idle()) },
		"a new endpoint":              func(p *Pool) { p.SetTargets(targets(2)) },
		"the queue is switched off":   func(p *Pool) { p.SetConfig(Config{Name: "q"}) },
		"the gates are switched off":  func(p *Pool) { p.SetConfig(Config{Name: "q", Queue: Queue{Max: 5}, Gates: 2}) },
		"the last endpoint is gone":   func(p *Pool) { p.SetTargets(nil) },
		"the pool is taken away":      func(p *Pool) { p.Retire() },
		"the limit is said otherwise": func(p *Pool) { p.Learned(addr(0), Facts{MaxNumSeqs: 9}); p.Report(addr(0), idle()) },
	} {
		p, _ := testPool(t, 1, Config{Name: "q", Queue: Queue{Max: 5}})
		own := call(p, "own")
		p.Report(addr(0), full)
		p.Report(addr(0), full)
		w := call(p, "w")
		if w.state() != "waits" {
			t.Errorf("%s: at first %s", what, w.state())
		}
		then(p)
		gone := what == "the last endpoint is gone" || what == "the pool is taken away"
		if s := w.state(); s == "waits" || gone != errors.Is(w.err, ErrNoEndpoint) || gone == w.placed() {
			t.Errorf("%s: %s", what, s)
		}
		own.Done(ok(1, 1))
		w.Done(ok(1, 1))
	}
}

// Reports that stand still hold nobody: without them the books decide.
func TestStaleReportsHoldNobody(t *testing.T) {
	p, c := testPool(t, 1, Config{Name: "q", Queue: Queue{Max: 5}})
	full := idle()
	full.Running, full.Waiting, full.WaitingCapacity, full.KVUsage = 8, 9, 9, 1
	own := call(p, "own")
	p.Report(addr(0), full)
	p.Report(addr(0), full)
	w := call(p, "w")
	if w.state() != "waits" {
		t.Fatalf("at first %s", w.state())
	}
	c.advance(3 * time.Second)
	p.Status() // as the pool's ticker does
	if !w.placed() {
		t.Errorf("with a report of 3 s ago: %s", w.state())
	}
	own.Done(ok(1, 1))
}

// Load of others can hold requests, but never all of them: what has nothing in flight here admits one.
func TestAnIdlePoolAdmits(t *testing.T) {
	p, _ := testPool(t, 2, Config{Name: "q", Queue: Queue{Max: 5}})
	foreign := idle()
	foreign.Running, foreign.Waiting, foreign.WaitingCapacity, foreign.KVUsage = 100, 50, 50, 1
	for range 2 {
		p.Report(addr(0), foreign)
		p.Report(addr(1), foreign)
	}
	a, b := call(p, "a"), call(p, "b")
	expect(t, "one at a time", "a ", a, b)
	a.Done(ok(1, 1))
	expect(t, "the next", "b ", b)
	b.Done(ok(1, 1))

	p, _ = testPool(t, 2, Config{Name: "q", Queue: Queue{Max: 5}})
	huge := call(p, "huge", func(r *Request) { r.PromptBytes = 4_000_000 }) // three times what an endpoint holds
	small := call(p, "small")
	huge2 := call(p, "huge2", func(r *Request) { r.PromptBytes = 4_000_000 })
	expect(t, "what fits nowhere", "huge small ", huge, small, huge2)
	small.Done(ok(1, 1))
	expect(t, "an endpoint with nothing to do takes it", "huge2 ", huge2)
}

// A wait ends after Queue.Wait, with a word when to come again that follows from the pace of late.
func TestQueueTimeout(t *testing.T) {
	p, c := queuePool(t, 1, Config{Queue: Queue{Max: 10, Wait: 5 * time.Second}})
	running := call(p, "0")
	for i := range 40 { // one every two seconds
		c.advance(2 * time.Second)
		p.Report(addr(0), idle())
		running.Done(ok(100, 10))
		running = call(p, fmt.Sprint(i))
	}
	var waiting []*caller
	for i := range 10 {
		waiting = append(waiting, call(p, fmt.Sprint("w", i)))
	}
	var shed *ShedError
	if late := call(p, "late"); !errors.As(late.err, &shed) || shed.RetryAfter < 15*time.Second || shed.RetryAfter > 25*time.Second {
		t.Errorf("ten wait and one ends every 2 s: %v, again after %v, want 20 s", late.err, shed.RetryAfter)
	}
	c.advance(4900 * time.Millisecond)
	expect(t, "before the time", "", waiting...)
	c.advance(100 * time.Millisecond)
	for _, w := range waiting {
		if w.state(); !errors.As(w.err, &shed) || shed.Reason != QueueTimeout || shed.RetryAfter < time.Second || shed.RetryAfter > time.Minute {
			t.Errorf("%s: %v, again after %v", w.req.ID, w.err, shed.RetryAfter)
		}
	}
	if st := p.Status().Queue; st.Waiting != 0 || st.Shed[QueueTimeout] != 10 {
		t.Errorf("status %+v", st)
	}
}

// A pool without a usable endpoint holds requests until it has one, for Hold at most.
func TestHold(t *testing.T) {
	c := &clock{}
	c.advance(time.Hour)
	p := New(Config{Name: "h", Hold: 30 * time.Second}, nil, c.now)
	a, b := call(p, "a"), call(p, "b")
	expect(t, "without an endpoint", "", a, b)
	if st := p.Status(); st.Queue.Waiting != 2 || st.Queue.Held != 2 || !st.Queue.Holds || st.Queue.Max != heldMost || st.Ready {
		t.Errorf("status %+v, ready %v", st.Queue, st.Ready)
	}
	c.advance(20 * time.Second)
	late := call(p, "late")
	p.SetTargets(targets(1))
	expect(t, "with an endpoint that nothing was heard of", "", a, b, late)
	p.HealthProbe(addr(0), 0, errors.New("refused"))
	expect(t, "with one that is not up", "", a, b, late)
	c.advance(10 * time.Second)
	if a.placed(); a.state() == "waits" {
		t.Error("a is held for longer than Hold")
	}
	p.HealthProbe(addr(0), 200, nil)
	p.Status()
	expect(t, "with one that answers", "late ", late)
	now := call(p, "now")
	expect(t, "from then on", "now ", now)
	p.SetTargets(nil)
	again := call(p, "again")
	expect(t, "scaled to zero again", "", again)
	again.Done(Result{Outcome: ClientCancelled})
	if st := p.Status().Queue; st.Waiting != 0 {
		t.Errorf("status %+v", st)
	}
}

// An endpoint that nothing is known to be wrong with is tried when its hold is over: it may be better than what is known of it.
func TestHoldEndsWithATry(t *testing.T) {
	c := &clock{}
	c.advance(time.Hour)
	p := New(Config{Name: "h", Hold: 10 * time.Second}, nil, c.now)
	p.SetTargets(targets(1))
	a := call(p, "a")
	expect(t, "at first", "", a)
	c.advance(10 * time.Second)
	expect(t, "after its hold", "a ", a)
	p.SetTargets(nil)
	b := call(p, "b")
	c.advance(10 * time.Second)
	if b.state(); !errors.Is(b.err, ErrNoEndpoint) {
		t.Errorf("without an endpoint: %s", b.state())
	}
}

// The names of a pool that was scaled to zero are known, and no others wake it.
func TestModelsOfAnEmptyPool(t *testing.T) {
	d := NewDirectory()
	p, _ := testPool(t, 1, Config{Name: "h", Hold: time.Minute})
	named := New(Config{Name: "n", Hold: time.Minute}, nil, nil)
	d.Set([]*Pool{p, named}, []Alias{{Name: "alias", Pools: []AliasPool{{Pool: "n"}}}})
	p.Learned(addr(0), Facts{Models: []Model{{ID: "m", MaxModelLen: 4096}}})
	p.SetTargets(nil)
	for name, want := range map[string]string{"m": "[h]", "alias": "[n]", "made-up": "[]"} {
		to, _ := d.Resolve(name)
		if got := fmt.Sprint(names(to)); got != want {
			t.Errorf("%s leads to %s, want %s", name, got, want)
		}
	}
	if list := d.List(); len(list) != 2 {
		t.Errorf("listed are %v", list)
	}
	unnamed := New(Config{Name: "u", Hold: time.Minute}, nil, nil)
	d.Set([]*Pool{unnamed}, nil)
	if to, err := d.Resolve("anything"); err != nil || len(to) != 1 {
		t.Errorf("nothing is known, and a request led to %v, %v", to, err)
	}
}

// A queue that is switched on and not needed costs a pick no allocation.
func TestQueueAllocatesNothing(t *testing.T) {
	p, _ := testPool(t, 10, Config{Name: "q", Queue: Queue{Max: 10}, Hold: time.Second})
	var b Booking
	r := Request{ID: "r", PromptBytes: 1000, MaxTokens: 10}
	if n := testing.AllocsPerRun(1000, func() {
		if p.PickInto(&b, &r) != nil {
			t.Fatal("not picked")
		}
		b.FirstToken()
		b.Done(Result{Outcome: OK, HasUsage: true, Usage: Usage{Prompt: 250, Output: 10}})
	}); n != 0 {
		t.Errorf("%v allocations per request", n)
	}
}
