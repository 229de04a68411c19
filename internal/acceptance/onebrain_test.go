package acceptance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/engine"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/prefix"
	"pointsman.dev/pointsman/internal/route"
	simulator "pointsman.dev/pointsman/internal/sim"
)

// asked is one request of a trace.
type asked struct {
	at     time.Duration
	parts  []simulator.Part
	output int
}

// decided is what became of one: where it went, why, how much of its prompt was expected there, and at which cost.
type decided struct {
	endpoint int
	reason   string
	hit      int
	cost     float64 // seconds
	first    time.Duration
}

// brainTrace is a minute of tenants with shared prompts among documents of their own, enough for endpoints to be full at times.
func brainTrace(seed uint64, n int, every time.Duration) []asked {
	rnd := rand.New(rand.NewPCG(seed, 5))
	var out []asked
	at, text := 11*time.Millisecond, uint64(1)
	for range n {
		at += time.Duration(rnd.ExpFloat64()*float64(every)) + 3*time.Microsecond
		text++
		r := asked{at: at, output: 50 + rnd.IntN(250)}
		if rnd.IntN(40) == 0 {
			r.parts = []simulator.Part{{ID: text, Tokens: 20000 + rnd.IntN(40000)}}
		} else {
			tenant := uint64(rnd.IntN(30) * rnd.IntN(30) / 30)
			r.parts = []simulator.Part{{ID: 1<<41 + tenant, Tokens: 3000 + int(tenant)*100}, {ID: text, Tokens: 200 + rnd.IntN(1000)}}
		}
		out = append(out, r)
	}
	return out
}

