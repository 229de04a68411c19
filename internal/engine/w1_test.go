package engine_test

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/engine"
	"pointsman.dev/pointsman/internal/ledger"
	"pointsman.dev/pointsman/internal/route"
)

// job is one request of a workload on its way.
type job struct {
	engine.Seq
	at     time.Duration
	slot   int
	ticket ledger.Ticket
	pick   route.Pick
	first  time.Duration
}

// workload is KV exhaustion: chat U[400,1200] in, U[100,500] out at 0.75/s per endpoint, and unique documents U[40k,100k] in,
// U[500,3000] out at 0.0425/s per endpoint, for 420 s. load scales both rates.
func workload(seed uint64, endpoints int, load float64) []*job {
	rnd := rand.New(rand.NewPCG(seed, 7))
	var jobs []*job
	stream := func(rate float64, in, out [2]int) {
		for at := 0.0; ; {
			if at += rnd.ExpFloat64() / (rate * load * float64(endpoints)); at > 420 {
				return
			}
			j := &job{at: time.Duration(at * float64(time.Second))}
			j.Data = j
			j.PromptTokens = in[0] + rnd.IntN(in[1]-in[0]+1)
			j.MaxTokens = out[0] + rnd.IntN(out[1]-out[0]+1)
			jobs = append(jobs, j)
		}
	}
	stream(0.75, [2]int{400, 1200}, [2]int{100, 500})
	stream(0.0425, [2]int{40000, 100000}, [2]int{500, 3000})
	return jobs
}

// event is something that happens at a time: an arrival, the end of a step, or (slot -1) the reports.
type event struct {
	at   time.Duration
	job  *job
	slot int
}

type events []event

