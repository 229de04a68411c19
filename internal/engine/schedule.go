package engine

// Schedule decides the next step; false when there is nothing to do (idle, paused or asleep) or a step is in flight.
func (e *Engine) Schedule() (Step, bool) {
	if e.inFlight {
		return Step{}, false
	}
	st := Step{ID: e.steps + 1}
	stopped := e.asleep || e.pausing && (e.mode != PauseWait || len(e.running) == 0)
	if !stopped {
		budget := e.cfg.MaxBatchedTokens
		limit := e.chunkLimit()
		st.Evicted, budget = e.scheduleRunning(budget, limit)
		if st.Evicted == 0 && !e.pausing {
			st.Admitted = e.scheduleWaiting(budget, limit)
		}
		e.price(&st)
	}
	if st.Prefill+st.Decodes == 0 {
		if st.Evicted == 0 && len(e.ended) == 0 && (!e.flush || stopped) {
			return Step{}, false
		}
		st.Empty = true
	}
	e.steps++
	e.step, e.inFlight = st, true
	return st, true
}

// chunkLimit is the most tokens that one sequence may compute in this pass. The cap protects others: it does not hold for a
// sequence that is alone.
func (e *Engine) chunkLimit() int {
	if t := e.cfg.LongPrefillThreshold; t > 0 && e.active() > 1 {
		return t
	}
	return e.cfg.MaxModelLen
}

// scheduleRunning gives every running sequence, in order of admission, its next tokens. When blocks run out the sequence
// admitted last (with Config.Priority: the least important) is preempted until they suffice.
func (e *Engine) scheduleRunning(budget, limit int) (evicted, left int) {
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		n := e.chunk(s, s.computed, min(limit, budget))
		if n == 0 {
			continue
		}
		for !e.grow(s, n) {
			v := e.victim()
			victim := e.running[v]
			budget += victim.scheduled
			e.running = append(e.running[:v], e.running[v+1:]...)
			e.preempt(victim)
			evicted++
			if victim == s {
				return evicted, budget
			}
			if v < i {
				i--
			}
		}
		s.scheduled = n
		budget -= n
	}
	return evicted, budget
}

// chunk is how many tokens s computes next, at most limit, with computed tokens behind it.
func (e *Engine) chunk(s *Seq, computed, limit int) int {
	n := min(s.total-computed, limit)
	if !e.cfg.AlignChunks || n <= 1 {
		return n
	}
	bs := e.cfg.BlockSize
	switch last := s.total / bs * bs; {
	case computed+n < last:
		n -= (computed + n) % bs
	case computed < last:
		n = last - computed
	}
	return max(n, 0)
}

func (e *Engine) victim() int {
	worst := len(e.running) - 1
	if e.cfg.Priority {
		for i, s := range e.running {
			if e.running[worst].before(s) {
				worst = i
			}
		}
	}
	return worst
}

// preempt throws the KV of s away (its full blocks stay in the cache until evicted) and puts it at the front of the line.
func (e *Engine) preempt(s *Seq) {
	e.freeBlocks(s)
	s.peak = max(s.peak, s.computed)
	s.computed, s.scheduled = 0, 0
	s.preemptions++
	e.live.Preempted++
	s.status = waiting
	if e.cfg.Priority {
		e.waiting.insertByRank(s)
	} else {
		e.waiting.insert(s, nil)
	}
}

// grow allocates the blocks for n more tokens of s and registers the blocks that they fill; false and no change when there
// are not enough free blocks.
func (e *Engine) grow(s *Seq, n int) bool {
	bs := e.cfg.BlockSize
	need := (s.computed+n+bs-1)/bs - len(s.blocks)
	if need > e.pool.free {
		return false
	}
	for ; need > 0; need-- {
		i, gone, evicted := e.pool.take()
		if evicted && e.cfg.OnBlocks != nil {
			e.cfg.OnBlocks(BlockEvent{Kind: BlockRemoved, Hash: gone})
		}
		s.blocks = append(s.blocks, i)
	}
	if full := min(s.computed+n, s.total) / bs; full > s.stored && e.cfg.PrefixCaching {
		e.register(s, full)
	}
	return true
}

func (e *Engine) register(s *Seq, full int) {
	first := s.stored
	for i := first; i < full; i++ {
		e.pool.store(s.blocks[i], s.BlockHash(i))
	}
	s.stored = full
	if e.cfg.OnBlocks != nil {
		ev := BlockEvent{Kind: BlockStored, Seq: s, First: first, Count: full - first}
		if first > 0 {
			ev.Parent = s.BlockHash(first - 1)
		}
		e.cfg.OnBlocks(ev)
	}
}

