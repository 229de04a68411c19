package sim

import (
	"errors"
	"math/rand/v2"
	"time"

	"pointsman.dev/pointsman/internal/engine"
	"pointsman.dev/pointsman/internal/route"
)

// Workload is what clients do. It gets the Sim before the first event and asks it to wake it up and to send requests.
type Workload func(*Sim)

// Sim is one simulation. Use New and Run, or step by step: New, Send, At, RunUntil. Not safe for concurrent use.
type Sim struct {
	Rand *rand.Rand // of the workload: every policy sees the same draws as long as it draws at arrivals only

	cfg    Config
	now    time.Duration
	order  uint64
	agenda agenda
	nodes  []*Node
	gates  []*gateway
	where  *rand.Rand // which gateway gets a request
	loss   *rand.Rand // of reports
	free   []*flight
	ids    uint64 // of texts
	tally  *Tally
	sent   uint64
	open   map[uint64]*flight // under way
	sample Sample
}

// New returns a simulation whose workload has started and whose time is 0.
func New(cfg Config) (*Sim, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Sim{cfg: cfg.withDefaults(), open: map[uint64]*flight{}}
	s.Rand = rand.New(rand.NewPCG(cfg.Seed, 9))
	s.where = rand.New(rand.NewPCG(cfg.Seed, 11))
	s.loss = rand.New(rand.NewPCG(cfg.Seed, 12))
	s.tally = newTally(&s.cfg)
	for id := range s.cfg.Gateways {
		s.gates = append(s.gates, newGateway(s, id))
	}
	for i := range s.cfg.Endpoints {
		e := &s.cfg.Endpoints[i]
		n := newNode(s, i, *e)
		s.nodes = append(s.nodes, n)
		if e.Join <= 0 {
			s.join(n)
		}
	}
	for _, n := range s.nodes {
		if at := n.spec.Join; at > 0 {
			s.At(at, func() { s.join(n) })
		}
		s.outages(n)
		if at := n.spec.Leave; at > 0 {
			s.At(at, func() { s.leave(n) })
		}
	}
	s.every(s.cfg.Reports.Every, s.poll)
	s.every(refresh, s.refresh)
	if s.cfg.Sample != nil && s.cfg.SampleEvery > 0 {
		s.every(s.cfg.SampleEvery, s.takeSample)
	}
	if s.cfg.Workload != nil {
		s.cfg.Workload(s)
	}
	return s, nil
}

// Run replays cfg.Workload from its start to the end of its last request, or to the end of the grace.
func Run(cfg Config) (*Result, error) {
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	end := s.cfg.Length + s.cfg.Grace
	for t := time.Second; t < end; t += time.Second {
		s.RunUntil(t)
		if s.cfg.Progress != nil {
			if err := s.cfg.Progress(t); err != nil {
				return nil, err
			}
		}
		if t >= s.cfg.Length && len(s.open) == 0 {
			break
		}
	}
	if len(s.open) > 0 || s.now < s.cfg.Length {
		s.RunUntil(end)
	}
	return s.Result(), nil
}

// every runs do now and at every period.
func (s *Sim) every(period time.Duration, do func()) {
	var next func()
	at := s.now
	next = func() {
		do()
		at += period
		s.At(at, next)
	}
	s.At(at, next)
}

// Now returns the virtual time since the start.
func (s *Sim) Now() time.Duration { return s.now }

// Length returns when arrivals end.
func (s *Sim) Length() time.Duration { return s.cfg.Length }

// NewID returns an id for a text that nobody has sent before. Ids that a workload makes up itself should be 1<<40 or more.
func (s *Sim) NewID() uint64 { s.ids++; return s.ids }

// Nodes returns the endpoints in the order of Config.Endpoints.
func (s *Sim) Nodes() []*Node { return s.nodes }

// Snapshot returns what gateway 0 knows; it changes with every event and must not be changed.
func (s *Sim) Snapshot() *route.Snapshot { return &s.gates[0].snap }

// Bypass gives an endpoint work that comes past every gateway and shares no prefix with anything.
func (s *Sim) Bypass(endpoint, prompt, output int) { s.nodes[endpoint].foreign(prompt, output) }

func (s *Sim) join(n *Node) {
	n.present = true
	if n.spec.Warm {
		s.warm(n)
	}
	for _, g := range s.gates {
		g.join(n.index)
	}
	s.reportOf(n)
}

// warm fills the caches of n from the fullest one that there is.
func (s *Sim) warm(n *Node) {
	var fullest *engine.Engine
	for _, o := range s.nodes {
		for _, r := range o.ranks {
			if fits := r.e.Config().BlockSize == n.spec.Engine.BlockSize; o != n && fits && (fullest == nil || r.e.Stats().CacheBlocks > fullest.Stats().CacheBlocks) {
				fullest = r.e
			}
		}
	}
	for _, r := range n.ranks {
		if fullest != nil {
			r.e.CopyCache(fullest)
		}
	}
}

func (s *Sim) leave(n *Node) {
	n.gone = true
	for _, g := range s.gates {
		g.remove(n.index)
	}
}

func (s *Sim) refresh() {
	for _, g := range s.gates {
		g.tick()
	}
	for _, n := range s.nodes {
		for _, g := range s.gates {
			if n.hung && n.present && !n.gone {
				s.silent(n, g)
			}
		}
	}
	s.tally.watch(s.gates[0])
}