func (q events) Len() int           { return len(q) }
func (q events) Less(i, j int) bool { return q[i].at < q[j].at }
func (q events) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)        { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

// gateway is the brain over engines in virtual time: reports every 100 ms, own books exact.
type gateway struct {
	engines  []*engine.Engine
	steps    []engine.Step
	busy     []bool
	books    ledger.Ledger
	snap     route.Snapshot
	averages route.Averages
	learners []route.Learner
	queue    events
	rnd      *rand.Rand
	left     int
	held     bool // full endpoints are waited for
	waiting  []*job
	outcome
}

// outcome is what a run is judged by.
type outcome struct {
	requests  int
	preempted int // preemptions
	tight     int // picks at which the memory of more than one endpoint in four (or of more than one) was projected to be full
	good      int // TTFT <= 2 s (documents 30 s) and TPOT <= 100 ms
}

func (o *outcome) add(run *outcome) {
	o.requests += run.requests
	o.preempted += run.preempted
	o.tight += run.tight
	o.good += run.good
}

func newGateway(endpoints int, p route.Params) *gateway {
	g := &gateway{rnd: rand.New(rand.NewPCG(3, 4)), busy: make([]bool, endpoints), steps: make([]engine.Step, endpoints), learners: make([]route.Learner, endpoints)}
	g.snap.Params = p
	for i := range endpoints {
		g.engines = append(g.engines, engine.New(h100()))
		g.learners[i].Pool = &g.averages
		c := g.engines[i].Config()
		g.snap.Endpoints = append(g.snap.Endpoints, route.Endpoint{
			Known: true, BlockSize: int32(c.BlockSize), Blocks: int32(c.Blocks - 1), MaxNumSeqs: int32(c.MaxNumSeqs),
			MaxModelLen: int32(c.MaxModelLen), Budget: int32(c.MaxBatchedTokens),
		})
	}
	return g
}

func (g *gateway) run(jobs []*job) {
	g.left, g.requests = len(jobs), len(jobs)
	for _, j := range jobs {
		g.queue = append(g.queue, event{at: j.at, job: j})
	}
	g.queue = append(g.queue, event{slot: -1})
	heap.Init(&g.queue)
	for g.left > 0 {
		ev := heap.Pop(&g.queue).(event)
		switch {
		case ev.job != nil:
			g.waiting = append(g.waiting, ev.job)
		case ev.slot < 0:
			g.report(ev.at)
			heap.Push(&g.queue, event{at: ev.at + 100*time.Millisecond, slot: -1})
		default:
			g.busy[ev.slot] = false
			g.collect(g.engines[ev.slot].Finish(g.steps[ev.slot]), ev.at)
			g.kick(ev.slot, ev.at)
		}
		g.serve(ev.at)
	}
}

func (g *gateway) kick(slot int, now time.Duration) {
	if g.busy[slot] {
		return
	}
	if st, ok := g.engines[slot].Schedule(); ok {
		g.busy[slot], g.steps[slot] = true, st
		g.preempted += st.Evicted
		heap.Push(&g.queue, event{at: now + st.Duration, slot: slot})
	}
}

// serve picks for those that wait, in their order.
func (g *gateway) serve(now time.Duration) {
	for len(g.waiting) > 0 && g.place(g.waiting[0], now) {
		g.waiting = g.waiting[1:]
	}
}

func (g *gateway) place(j *job, now time.Duration) bool {
	for i := range g.snap.Endpoints {
		g.refresh(i, now)
	}
	g.averages.Apply(&g.snap.Params)
	r := route.Request{PromptTokens: int32(j.PromptTokens), OutputTokens: int32(g.averages.Output(j.PromptTokens, 0)), Open: g.held}
	j.pick = route.Choose(&g.snap, &r, nil, nil, g.rnd.Uint64())
	if j.slot = j.pick.Slot; j.slot < 0 {
		return false
	}
	if int(j.pick.Full[route.GateProjectedKV]) > max(1, len(g.engines)/4) {
		g.tight++
	}
	j.ticket = g.books.Book(j.slot, j.PromptTokens, j.PromptTokens, int(r.OutputTokens), now)
	g.learners[j.slot].BookWork(j.pick.Work, now)
	if err := g.engines[j.slot].Add(&j.Seq); err != nil {
		panic(err)
	}
	g.kick(j.slot, now)
	return true
}

func (g *gateway) collect(outs []engine.Output, now time.Duration) {
	for _, o := range outs {
		j := o.Seq.Data.(*job)
		if o.First {
			j.first = now
			g.books.Prefilled(j.ticket, now)
			g.learners[j.slot].ObserveTTFT((now - j.at).Seconds(), j.pick.Predicted, now)
		}
		g.books.Streamed(j.ticket, 1)
		if o.Finished == engine.None {
			continue
		}
		g.books.Release(j.ticket)
		g.averages.ObserveOutput(j.PromptTokens, o.Index+1)
		g.averages.ObserveResidence((now - j.at).Seconds())
		g.left--
		slo := 2 * time.Second
		if j.PromptTokens > 10000 {
			slo = 30 * time.Second
		}
		if j.first-j.at <= slo && now-j.first <= time.Duration(o.Index)*100*time.Millisecond {
			g.good++
		}
	}
}

func (g *gateway) report(now time.Duration) {
	for i, e := range g.engines {
		s, p := e.Stats(), &g.snap.Endpoints[i]
		p.Running, p.Waiting, p.KVUsage = int32(s.Running), int32(s.Waiting), s.KVUsage
		g.books.Mark(i, now)
		p.AtReport = books(g.books.AtMark(i))
	}
}

func (g *gateway) refresh(i int, now time.Duration) {
	p := &g.snap.Endpoints[i]
	p.Load = books(g.books.Load(i))
	p.Kappa, p.Rho = g.learners[i].Kappa(now), g.learners[i].Rho(now)
}

func books(l ledger.Load) route.Load {
	return route.Load{Requests: int32(l.Requests), Decoding: int32(l.Decoding), PromptTokens: l.PromptTokens, NewTokens: l.NewTokens,
		UncachedTokens: l.UncachedTokens, ContextTokens: l.ContextTokens, OutputTokens: l.OutputTokens, GrowthTokens: l.GrowthTokens, UnseenTokens: l.UnseenTokens}
}

// play runs the workload of every seed with p and sums up. held: a request for which every endpoint is full waits in the gateway.
func play(endpoints int, seeds uint64, load float64, p route.Params, held bool) (sum outcome, runs []outcome) {
	for seed := range seeds {
		g := newGateway(endpoints, p)
		g.held = held
		g.run(workload(seed, endpoints, load))
		sum.add(&g.outcome)
		runs = append(runs, g.outcome)
	}
	return sum, runs
}

// Long prompts that fit the slots but not the KV memory, at three quarters of the load that the pool can carry. Nothing is
// preempted where there is room for everything somewhere; least request, which sees only counts, preempts in the same
// runs. Where memory runs out everywhere somebody is preempted whatever is picked, but less, and more requests are good.
func TestKVExhaustion(t *testing.T) {
	leastRequest := route.Params{Policy: route.LeastRequest, Gates: route.GatesOff}
	for _, c := range []struct {
		endpoints int
		seeds     uint64
	}{{2, 16}, {8, 6}} {
		gated, ours := play(c.endpoints, c.seeds, 0.75, route.DefaultParams(), false)
		counted, theirs := play(c.endpoints, c.seeds, 0.75, leastRequest, false)
		var roomyGated, roomyCounted outcome
		for i := range ours {
			if ours[i].tight == 0 || c.endpoints == 8 { // with eight there is always room on one of them
				roomyGated.add(&ours[i])
				roomyCounted.add(&theirs[i])
			}
		}
		t.Logf("%d endpoints: gates %+v, least request %+v", c.endpoints, gated, counted)
		t.Logf("%d endpoints, runs with room: gates %+v, least request %+v", c.endpoints, roomyGated, roomyCounted)
		if roomyGated.preempted != 0 {
			t.Errorf("%d endpoints: %d preemptions although there was room", c.endpoints, roomyGated.preempted)
		}
		if roomyCounted.preempted == 0 {
			t.Errorf("%d endpoints: least request preempted nobody where there was room: the runs show nothing", c.endpoints)
		}
		if 2*gated.preempted > counted.preempted && c.endpoints == 8 || gated.preempted >= counted.preempted {
			t.Errorf("%d endpoints: %d preemptions with the gates, %d with least request", c.endpoints, gated.preempted, counted.preempted)
		}
		if gated.good <= counted.good {
			t.Errorf("%d endpoints: %d of %d good with the gates, %d with least request", c.endpoints, gated.good, gated.requests, counted.good)
		}
	}
}

// With a queue in the gateway (the pool's key queue) nothing is ever preempted: who does not fit waits where it holds no memory. So
// even at the whole load, at which two endpoints are too few for a fifth of it.
func TestKVExhaustionWithQueue(t *testing.T) {
	leastRequest := route.Params{Policy: route.LeastRequest, Gates: route.GatesOff}
	for _, load := range []float64{0.5, 0.75, 1} {
		queued, _ := play(2, 8, load, route.DefaultParams(), true)
		counted, _ := play(2, 8, load, leastRequest, false)
		t.Logf("load %.2f: queue %+v, least request %+v", load, queued, counted)
		if queued.preempted != 0 {
			t.Errorf("load %.2f: %d preemptions", load, queued.preempted)
		}
		if load == 1 && counted.preempted == 0 {
			t.Error("least request preempted nobody: the runs show nothing")
		}
	}
}
