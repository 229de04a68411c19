package sim

import (
	"time"

	"pointsman.dev/pointsman/internal/engine"
)

// Node is one endpoint while a simulation runs. The exported fields may be changed between events.
type Node struct {
	Slow    float64 // factor on step times
	Silent  bool    // its reports show nothing of its load
	Shown   int     // waiting requests that every report shows, of whomever
	Picks   int     // requests that it was picked for and took
	Refused int     // those that found nobody there

	sim     *Sim
	spec    Endpoint
	index   int
	ranks   []*rank
	turn    int // rank that is asked first
	present bool
	gone    bool
	down    bool
	hung    bool // it stands still,
	hungAt  time.Duration
	life    int          // counts the processes at the address
	past    engine.Stats // of those before
}

// rank is one engine behind an endpoint.
type rank struct {
	node  *Node
	e     *engine.Engine
	step  engine.Step
	busy  bool
	fresh int // requests since the last step ended
	done  func()
	shape shapes
	dead  bool
	late  bool // the step's end came while the process stood still
}

func newNode(s *Sim, index int, spec Endpoint) *Node {
	n := &Node{Slow: spec.Slow, sim: s, spec: spec, index: index}
	if n.Slow == 0 {
		n.Slow = 1
	}
	for range max(1, spec.Ranks) {
		n.ranks = append(n.ranks, newRank(n))
	}
	return n
}

// Stats returns what the engines of the endpoint count, summed over its ranks; KVUsage is that of the fullest.
func (n *Node) Stats() engine.Stats {
	t := n.past
	for _, r := range n.ranks {
		t = added(t, r.e.Stats())
	}
	return t
}

func added(a, b engine.Stats) engine.Stats {
	a.Steps += b.Steps
	a.Running, a.Waiting = a.Running+b.Running, a.Waiting+b.Waiting
	a.Capacity, a.Deferred = a.Capacity+b.Capacity, a.Deferred+b.Deferred
	a.UsedBlocks, a.CacheBlocks = a.UsedBlocks+b.UsedBlocks, a.CacheBlocks+b.CacheBlocks
	a.KVUsage = max(a.KVUsage, b.KVUsage)
	a.Queries, a.Hits = a.Queries+b.Queries, a.Hits+b.Hits
	a.Prompt, a.PromptHit, a.PromptLocal = a.Prompt+b.Prompt, a.PromptHit+b.PromptHit, a.PromptLocal+b.PromptLocal
	a.Generated, a.Preempted = a.Generated+b.Generated, a.Preempted+b.Preempted
	a.Prefilled, a.Recomputed = a.Prefilled+b.Prefilled, a.Recomputed+b.Recomputed
	a.Evicted, a.Busy = a.Evicted+b.Evicted, a.Busy+b.Busy
	return a
}

// capacity returns the tokens of KV that the endpoint says it has.
func (n *Node) capacity() int64 {
	c := n.ranks[0].e.Config()
	tokens := int64(c.Blocks-1) * int64(c.BlockSize)
	if n.spec.Window > 0 {
		tokens = int64(n.spec.Window)
	}
	return tokens * int64(len(n.ranks))
}

// caches reports whether the endpoint says that it keeps prefixes.
func (n *Node) caches() bool { return n.spec.Engine.PrefixCaching || n.spec.Fixed > 0 }

// start gives a request to the endpoint.
func (n *Node) start(f *flight) error {
	n.Picks++
	if n.spec.Fixed > 0 {
		n.pretend(f)
		return nil
	}
	f.rank = n.least()
	r := n.ranks[f.rank]
	cfg := r.e.Config()
	f.hashes = appendHashes(f.hashes[:0], f.req.Parts, f.rec.Answer, cfg.BlockSize)
	f.seq.Data, f.seq.Tokens = f, nil
	f.seq.Hashes, f.seq.PromptTokens, f.seq.MaxTokens = f.hashes, f.rec.Prompt, max(1, f.req.Output)
	if err := r.e.Add(&f.seq); err != nil {
		return err
	}
	f.live = true
	r.fresh++
	r.kick()
	return nil
}

// pretend answers without an engine.
func (n *Node) pretend(f *flight) {
	f.refs += 2
	out := engine.Output{Seq: &f.seq, First: true, Cached: int(f.hit)}
	after := func(d time.Duration, out engine.Output) {
		n.sim.After(time.Duration(float64(d)*n.Slow), func() {
			f.refs--
			if f.rec.End == 0 {
				n.sim.output(f, &out)
			}
		})
	}
	after(n.spec.Fixed, out)
	after(n.spec.Fixed+n.spec.Hold+1, engine.Output{Seq: &f.seq, Index: -1, Finished: engine.Length})
}

// least is the rank that vLLM's own balancer would take: the lowest of 4*waiting + running, in turn among equals.
func (n *Node) least() int {
	if len(n.ranks) == 1 {
		return 0
	}
	best, score := 0, 0
	for k := range n.ranks {
		i := (n.turn + k) % len(n.ranks)
		st := n.ranks[i].e.Stats()
		if s := 4*st.Waiting + st.Running + n.ranks[i].fresh; k == 0 || s < score {
			best, score = i, s
		}
	}
	n.turn = (best + 1) % len(n.ranks)
	return best
}

// foreign gives the endpoint work that came past every gateway.
func (n *Node) foreign(prompt, output int) {
	if n.down || !n.present {
		return
	}
	r := n.ranks[n.least()]
	if r.e.Add(&engine.Seq{PromptTokens: prompt, Hashes: []uint64{}, MaxTokens: output}) == nil {
		r.kick()
	}
}

// kick starts the next step of an engine that has none.
func (r *rank) kick() {
	if r.busy || r.dead || r.node.hung {
		return
	}
	st, ok := r.e.Schedule()
	if !ok {
		return
	}
	r.busy, r.step = true, st
	d := st.Duration + r.shape.extra(&r.node.spec, &st)
	r.node.sim.At(r.node.sim.now+time.Duration(float64(d)*r.node.Slow), r.done)
}

// finish ends a step and hands out its tokens.
func (r *rank) finish() {
	if r.dead {
		return
	}
	if r.node.hung {
		r.late = true
		return
	}
	r.busy, r.fresh = false, 0
	for _, out := range r.e.Finish(r.step) {
		if f, ours := out.Seq.Data.(*flight); ours {
			r.node.sim.output(f, &out)
		}
	}
	r.kick()
}

// abort ends f on behalf of its client.
func (n *Node) abort(f *flight) {
	if f.live {
		r := n.ranks[f.rank]
		r.e.Abort(&f.seq)
		f.live = false
		r.kick()
	}
}