// scheduleWaiting admits from the line until the budget, the slots or the blocks are used up. The first that does not fit
// holds everybody behind it; one that lacks an adapter slot steps aside.
func (e *Engine) scheduleWaiting(budget, limit int) (admitted int) {
	e.collectAdapters()
	var aside queue
	for budget > 0 && len(e.running) < e.cfg.MaxNumSeqs {
		q := e.nextQueue()
		s := q.head
		if s == nil || s.notBefore > e.steps+1 && len(e.running) > 0 {
			break
		}
		if !e.adapterFits(s) {
			q.remove(s)
			aside.insert(s, aside.tail)
			s.status = skipped
			continue
		}
		n := e.admit(s, min(limit, budget), q)
		if n == 0 {
			break
		}
		budget -= n
		admitted++
	}
	for s := aside.tail; s != nil; s = aside.tail {
		aside.remove(s)
		e.skipped.insert(s, nil)
	}
	return admitted
}

// nextQueue is the queue whose head is next: those set aside before go first.
func (e *Engine) nextQueue() *queue {
	w, k := e.waiting.head, e.skipped.head
	if k == nil || e.cfg.Priority && w != nil && w.before(k) {
		return &e.waiting
	}
	return &e.skipped
}

func (e *Engine) collectAdapters() {
	e.adapters = e.adapters[:0]
	if e.cfg.MaxLoras == 0 {
		return
	}
	for _, s := range e.running {
		if s.scheduled > 0 && s.Adapter != 0 && !e.hasAdapter(s.Adapter) {
			e.adapters = append(e.adapters, s.Adapter)
		}
	}
}

func (e *Engine) hasAdapter(a int32) bool {
	for _, x := range e.adapters {
		if x == a {
			return true
		}
	}
	return false
}

func (e *Engine) adapterFits(s *Seq) bool {
	return e.cfg.MaxLoras == 0 || s.Adapter == 0 || len(e.adapters) < e.cfg.MaxLoras || e.hasAdapter(s.Adapter)
}

// admit moves s, the head of q, into the batch with its first chunk of at most limit tokens; 0 when it does not fit.
func (e *Engine) admit(s *Seq, limit int, q *queue) int {
	reserve := 0
	if len(e.running) > 0 {
		reserve = int(e.cfg.Watermark * float64(e.cfg.Blocks))
	}
	whole := e.blocksFor(s.total) + reserve
	if h := &s.heldBack; h.valid && whole-h.shared-int(e.pool.gains-h.gains) > e.pool.free {
		return 0
	}
	shared := e.lookUp(s)
	hit := len(e.hits) * e.cfg.BlockSize
	n := e.chunk(s, hit, limit)
	need := whole - shared
	if e.cfg.FirstChunkOnly {
		need = e.blocksFor(hit+n) + reserve - shared
	}
	if n == 0 || need > e.pool.free {
		s.heldBack = heldBack{valid: n > 0 && !e.cfg.FirstChunkOnly, shared: shared, gains: e.pool.gains}
		return 0
	}
	q.remove(s)
	for _, b := range e.hits {
		e.pool.touch(b)
		s.blocks = append(s.blocks, b)
	}
	s.stored, s.computed = len(e.hits), hit
	e.grow(s, n)
	s.status, s.scheduled, s.heldBack = running, n, heldBack{}
	e.running = append(e.running, s)
	if s.Adapter != 0 && e.cfg.MaxLoras > 0 && !e.hasAdapter(s.Adapter) {
		e.adapters = append(e.adapters, s.Adapter)
	}
	if !s.admitted {
		s.admitted, s.cached = true, hit
		if e.cfg.PrefixCaching && !s.NoCache {
			e.live.Queries += uint64(s.total)
			e.live.Hits += uint64(hit)
		}
	}
	return n
}

func (e *Engine) blocksFor(tokens int) int { return (tokens + e.cfg.BlockSize - 1) / e.cfg.BlockSize }

// lookUp fills e.hits with the leading blocks of s that are cached, short of its last token: that one is always computed. It
// returns how many of them others hold now; those cost no free block.
func (e *Engine) lookUp(s *Seq) (shared int) {
	e.hits = e.hits[:0]
	if !e.cfg.PrefixCaching || s.NoCache {
		return 0
	}
	for i, most := 0, (s.total-1)/e.cfg.BlockSize; i < most; i++ {
		b := e.pool.find(s.BlockHash(i))
		if b == 0 {
			break
		}
		if e.pool.blocks[b].ref > 0 {
			shared++
		}
		e.hits = append(e.hits, b)
	}
	return shared
}

// price totals the step and asks the profile for its duration.
func (e *Engine) price(st *Step) {
	attention := 0.0
	for _, s := range e.running {
		n := s.scheduled
		switch {
		case n == 0:
		case n == 1 && s.outputs > 0 && s.computed+1 == s.total:
			st.Decodes++
			st.Context += int64(s.total)
		default:
			st.Prefill += n
			attention += float64(n) * (float64(s.computed) + float64(n)/2)
			if again := min(s.peak, s.computed+n) - s.computed; again > 0 {
				e.live.Recomputed += uint64(again)
			}
		}
	}
	if st.Decodes+st.Prefill > 0 {
		st.Duration = e.cfg.Profile.Duration(st.Decodes, st.Context, st.Prefill, attention)
	}
	e.live.Prefilled += uint64(st.Prefill)
	e.live.Busy += st.Duration
}
