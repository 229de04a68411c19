package sim

import (
	"math/rand/v2"
	"time"

	"pointsman.dev/pointsman/internal/books"
	"pointsman.dev/pointsman/internal/health"
	"pointsman.dev/pointsman/internal/ledger"
	"pointsman.dev/pointsman/internal/prefix"
	"pointsman.dev/pointsman/internal/route"
)

const (
	epoch   = time.Hour              // the gateway's clock at the start: around zero means "never" to the health machine
	refresh = 100 * time.Millisecond // how often everything that time changes is brought up to date

	flushTokens = 32 // tokens of a stream that reach the books together,
	flushEvery  = 200 * time.Millisecond
)

// gateway is one replica of the gateway: the books of its pool. It follows package pool step by step; only what
// has no meaning here (names, models, locks, logs) is missing.
type gateway struct {
	sim   *Sim
	id    int
	snap  route.Snapshot
	slots []*slot
	books *ledger.Ledger
	index *prefix.Index
	avg   route.Averages
	ties  func() uint64

	raw, hits []int32
	exclude   []uint64
	scratch   []uint64
	stale     time.Duration // age from which a report counts no more
	view      View
	picked    uint64
	active    []map[uint64]int32 // per slot: how many in flight share a block; nil unless the policy wants it
	unique    []int64
	fresh     []int64
}

// slot is what a gateway knows of one endpoint.
type slot struct {
	machine  *health.Machine
	learn    route.Learner
	fit      route.CapacityLearner
	capacity int64           // bytes last given to the index
	promises prefix.Promises // of requests without a first token
	leaving  bool
	probing  bool // its /health was asked and has not answered yet
	life     int  // of the process that reported last

	hasRep           bool
	repAt            time.Duration
	running, waiting int32
	kv               float64
	foreign          ledger.Foreign
}

func newGateway(s *Sim, id int) *gateway {
	g := &gateway{sim: s, id: id, books: ledger.New(), index: prefix.NewIndex(),
		ties: rand.New(rand.NewPCG(s.cfg.Seed, 1000+uint64(id))).Uint64}
	if id == 0 && s.cfg.Ties != nil {
		g.ties = s.cfg.Ties
	}
	g.snap.Params = route.DefaultParams()
	g.snap.Params.Coeff = s.cfg.Coefficients
	g.snap.Params.BytesPerToken = bytesPerToken
	if p := s.cfg.Policy.Params; p != nil {
		p(&g.snap.Params)
	}
	if s.cfg.Params != nil {
		s.cfg.Params(&g.snap.Params)
	}
	g.stale = max(10*s.cfg.Reports.Every, 2*time.Second)
	return g
}

func (g *gateway) now() time.Duration { return g.sim.now + epoch }

// add gives the next node a slot.
func (g *gateway) add() {
	i := len(g.slots)
	g.slots = append(g.slots, &slot{machine: health.New(g.now()), learn: route.Learner{Pool: &g.avg}, kv: -1})
	g.snap.Endpoints = append(g.snap.Endpoints, route.Endpoint{})
	g.raw, g.hits = append(g.raw, 0), append(g.hits, 0)
	if i%64 == 0 {
		g.exclude = append(g.exclude, 0)
	}
	if g.sim.cfg.Policy.Blocks {
		g.active = append(g.active, map[uint64]int32{})
		g.unique, g.fresh = append(g.unique, 0), append(g.fresh, 0)
	}
	g.touch(i)
}

// join makes slot i one that may be picked. Slots before it of endpoints that have not joined may not.
func (g *gateway) join(i int) {
	for len(g.slots) <= i {
		g.add()
		g.set(len(g.slots)-1, true)
	}
	g.slots[i].machine = health.New(g.now())
	g.set(i, false)
	g.touch(i)
}

// set says whether slot i is left out of the picks.
func (g *gateway) set(i int, out bool) {
	bit := uint64(1) << (i & 63)
	g.exclude[i>>6] &^= bit
	if out {
		g.exclude[i>>6] |= bit
	}
}

