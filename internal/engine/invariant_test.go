package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// check fails when the engine's books do not balance: blocks conserved, nothing negative, nobody in two places.
func check(e *Engine) error {
	if err := checkPool(e); err != nil {
		return err
	}
	held := make([]int32, e.cfg.Blocks)
	seen := map[*Seq]bool{}
	backlog, scheduled := 0, 0
	visit := func(s *Seq, want status) error {
		switch {
		case seen[s]:
			return fmt.Errorf("sequence %d is in two places", s.arrival)
		case s.status != want:
			return fmt.Errorf("sequence %d: status %d in the place of %d", s.arrival, s.status, want)
		case want != running && len(s.blocks) > 0:
			return fmt.Errorf("sequence %d waits and holds %d blocks", s.arrival, len(s.blocks))
		case s.computed < 0 || s.computed > s.total || s.total > e.cfg.MaxModelLen:
			return fmt.Errorf("sequence %d: computed %d of %d, window %d", s.arrival, s.computed, s.total, e.cfg.MaxModelLen)
		case len(s.blocks)*e.cfg.BlockSize < s.computed+s.scheduled:
			return fmt.Errorf("sequence %d: %d blocks for %d tokens", s.arrival, len(s.blocks), s.computed+s.scheduled)
		case s.stored > len(s.blocks) || s.outputs > s.maxOut:
			return fmt.Errorf("sequence %d: stored %d of %d blocks, output %d of %d", s.arrival, s.stored, len(s.blocks), s.outputs, s.maxOut)
		}
		seen[s] = true
		scheduled += s.scheduled
		if s.outputs == 0 {
			backlog += s.PromptTokens
		}
		for _, b := range s.blocks {
			held[b]++
		}
		return nil
	}
	for _, s := range e.running {
		if err := visit(s, running); err != nil {
			return err
		}
	}
	for status, q := range map[status]*queue{waiting: &e.waiting, skipped: &e.skipped} {
		n := 0
		for s := q.head; s != nil; s = s.next {
			n++
			if err := visit(s, status); err != nil {
				return err
			}
			if s.next == nil && q.tail != s || s.next != nil && s.next.prev != s {
				return fmt.Errorf("queue of status %d is torn", status)
			}
		}
		if n != q.n {
			return fmt.Errorf("queue of status %d counts %d, holds %d", status, q.n, n)
		}
	}
	for i, b := range e.pool.blocks {
		if b.ref != held[i] {
			return fmt.Errorf("block %d: %d holders booked, %d hold it", i, b.ref, held[i])
		}
	}
	switch {
	case len(e.running) > e.cfg.MaxNumSeqs:
		return fmt.Errorf("%d running, limit %d", len(e.running), e.cfg.MaxNumSeqs)
	case scheduled > e.cfg.MaxBatchedTokens:
		return fmt.Errorf("%d tokens scheduled, budget %d", scheduled, e.cfg.MaxBatchedTokens)
	case e.backlog != backlog:
		return fmt.Errorf("backlog %d, should be %d", e.backlog, backlog)
	}
	return checkCounters(e)
}

func checkCounters(e *Engine) error {
	for _, s := range []Stats{e.live, e.seen} {
		switch {
		case s.Hits > s.Queries, s.Prompt != s.PromptHit+s.PromptLocal, s.Preemptions > s.Preempted, s.Recomputed > s.Prefilled:
			return fmt.Errorf("counters contradict each other: %+v", s)
		case s.KVUsage < 0 || s.KVUsage > 1 || s.Running < 0 || s.Waiting != s.Capacity+s.Deferred:
			return fmt.Errorf("gauges out of range: %+v", s)
		}
	}
	if e.seen.Generated > e.live.Generated || e.seen.Queries > e.live.Queries {
		return fmt.Errorf("published counters are ahead")
	}
	return nil
}

