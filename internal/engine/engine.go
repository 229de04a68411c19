package engine

import "errors"

// Refusals of Add. The first two are the model server's 503 answers (queue full, prefill token backlog); the others are
// caller errors that its front end answers with 400.
var (
	ErrQueueFull = errors.New("adding sequence: too many requests wait or run")
	ErrBacklog   = errors.New("adding sequence: too many prompt tokens wait for prefill")
	ErrTooLong   = errors.New("adding sequence: the prompt leaves no room for a token in the window")
	ErrEmpty     = errors.New("adding sequence: the prompt is empty")
	ErrActive    = errors.New("adding sequence: it was added before and has not ended")
)

// Engine is one engine; create it with New. See the package comment for ownership.
type Engine struct {
	cfg  Config
	pool *blockPool

	running []*Seq // in order of admission
	waiting queue
	skipped queue // deferred: they wait for an adapter slot, not for capacity

	steps    uint64
	inFlight bool
	step     Step
	flush    bool // gauges are behind: something ended outside a step
	ended    []*Seq
	outputs  []Output

	pausing   bool // Pause was called
	mode      PauseMode
	pauseNow  bool // a pause or sleep must still be carried out when the step ends
	asleep    bool
	sleepNext bool

	arrivals uint64 // sequences added
	unique   uint64 // block hashes made up
	backlog  int    // prompt tokens of sequences without a first token
	live     Stats  // counters as they happen
	seen     Stats  // as published by the last step

	hits     []int32 // look-up result, reused
	adapters []int32 // adapters of the pass, reused
}

// New returns an idle engine with an empty cache. Zero fields of cfg take their defaults; a window larger than the blocks hold
// is cut to what they hold. Check cfg with Validate where it comes from a user: New does not.
func New(cfg Config) *Engine {
	cfg = cfg.withDefaults()
	return &Engine{cfg: cfg, pool: newBlockPool(cfg.Blocks)}
}

// Config returns the configuration with the defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Add queues sequences that belong to one request (one, or its n answers): all or none. It refuses with one of the Err values,
// unwrapped. As in the model server the limits look at what is there before this request: a prompt larger than
// MaxQueuedTokens is taken when the backlog is below it.
func (e *Engine) Add(seqs ...*Seq) error {
	for i, s := range seqs {
		if s.Tokens != nil {
			s.PromptTokens = len(s.Tokens)
		}
		switch {
		case s.status != idle || containsSeq(seqs[:i], s):
			return ErrActive
		case s.PromptTokens <= 0:
			return ErrEmpty
		case s.PromptTokens >= e.cfg.MaxModelLen:
			return ErrTooLong
		}
	}
	if m := e.cfg.MaxQueuedReqs; m > 0 && e.active()+len(seqs) > m {
		e.live.RefusedQueue++
		return ErrQueueFull
	}
	if m := e.cfg.MaxQueuedTokens; m > 0 && e.backlog >= m {
		e.live.RefusedBacklog++
		return ErrBacklog
	}
	for _, s := range seqs {
		e.enqueue(s)
	}
	return nil
}

func containsSeq(seqs []*Seq, s *Seq) bool {
	for _, t := range seqs {
		if t == s {
			return true
		}
	}
	return false
}

func (e *Engine) enqueue(s *Seq) {
	e.arrivals++
	s.reset(e)
	s.maxOut = e.cfg.MaxModelLen - s.PromptTokens
	if s.MaxTokens > 0 {
		s.maxOut = min(s.maxOut, s.MaxTokens)
	}
	if e.cfg.AsyncScheduling && e.inFlight {
		s.notBefore = e.steps + 2
	}
	e.backlog += s.PromptTokens
	s.status = waiting
	if e.cfg.Priority {
		e.waiting.insertByRank(s)
	} else {
		e.waiting.insert(s, e.waiting.tail)
	}
}

// Abort ends s on behalf of its client: no further Output, its blocks are free before the next Schedule decides, and it is not
// booked as done. It reports whether s was active.
func (e *Engine) Abort(s *Seq) bool {
	if s.status == idle {
		return false
	}
	e.end(s)
	e.flush = true
	return true
}

// end takes s out of wherever it is, and frees what it holds.
func (e *Engine) end(s *Seq) {
	switch s.status {
	case waiting:
		e.waiting.remove(s)
	case skipped:
		e.skipped.remove(s)
	case running:
		for i, r := range e.running {
			if r == s {
				e.running = append(e.running[:i], e.running[i+1:]...)
				break
			}
		}
		e.freeBlocks(s)
	}
	e.forget(s)
}

// forget drops the last trace of s outside the queues and the batch.
func (e *Engine) forget(s *Seq) {
	if s.outputs == 0 {
		e.backlog -= s.PromptTokens
	}
	s.status = idle
	s.scheduled = 0
}

// freeBlocks gives the blocks back tail first, so that the tail is evicted first.
func (e *Engine) freeBlocks(s *Seq) {
	for i := len(s.blocks) - 1; i >= 0; i-- {
		e.pool.release(s.blocks[i])
	}
	s.blocks = s.blocks[:0]
	s.stored = 0
}

func (e *Engine) active() int { return len(e.running) + e.waiting.n + e.skipped.n }

// Idle reports whether no sequence waits or runs.
func (e *Engine) Idle() bool { return e.active() == 0 }

// Stats returns the gauges and counters as of the last finished step; refusals are counted at once.
func (e *Engine) Stats() Stats {
	s := e.seen
	s.RefusedQueue, s.RefusedBacklog = e.live.RefusedQueue, e.live.RefusedBacklog
	return s
}

// publish makes the gauges and counters of this moment visible.
func (e *Engine) publish() {
	e.flush = false
	e.live.Steps = e.steps
	e.live.Running = len(e.running)
	e.live.Capacity, e.live.Deferred = e.waiting.n, e.skipped.n
	e.live.Waiting = e.waiting.n + e.skipped.n
	e.live.UsedBlocks = e.pool.used()
	e.live.CacheBlocks = e.pool.cached
	e.live.KVUsage = float64(e.pool.used()) / float64(e.cfg.Blocks-1)
	e.live.Evicted = e.pool.evicted
	e.seen = e.live
}