// simulated replays the trace in the simulator. What it decides is kept; where the request goes is what was decided live, so that a near-tie
// that falls the other way counts as one and does not make two courses of what follows.
func simulated(t *testing.T, endpoints int, trace []asked, live []decided, ties func() uint64) []decided {
	t.Helper()
	out := make([]decided, len(trace))
	follow := func(v *simulator.View) int {
		p := route.Choose(v.Snapshot, &v.Request, v.Hits, v.Exclude, v.Rand)
		out[v.Count] = decided{endpoint: p.Slot, reason: p.Reason.String(), hit: int(p.HitTokens), cost: p.Cost}
		return live[v.Count].endpoint
	}
	_, err := simulator.Run(simulator.Config{
		Endpoints: simulator.Fleet(endpoints, simulator.DefaultEngine()), Length: trace[len(trace)-1].at + 1, Grace: time.Hour, Ties: ties,
		Policy: simulator.Policy{Name: "follow", Choose: follow},
		Workload: func(s *simulator.Sim) {
			for i, r := range trace {
				s.At(r.at, func() { s.Send(&simulator.Request{Parts: r.parts, Output: r.output, Tag: uint64(i)}) })
			}
		},
		Sink: func(r *simulator.Record) {
			out[r.Tag].first = r.First
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// live is the gateway's own pool in front of engines, in a bubble whose time stands still while something computes.
type live struct {
	t       *testing.T
	pool    *pool.Pool
	start   time.Time
	engines []*engine.Engine
	steps   []engine.Step
	ends    []time.Duration // of the steps in flight; 0: none is
	out     []decided
}

// liveFlight is a request at an engine.
type liveFlight struct {
	n       int
	booking *pool.Booking
	seq     engine.Seq
	cached  int
}

const liveReports = 100 * time.Millisecond

func address(i int) string { return fmt.Sprintf("http://10.0.0.%d:8000", i+1) }

// replayed replays the trace through the pool.
func replayed(t *testing.T, endpoints int, trace []asked) []decided {
	t.Helper()
	l := &live{t: t, start: time.Now(), out: make([]decided, len(trace)), steps: make([]engine.Step, endpoints), ends: make([]time.Duration, endpoints)}
	cfg := simulator.DefaultEngine()
	p := cfg.Profile
	pc := pool.Config{Name: "chat", ReportInterval: liveReports}
	pc.Coefficients.A, pc.Coefficients.B, pc.Coefficients.C, pc.Coefficients.P, pc.Coefficients.Q = p.A, p.B, p.C, p.P, p.Q
	l.pool = pool.New(pc, nil, nil)
	var targets []discover.Target
	for i := range endpoints {
		targets = append(targets, discover.Target{URL: address(i)})
		l.engines = append(l.engines, engine.New(cfg))
	}
	l.pool.SetTargets(targets)
	go l.pool.Run(t.Context())
	for i := range endpoints {
		l.report(i)
		l.pool.HealthProbe(address(i), 200, nil)
	}
	poll := liveReports
	for at := 0; at < len(trace) || l.busy(); {
		next := poll
		if at < len(trace) {
			next = min(next, trace[at].at)
		}
		for _, end := range l.ends {
			if end > 0 {
				next = min(next, end)
			}
		}
		time.Sleep(next - l.now())
		for i, end := range l.ends {
			if end == next {
				l.finish(i)
			}
		}
		if at < len(trace) && trace[at].at == next {
			l.send(at, &trace[at])
			at++
		}
		if poll == next {
			for i := range endpoints {
				l.report(i)
			}
			poll += liveReports
		}
	}
	return l.out
}

func (l *live) now() time.Duration { return time.Since(l.start) }

func (l *live) busy() bool {
	return slices.ContainsFunc(l.ends, func(d time.Duration) bool { return d > 0 })
}

// report tells the pool what the metrics page of endpoint i shows.
func (l *live) report(i int) {
	st, cfg, on := l.engines[i].Stats(), l.engines[i].Config(), true
	r := pool.EmptyReport()
	r.Engine, r.PrefixCaching, r.ProcessStart = "vllm", &on, 1000
	r.Running, r.Waiting, r.WaitingCapacity, r.WaitingDeferred, r.KVUsage = float64(st.Running), float64(st.Waiting), float64(st.Capacity), 0, st.KVUsage
	r.BlockSize, r.NumBlocks, r.MaxNumSeqs = float64(cfg.BlockSize), float64(cfg.Blocks-1), float64(cfg.MaxNumSeqs)
	r.CapacityTokens, r.MaxModelLen = r.BlockSize*r.NumBlocks, float64(cfg.MaxModelLen)
	r.Queries, r.Hits, r.PromptTokens, r.GenerationTokens = float64(st.Queries), float64(st.Hits), float64(st.Prompt), float64(st.Generated)
	l.pool.Report(address(i), r)
}

// send lets the pool pick, and gives the request to the engine that it picked.
func (l *live) send(n int, r *asked) {
	l.t.Helper()
	chain, hashes := cut(r.parts, l.engines[0].Config().BlockSize)
	b, err := l.pool.Pick(&pool.Request{ID: fmt.Sprint(n), Blocks: chain, PromptBytes: 4 * simulator.Tokens(r.parts), TokenIDs: true})
	if err != nil {
		l.t.Fatalf("request %d: %v", n, err)
	}
	i := -1
	for k := range l.engines {
		if u, _ := url.Parse(address(k)); u.Host == b.Endpoint().Name {
			i = k
		}
	}
	why, ok := l.pool.Explain(fmt.Sprint(n))
	if !ok {
		l.t.Fatalf("request %d has no explanation", n)
	}
	l.out[n] = decided{endpoint: i, reason: b.Reason().String(), hit: b.PredictedHit(), cost: why.Cost}
	b.Dispatched()
	b.Headers(200, 0)
	f := &liveFlight{n: n, booking: b}
	f.seq = engine.Seq{Data: f, Hashes: hashes, PromptTokens: simulator.Tokens(r.parts), MaxTokens: r.output}
	if err := l.engines[i].Add(&f.seq); err != nil {
		l.t.Fatalf("request %d: %v", n, err)
	}
	l.kick(i)
}

// kick starts a step of an engine that has none.
func (l *live) kick(i int) {
	if l.ends[i] > 0 {
		return
	}
	if st, ok := l.engines[i].Schedule(); ok {
		l.steps[i], l.ends[i] = st, l.now()+max(st.Duration, 1)
	}
}

// finish ends a step and tells the pool of its tokens.
func (l *live) finish(i int) {
	l.ends[i] = 0
	for _, o := range l.engines[i].Finish(l.steps[i]) {
		f := o.Seq.Data.(*liveFlight)
		if o.First {
			f.cached, l.out[f.n].first = o.Cached, l.now()
			f.booking.FirstToken()
		}
		f.booking.Progress(1)
		if o.Finished != engine.None {
			f.booking.Done(pool.Result{Outcome: pool.OK, Status: 200, HasUsage: true,
				Usage: pool.Usage{Prompt: f.seq.PromptTokens, Output: o.Index + 1, Cached: f.cached, HasCached: true}})
		}
	}
	l.kick(i)
}

// cut makes the gateway's blocks, of 256 bytes and at the end of every part, and the engine's, of so many tokens, of a prompt whose
// tokens have four bytes each.
func cut(parts []simulator.Part, block int) (chain []prefix.Block, hashes []uint64) {
	h, tokens, end := uint64(1), 0, 0
	for _, p := range parts {
		for i := range p.Tokens {
			h = (h ^ (p.ID*1_000_003 + uint64(i) + 1)) * 0x9e3779b97f4a7c15
			h ^= h >> 29
			tokens++
			if tokens%block == 0 {
				hashes = append(hashes, h)
			}
			if end += 4; (i+1)*4%prefix.BlockBytes == 0 || i == p.Tokens-1 {
				chain = append(chain, prefix.Block{Hash: h, End: int32(end)})
			}
		}
	}
	return chain, hashes
}

// poolTies draws what the pool of this name draws (package pool: it is the same in every run).
func poolTies(name string) func() uint64 {
	state := uint64(14695981039346656037)
	for _, c := range []byte(name) {
		state = (state ^ uint64(c)) * 1099511628211
	}
	return func() uint64 {
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return z ^ z>>31
	}
}

// One brain: what the simulator says is what the gateway does. A trace is replayed through the gateway's pool in front of engines, in
// virtual time, and through the simulator; request by request they decide for the same endpoint, for the same reason, expecting the same
// prefix there, and as both then go where the gateway did, the first token comes at the same time. Quiet: where timing decides nothing. Busy:
// endpoints are full at times, and hundreds of requests are under way, so that costs are nearly equal now and then.
func TestOneBrain(t *testing.T) {
	for _, c := range []struct {
		name   string
		every  time.Duration
		n      int
		atMost float64 // share of decisions that may differ
	}{
		{"quiet", 400 * time.Millisecond, 250, 0},
		{"busy", 60 * time.Millisecond, 1500, 0.005},
		{"overloaded", 25 * time.Millisecond, 1500, 0.005},
	} {
		t.Run(c.name, func(t *testing.T) {
			trace := brainTrace(3, c.n, c.every)
			var got []decided
			synctest.Test(t, func(t *testing.T) { got = replayed(t, 4, trace) })
			want := simulated(t, 4, trace, got, poolTies("chat"))
			picks, whys, hits, times, firstAt := 0, 0, 0, 0, -1
			var apart []float64
			used, reasons := map[int]int{}, map[string]int{}
			for i := range want {
				used[got[i].endpoint]++
				reasons[got[i].reason]++
				if want[i].endpoint != got[i].endpoint {
					if picks++; firstAt < 0 {
						firstAt = i
					}
				}
				if want[i].endpoint == got[i].endpoint {
					apart = append(apart, math.Abs(want[i].cost/got[i].cost-1))
				}
				whys += differ(want[i].reason != got[i].reason)
				hits += differ(want[i].hit != got[i].hit)
				times += differ((want[i].first - got[i].first).Abs() > time.Millisecond)
			}
			t.Logf("%d requests over %v endpoints for %v: %d picks differ (the first is request %d), %d reasons, %d expected prefixes, %d first tokens by more than 1 ms",
				len(want), used, reasons, picks, firstAt, whys, hits, times)
			slices.Sort(apart)
			if share := apart[len(apart)*95/100]; share > 0.003 {
				t.Errorf("the costs of one pick in twenty differ by %.2f %% and more", 100*share)
			}
			if most := c.atMost * float64(len(want)); float64(picks) > most {
				i := firstAt
				t.Errorf("%d of %d picks differ, at most %.0f may; request %d: simulated %+v, live %+v", picks, len(want), most, i, want[i], got[i])
			} else if float64(whys) > most || float64(hits) > most || times > 0 {
				t.Errorf("%d reasons, %d expected prefixes, %d first tokens differ", whys, hits, times)
			}
			if len(used) != 4 {
				t.Errorf("only %v endpoints were used", used)
			}
		})
	}
}

func differ(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