func checkPool(e *Engine) error {
	p := e.pool
	n, last := 0, int32(0)
	for i := p.blocks[0].next; i != 0; i = p.blocks[i].next {
		if p.blocks[i].ref != 0 || p.blocks[i].prev != last {
			return fmt.Errorf("free list: block %d has %d holders, prev %d", i, p.blocks[i].ref, p.blocks[i].prev)
		}
		last = i
		if n++; n > len(p.blocks) {
			return fmt.Errorf("free list is a circle")
		}
	}
	inUse := 0
	for _, b := range p.blocks[1:] {
		if b.ref > 0 {
			inUse++
		}
	}
	if n != p.free || n+inUse != len(p.blocks)-1 || inUse != p.used() {
		return fmt.Errorf("blocks not conserved: %d free (counted %d) + %d in use of %d", p.free, n, inUse, len(p.blocks)-1)
	}
	cached := 0
	for h, first := range p.byHash {
		for i := first; ; {
			b := p.blocks[i]
			if cached++; cached > len(p.blocks) || !b.cached || b.hash != h || p.blocks[b.dupNext].dupPrev != i {
				return fmt.Errorf("ring of hash %x is torn at block %d", h, i)
			}
			if i = b.dupNext; i == first {
				break
			}
		}
	}
	if cached != p.cached {
		return fmt.Errorf("%d blocks cached, counted %d", p.cached, cached)
	}
	return nil
}

// configs are small engines that hit every limit often.
func configs() []Config {
	base := Config{Blocks: 40, BlockSize: 4, MaxNumSeqs: 6, MaxBatchedTokens: 24, MaxModelLen: 120, PrefixCaching: true, Vocab: 50}
	with := func(f func(*Config)) Config { c := base; f(&c); return c }
	return []Config{
		base,
		with(func(c *Config) { c.PrefixCaching = false }),
		with(func(c *Config) { c.FirstChunkOnly = true }),
		with(func(c *Config) { c.Priority = true }),
		with(func(c *Config) { c.MaxLoras = 1; c.Watermark = 0.1 }),
		with(func(c *Config) { c.LongPrefillThreshold = 5; c.AlignChunks = true }),
		with(func(c *Config) { c.MaxQueuedReqs = 9; c.MaxQueuedTokens = 60; c.AsyncScheduling = true }),
		with(func(c *Config) { c.Blocks = 31; c.Priority = true; c.FirstChunkOnly = true; c.MaxLoras = 2 }),
	}
}

// world drives one engine with random operations and remembers what must come out of it.
type world struct {
	e      *Engine
	rnd    *rand.Rand
	active []*Seq
	ended  int
	order  []uint64 // arrivals in order of first admission
	seen   map[*Seq]bool
	forget bool // drop the held-back notes before every pass
}

func (w *world) newSeq() *Seq {
	s := &Seq{MaxTokens: w.rnd.IntN(40), StopAfter: w.rnd.IntN(30), Salt: uint64(w.rnd.IntN(3) / 2), Adapter: int32(w.rnd.IntN(4)), Priority: int32(w.rnd.IntN(3)), NoCache: w.rnd.IntN(10) == 0}
	n := 1 + w.rnd.IntN(90)
	family := w.rnd.IntN(4)
	for i := range n {
		s.Tokens = append(s.Tokens, uint32(family*1000+i))
		if i > 60 {
			s.Tokens[i] += uint32(w.rnd.IntN(2) * 500)
		}
	}
	return s
}

func (w *world) add() error {
	seqs := []*Seq{w.newSeq()}
	if w.rnd.IntN(5) == 0 {
		seqs = append(seqs, w.newSeq())
	}
	if err := w.e.Add(seqs...); err == nil {
		w.active = append(w.active, seqs...)
	} else if w.e.cfg.MaxQueuedReqs == 0 && w.e.cfg.MaxQueuedTokens == 0 {
		return err
	}
	return nil
}

func (w *world) drop(s *Seq) {
	for i, a := range w.active {
		if a == s {
			w.active = append(w.active[:i], w.active[i+1:]...)
			return
		}
	}
}

// step runs one pass and its end; in between it may add and abort.
func (w *world) step() (bool, error) {
	if w.forget {
		for _, s := range w.active {
			s.heldBack = heldBack{}
		}
	}
	st, ok := w.e.Schedule()
	if !ok {
		return false, nil
	}
	if st.Evicted > 0 && st.Admitted > 0 {
		return true, fmt.Errorf("%d admitted in a step with %d preemptions", st.Admitted, st.Evicted)
	}
	for _, s := range w.e.running {
		if !w.seen[s] {
			w.seen[s] = true
			w.order = append(w.order, s.arrival)
		}
	}
	if err := check(w.e); err != nil {
		return true, fmt.Errorf("after schedule: %w", err)
	}
	switch w.rnd.IntN(6) {
	case 0:
		if err := w.add(); err != nil {
			return true, err
		}
	case 1:
		w.abort()
	}
	for _, o := range w.e.Finish(st) {
		if o.First != (o.Index == 0) || o.Cached >= max(o.Seq.PromptTokens, 1) {
			return true, fmt.Errorf("output %+v contradicts itself", o)
		}
		if o.Finished != None {
			w.drop(o.Seq)
			w.ended++
		}
	}
	return true, nil
}

