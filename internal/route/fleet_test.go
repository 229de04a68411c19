package route_test

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/engine"
	"pointsman.dev/pointsman/internal/ledger"
	"pointsman.dev/pointsman/internal/prefix"
	"pointsman.dev/pointsman/internal/route"
)

// The fleet is a small discrete-event simulation: engines, and a gateway that keeps its books as the pool does. The tests of
// this package judge picks by what they do to engines.

const bytesPerToken = 4

// part is a piece of a prompt; equal ids are equal text.
type part struct {
	id     uint64
	tokens int
}

type call struct {
	parts    []part
	output   int
	answer   uint64  // id of the answer's text
	deadline float64 // SLO of the first token, seconds; 0: none

	at         time.Duration
	slot, hit  int
	cached     int
	pick       route.Pick
	ticket     ledger.Ticket
	seq        engine.Seq
	first, end time.Duration
	then       func(*call) // when it ends
}

func (c *call) prompt() int {
	n := 0
	for _, p := range c.parts {
		n += p.tokens
	}
	return n
}

func mixed(a, b uint64) uint64 {
	x := a ^ b*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// chain cuts the prompt as the gateway does: every 256 bytes and at every message boundary.
func (c *call) chain() []prefix.Block {
	var out []prefix.Block
	h, end := uint64(1), int32(0)
	for _, p := range c.parts {
		bytes := p.tokens * bytesPerToken
		for off := 0; off < bytes; off += prefix.BlockBytes {
			n := min(prefix.BlockBytes, bytes-off)
			h = mixed(mixed(h, p.id), uint64(off))
			end += int32(n)
			out = append(out, prefix.Block{Hash: h, End: end})
		}
	}
	return out
}

// hashes cuts prompt and answer as the engine does: every block of tokens.
func (c *call) hashes(block int) []uint64 {
	var out []uint64
	h, pos := uint64(1), 0
	for _, p := range append(slices.Clone(c.parts), part{c.answer, c.output}) {
		for next := (pos/block + 1) * block; next <= pos+p.tokens; next += block {
			out = append(out, mixed(mixed(h, p.id), uint64(next-pos)))
		}
		pos += p.tokens
		h = mixed(mixed(h, p.id), uint64(p.tokens))
	}
	return out
}

type node struct {
	e      *engine.Engine
	slow   float64 // factor on step times
	silent bool    // reports show nothing of its load
	shown  int     // waiting requests that every report shows, of whomever

	fixed time.Duration // > 0: no engine; every first token comes after it
	hold  time.Duration // and the end so much later
	step  engine.Step
	busy  bool
	learn route.Learner
	picks int
}

type fleet struct {
	now    time.Duration
	events events
	order  int
	nodes  []*node
	snap   route.Snapshot
	books  *ledger.Ledger
	index  *prefix.Index
	avg    route.Averages
	rnd    *rand.Rand // of the workload
	chance *rand.Rand // of the picks, so that every policy sees the same arrivals
	hits   []int32
	raw    []int32
	done   []*call
	choose func(f *fleet, r *route.Request, c *call) route.Pick // nil: route.Choose
}

// fleetConfig is the pool of the design's workloads.
func fleetConfig() engine.Config {
	p, _ := engine.ProfileByName("qwen3-32b-h100-tp2")
	return engine.Config{Blocks: 307328/16 + 1, BlockSize: 16, MaxNumSeqs: 256, MaxBatchedTokens: 2048, PrefixCaching: true, Profile: p}
}

func newFleet(n int, cfg engine.Config, report time.Duration, seed uint64) *fleet {
	f := &fleet{books: ledger.New(), index: prefix.NewIndex(), rnd: rand.New(rand.NewPCG(seed, 9)),
		chance: rand.New(rand.NewPCG(seed, 10))}
	f.snap.Params = route.DefaultParams()
	for range n {
		f.add(cfg)
	}
	if report > 0 {
		var poll func()
		poll = func() {
			for i := range f.nodes {
				f.report(i)
			}
			f.at(f.now+report, poll)
		}
		f.at(0, poll)
	}
	return f
}

func (f *fleet) add(cfg engine.Config) {
	f.nodes = append(f.nodes, &node{e: engine.New(cfg), slow: 1, learn: route.Learner{Pool: &f.avg}})
	c := f.nodes[len(f.nodes)-1].e.Config()
	capacity := int64(c.Blocks-1) * int64(c.BlockSize)
	f.index.SetCapacity(len(f.nodes)-1, capacity*bytesPerToken)
	f.snap.Endpoints = append(f.snap.Endpoints, route.Endpoint{KVUsage: -1, CapacityTokens: capacity, BlockSize: int32(c.BlockSize),
		MaxNumSeqs: int32(c.MaxNumSeqs), Budget: int32(c.MaxBatchedTokens)})
	f.hits, f.raw = append(f.hits, 0), append(f.raw, 0)
}

type event struct {
	at    time.Duration
	order int
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any     { x := (*e)[len(*e)-1]; *e = (*e)[:len(*e)-1]; return x }

func (f *fleet) at(t time.Duration, do func()) {
	f.order++
	heap.Push(&f.events, event{t, f.order, do})
}

func secs(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (f *fleet) run(until time.Duration) {
	for len(f.events) > 0 && f.events[0].at <= until {
		e := heap.Pop(&f.events).(event)
		f.now = e.at
		e.do()
	}
}

// report copies what /metrics shows.
func (f *fleet) report(i int) {
	n, e := f.nodes[i], &f.snap.Endpoints[i]
	e.Known = true
	f.books.Mark(i, f.now)
	if n.silent {
		e.Running, e.Waiting, e.KVUsage = 0, 0, 0
	} else {
		st := n.e.Stats()
		e.Running, e.Waiting, e.KVUsage = int32(st.Running), int32(st.Waiting), st.KVUsage
	}
	e.Waiting += int32(n.shown)
	own := f.books.Load(i)
	foreign := max(0, int(e.Running+e.Waiting)-own.Requests)
	e.ForeignWaiting = int32(min(foreign, max(0, int(e.Waiting)-(own.Requests-own.Decoding))))
	e.ForeignRunning = int32(foreign) - e.ForeignWaiting
	f.touch(i)
}

func loadOf(l ledger.Load) route.Load {
	return route.Load{Requests: int32(l.Requests), Decoding: int32(l.Decoding), PromptTokens: l.PromptTokens, NewTokens: l.NewTokens,
		UncachedTokens: l.UncachedTokens, ContextTokens: l.ContextTokens, OutputTokens: l.OutputTokens}
}

func (f *fleet) touch(i int) {
	e := &f.snap.Endpoints[i]
	e.Load, e.AtReport = loadOf(f.books.Load(i)), loadOf(f.books.AtMark(i))
	e.Kappa, e.Rho = f.nodes[i].learn.Kappa(f.now), f.nodes[i].learn.Rho(f.now)
	_, held := f.index.Held(i)
	e.HeldTokens = held / bytesPerToken
}

// send picks and dispatches.
func (f *fleet) send(c *call) {
	c.at = f.now
	chain := c.chain()
	f.index.Hits(chain, f.raw)
	for i, b := range f.raw {
		f.hits[i] = b / bytesPerToken
		if int(b)/bytesPerToken >= c.prompt() {
			f.hits[i] = int32(c.prompt() - 1)
		}
	}
	f.avg.Apply(&f.snap.Params)
	f.snap.Params.BytesPerToken = bytesPerToken
	f.snap.Regret = f.index.Regret()
	r := route.Request{PromptTokens: int32(c.prompt())}
	if f.choose != nil {
		c.pick = f.choose(f, &r, c)
	} else {
		c.pick = route.Choose(&f.snap, &r, f.hits, nil, f.chance.Uint64())
	}
	c.slot, c.hit = c.pick.Slot, int(f.hits[c.pick.Slot])
	n := f.nodes[c.slot]
	n.picks++
	c.ticket = f.books.Book(c.slot, c.prompt(), c.prompt()-c.hit, f.now)
	n.learn.BookWork(c.pick.Work, f.now)
	f.index.Insert(c.slot, chain, f.now)
	f.touch(c.slot)
	if n.fixed > 0 {
		out := engine.Output{Seq: &c.seq, First: true, Cached: c.hit}
		c.seq.Data = c
		f.at(f.now+secs(n.fixed.Seconds()*n.slow), func() { f.output(c, out) })
		f.at(f.now+secs((n.fixed+n.hold).Seconds()*n.slow)+1, func() { f.output(c, engine.Output{Seq: &c.seq, Finished: engine.Stop}) })
		return
	}
	c.seq = engine.Seq{Data: c, Hashes: c.hashes(16), PromptTokens: c.prompt(), MaxTokens: c.output}
	if err := n.e.Add(&c.seq); err != nil {
		panic(err)
	}
	f.kick(c.slot)
}

// kick starts the next step of an engine that has none.
func (f *fleet) kick(i int) {
	n := f.nodes[i]
	if n.busy {
		return
	}
	st, ok := n.e.Schedule()
	if !ok {
		return
	}
	n.busy, n.step = true, st
	f.at(f.now+time.Duration(float64(st.Duration)*n.slow), func() {
		n.busy = false
		for _, out := range n.e.Finish(n.step) {
			if c, ours := out.Seq.Data.(*call); ours {
				f.output(c, out)
			}
		}
		f.kick(i)
	})
}

func (f *fleet) output(c *call, out engine.Output) {
	n := f.nodes[c.slot]
	if out.First {
		c.first, c.cached = f.now, out.Cached
		f.books.Prefilled(c.ticket, f.now)
		n.learn.ObserveTTFT((f.now - c.at).Seconds(), c.pick.Predicted, f.now)
		if out.Cached < c.hit-64 {
			f.index.Truncate(c.slot, c.chain(), int32(out.Cached*bytesPerToken))
			f.index.Insert(c.slot, c.chain(), f.now)
		}
	}
	f.books.Streamed(c.ticket, 1)
	if out.Finished != engine.None {
		c.end = f.now
		f.books.Release(c.ticket)
		f.avg.ObserveOutput(c.output)
		f.avg.ObserveResidence((c.end - c.at).Seconds())
		f.done = append(f.done, c)
		if c.then != nil {
			c.then(c)
		}
	}
	f.touch(c.slot)
}

// foreign sends work past the gateway.
func (f *fleet) foreign(i, prompt, output int) {
	s := &engine.Seq{PromptTokens: prompt, Hashes: []uint64{}, MaxTokens: output}
	if err := f.nodes[i].e.Add(s); err != nil {
		panic(err)
	}
	f.kick(i)
}

func (f *fleet) preemptions() (n uint64) {
	for _, x := range f.nodes {
		n += x.e.Stats().Preempted
	}
	return n
}

func (f *fleet) picks() []int {
	out := make([]int, len(f.nodes))
	for i, n := range f.nodes {
		out[i] = n.picks
	}
	return out
}

// goodput is the share of requests that arrived after from (in percent) whose first token was in time and whose tokens came in 100 ms.
func (f *fleet) goodput(all []*call, from time.Duration) float64 {
	good, n := 0, 0
	for _, c := range all {
		if c.at < from {
			continue
		}
		n++
		if c.end > 0 && (c.first-c.at).Seconds() <= c.deadline &&
			(c.output < 2 || (c.end-c.first).Seconds()/float64(c.output-1) <= 0.1) {
			good++
		}
	}
	return 100 * float64(good) / float64(max(n, 1))
}

// draws of the workloads
func uniform(r *rand.Rand, a, b int) int { return a + r.IntN(b-a+1) }

func exponential(r *rand.Rand, rate float64) time.Duration { return secs(r.ExpFloat64() / rate) }

func lognormal(r *rand.Rand, mean, sd float64) float64 {
	s2 := math.Log(1 + sd*sd/mean/mean)
	return math.Exp(math.Log(mean) - s2/2 + math.Sqrt(s2)*r.NormFloat64())
}

// zipf returns a sampler of 0..n-1 with weight 1/(k+1)^s.
func zipf(r *rand.Rand, n int, s float64) func() int {
	cum := make([]float64, n)
	sum := 0.0
	for k := range cum {
		sum += math.Pow(float64(k+1), -s)
		cum[k] = sum
	}
	return func() int { i, _ := slices.BinarySearch(cum, r.Float64()*sum); return min(i, n-1) }
}

// poisson calls do at rate per second until the end.
func (f *fleet) poisson(rate float64, end time.Duration, do func()) {
	var next func()
	next = func() {
		if f.now >= end {
			return
		}
		do()
		f.at(f.now+exponential(f.rnd, rate), next)
	}
	f.at(f.now+exponential(f.rnd, rate), next)
}

func within(t *testing.T, what string, got []int, lo, hi int) {
	t.Helper()
	for i, n := range got {
		if n < lo || n > hi {
			t.Errorf("%s: endpoint %d has %d, want %d to %d (%v)", what, i, n, lo, hi, got)
		}
	}
}
