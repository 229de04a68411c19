package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pointsman.dev/pointsman/internal/discover"
)

// fifo is a random run of a pool against what a queue promises.
type fifo struct {
	t        *testing.T
	rnd      *rand.Rand
	p        *Pool
	c        *clock
	max      int
	endpoint int // how many there are
	made     int
	waiting  []*caller // in the order of their arrival
	running  []*caller
}

// before says whether a must be picked for before b, who may have come earlier.
func before(a, b *caller, arrival map[*caller]int) bool {
	if a.req.Priority != b.req.Priority {
		return a.req.Priority < b.req.Priority
	}
	return arrival[a] < arrival[b]
}

// step does something and then holds the pool to its promises.
func (f *fifo) step() {
	var fresh *caller
	switch k := f.rnd.IntN(20); {
	case k < 8:
		f.made++
		fresh = call(f.p, fmt.Sprint(f.made), priority(f.rnd.IntN(3)))
		f.waiting = append(f.waiting, fresh)
	case k < 13 && len(f.running) > 0:
		i := f.rnd.IntN(len(f.running))
		c := f.running[i]
		f.running = append(f.running[:i], f.running[i+1:]...)
		if f.rnd.IntN(3) > 0 {
			c.FirstToken()
		}
		c.Done(Result{Outcome: Outcome(f.rnd.IntN(3))})
	case k < 16 && len(f.waiting) > 0:
		i := f.rnd.IntN(len(f.waiting))
		f.waiting[i].Done(Result{Outcome: ClientCancelled})
		f.waiting = append(f.waiting[:i], f.waiting[i+1:]...)
	case k < 17:
		f.endpoint = 1 + f.rnd.IntN(5)
		f.p.SetTargets(targets(f.endpoint))
	case k < 19:
		for i := range f.endpoint {
			f.p.Report(addr(i), idle())
		}
	default:
		f.c.advance(time.Duration(f.rnd.IntN(300)) * time.Millisecond)
		f.p.Status()
	}
	f.check(fresh)
}

func (f *fifo) check(fresh *caller) {
	f.t.Helper()
	arrival := map[*caller]int{}
	var placed, left []*caller
	for i, c := range f.waiting {
		arrival[c] = i
		switch {
		case c.placed():
			placed = append(placed, c)
		case c.err == nil:
			left = append(left, c)
		case c != fresh || len(left) < f.max:
			f.t.Fatalf("%s was refused with %d of %d waiting: %v", c.req.ID, len(left), f.max, c.err)
		}
	}
	for _, c := range placed {
		for _, w := range left {
			if before(w, c, arrival) {
				f.t.Fatalf("%s (priority %d) overtook %s (priority %d)", c.req.ID, c.req.Priority, w.req.ID, w.req.Priority)
			}
		}
	}
	f.waiting, f.running = left, append(f.running, placed...)
	if len(left) > f.max || len(left) != f.p.queue.n {
		f.t.Fatalf("%d wait by the test, %d by the pool, %d may", len(left), f.p.queue.n, f.max)
	}
	if len(left) == 0 {
		return
	}
	for i := range f.endpoint {
		if s := f.p.slots[f.p.byURL[addr(i)]]; s.live == 0 {
			f.t.Fatalf("%d wait while endpoint %d has nothing to do", len(left), i)
		}
	}
}

func TestQueueAgainstAModel(t *testing.T) {
	for seed := range uint64(60) {
		max := int(1 + seed%9)
		p, c := queuePool(t, 3, Config{Queue: Queue{Max: max}})
		f := &fifo{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), p: p, c: c, max: max, endpoint: 3}
		for range 1500 {
			f.step()
		}
		for len(f.waiting)+len(f.running) > 0 {
			for _, r := range f.running {
				r.Done(Result{Outcome: OK})
			}
			f.running = nil
			f.check(nil)
		}
		if st := p.Status(); st.InFlight != 0 || st.Queue.Waiting != 0 || len(p.queue.lanes) != 0 {
			t.Errorf("seed %d: left over: %d in flight, %+v", seed, st.InFlight, st.Queue)
		}
	}
}