// remove stops new requests to an endpoint.
func (g *gateway) remove(i int) {
	g.slots[i].leaving = true
	g.slots[i].machine.Draining(g.now())
	g.set(i, true)
	g.index.Clear(i)
	g.touch(i)
}

// tick brings everything up to date that the passing of time changes.
func (g *gateway) tick() {
	g.avg.Apply(&g.snap.Params)
	g.snap.Params.BytesPerToken = bytesPerToken
	g.snap.Regret = g.index.Regret()
	for i := range g.slots {
		g.touch(i)
	}
}

// touch brings the snapshot's view of one slot up to date.
func (g *gateway) touch(i int) {
	s, n, now := g.slots[i], g.sim.nodes[i], g.now()
	known := s.hasRep && now-s.repAt <= g.stale
	e := route.Endpoint{
		Admission: uint8(s.machine.Admission(now)), Penalty: s.machine.Preference(now), Known: known, KVUsage: -1,
		Kappa: s.learn.Kappa(now), Rho: s.learn.Rho(now),
	}
	if known {
		e.Running, e.Waiting, e.KVUsage = s.running, s.waiting, s.kv
		e.ForeignRunning, e.ForeignWaiting = s.foreign.Load-s.foreign.Waiting, s.foreign.Waiting
	}
	if s.hasRep {
		c := n.ranks[0].e.Config()
		e.BlockSize, e.CapacityTokens = int32(c.BlockSize), n.capacity()
		e.MaxNumSeqs = int32(c.MaxNumSeqs * len(n.ranks))
	}
	e.Load, e.AtReport = books.Load(g.books.Load(i)), books.Load(g.books.AtMark(i))
	_, held := g.index.Held(i)
	e.HeldTokens = held / bytesPerToken
	g.snap.Endpoints[i] = e
}

// page is what an endpoint shows of itself.
type page struct {
	running, waiting int32
	kv               float64
	life             int // of the process
}

// take makes p the report of slot i.
func (g *gateway) take(i int, p page) {
	s, now := g.slots[i], g.now()
	s.machine.Report(now, true)
	if s.leaving {
		g.touch(i)
		return
	}
	alone := !s.hasRep || now-s.repAt > 500*time.Millisecond
	if s.hasRep && p.life != s.life {
		g.restarted(i)
		alone = true
	}
	s.life = p.life
	s.hasRep, s.repAt = true, now
	s.running, s.waiting, s.kv = p.running, p.waiting, p.kv
	s.foreign.Reported(int64(p.running)+int64(p.waiting), p.waiting, g.books.Load(i).Decoding, alone)
	g.books.Mark(i, now)
	g.fit(i)
	g.touch(i)
}

// fit tells the index how much the endpoint can hold.
func (g *gateway) fit(i int) {
	s := g.slots[i]
	size := int64(float64(g.sim.nodes[i].capacity()*bytesPerToken) * s.fit.Share())
	s.capacity = books.Resize(g.index, i, s.capacity, size)
}

// pick chooses an endpoint for f and books it; false when there is none.
func (g *gateway) pick(f *flight) bool {
	f.prompt = int32(max(1, f.rec.Prompt))
	hits := g.predict(f)
	f.answer = int32(g.avg.Output(int(f.prompt), f.req.MaxTokens))
	req := route.Request{PromptTokens: f.prompt, MaxTokens: int32(f.req.MaxTokens), OutputTokens: f.answer}
	rnd := g.ties()
	if choose := g.sim.cfg.Policy.Choose; choose != nil {
		f.pick = g.baseline(choose, &req, hits, f, rnd)
	} else {
		f.pick = route.Choose(&g.snap, &req, hits, g.excluded(f), rnd)
	}
	if f.pick.Slot < 0 {
		return false
	}
	f.hit, f.promise = 0, prefix.Promise{Chain: f.chain}
	if hits != nil {
		f.hit, f.promise.Held = f.pick.HitTokens, g.raw[f.pick.Slot]
	}
	g.book(f)
	return true
}

