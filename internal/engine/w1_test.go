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
	forced bool // picked while every endpoint was full
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
	forced   []int // per endpoint: forced picks in flight
	outcome
}

// outcome is what a run is judged by.
type outcome struct {
	requests  int
	preempted int // preemptions
	avoidable int // of these, on an endpoint that no pick was forced on: a full endpoint got work while another had room
	good      int // TTFT <= 2 s (documents 30 s) and TPOT <= 100 ms
}

func newGateway(endpoints int, p route.Params) *gateway {
	g := &gateway{rnd: rand.New(rand.NewPCG(3, 4)), busy: make([]bool, endpoints), forced: make([]int, endpoints), steps: make([]engine.Step, endpoints), learners: make([]route.Learner, endpoints)}
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
			g.arrive(ev.job, ev.at)
		case ev.slot < 0:
			g.report(ev.at)
			heap.Push(&g.queue, event{at: ev.at + 100*time.Millisecond, slot: -1})
		default:
			g.busy[ev.slot] = false
			g.collect(g.engines[ev.slot].Finish(g.steps[ev.slot]), ev.at)
			g.kick(ev.slot, ev.at)
		}
	}
}

func (g *gateway) kick(slot int, now time.Duration) {
	if g.busy[slot] {
		return
	}
	if st, ok := g.engines[slot].Schedule(); ok {
		g.busy[slot], g.steps[slot] = true, st
		g.preempted += st.Evicted
		if g.forced[slot] == 0 {
			g.avoidable += st.Evicted
		}
		heap.Push(&g.queue, event{at: now + st.Duration, slot: slot})
	}
}

func (g *gateway) arrive(j *job, now time.Duration) {
	for i := range g.snap.Endpoints {
		g.refresh(i, now)
	}
	g.averages.Apply(&g.snap.Params)
	j.pick = route.Choose(&g.snap, &route.Request{PromptTokens: int32(j.PromptTokens)}, nil, nil, g.rnd.Uint64())
	j.slot, j.forced = j.pick.Slot, j.pick.Reason == route.ReasonAllFull
	if j.forced {
		g.forced[j.slot]++
	}
	j.ticket = g.books.Book(j.slot, j.PromptTokens, j.PromptTokens, now)
	g.learners[j.slot].BookWork(j.pick.Work, now)
	if err := g.engines[j.slot].Add(&j.Seq); err != nil {
		panic(err)
	}
	g.kick(j.slot, now)
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
		g.averages.ObserveOutput(o.Index + 1)
		g.averages.ObserveResidence((now - j.at).Seconds())
		if j.forced {
			g.forced[j.slot]--
		}
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
	since := g.books.Since(i)
	p.BookedSince, p.NewSince, p.FreedSince = since.Booked, since.New, since.Freed
	p.Kappa, p.Rho = g.learners[i].Kappa(now), g.learners[i].Rho(now)
}

func books(l ledger.Load) route.Load {
	return route.Load{Requests: int32(l.Requests), Decoding: int32(l.Decoding), PromptTokens: l.PromptTokens, NewTokens: l.NewTokens,
		UncachedTokens: l.UncachedTokens, ContextTokens: l.ContextTokens, OutputTokens: l.OutputTokens}
}

// Long prompts that fit the slots but not the KV memory, at three quarters of the load that the pool can carry. With the
// projected-KV gate nothing is preempted as long as one endpoint has room: eight endpoints always have, two may both be full
// at once for a while. Least request sees only counts and preempts.
func TestKVExhaustion(t *testing.T) {
	leastRequest := route.Params{Policy: route.LeastRequest, Gates: route.GatesOff}
	for _, c := range []struct {
		endpoints int
		seeds     uint64
	}{{2, 10}, {8, 4}} {
		var gated, counted outcome
		for seed := range c.seeds {
			for _, policy := range []struct {
				p   route.Params
				sum *outcome
			}{{route.DefaultParams(), &gated}, {leastRequest, &counted}} {
				g := newGateway(c.endpoints, policy.p)
				g.run(workload(seed, c.endpoints, 0.75))
				policy.sum.requests += g.requests
				policy.sum.preempted += g.preempted
				policy.sum.avoidable += g.avoidable
				policy.sum.good += g.good
			}
		}
		t.Logf("%d endpoints, %d seeds: gates %+v, least request %+v", c.endpoints, c.seeds, gated, counted)
		if gated.avoidable != 0 {
			t.Errorf("%d endpoints: %d preemptions where another endpoint had room", c.endpoints, gated.avoidable)
		}
		if c.endpoints == 8 && gated.preempted > 0 || counted.preempted <= gated.preempted {
			t.Errorf("%d endpoints: %d preemptions with the gates, %d with least request", c.endpoints, gated.preempted, counted.preempted)
		}
		if gated.good <= counted.good {
			t.Errorf("%d endpoints: %d of %d good with the gates, %d with least request", c.endpoints, gated.good, gated.requests, counted.good)
		}
	}
}