func (s *Sim) poll() {
	for _, n := range s.nodes {
		if n.present {
			s.reportOf(n)
		}
	}
}

// reportOf copies what the metrics page shows to every gateway.
func (s *Sim) reportOf(n *Node) {
	if n.hung {
		return
	}
	var p page
	if !n.Silent {
		st := n.Stats()
		p = page{running: int32(st.Running), waiting: int32(st.Waiting), kv: st.KVUsage}
	}
	p.waiting, p.life = p.waiting+int32(n.Shown), n.life
	for _, g := range s.gates {
		if n.down {
			g.unanswered(n.index)
			continue
		}
		if s.cfg.Reports.Loss > 0 && s.loss.Float64() < s.cfg.Reports.Loss {
			continue
		}
		if s.cfg.Reports.Delay <= 0 {
			g.take(n.index, p)
			continue
		}
		s.After(s.cfg.Reports.Delay, func() {
			if !n.down && n.life == p.life { // else it was lost on its way
				g.take(n.index, p)
			}
		})
	}
}

// Send lets a gateway pick an endpoint for r now. It returns the endpoint, -1 when there is none.
func (s *Sim) Send(r *Request) int {
	s.sent++
	f := s.flight(r)
	f.gate = s.gates[0]
	if len(s.gates) > 1 {
		f.gate = s.gates[s.where.IntN(len(s.gates))]
	}
	f.rec.Gateway = f.gate.id
	f.chain = appendChain(f.chain[:0], r.Parts)
	s.open[f.rec.ID] = f
	if !s.route(f) {
		s.end(f, Refused)
		return -1
	}
	slot := f.pick.Slot
	f.node = s.nodes[slot]
	f.rec.Endpoint, f.rec.Reason, f.rec.Expected = slot, f.pick.Reason, int(f.hit)
	s.tally.picked(f)
	s.tell(f, bookRemote)
	if err := f.node.start(f); err != nil {
		if errors.Is(err, engine.ErrTooLong) {
			s.tally.tooLong++
		}
		f.gate.done(f)
		s.tell(f, releaseRemote)
		s.end(f, Refused)
		return slot
	}
	patience := r.Patience
	if p := s.cfg.Patience; p > 0 && (patience == 0 || p < patience) {
		patience = p
	}
	if patience > 0 {
		f.refs++
		s.After(patience, func() {
			f.refs--
			s.giveUp(f)
		})
	}
	return slot
}

// flight returns a place for a request.
func (s *Sim) flight(r *Request) *flight {
	f := new(flight)
	if n := len(s.free); n > 0 {
		f, s.free = s.free[n-1], s.free[:n-1]
		*f = flight{seq: f.seq, chain: f.chain, hashes: f.hashes, remote: f.remote, tried: f.tried[:0]}
	}
	answer := r.Answer
	if answer == 0 {
		answer = s.NewID()
	}
	f.req, f.flushed = r, s.now
	f.rec = Record{ID: s.sent, Tag: r.Tag, Class: r.Class, At: s.now, SLO: r.SLO, Endpoint: -1, Prompt: Tokens(r.Parts),
		Answer: Part{answer, r.Output}}
	return f
}

// output is one token of a request, or its end.
func (s *Sim) output(f *flight, out *engine.Output) {
	switch {
	case out.First:
		f.rec.First, f.rec.Cached = s.now, out.Cached
		f.gate.firstToken(f)
		s.tell(f, prefillRemote)
		fallthrough
	case out.Index >= 0:
		f.rec.Output++
		f.gate.progress(f)
	}
	if out.Finished == engine.None {
		return
	}
	f.live = false
	f.rec.End, f.rec.Outcome = s.now, Done
	if f.node.spec.Fixed > 0 {
		f.rec.Output = f.req.Output
	}
	f.gate.done(f)
	s.tell(f, releaseRemote)
	s.end(f, Done)
}

// giveUp ends a request whose client has lost patience.
func (s *Sim) giveUp(f *flight) {
	if s.open[f.rec.ID] != f {
		s.recycle(f)
		return
	}
	f.node.abort(f)
	f.rec.End, f.rec.Outcome = s.now, Cancelled
	f.gate.done(f)
	s.tell(f, releaseRemote)
	s.end(f, Cancelled)
}

// end hands out what became of f.
func (s *Sim) end(f *flight, o Outcome) {
	f.rec.Outcome = o
	delete(s.open, f.rec.ID)
	s.tally.count(&f.rec)
	if s.cfg.Sink != nil {
		s.cfg.Sink(&f.rec)
	}
	if f.req.Then != nil {
		f.req.Then(&f.rec)
	}
	f.req = nil
	s.recycle(f)
}

// recycle keeps the memory of a flight that nothing refers to any more.
func (s *Sim) recycle(f *flight) {
	if f.refs == 0 && f.req == nil && len(s.free) < 1024 {
		s.free = append(s.free, f)
	}
}

// Result ends the simulation: requests under way count as unfinished.
func (s *Sim) Result() *Result {
	for id := uint64(1); id <= s.sent && len(s.open) > 0; id++ {
		f := s.open[id]
		if f == nil {
			continue
		}
		f.req.Then = nil
		f.rec.End = 0
		s.end(f, Unfinished)
	}
	return s.tally.result(s)
}