func (w *world) abort() {
	if len(w.active) == 0 {
		return
	}
	s := w.active[w.rnd.IntN(len(w.active))]
	w.e.Abort(s)
	w.drop(s)
}

func (w *world) operate(op int) error {
	switch {
	case op < 35:
		return w.add()
	case op < 38:
		w.abort()
	case op < 39:
		w.e.ResetPrefixCache()
	case op < 40:
		w.e.Pause(PauseMode(w.rnd.IntN(3)))
	case op < 41:
		w.e.Sleep()
	case op < 45:
		w.e.Resume()
	default:
		_, err := w.step()
		return err
	}
	return nil
}

func drive(cfg Config, seed uint64, ops int, forget bool) (*world, error) {
	w := &world{e: New(cfg), rnd: rand.New(rand.NewPCG(seed, 1)), seen: map[*Seq]bool{}, forget: forget}
	for i := range ops {
		if err := w.operate(w.rnd.IntN(100)); err != nil {
			return w, fmt.Errorf("operation %d: %w", i, err)
		}
		if err := check(w.e); err != nil {
			return w, fmt.Errorf("after operation %d: %w", i, err)
		}
	}
	w.e.Resume()
	for i := 0; len(w.active) > 0; i++ {
		more, err := w.step()
		if err != nil {
			return w, err
		}
		if !more || i > 100000 {
			return w, fmt.Errorf("%d sequences never end", len(w.active))
		}
	}
	return w, check(w.e)
}

// Whatever happens, the books balance after every operation, and every sequence that was neither aborted nor refused ends.
func TestInvariantsUnderRandomOperations(t *testing.T) {
	var preempted, hits uint64
	for i, cfg := range configs() {
		for seed := range uint64(60) {
			w, err := drive(cfg, seed, 300, false)
			if err != nil {
				t.Fatalf("config %d seed %d: %v", i, seed, err)
			}
			if !w.e.Idle() || w.e.pool.used() != 0 || w.e.backlog != 0 {
				t.Fatalf("config %d seed %d: not empty at the end", i, seed)
			}
			preempted += w.e.live.Preempted
			hits += w.e.live.Hits
		}
	}
	if preempted < 1000 || hits < 10000 {
		t.Errorf("the runs are too tame to mean anything: %d preemptions, %d hit tokens", preempted, hits)
	}
}

// Without priorities and adapters, sequences enter the batch for the first time in the order in which they came.
func TestFirstAdmissionIsInOrderOfArrival(t *testing.T) {
	for seed := range uint64(60) {
		w, err := drive(configs()[0], seed, 300, false)
		if err != nil {
			t.Fatal(err)
		}
		for i := 1; i < len(w.order); i++ {
			if w.order[i] < w.order[i-1] {
				t.Fatalf("seed %d: arrival %d entered after %d", seed, w.order[i], w.order[i-1])
			}
		}
	}
}

// Skipping the look-up of a held-back head of the line never changes a decision.
func TestHeldBackNoteChangesNothing(t *testing.T) {
	for i, cfg := range configs() {
		for seed := range uint64(40) {
			a, errA := drive(cfg, seed, 300, false)
			b, errB := drive(cfg, seed, 300, true)
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			if diff := cmp.Diff(a.e.Stats(), b.e.Stats()); diff != "" {
				t.Fatalf("config %d seed %d (-with +without):\n%s", i, seed, diff)
			}
		}
	}
}

func FuzzEngine(f *testing.F) {
	for i := range configs() {
		f.Add(uint8(i), uint64(i), uint16(200))
	}
	f.Fuzz(func(t *testing.T, config uint8, seed uint64, ops uint16) {
		cs := configs()
		if _, err := drive(cs[int(config)%len(cs)], seed, int(ops%2000), false); err != nil {
			t.Fatal(err)
		}
	})
}