// predict returns the tokens of the prompt that each slot holds; nil when prefixes do not count.
func (g *gateway) predict(f *flight) []int32 {
	if g.snap.Params.Policy != route.Prefix {
		return nil
	}
	g.index.Hits(f.chain, g.raw)
	for i, bytes := range g.raw {
		g.hits[i] = min(bytes/bytesPerToken, f.prompt-1)
	}
	return g.hits
}

// book enters f at its slot.
func (g *gateway) book(f *flight) {
	i, now := f.pick.Slot, g.now()
	s, e := g.slots[i], &g.snap.Endpoints[i]
	f.unsure = s.promises.Unsure(f.chain, f.promise.Held)
	s.foreign.Booked(1)
	f.ticket = g.books.Book(i, int(f.prompt), int(f.prompt-f.hit), int(f.answer), now)
	if e.Admission == route.Trial {
		s.machine.Trying(now)
	}
	s.machine.Booked(now, books.Expected(&f.pick, e, &g.snap.Params, 1))
	s.learn.BookWork(f.pick.Work, now)
	g.credit(i, &f.promise)
	g.occupy(i, f.chain, 1)
	g.touch(i)
}

// credits reports whether a chain picked for slot i counts as held there.
func (g *gateway) credits(i int, chain []prefix.Block) bool {
	return len(chain) > 0 && g.snap.Params.Policy == route.Prefix && g.sim.nodes[i].caches() && !g.slots[i].leaving
}

// credit counts the chain of a request, this gateway's or another one's, as held by slot i, until it shows that its prompt is not computed.
func (g *gateway) credit(i int, p *prefix.Promise) {
	if p.Credited = g.credits(i, p.Chain); p.Credited {
		g.index.Insert(i, p.Chain, g.now())
	}
	g.slots[i].promises.Add(p)
}

// firstToken records that the prompt of f is computed.
func (g *gateway) firstToken(f *flight) {
	i, now := f.pick.Slot, g.now()
	s := g.slots[i]
	g.books.Prefilled(f.ticket, now)
	f.promise.Keep()
	s.learn.ObserveTTFT((f.rec.First - f.rec.At).Seconds(), f.pick.Predicted, now)
	s.machine.Succeeded(now, f.rec.First-f.rec.At)
	s.machine.Progress(now)
	g.touch(i)
}

// progress records one more token, now and then.
func (g *gateway) progress(f *flight) {
	f.pending++
	if f.pending < flushTokens && g.sim.now-f.flushed < flushEvery {
		return
	}
	g.flush(f)
	g.touch(f.pick.Slot)
}

func (g *gateway) flush(f *flight) {
	f.flushed = g.sim.now
	if f.pending > 0 {
		g.books.Streamed(f.ticket, f.pending)
		g.slots[f.pick.Slot].machine.Progress(g.now())
		g.sim.tellOutput(f)
		f.pending = 0
	}
}

// done takes f off the books.
func (g *gateway) done(f *flight) {
	i, now := f.pick.Slot, g.now()
	s := g.slots[i]
	g.flush(f)
	f.promise.Break(g.index, i)
	if f.rec.Outcome == Done {
		g.learn(f)
	}
	g.books.Release(f.ticket)
	g.occupy(i, f.chain, -1)
	s.foreign.Released(1)
	s.machine.Released(now)
	g.touch(i)
}

// learn updates averages and corrects what is believed of the endpoint's cache.
func (g *gateway) learn(f *flight) {
	g.avg.ObserveResidence((g.sim.now - f.rec.At).Seconds())
	g.avg.ObserveOutput(int(f.prompt), f.rec.Output)
	if f.promise.Credited && !f.unsure {
		i := f.pick.Slot
		g.slots[i].fit.Observe(int(f.hit), f.rec.Cached, int(g.snap.Endpoints[i].BlockSize))
		g.fit(i)
	}
}