// Hundreds of callers at once, of which many leave, while endpoints come and go: nobody is forgotten, no endpoint gets more than it
// runs at once, and nothing is left over.
func TestQueueUnderACancelStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		p := New(Config{Name: "q", Full: Full{MaxNumSeqs: 2}, Queue: Queue{Max: 200, Wait: 20 * time.Second}, Hold: 10 * time.Second}, nil,
			func() time.Duration { return time.Since(start) })
		ctx, stop := context.WithCancel(t.Context())
		var beside sync.WaitGroup
		beside.Go(func() { _ = p.Run(ctx) })
		beside.Go(func() { churn(ctx, p) })
		s := &storm{p: p, at: map[*Endpoint]int{}}
		var callers sync.WaitGroup
		for i := range 3000 {
			callers.Go(func() { s.call(rand.New(rand.NewPCG(uint64(i), 2)), i) })
		}
		callers.Wait()
		stop()
		beside.Wait()
		if st := p.Status(); st.InFlight != 0 || st.Queue.Waiting != 0 {
			t.Errorf("left over: %d in flight, %+v", st.InFlight, st.Queue)
		}
		total := s.served.Load() + s.cancelled.Load() + s.shed.Load() + s.none.Load()
		t.Logf("served %d, cancelled %d, shed %d, without endpoint %d, most at an endpoint %d", s.served.Load(), s.cancelled.Load(), s.shed.Load(), s.none.Load(), s.most)
		if total != 3000 || s.served.Load() == 0 || s.cancelled.Load() == 0 || s.shed.Load() == 0 {
			t.Errorf("%d of 3000 ended, or one way to end was not seen", total)
		}
		if s.most != 2 {
			t.Errorf("at most %d at one endpoint, which runs 2", s.most)
		}
	})
}

// churn changes the endpoints every second, at times to none, and reports what they have.
func churn(ctx context.Context, p *Pool) {
	rnd := rand.New(rand.NewPCG(9, 9))
	all := targets(6)
	for i := 0; ctx.Err() == nil; i++ {
		var list []discover.Target
		for _, k := range rnd.Perm(6)[:i%5] {
			list = append(list, all[k])
		}
		p.SetTargets(list)
		for range 5 {
			for _, e := range list {
				p.Report(e.URL, idle())
				p.HealthProbe(e.URL, 200, nil)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
}

// storm is what the callers saw.
type storm struct {
	p                             *Pool
	served, cancelled, shed, none atomic.Int64
	mu                            sync.Mutex
	at                            map[*Endpoint]int
	most                          int
}

func (s *storm) count(e *Endpoint, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[e] += n
	s.most = max(s.most, s.at[e])
}

func (s *storm) call(rnd *rand.Rand, i int) {
	time.Sleep(time.Duration(rnd.IntN(60_000)) * time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if rnd.IntN(3) == 0 {
		time.AfterFunc(time.Duration(rnd.IntN(8000))*time.Millisecond, cancel)
	}
	b, r := new(Booking), &Request{ID: fmt.Sprint(i), PromptBytes: 400, MaxTokens: 10, Priority: rnd.IntN(2)}
	err := s.p.PickInto(b, r)
	if errors.Is(err, ErrFull) {
		err = wait(ctx, s.p, b, r)
	}
	var shed *ShedError
	switch {
	case ctx.Err() != nil && !b.booked:
		s.cancelled.Add(1)
		return
	case errors.As(err, &shed):
		s.shed.Add(1)
		return
	case err != nil:
		s.none.Add(1)
		return
	}
	e := b.Endpoint()
	s.count(e, 1)
	select {
	case <-time.After(time.Duration(rnd.IntN(1000)) * time.Millisecond):
		b.FirstToken()
		s.served.Add(1)
	case <-ctx.Done():
		s.cancelled.Add(1)
	}
	s.count(e, -1)
	b.Done(Result{Outcome: OK, Tokens: 10})
}

// wait waits as the data plane does.
func wait(ctx context.Context, p *Pool, b *Booking, r *Request) error {
	if err := p.Wait(b, r); err != nil {
		return err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			b.Done(Result{Outcome: ClientCancelled})
			return ctx.Err()
		case <-b.Admitted():
		case <-timer.C:
		}
		again, err := b.Recheck()
		if again <= 0 {
			return err
		}
		timer.Reset(again)
	}
}
